"""The checker: is the answer right, and if not, which known mistake is it?

Every known mistake is runnable: the solution with one edit, or a function of its own. The
learner's function runs on a few probes, and so does each mistake. A mistake is named only when
its outputs equal the learner's on every probe, and no other's do. Two mistakes at once are
named when exactly one pair explains every probe. Otherwise nothing is guessed: the message says
what differs first.
"""

import ast
import importlib
import inspect
import itertools
import linecache
import re
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import sandbox
from mha_lesson.exercises.engine.compare import Difference, NotPlain, as_many_as, difference, plain, same, shorter
from mha_lesson.exercises.engine.mistakes import Mistake
from mha_lesson.exercises.engine.sandbox import Outcome


@dataclass(frozen=True)
class Probe:
    """Arguments to try a function on, and words that say what is special about them.

    advice: what helps if the answer to this one is wrong and has no name
    """

    args: tuple
    note: str
    advice: str = ""


@dataclass(frozen=True)
class Unreadable:
    """An answer that the judge of an exercise could not read, and why."""

    why: str


@dataclass(frozen=True)
class Result:
    """What `check` found. Shows itself as text and as Markdown; never changes between machines."""

    id: str
    status: str  # "not attempted", "correct" or "incorrect"
    mistake: str | None
    message: str

    def __repr__(self) -> str:
        lines = [f"{self.id}: {self.status}", *self.message.split("\n")]
        return "\n".join(textwrap.fill(line, 92) if line else "" for line in lines)

    def _repr_markdown_(self) -> str:
        mark = {"correct": "✅", "incorrect": "🔎"}.get(self.status, "✏️")
        body = self.message.replace("\n", "  \n")
        return f"{mark} **{self.id}: {self.status}**\n\n{body}"


