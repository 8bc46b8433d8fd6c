"""The fixed surroundings in which notebooks are run, stored and compared."""

import os

from mha_lesson.course import bootstrap

ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def fixed(ipython_dir, base=None):
    """Environment variables for a run whose outputs are to come out the same everywhere."""
    environment = dict(os.environ if base is None else base)
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
            "IPYTHONDIR": str(ipython_dir),
            "JUPYTER_PREFER_ENV_PATH": "1",
        }
    )
    environment.pop("MPLBACKEND", None)  # then a kernel draws inline
    environment.pop("MATPLOTLIBRC", None)
    return environment
