"""`python3 -m mha_lesson.benchmark`."""

import sys

from mha_lesson.benchmark.command import main

if __name__ == "__main__":
    sys.exit(main())
