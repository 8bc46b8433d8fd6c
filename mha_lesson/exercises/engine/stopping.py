"""A time limit for work that may never end.

Where there are threads the work runs in one of its own, and is told to stop when the time is up;
if it does not listen (a loop with a bare `except:`, a long sleep) it is left behind. In a browser
(Pyodide) no thread can be started: there the work runs where it is, and Python looks at the clock
before each of its lines. What cannot be stopped then: a loop inside a single call of C code, and one
that swallows every error with a bare `except:`.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

# Before 3.12 a loop on a single line is one line, however often it goes round: there each instruction is looked at.
_LINES_ARE_TOO_FEW = sys.version_info < (3, 12)


class TooSlow(BaseException):
    """Raised inside the work. Not an Exception, so that `except Exception` lets it pass."""


def run(work: Callable[[], None], seconds: float, give_up: Callable[[], None]) -> None:
    """Do the work, for so many seconds at most. `give_up` is called before it is told to stop.

    What the work raises is raised here too.
    """
    failed: list[BaseException] = []

    def watched() -> None:
        try:
            work()
        except TooSlow:
            pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=watched, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # "can't start new thread": a browser, or a machine that has no room for one
        _run_here(work, seconds, give_up)
        return
    _wait(thread, seconds, give_up)
    if failed:
        raise failed[0]


def _wait(thread: threading.Thread, seconds: float, give_up: Callable[[], None]) -> None:
    """Until the thread ends or its time is up; then it is told to stop."""
    try:
        left = seconds
        while left > 0 and thread.is_alive():
            start = time.monotonic()
            thread.join(min(left, 0.2))
            if not _is_importing(sys._current_frames().get(thread.ident or 0)):
                left -= time.monotonic() - start
    finally:  # also when the learner presses the stop button
        give_up()
        for _ in range(5):  # an `except:` inside the loop may swallow the first ones
            if not thread.is_alive():
                break
            _raise_in(thread, TooSlow)
            thread.join(0.1)


def _run_here(work: Callable[[], None], seconds: float, give_up: Callable[[], None]) -> None:
    """Without a thread: before each line of Python, a look at the clock."""
    end = time.monotonic() + seconds

    def look(frame: FrameType, event: str, argument: object) -> Callable:
        nonlocal end
        frame.f_trace_opcodes = _LINES_ARE_TOO_FEW
        if time.monotonic() > end:
            if not _is_importing(frame):
                give_up()  # Python looks no more after this
                raise TooSlow
            end = time.monotonic() + seconds
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        work()
    except TooSlow:
        pass
    finally:
        sys.settrace(before)


def _is_importing(frame: FrameType | None) -> bool:
    """An import inside the answer (torch takes seconds) is not counted, nor cut in half."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))
