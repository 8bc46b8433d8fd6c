"""Run a learner's function so that nothing it does can hurt the notebook.

It may raise, loop for ever, print, write into its arguments, or return anything at all. It runs
in a thread of its own on fresh copies of the arguments. After `SECONDS` the thread is told to
stop; if it does not listen (a loop with a bare `except:`, a long sleep) it is left behind.
"""

import contextlib
import copy
import ctypes
import io
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SECONDS = 4.0


class TooSlow(BaseException):
    """Raised inside the learner's thread. Not an Exception, so that `except Exception` lets it pass."""


@dataclass(frozen=True)
class Outcome:
    """What one call did: it returned `value`, or raised `error`, or was stopped."""

    value: Any = None
    error: BaseException | None = None
    stopped: bool = False
    printed: str = ""
    changed: tuple[int, ...] = ()  # which arguments it wrote into


def call_all(function: Callable, argument_sets: list[tuple], seconds: float | None = SECONDS) -> list[Outcome]:
    """One outcome for each set of arguments; all calls together get `seconds`.

    Our own functions are trusted: with `seconds=None` they run without a thread.
    """
    outcomes: list[Outcome] = []
    too_late = threading.Event()

    def work():
        for arguments in argument_sets:
            if not too_late.is_set():
                outcomes.append(_call(function, arguments, printed))

    with _same_random_numbers(), _one_torch_thread(), _quiet() as printed:
        if seconds is None:
            work()
        else:
            _stop_after(seconds, work, too_late)
    # A copy: a thread that was left behind may still add to the list.
    done = [Outcome(stopped=True) if isinstance(o.error, TooSlow) else o for o in list(outcomes)]
    return (done + [Outcome(stopped=True)] * len(argument_sets))[: len(argument_sets)]


def _call(function: Callable, arguments: tuple, printed: io.StringIO) -> Outcome:
    given = copy.deepcopy(arguments)
    start = printed.tell()
    try:
        with np.errstate(all="ignore"):
            value = function(*given)
    except BaseException as error:  # SystemExit too: it must not close the kernel
        return Outcome(error=error, printed=printed.getvalue()[start:])
    changed = [i for i, (a, b) in enumerate(zip(arguments, given, strict=True)) if not _same(a, b)]
    return Outcome(value=value, printed=printed.getvalue()[start:], changed=tuple(changed))


def _same(before, after) -> bool:
    """Did the call leave this argument as it was? Functions and the like count as unchanged."""
    if type(before) is not type(after):
        return False
    if isinstance(before, np.ndarray):
        return before.shape == after.shape and np.array_equal(before, after, equal_nan=before.dtype.kind in "fc")
    if hasattr(before, "detach") and hasattr(before, "numpy"):  # a torch tensor, torch not imported
        return _same(before.detach().numpy(), after.detach().numpy())
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_same(before[k], after[k]) for k in before)
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(map(_same, before, after))
    if isinstance(before, (int, float, complex, str)):
        return before == after or before != before  # NaN stays NaN
    return True


def _stop_after(seconds: float, work: Callable, too_late: threading.Event) -> None:
    """Run `work` in a thread, and stop it when the time is up."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        left = seconds
        while left > 0 and thread.is_alive():
            start = time.monotonic()
            thread.join(min(left, 0.2))
            if not _is_importing(thread):
                left -= time.monotonic() - start
    finally:  # also when the learner presses the stop button
        too_late.set()
        for _ in range(5):  # an `except:` inside the loop may swallow the first ones
            if not thread.is_alive():
                break
            _raise_in(thread, TooSlow)
            thread.join(0.1)


def _is_importing(thread: threading.Thread) -> bool:
    """An import inside the answer (torch takes seconds) is not counted, nor cut in half."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


@contextlib.contextmanager
def _same_random_numbers():
    """An answer that draws with torch gets the same numbers at every call, and the notebook's stay as they were."""
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is None:
        yield
        return
    state = generator.get_state()
    generator.manual_seed(0)
    try:
        yield
    finally:
        generator.set_state(state)


@contextlib.contextmanager
def _one_torch_thread():
    """The inputs are tiny: on a busy machine, waiting for a second thread takes a hundred times as long as the work."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "set_num_threads"):  # not imported, or only half
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _quiet():
    """No warnings and no prints in the notebook; what was printed is kept aside.

    The streams are put back here, not in the thread: a thread left behind could not do it.
    """
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stderr(io.StringIO()):
            yield printed
