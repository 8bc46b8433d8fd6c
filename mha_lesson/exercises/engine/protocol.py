"""How an exercise deals with an answer: how it is called, read, judged and compared.

Most exercises do it plainly: the function is called with the arguments of a probe, and what comes
back is compared with what the course's own function gives. A special exercise says where it
departs from that, in its own file:

    Exercise(..., protocol=Protocol(read=_read_table))
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mha_lesson.exercises.engine.compare import Difference, NotPlain, as_many_as, difference, shorter
from mha_lesson.exercises.engine.sandbox import Outcome
from mha_lesson.exercises.engine.tricky import said


def called(function: Callable, *arguments: Any) -> Any:
    """The plain way: the function gets the arguments of the probe."""
    return function(*arguments)


def as_it_came(arguments: tuple, answer: Any) -> Any:
    """The plain way: an answer is what it is."""
    return answer


def as_it_is(argument: Any) -> Any:
    """The plain way: the learner's function gets the argument itself."""
    return argument


def by_value(arguments: tuple, expected: Any, answer: Any) -> Difference | None:
    """The plain way: numbers are compared, within the tolerance of the type that is expected."""
    return difference(expected, answer)


def by_value_and_type(arguments: tuple, expected: Any, answer: Any) -> Difference | None:
    """Floats must not be shorter than the course's own, even where the numbers agree."""
    return difference(expected, answer) or shorter(expected, answer)


@dataclass(frozen=True)
class Refused:
    """An answer that could not be read or judged, and why."""

    why: str


@dataclass(frozen=True)
class Protocol:
    """The four steps from a function to a verdict, and what a function is given.

    call     call(function, *arguments of the probe): where the answer is not simply called, but many
             times (step by step, or once for each part of an output). Its parameters are named in
             what the learner reads
    read     read(arguments, answer): where answers come in many shapes, or are no arrays: makes arrays
             of one. What it raises is told to the learner
    judge    judge(arguments, answer): where many answers are right: makes of one what is compared.
             What it raises is told to the learner
    differ   differ(arguments, expected, answer): the first Difference, in words; None if it is right
    given    given(argument): where the learner writes a test: makes the tested function take lists
             and the like
    spared   kinds of changes (changes.py) to what a function is given that do no harm here; what the
             course's own function changes may always be changed
    """

    call: Callable[..., Any] = called
    read: Callable[[tuple, Any], Any] = as_it_came
    judge: Callable[[tuple, Any], Any] = as_it_came
    differ: Callable[[tuple, Any, Any], Difference | None] = by_value
    given: Callable[[Any], Any] = as_it_is
    spared: tuple[str, ...] = ()

    @property
    def calls_plainly(self) -> bool:
        return self.call is called

    def arguments(self, parameters: list[str]) -> list[str]:
        """The names of what a probe holds: the learner's parameters, or those of `call`."""
        return parameters if self.calls_plainly else list(inspect.signature(self.call).parameters)[1:]

    def seen(self, arguments: tuple, outcome: Outcome, like: Any = None) -> Outcome:
        """The outcome with what is compared in the place of the answer. like: an answer whose form it gets."""
        if outcome.silent:
            return outcome
        try:
            answer = as_many_as(like, self.read(arguments, outcome.value))
            return replace(outcome, value=self.judge(arguments, answer))
        except NotPlain:  # a type that the comparison will name
            return outcome
        except (Exception, SystemExit) as error:
            return replace(outcome, value=Refused(said(error)))


PLAIN = Protocol()
