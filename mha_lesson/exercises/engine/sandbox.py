"""Run a learner's function so that nothing it does can hurt the notebook.

It may raise, loop for ever, print, write into its arguments, or return anything at all. It runs
under a time limit (stopping.py), on fresh copies of the arguments.
"""

import contextlib
import copy
import io
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import stopping
from mha_lesson.exercises.engine.changes import Change, first_change

SECONDS = 4.0


@dataclass(frozen=True)
class Outcome:
    """What one call did: it returned `value`, or raised `error`, or was stopped."""

    value: Any = None
    error: BaseException | None = None
    stopped: bool = False
    printed: str = ""
    changed: tuple[tuple[int, Change], ...] = ()  # which arguments are no longer as they were, and where

    @property
    def silent(self) -> bool:
        """Did nothing come back?"""
        return self.stopped or self.error is not None or self.value is None


def call_all(
    function: Callable, argument_sets: Sequence[tuple], seconds: float | None = SECONDS, watch: bool = True
) -> list[Outcome]:
    """One outcome for each set of arguments; all calls together get `seconds`.

    Our own functions are trusted: with `seconds=None` they have all the time they need. Without `watch`
    nobody looks what became of the arguments, which takes as long as copying them.
    """
    outcomes: list[Outcome] = []
    too_late = threading.Event()

    def work() -> None:
        for arguments in argument_sets:
            if not too_late.is_set():
                outcomes.append(_call(function, arguments, printed, watch))

    with _same_random_numbers(), _one_torch_thread(), _quiet() as printed:
        if seconds is None:
            work()
        else:
            stopping.run(work, seconds, too_late.set)
    done = list(outcomes)  # a copy: a thread that was left behind may still add to the list
    return (done + [Outcome(stopped=True)] * len(argument_sets))[: len(argument_sets)]


def _call(function: Callable, arguments: tuple, printed: io.StringIO, watch: bool) -> Outcome:
    given = copy.deepcopy(arguments)
    start = printed.tell()
    try:
        with np.errstate(all="ignore"):
            value = function(*given)
    except stopping.TooSlow:
        return Outcome(stopped=True)
    except BaseException as error:  # SystemExit too: it must not close the kernel
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # the stop button
        return Outcome(error=error, printed=printed.getvalue()[start:])
    pairs = zip(arguments, given, strict=True) if watch else ()
    found = [(i, first_change(a, b)) for i, (a, b) in enumerate(pairs)]
    changed = tuple((i, change) for i, change in found if change)
    return Outcome(value=value, printed=printed.getvalue()[start:], changed=changed)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """An answer that draws gets the same numbers at every check, and those of the notebook stay as they were."""
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    torchs = generator and generator.get_state()
    numpys, pythons = np.random.get_state(), random.getstate()
    np.random.seed(0)
    random.seed(0)
    if generator:
        generator.manual_seed(0)
    try:
        yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)
        if generator:
            generator.set_state(torchs)


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    """The inputs are tiny: on a busy machine, waiting for a second thread takes a hundred times as long as the work."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_num_threads"):  # not imported, or only half
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """No warnings and no prints in the notebook; what was printed is kept aside.

    The streams are put back here, not in the thread: a thread left behind could not do it.
    """
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stderr(io.StringIO()):
            yield printed
