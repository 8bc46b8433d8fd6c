"""Settings for all tests, made before anything is imported."""

import faulthandler
import importlib.util
import os
import sys

# A test never touches your own progress file, opens no window, and uses one thread
# (the same order of sums everywhere, and faster on a busy machine).
os.environ["MHA_LESSON_PROGRESS"] = os.devnull
os.environ["MPLBACKEND"] = "Agg"
for name in ("OMP_NUM", "MKL_NUM", "OPENBLAS_NUM", "NUMEXPR_NUM", "VECLIB_MAXIMUM"):
    os.environ[f"{name}_THREADS"] = "1"

import pytest  # noqa: E402

HANGS = 900  # seconds: no test takes that long, not even a whole lesson on a slow machine

HAS_TORCH = importlib.util.find_spec("torch") is not None


def pytest_runtest_setup(item):
    """@pytest.mark.torch and @pytest.mark.gpu skip where they cannot run, with the reason."""
    wants_gpu = item.get_closest_marker("gpu") is not None
    if (wants_gpu or item.get_closest_marker("torch")) and not HAS_TORCH:
        pytest.skip("torch is not installed (it has no build for this machine)")
    if wants_gpu:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture(autouse=True)
def a_test_that_hangs_is_ended():
    """It says where it hangs, and the process ends: a run in the night ends with a failure, not never."""
    faulthandler.dump_traceback_later(HANGS, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
