"""The fixed surroundings in which notebooks are run, stored and compared."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from mha_lesson.course import bootstrap

ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def private(folder, base=None):
    """Environment variables with which programs write into `folder` what they else write into your home.

    It may not be writable (a container that runs under another user's number), and Matplotlib and
    Jupyter then print warnings, or do not start. Nor does your own matplotlibrc take part.
    """
    environment = dict(os.environ if base is None else base)
    places = {"IPYTHONDIR": "ipython", "MPLCONFIGDIR": "matplotlib", "JUPYTER_RUNTIME_DIR": "runtime"}
    environment.update({name: str(Path(folder) / place) for name, place in places.items()})
    environment.pop("MATPLOTLIBRC", None)
    return environment


def fixed(folder, base=None):
    """Environment variables for a run whose outputs are to come out the same everywhere."""
    environment = private(folder, base)
    # One thread: the order of sums stays the same, and small models train much faster
    # on a busy machine than with two.
    environment.update(dict.fromkeys(ONE_THREAD, "1"))
    environment.update(
        {
            "PYTHONHASHSEED": "0",
            "PYTHONUTF8": "1",
            "PYTHONPATH": bootstrap.course_first(environment.get("PYTHONPATH")),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # a warning of the debugger on stderr
            # Nobody's own progress and nobody's own start-up files take part.
            "MHA_LESSON_PROGRESS": os.devnull,
            "JUPYTER_PREFER_ENV_PATH": "1",
        }
    )
    environment.pop("MPLBACKEND", None)  # then a kernel draws inline
    return environment


def build_font_cache(variables):
    """Let Matplotlib look for the fonts now: where that takes long, it says so in the middle of a lesson."""
    if importlib.util.find_spec("matplotlib"):
        command = [sys.executable, "-c", "import matplotlib.font_manager"]
        subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