@dataclass(frozen=True)
class Exercise:
    """One exercise with everything that checks and teaches it.

    signature   what the learner writes, e.g. "scores(q, k)"
    solution    the package's own function: one copy, shown by `solution(id)`
    probes      makes the probes (called once, when first needed)
    forms       other right answers: tests prove that none of them is flagged
    judge       where many answers are right: turns an answer into what is compared
    read        where answers come in many shapes, or are no arrays: read(arguments, answer) makes
                arrays of one before anything is compared; what it raises is told to the learner
    helpers     functions that the solution calls and the lesson has not shown
    patient     where the learner writes a test: makes the tested function take lists and the like
    drive       where the answer is not simply called: drive(function) gets the probe's arguments, and
                may call the function many times (step by step, or once for each part of an output)
    needs_torch where there is none, `missing` says so; a solution or helper whose module imports
                torch is given as "module:name" and imported when first needed
    advice      what helps further where a mistake has no name
    exact       floats must not be shorter than the course's own, even where the numbers agree
    """

    id: str
    signature: str
    solution: Callable | str
    probes: Callable[[], list[Probe]]
    mistakes: tuple[Mistake, ...]
    forms: dict[str, Callable]
    hints: tuple[str, ...]
    well_done: str
    judge: Callable[[Any], Any] | None = None
    read: Callable[[tuple, Any], Any] | None = None
    helpers: tuple[Callable | str, ...] = ()
    patient: Callable | None = None
    drive: Callable[[Callable], Callable] | None = None
    needs_torch: bool = False
    advice: str = ""
    exact: bool = False

    def __post_init__(self):
        if isinstance(self.solution, str):  # taken away, so that __getattr__ is asked for it
            self.__dict__["solution_at"] = self.__dict__.pop("solution")

    def __getattr__(self, name: str) -> Any:
        if name != "solution" or "solution_at" not in self.__dict__:
            raise AttributeError(name)
        self.__dict__["solution"] = _found(self.solution_at)
        return self.solution

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

    @property
    def shown(self) -> list[Callable]:
        """The functions whose source `solution(id)` shows."""
        return [self.solution, *map(_found, self.helpers)]

    @cached_property
    def probe_list(self) -> list[Probe]:
        return self.probes()

    @cached_property
    def source(self) -> str:
        """The solution's source without its docstring: the text that mistakes edit."""
        return _without_docstring(textwrap.dedent(inspect.getsource(self.solution)))

    @property
    def parameters(self) -> list[str]:
        return re.search(r"\((.*)\)", self.signature).group(1).replace(" ", "").split(",")

    @property
    def arguments(self) -> list[str]:
        """The names of what a probe holds: the learner's parameters, or those of the driver."""
        return list(inspect.signature(self.drive(self.solution)).parameters) if self.drive else self.parameters

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

    @property
    def wants_a_test(self) -> bool:
        """Does the learner write a test, which answers True or False?"""
        return all(isinstance(o.value, bool) for o in self.expected)

    @cached_property
    def expected(self) -> list[Outcome]:
        return self._judged(self._run(self.solution, seconds=None))

    @cached_property
    def mistake_outcomes(self) -> dict[str, list[Outcome]]:
        return {m.name: self._judged(self._run(self.variant(m), seconds=None)) for m in self.mistakes}

    @cached_property
    def pair_outcomes(self) -> list[tuple[tuple[Mistake, Mistake], list[Outcome]]]:
        """What each two mistakes that can be made at once give; run once, when an answer first needs it."""
        pairs = [(pair, self.variant(*pair)) for pair in itertools.combinations(self.mistakes, 2)]
        return [(pair, self._judged(self._run(variant, None))) for pair, variant in pairs if variant]

    def diagnose(self, function: Any) -> Result:
        """Run the learner's function on the probes and say what was found."""
        found = self._bad_call(function)
        if found:
            return found
        outcomes = self._run(function, sandbox.SECONDS)
        if isinstance(outcomes[0].error, NotImplementedError):
            return self._result("not attempted", None, self._invitation())
        outcomes = [replace(o, value=as_many_as(self.expected[0].value, o.value)) for o in outcomes]
        judged = self._judged(outcomes)
        differences = [
            _outcome_difference(want, have, self.exact) for want, have in zip(self.expected, judged, strict=True)
        ]
        if not any(differences):
            changed = self._changed(outcomes)
            return changed or self._result("correct", None, self.well_done)
        return self._known(function, judged) or self._pair(judged) or self._unknown(function, judged, differences)

    # -- one step of the diagnosis each -------------------------------------------------

    def _run(self, function: Callable, seconds: float | None) -> list[Outcome]:
        driven = self.drive(function) if self.drive else function
        outcomes = sandbox.call_all(driven, [p.args for p in self.probe_list], seconds)
        if self.read is None:
            return outcomes
        return [self._read(p, o) for p, o in zip(self.probe_list, outcomes, strict=True)]

    def _read(self, probe: Probe, outcome: Outcome) -> Outcome:
        if outcome.value is None:
            return outcome
        try:
            value = self.read(probe.args, outcome.value)
        except Exception as error:
            value = Unreadable(str(error))
        return replace(outcome, value=value)

    def _judged(self, outcomes: list[Outcome]) -> list[Outcome]:
        if self.judge is None:
            return outcomes
        return [_apply(self.judge, probe, o) for probe, o in zip(self.probe_list, outcomes, strict=True)]

    def _bad_call(self, function: Any) -> Result | None:
        name = self.signature.split("(")[0]
        if not callable(function):
            return self._wrong(
                "not_a_function",
                f"This is {_kind(function)}, not a function. Pass the function itself, without "
                f'brackets behind its name: check("{self.id}", {name}).',
            )
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):  # some built-in functions have none
            return None
        names = list(signature.parameters)
        if names != self.parameters and sorted(names) == sorted(self.parameters):
            return self._wrong(
                "parameter_order",
                f"The names are right, in another order: you have ({', '.join(names)}). The function is "
                f"called as {self.signature}, so the first argument would land in {names[0]}.",
            )
        try:
            signature.bind(*self.parameters)
        except TypeError:
            n, got = len(self.parameters), f"({', '.join(signature.parameters)})"
            return self._wrong(
                "parameters",
                f"Your function takes {got}; it will be called with {n} argument{'s' * (n != 1)}, as {self.signature}.",
            )
        return None

    def _known(self, function: Callable, judged: list[Outcome]) -> Result | None:
        fits = [m for m in self.mistakes if _alike(self.mistake_outcomes[m.name], judged)]
        seen = [m for m in fits if m.when and m.when(function)]
        # Errors or None alone name nothing, unless it was seen where they come from.
        told = any(o.value is not None for o in judged)
        fits = seen or [m for m in fits if told and not m.when]
        return self._wrong(fits[0].name, fits[0].say) if len(fits) == 1 else None

    def _pair(self, judged: list[Outcome]) -> Result | None:
        if all(o.value is None for o in judged):  # errors or None alone name nothing
            return None
        pairs = [pair for pair, known in self.pair_outcomes if _alike(known, judged)]
        if len(pairs) != 1:
            return None
        first, second = pairs[0]
        return self._wrong(
            f"{first.name}+{second.name}",
            f"Two things at once explain every probe.\n1. {_fault(first)}\n2. {_fault(second)}",
        )

    def _changed(self, outcomes: list[Outcome]) -> Result | None:
        for probe, outcome in zip(self.probe_list, outcomes, strict=True):
            if outcome.changed:
                name = self.arguments[outcome.changed[0]]
                kind, mend = _changed_kind(name, probe.args[outcome.changed[0]])
                return self._wrong(
                    "changes_input",
                    f"The result is right. But the function writes into its argument {name}, and the "
                    f"caller's {kind} is changed behind their back. {mend}",
                )
        return None

    def _unknown(self, function: Callable, judged: list[Outcome], differences: list[Difference | None]) -> Result:
        """No known mistake: say which probe differs first, and how."""
        i = next(i for i, d in enumerate(differences) if d)
        outcome, found = judged[i], differences[i]
        n = differences.count(None)
        right = f"{n} of {len(differences)} probes {'is' if n == 1 else 'are'} right. " if n else ""
        where = f"Probe {i + 1} ({self.probe_list[i].note}): "
        if outcome.stopped:
            text = (
                f"still running after {sandbox.SECONDS:.0f} seconds, so it was stopped. Look for a "
                f"loop whose condition never becomes false. If the notebook stays slow, restart the kernel."
            )
            return self._wrong("endless", right + where + text)
        if outcome.error is not None:
            notes = getattr(outcome.error, "__notes__", [])  # of a driver, which knows the call that failed
            shapes = "\n" + " ".join(notes) if notes else self._shapes(i)
            text = error_text(function, outcome.error, self.wants_a_test) + shapes
            return self._wrong("raises", right + where + text)
        if outcome.value is None and outcome.printed:
            text = "the function prints its result and returns nothing. Use `return` in place of `print`."
            return self._wrong("prints", right + where + text)
        if outcome.value is None:
            text = "the function returns None. Is there a `return` at its end, on every path?"
            return self._wrong("returns_none", right + where + text)
        advice = self.advice
        if not advice or (self.wants_a_test and found.kind != "different"):
            advice = _advice(found.kind, self.expected[i].value)
        text = found.text if found.text.endswith((".", "?", "!")) else found.text + "."
        if found.kind == "different" and self.probe_list[i].advice:
            text += " " + self.probe_list[i].advice
        return self._wrong(found.kind, f"{right}{where}{text} {advice}")

    def _shapes(self, i: int) -> str:
        """The shapes that came in: an error in a product of arrays is nearly always about them."""
        pairs = zip(self.arguments, self.probe_list[i].args, strict=True)
        shapes = [f"{name} {tuple(value.shape)}" for name, value in pairs if hasattr(value, "shape")]
        return f"\nThe shapes that came in: {', '.join(shapes)}." if shapes else ""

    def _invitation(self) -> str:
        return f'Write {self.signature} in the cell above this line, then run the cell again. Stuck? hint("{self.id}")'

    def _wrong(self, mistake: str, message: str) -> Result:
        return self._result("incorrect", mistake, message)

    def _result(self, status: str, mistake: str | None, message: str) -> Result:
        return Result(self.id, status, mistake, message)


