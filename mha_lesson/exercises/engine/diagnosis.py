"""Is the answer right, and if not, which known mistake is it?

The learner's function runs on a few probes, and so does each mistake. A mistake is named only when
its outputs equal the learner's on every probe, and no other's do. Two mistakes at once are named
when exactly one pair explains every probe. Otherwise nothing is guessed: the message says what
differs first.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mha_lesson.exercises.engine import sandbox, words
from mha_lesson.exercises.engine.compare import Difference, NotPlain, plain, same
from mha_lesson.exercises.engine.protocol import Refused
from mha_lesson.exercises.engine.sandbox import Outcome
from mha_lesson.exercises.engine.stub import is_stub
from mha_lesson.exercises.engine.tricky import asked, said

if TYPE_CHECKING:
    from mha_lesson.exercises.engine.exercise import Exercise


@dataclass(frozen=True)
class Result:
    """What `check` found. Shows itself as text and as Markdown; never changes between machines."""

    id: str
    status: str  # "not attempted", "not judged" (the checker failed), "correct" or "incorrect"
    mistake: str | None
    message: str

    def __repr__(self) -> str:
        lines = [f"{self.id}: {self.status}", *self.message.split("\n")]
        return "\n".join(textwrap.fill(line, 92) if line else "" for line in lines)

    def _repr_markdown_(self) -> str:
        mark = {"correct": "✅", "incorrect": "🔎", "not judged": "⚠️"}.get(self.status, "✏️")
        body = self.message.replace("\n", "  \n")
        return f"{mark} **{self.id}: {self.status}**\n\n{body}"


def diagnose(exercise: "Exercise", function: Any) -> Result:
    """Run the learner's function on the probes and say what was found."""
    found = _bad_call(exercise, function)
    if found:
        return found
    _trust(exercise)
    answers = exercise.answers(function, sandbox.SECONDS, like=exercise.expected[0].value)
    if is_stub(function, answers[0].error):
        return Result(exercise.id, "not attempted", None, words.invitation(exercise.id, exercise.signature))
    differences = _differences(exercise, answers)
    if any(differences):
        return (
            _known(exercise, function, answers)
            or _pair(exercise, answers)
            or _unknown(exercise, function, answers, differences)
        )
    return _changed(exercise, answers) or Result(exercise.id, "correct", None, exercise.well_done)


def _bad_call(exercise: "Exercise", function: Any) -> Result | None:
    """What no probe is needed for: something that cannot be called as the exercise calls it."""
    if not callable(function):
        return _wrong(exercise, "not_a_function", words.not_a_function(exercise.id, exercise.name, function))
    try:
        signature = inspect.signature(function)
    except Exception:  # some built-in functions have none, and what is no plain function can raise anything
        return None
    names, wanted = list(signature.parameters), exercise.parameters
    if names != wanted and sorted(names) == sorted(wanted):
        return _wrong(exercise, "parameter_order", words.parameter_order(names, exercise.signature))
    try:
        signature.bind(*wanted)
    except TypeError:
        return _wrong(exercise, "parameters", words.parameters(names, exercise.signature, len(wanted)))
    return None


def _trust(exercise: "Exercise") -> None:
    """An error of the course's own function is no fault of the learner's: it ends the diagnosis."""
    for outcome in exercise.expected:
        if outcome.error is not None:
            vars(exercise).pop("expected")  # another time it may work
            raise outcome.error


def _differences(exercise: "Exercise", answers: list[Outcome]) -> list[Difference | None]:
    """For each probe, in what the answer is not the expected one."""
    triples = zip(exercise.probe_list, exercise.expected, answers, strict=True)
    return [_difference(exercise, probe.args, want.value, have) for probe, want, have in triples]


def _difference(exercise: "Exercise", arguments: tuple, want: Any, have: Outcome) -> Difference | None:
    if have.silent:
        return Difference("no_value", "")
    if type(have.value) is Refused:  # isinstance would ask the answer
        return Difference("wrong_type", have.value.why)
    return exercise.protocol.differ(arguments, want, have.value)


def _known(exercise: "Exercise", function: Callable, answers: list[Outcome]) -> Result | None:
    """The one mistake that explains all answers."""
    fits = [m for m in exercise.mistakes if _alike(exercise.mistake_outcomes[m.name], answers)]
    seen = [m for m in fits if m.when and m.when(function)]
    # Errors or None alone name nothing, unless it was seen where they come from.
    told = any(o.value is not None for o in answers)
    fits = seen or [m for m in fits if told and not m.when]
    return _wrong(exercise, fits[0].name, fits[0].say) if len(fits) == 1 else None


def _pair(exercise: "Exercise", answers: list[Outcome]) -> Result | None:
    """The one pair of mistakes that explains all answers."""
    if all(o.value is None for o in answers):  # errors or None alone name nothing
        return None
    pairs = [pair for pair, known in exercise.pair_outcomes if _alike(known, answers)]
    if len(pairs) != 1:
        return None
    first, second = pairs[0]
    return _wrong(exercise, f"{first.name}+{second.name}", words.two_at_once(first.say, second.say))


def _changed(exercise: "Exercise", answers: list[Outcome]) -> Result | None:
    """A right answer that changes what it was given, where the course's own function leaves it alone."""
    meant = {i for outcome in exercise.expected for i, _ in outcome.changed}
    for probe, outcome in zip(exercise.probe_list, answers, strict=True):
        for i, change in outcome.changed:
            if i not in meant and change.kind not in exercise.protocol.spared:
                return _wrong(exercise, "changes_input", words.changed(exercise.arguments[i], probe.args[i], change))
    return None


def _unknown(
    exercise: "Exercise", function: Callable, answers: list[Outcome], differences: list[Difference | None]
) -> Result:
    """No known mistake: say which probe differs first, and how."""
    i, found = next((i, d) for i, d in enumerate(differences) if d)
    probe, answer = exercise.probe_list[i], answers[i]
    right = words.right_so_far(differences.count(None), len(differences))
    where = f"{right}Probe {i + 1} ({probe.note}): "
    if answer.silent:
        kind, text = _silence(exercise, function, i, answer)
        return _wrong(exercise, kind, where + text)
    advice = exercise.advice
    if not advice or (exercise.wants_a_test and found.kind != "different"):
        advice = words.advice(found.kind, exercise.expected[i].value)
    text = found.text if found.text.endswith((".", "?", "!")) else found.text + "."
    if found.kind == "different" and probe.advice:
        text += " " + probe.advice
    return _wrong(exercise, found.kind, f"{where}{text} {advice}")


def _silence(exercise: "Exercise", function: Callable, i: int, answer: Outcome) -> tuple[str, str]:
    """Why there is no answer to probe i: its kind, and words."""
    if answer.stopped:
        return "endless", words.ENDLESS.format(seconds=sandbox.SECONDS)
    if answer.error is not None:
        notes = asked(answer.error, "__notes__")  # of the protocol, which knows the call that failed
        if notes and type(notes) is list:
            shapes = "\n" + " ".join(map(said, notes))
        else:
            shapes = words.shapes(exercise.arguments, exercise.probe_list[i].args)
        return "raises", words.error_text(function, answer.error, exercise.wants_a_test) + shapes
    return ("prints", words.PRINTS) if answer.printed else ("returns_none", words.RETURNS_NONE)


def _wrong(exercise: "Exercise", mistake: str, message: str) -> Result:
    return Result(exercise.id, "incorrect", mistake, message)


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
