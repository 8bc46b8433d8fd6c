"""The five words a learner uses: check, hint, solution, adopt, status."""

import ast
import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import record, words
from mha_lesson.exercises.engine.compare import as_many_as, in_parts, plain
from mha_lesson.exercises.engine.diagnosis import Result
from mha_lesson.exercises.engine.exercise import Exercise
from mha_lesson.exercises.engine.protocol import Protocol
from mha_lesson.exercises.engine.record import Event, attempt, hinted
from mha_lesson.exercises.engine.registry import REGISTRY
from mha_lesson.exercises.engine.tricky import asked, said

_sitting: record.Record = {}  # what happened in this kernel, also when no file is kept
_hints_given: dict[str, int] = {}


@dataclass(frozen=True)
class Note:
    """Text that shows itself in a notebook."""

    text: str
    markdown: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.markdown


def check(id: str, function: Any = None, record: bool = True) -> Result:
    """Is the function right? Never raises: whatever the answer is, a Result comes back.

    record=False: an example, not an answer of the learner's: it counts as no attempt.
    """
    exercise = _exercise(id)
    if exercise is None and callable(id) and isinstance(function, str):
        text = f'The id comes first, then the function: check("{function}", {asked(id, "__name__", "f")}).'
        return Result(function, "incorrect", "swapped_arguments", text)
    if exercise is None:
        return Result(said(id), "incorrect", "unknown_id", _unknown(id))
    if exercise.missing:
        return Result(id, "not attempted", None, exercise.missing)
    if _own(function) is exercise.solution:  # adopt put it there; it is nobody's answer
        return Result(
            id, "not attempted", None,
            "This is the course's own function. Run the cell with your function again, then check.",
        )  # fmt: skip
    result = _diagnose(exercise, function)
    if record and result.status in ("correct", "incorrect"):
        _remember(attempt(result.id, result.status, result.mistake))
    return result


def hint(id: str) -> Note:
    """One hint, a deeper one at each call."""
    exercise = _exercise(id)
    if exercise is None:
        return Note(_unknown(id), _unknown(id))
    n = _hints_given.get(id, 0)
    _hints_given[id] = n + 1
    n = min(n, len(exercise.hints) - 1)
    _remember(hinted(id, n + 1))
    text = f"{id}, hint {n + 1} of {len(exercise.hints)}: {exercise.hints[n]}"
    if n == len(exercise.hints) - 1:
        text += f'\nThat was the last hint; solution("{id}") shows one way to write it.'
    return Note(text, "💡 " + text.replace("\n", "  \n"))


def solution(id: str) -> Note:
    """The source of the course's own function: the one that the package uses."""
    exercise = _exercise(id)
    if exercise is None:
        return Note(_unknown(id), _unknown(id))
    if exercise.missing:
        return Note(exercise.missing, exercise.missing)
    source = "\n\n\n".join(inspect.getsource(f).rstrip() for f in exercise.shown)
    before = [_imports(exercise.shown, source), _how_to_read(source)]
    source = "\n\n\n".join(["\n\n".join(filter(None, before)), source]).lstrip("\n")
    theirs, ours = exercise.signature.split("(")[0], exercise.solution.__name__
    if theirs != ours:
        source += f"\n\n\n{theirs} = {ours}  # its name in the lesson, and in the package"
    return Note(source, f"```python\n{source}\n```")


def _how_to_read(source: str) -> str:
    """The first shape in a signature, in words."""
    shape = re.search(r'Float\[Array, "([^"]+)"\]', source)
    if shape is None:
        return ""
    *others, last = shape[1].split()
    axes = f"the axes {', '.join(others)} and {last}" if others else f"the axis {last}"
    more = " A name with * stands for any number of axes." if "*" in source[shape.start() :].split("):")[0] else ""
    return f"# {shape[0]} reads: an array of floats with {axes}.{more}"


def _imports(functions: list[Callable], source: str) -> str:
    """What the source needs to run in a cell of the learner's, where np is there already."""
    here = {f.__name__ for f in functions} | {"np"}
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)} - here
    wanted: dict[str, set[str]] = {}
    modules = set()
    for function in functions:
        known = inspect.unwrap(function).__globals__
        for name in used & set(known):
            if inspect.ismodule(known[name]):
                modules.add(f"import {known[name].__name__}" + f" as {name}" * (known[name].__name__ != name))
                continue
            module = getattr(known[name], "__module__", None) or ""
            elsewhere = getattr(sys.modules.get(module), name, None) is known[name]
            if not elsewhere or "._" in module:  # a constant, another name, or a place that is nobody's business
                module = function.__module__
            wanted.setdefault(module, set()).add(name)
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(wanted.items())]
    return "\n".join([*sorted(modules), *lines])


