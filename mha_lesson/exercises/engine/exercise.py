"""One exercise: what the learner writes, the course's own function, and every wrong answer that is known.

Every known mistake is runnable: the solution with one edit, or a function of its own. What all of
them answer is computed when it is first needed, and kept.
"""

import ast
import importlib
import inspect
import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, overload

import numpy as np

from mha_lesson.exercises.engine import diagnosis, sandbox
from mha_lesson.exercises.engine.compare import in_parts
from mha_lesson.exercises.engine.diagnosis import Result
from mha_lesson.exercises.engine.mistakes import Mistake
from mha_lesson.exercises.engine.protocol import PLAIN, Protocol
from mha_lesson.exercises.engine.sandbox import Outcome


@dataclass(frozen=True)
class Probe:
    """Arguments to try a function on, and words that say what is special about them.

    advice: what helps if the answer to this one is wrong and has no name
    """

    args: tuple
    note: str
    advice: str = ""


class Found:
    """A field that holds a function, or says "module:name" where it is: imported when first asked for."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.place, self.function = f"{name}'s place", f"{name} itself"

    def __set__(self, exercise: Any, place: Callable | str) -> None:
        vars(exercise)[self.place] = place

    @overload
    def __get__(self, exercise: None, owner: type) -> "Found": ...
    @overload
    def __get__(self, exercise: object, owner: type) -> Callable: ...
    def __get__(self, exercise: Any, owner: type) -> Any:
        if exercise is None:  # so that dataclass sees no default in it
            raise AttributeError
        if self.function not in vars(exercise):
            vars(exercise)[self.function] = found(vars(exercise)[self.place])
        return vars(exercise)[self.function]


def found(place: Callable | str) -> Callable:
    """The function itself, or the one at "module:name"."""
    if not isinstance(place, str):
        return place
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Exercise:
    """One exercise with everything that checks and teaches it.

    signature   what the learner writes, e.g. "scores(q, k)"
    solution    the package's own function: one copy, shown by `solution(id)`
    probes      makes the probes (called once, when first needed)
    forms       other right answers: tests prove that none of them is flagged
    protocol    how an answer is called, read and judged, where that is not done plainly
    helpers     functions that the solution calls and the lesson has not shown
    needs_torch where there is none, `missing` says so; a solution or helper whose module imports
                torch is given as "module:name" and imported when first needed
    advice      what helps further where a mistake has no name
    """

    id: str
    signature: str
    solution: Found = Found()
    probes: Callable[[], list[Probe]]
    mistakes: tuple[Mistake, ...]
    forms: dict[str, Callable]
    hints: tuple[str, ...]
    well_done: str
    protocol: Protocol = PLAIN
    helpers: tuple[Callable | str, ...] = ()
    needs_torch: bool = False
    advice: str = ""

    def __repr__(self) -> str:  # no more than that: the solution may have to be imported
        return f"Exercise({self.id!r})"

    @property
    def missing(self) -> str:
        """What this Python lacks for the exercise, in words; empty if nothing."""
        if not self.needs_torch:
            return ""
        try:
            importlib.import_module("torch")
        except Exception:  # an OSError where an installation is broken
            return (
                "This exercise needs PyTorch, and this Python cannot import it. Install it: pip install torch "
                "(Intel Macs and Windows on ARM have no build). Lessons 00-06 work without it."
            )
        return ""

    # -- what belongs to it -----------------------------------------------------------------

    @property
    def name(self) -> str:
        """What the learner calls the function."""
        return self.signature.split("(")[0]

    @property
    def parameters(self) -> list[str]:
        return self.signature.split("(", 1)[1].rstrip(")").replace(" ", "").split(",")

    @property
    def arguments(self) -> list[str]:
        """The names of what a probe holds."""
        return self.protocol.arguments(self.parameters)

    @property
    def solution_place(self) -> str:
        """Where the solution stands, as "module:name"; it is not imported for that."""
        place = vars(self)["solution's place"]  # kept by Found under this name
        return place if isinstance(place, str) else f"{place.__module__}:{place.__qualname__}"

    @property
    def shown(self) -> list[Callable]:
        """The functions whose source `solution(id)` shows."""
        return [self.solution, *map(found, self.helpers)]

    @cached_property
    def probe_list(self) -> list[Probe]:
        return self.probes()

    @cached_property
    def source(self) -> str:
        """The solution's source without its docstring: the text that mistakes edit."""
        return _without_docstring(textwrap.dedent(inspect.getsource(self.solution)))

    def variant(self, *mistakes: Mistake) -> Callable | None:
        """The solution with the edits of these mistakes; None if they cannot be combined."""
        if len(mistakes) == 1 and mistakes[0].function:
            return mistakes[0].function
        source = self.source
        for m in mistakes:
            if m.function or source.count(m.old) != 1:
                return None
            source = source.replace(m.old, m.new)
        namespace = {"np": np, **inspect.unwrap(self.solution).__globals__}
        exec(compile(source, f"<{self.id}>", "exec"), namespace)
        return namespace[self.solution.__name__]

    # -- what functions answer to its probes -------------------------------------------------

    def answers(
        self, function: Callable, seconds: float | None = None, like: Any = None, watch: bool = True
    ) -> list[Outcome]:
        """What comes of each probe, read and judged. like: an answer whose form the others get."""
        driven = function if self.protocol.calls_plainly else partial(self.protocol.call, function)
        outcomes = sandbox.call_all(driven, [probe.args for probe in self.probe_list], seconds, watch)
        pairs = zip(self.probe_list, outcomes, strict=True)
        return [self.protocol.seen(probe.args, outcome, like) for probe, outcome in pairs]

    @cached_property
    def expected(self) -> list[Outcome]:
        return [replace(outcome, value=in_parts(outcome.value)) for outcome in self.answers(self.solution)]

    @cached_property
    def mistake_outcomes(self) -> dict[str, list[Outcome]]:
        return {m.name: self.answers(self._runnable(m), watch=False) for m in self.mistakes}

    @cached_property
    def pair_outcomes(self) -> list[tuple[tuple[Mistake, Mistake], list[Outcome]]]:
        """What each two mistakes that can be made at once give; run once, when an answer first needs it."""
        pairs = [(pair, self.variant(*pair)) for pair in itertools.combinations(self.mistakes, 2)]
        return [(pair, self.answers(variant, watch=False)) for pair, variant in pairs if variant]

    @property
    def wants_a_test(self) -> bool:
        """Does the learner write a test, which answers True or False?"""
        return all(isinstance(o.value, bool) for o in self.expected)

    def diagnose(self, function: Any) -> Result:
        """Run the learner's function on the probes and say what was found."""
        return diagnosis.diagnose(self, function)

    def _runnable(self, mistake: Mistake) -> Callable:
        function = self.variant(mistake)
        if function is None:
            raise ValueError(f"{self.id}, {mistake.name}: old must be in the solution's source once: {mistake.old!r}.")
        return function


def _without_docstring(source: str) -> str:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines = source.split("\n")
        source = "\n".join(lines[: first.lineno - 1] + lines[first.end_lineno :])
    return source