_ADVICE = {
    "wrong_type": "An array, a tensor or a nested list of numbers is fine.",
    "wrong_names": "Each name is one key of the dictionary.",
    "wrong_shape": "Write the shape of each intermediate result beside its line, then compare.",
    "wrong_dtype": "The numbers may look right, but the next step computes something else with them.",
    "nan": "Look for 0/0, inf - inf, the logarithm of 0, or the root of a number below 0.",
    "different": "Work this one number out by hand. Then call your function in a cell of its own and print each step.",
}


def _fault(mistake: Mistake) -> str:
    """What to change, without the praise before it: of two mistakes, one may spoil what the other keeps."""
    text = mistake.say.split(". ", 1)[-1].removeprefix("But ")
    # Code at the beginning, such as len(x) or x * x, keeps its letters.
    return text[0].upper() + text[1:] if re.match(r"[a-z]{2,} ", text) else text


def _advice(kind: str, expected: Any) -> str:
    """What to try next, for a difference of this kind from the expected value."""
    if isinstance(expected, bool):  # the learner writes a test
        if kind == "wrong_shape":
            return (
                "Return one True or False: np.allclose gives one; np.isclose needs .all() behind it; "
                "a list of conditions becomes one with all([...])."
            )
        if kind != "different":
            return "Return True or False, and nothing else."
        return "Your test misjudges this version: print the arrays that it compares."
    if isinstance(expected, dict) and kind == "wrong_type":
        return "A tensor or a nested list is as good as an array."
    if isinstance(expected, tuple) and kind == "wrong_type":
        return f"Return {len(expected)} of them, with commas between."
    parts = expected if isinstance(expected, tuple) else (expected,)
    if kind == "wrong_dtype" and any(np.asarray(part).dtype == bool for part in parts):
        return _ADVICE[kind] + " A mask is the answer of a comparison (==, <, >=): that is boolean by itself."
    return _ADVICE[kind]


