"""`mha_lesson.benchmark` works without torch and loads NumPy late."""

import subprocess
import sys

from mha_lesson.course.paths import ROOT
from tests.benchmark.helpers import TINY


def test_works_without_torch_and_loads_numpy_late():
    """In a process of its own, where torch cannot be imported and NumPy is not yet."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from mha_lesson.benchmark import main\n"
        "assert 'numpy' not in sys.modules\n"
        "import mha_lesson.benchmark\n"
        "assert set(mha_lesson.benchmark.__all__) <= set(dir(mha_lesson.benchmark))\n"
        "assert 'numpy' not in sys.modules and 'mha_lesson.data' not in sys.modules\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    started = [sys.executable, "-c", code, *TINY, "--sizes", "11", "--no-weigh"]
    done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "torch not installed" in done.stdout
    assert "the base is a form in NumPy" in done.stdout
    assert "torch SDPA" not in done.stdout