def adopt(id: str, function: Callable) -> Callable:
    """Your function if it is right, the course's own otherwise. Says which.

    Whatever form your answers have (lists, tensors), later cells get them in that of the course:
    NumPy arrays, torch tensors in the lessons on PyTorch.
    """
    exercise = _exercise(id)
    if exercise is None:
        raise KeyError(_unknown(id))
    if exercise.missing:
        print(f"{id}: {exercise.missing}")
        return function
    own = _own(function)
    found = "" if own is exercise.solution else _diagnose(exercise, own).status
    if found == "correct":
        print(f"{id}: from here on your own function is used.")
        return _in_course_form(exercise, own)
    if found == "not judged":
        print(f"{id}: the checker itself failed (check says more), so the course's own function is used.")
        return exercise.solution
    print(f"{id}: until yours is right, the course's own function is used.")
    return exercise.solution


def status(lesson: str = "") -> Note:
    """What is solved, of all exercises or of one lesson: status("03"). Of the others, the last mistake."""
    known = record.load()
    ids = [i for i in REGISTRY if i.startswith(str(lesson))]
    entries = {i: [known.get(i, {}), _sitting.get(i, {})] for i in ids}
    solved = [i for i in ids if any(entry.get("status") == "correct" for entry in entries[i])]
    tried = [i for i in ids if i not in solved and any(entry.get("status") == "incorrect" for entry in entries[i])]
    met = {i: _last(*entries[i]) for i in tried}
    text = f"{len(solved)} of {len(ids)} exercises solved"
    text += f" in lesson {lesson}." if lesson else "."
    rows = [f"{'x' if i in solved else '~' if i in tried else ' '}  {i}{met.get(i, '')}" for i in ids]
    # With words: where there is no font for the marks, all of them are the same box.
    marks = {i: "✅ solved" if i in solved else f"🔎 tried{met[i]}" if i in tried else "◻️ open" for i in ids}
    body = "\n".join(f"- {i} {marks[i]}" for i in ids)
    return Note("\n".join([text, *rows]), f"**{text}**\n\n{body}")


def _last(*entries: dict[str, Any]) -> str:
    """The last mistake, as it stands behind the id of an exercise: the first of these entries that knows it."""
    mistake = next((str(entry["met"]) for entry in entries if entry.get("met")), "")
    return f", last: {mistake.replace('_', ' ').replace('+', ' and ')}" if mistake else ""


def _exercise(id: Any) -> Exercise | None:
    """The exercise of that name; None for a name that does not exist, and for what is no name (a list, say)."""
    return REGISTRY.get(id) if issubclass(type(id), str) else None  # isinstance would ask the thing itself


def _own(function: Any) -> Any:
    """The function as the learner wrote it: `adopt` may have wrapped it before."""
    return asked(function, "_own", function) if callable(function) else function


def _in_course_form(exercise: Exercise, function: Callable) -> Callable:
    """The learner's function, with answers coming back in the form of the course's own, for later cells."""
    protocol = exercise.protocol
    if not protocol.calls_plainly:  # what a step hands to the next one is the learner's own affair
        return function
    example = in_parts(exercise.solution(*exercise.probe_list[0].args))
    if isinstance(example, str):  # a word has no other form
        return function

    @functools.wraps(function)
    def adopted(*args, **kwargs):
        args = tuple(map(protocol.given, args))
        kwargs = {name: protocol.given(argument) for name, argument in kwargs.items()}
        value = function(*args, **kwargs)
        if protocol.read is not Protocol.read:
            arguments = inspect.signature(function).bind(*args, **kwargs).args if kwargs else args
            value = protocol.read(arguments, value)
        return _in_form_of(example, plain(as_many_as(example, value)))

    vars(adopted)["_own"] = function
    return adopted


def _in_form_of(example: Any, value: Any) -> Any:
    """The plain value as a tuple or a dictionary of arrays, a boolean, a tensor or an array, as the example is."""
    if isinstance(example, tuple):
        return tuple(map(_part_in_form_of, example, value))
    if isinstance(example, dict):
        return {name: _part_in_form_of(part, value[name]) for name, part in example.items()}
    if isinstance(example, bool):
        return bool(value)
    if hasattr(example, "detach"):
        return sys.modules["torch"].as_tensor(value)
    return np.asarray(value)


def _part_in_form_of(example: Any, value: Any) -> Any:
    """An array, or parts of parts."""
    return _in_form_of(example, value) if isinstance(example, (tuple, dict)) else np.asarray(value)


def _diagnose(exercise: Exercise, function: Any) -> Result:
    """Whatever the function does becomes a Result; so an error here is the checker's own, and nobody's answer."""
    try:
        return exercise.diagnose(function)
    except Exception as error:
        return Result(exercise.id, "not judged", None, words.checker_failed(exercise.id, error))


def _remember(event: Event) -> None:
    """In this kernel, and in the learner's own file if there is one."""
    event(_sitting)
    record.add(event)


def _unknown(id: Any) -> str:
    close = difflib.get_close_matches(said(id), REGISTRY, n=3, cutoff=0.4)
    text = f"There is no exercise {said(id, repr)}."
    return text + (f" Did you mean {' or '.join(close)}?" if close else " status() lists them all.")