def _changed_kind(name: str, argument: Any) -> tuple[str, str]:
    """What an argument is that was written into, and how to leave it alone."""
    if isinstance(argument, dict):  # its copy would share the arrays
        return "dictionary", "Write `w = params['w_q'] / 2`, a new array, rather than `params['w_q'] /= 2`."
    if isinstance(argument, list):
        return "list", f"Work on a new list, for example `{name} = list({name})`."
    if hasattr(argument, "detach"):
        return "tensor", f"Work on a new tensor, for example `{name} = {name}.clone()`."
    return "array", f"Work on a new array, for example `{name} = {name}.copy()`."


def _outcome_difference(expected: Outcome, got: Outcome, exact: bool = False) -> Difference | None:
    if got.stopped or got.error is not None or got.value is None:
        return Difference("no_value", "")
    if isinstance(got.value, Unreadable):
        return Difference("wrong_type", got.value.why)
    want = plain(expected.value)
    return difference(want, got.value) or (shorter(want, got.value) if exact else None)


def _alike(known: list[Outcome], got: list[Outcome]) -> bool:
    """Do the outcomes of a known mistake explain the learner's, on every probe?"""
    return all(_same_outcome(k, g) for k, g in zip(known, got, strict=True))


def _same_outcome(known: Outcome, got: Outcome) -> bool:
    if got.stopped or known.stopped:
        return False
    if known.error is not None or got.error is not None:
        return _error_kind(known.error) is _error_kind(got.error)
    if known.value is None or got.value is None:
        return known.value is got.value
    try:
        k, g = plain(known.value), plain(got.value)
    except NotPlain:
        return False
    if isinstance(k, tuple) and isinstance(g, np.ndarray) and g.ndim and len(g) == len(k):
        g = tuple(g)
    return same(k, g)


def _error_kind(error: BaseException | None) -> type:
    """Shapes that do not fit are a RuntimeError in PyTorch, a ValueError in NumPy."""
    return ValueError if type(error) is RuntimeError else type(error)


def _apply(judge: Callable, probe: Probe, outcome: Outcome) -> Outcome:
    """What the judge sees in an answer. An answer it cannot read stays as it is."""
    if outcome.error is not None or outcome.stopped or outcome.value is None:
        return outcome
    try:
        value = judge(probe, plain(outcome.value))
    except Exception as error:  # the answer has no shape that the judge understands
        value = Unreadable(str(error))
    return Outcome(value=value, printed=outcome.printed, changed=outcome.changed)


def _without_docstring(source: str) -> str:
    tree = ast.parse(source)
    body = tree.body[0].body
    if isinstance(body[0], ast.Expr) and isinstance(getattr(body[0], "value", None), ast.Constant):
        lines = source.split("\n")
        source = "\n".join(lines[: body[0].lineno - 1] + lines[body[0].end_lineno :])
    return source


def error_text(function: Callable, error: BaseException, a_test: bool = False) -> str:
    """Which error, at which of the learner's lines (of a_test or not). No file names and no addresses."""
    said = re.sub(r"0x[0-9a-fA-F]+", "0x…", str(error)).split("\n")[0]
    named = f"{type(error).__name__}: {said}" if said else type(error).__name__
    text = "it raises `" + named.replace("`", "'") + "`"  # as code: what it says is no Markdown
    code = getattr(function, "__code__", None)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if code is not None and frame.filename == code.co_filename:
            line = linecache.getline(frame.filename, frame.lineno).strip()
            if line:
                text += f"\nIt happens in this line: `{line}`"
            break
    if a_test and isinstance(error, AssertionError):
        text += "\nWhere a test is asked for, it returns False; it does not raise."
    return text


def _found(place: Callable | str) -> Callable:
    """The function itself, or the one at "module:name"."""
    if not isinstance(place, str):
        return place
    module, name = place.split(":")
    return getattr(importlib.import_module(module), name)


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    name = type(value).__name__
    if shape is not None and name != "type":
        return f"an array of shape {tuple(shape)}"
    return f"a value of type {name}"
