"""Train the small models again: `python3 -m mha_lesson.models NAME`."""

import sys

from mha_lesson.models.command import main

sys.exit(main())
