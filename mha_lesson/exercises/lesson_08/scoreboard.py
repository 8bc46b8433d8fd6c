"""The mutant scoreboard of lesson 08: which wrong layers does a learner's test find?"""

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import sandbox
from mha_lesson.exercises.engine.api import Note
from mha_lesson.exercises.engine.compare import NotPlain, plain
from mha_lesson.exercises.engine.sandbox import Outcome
from mha_lesson.exercises.engine.stub import is_stub
from mha_lesson.exercises.engine.words import error_text
from mha_lesson.exercises.lesson_08.works import RIGHT, WORKS, WRONG

_GOOD = ("found", "accepted")


def scoreboard(test: Callable) -> Note:
    """Run `test(layer)` on right and on wrong attention layers, and show how it judges each. Never raises."""
    if WORKS.missing:
        return _line(WORKS.missing)
    if not callable(test):
        return _line(f"This is a {type(test).__name__}, not a function. Pass the function itself: scoreboard(works).")
    outcomes = sandbox.call_all(test, [p.args for p in WORKS.probe_list], sandbox.SECONDS)
    if is_stub(test, outcomes[0].error):
        return _line("Write works(layer) in the cell above; then this table shows which of the wrong layers it finds.")
    verdicts = _verdicts(outcomes)
    right = list(zip(RIGHT.values(), verdicts, strict=False))
    wrong = list(zip(WRONG.values(), verdicts[len(RIGHT) :], strict=True))
    found = sum(verdict == "False" for _, verdict in wrong)
    accepted = sum(verdict == "True" for _, verdict in right)
    words = {"True": "survived", "False": "found"}
    crashes = all(o.error is not None for o in outcomes)  # then there is one thing to mend, said at the end
    rows = [_row(what, words.get(verdict, verdict), look) for (what, look), verdict in wrong]
    words = {"True": "accepted", "False": "rejected"}
    rows += [_row(what, words.get(verdict, verdict), look) for (what, look), verdict in right]
    all_right = f"all {len(right)} right ones" if accepted == len(right) else f"{accepted} of {len(right)} right ones"
    rows = [(said, what, "") for said, what, _ in rows] if crashes else rows
    head = f"{found} of {len(wrong)} wrong layers found; {all_right} accepted."
    errors = [o.error for o in outcomes if o.error is not None]
    foot = f"The first time that it crashes, {error_text(test, errors[0], a_test=True)}" if errors else ""
    return Note(_text(head, rows, foot), _markdown(head, rows, foot))


def found_by(checks) -> tuple[list[str], np.ndarray]:
    """(names, found (10, checks)): which check finds which wrong layer. A check is a test(layer) like yours."""
    names = list(WRONG)
    wrong = [p.args for p in WORKS.probe_list[len(RIGHT) :]]
    columns = [[_verdict(o) != "True" for o in sandbox.call_all(check, wrong, sandbox.SECONDS)] for check in checks]
    return [name.replace("_", " ") for name in names], np.array(columns).T


def _line(text: str) -> Note:
    return Note(textwrap.fill(text, 92), text)


def _verdicts(outcomes: list[Outcome]) -> list[str]:
    """For each layer "True" or "False", or why there is no such answer."""
    verdicts, stopped = [], False
    for outcome in outcomes:
        verdicts.append("not reached" if stopped else _verdict(outcome))
        stopped |= outcome.stopped
    return verdicts


def _verdict(outcome: Outcome) -> str:
    if outcome.stopped:
        return "endless"
    if outcome.error is not None:
        return f"test crashed: {type(outcome.error).__name__}"
    try:
        value = plain(outcome.value)
        if value.dtype == bool and value.shape == ():
            return str(bool(value))
    except (NotPlain, AttributeError):  # a tuple or a dictionary has no dtype
        pass
    except Exception:  # an object with tricks of its own
        return "no True or False"
    return f"no True or False but {_kind(outcome.value)}"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return type(value).__name__ + shape


def _row(what: str, said: str, look: str) -> tuple[str, str, str]:
    """(the verdict in words, the layer, where to look if the verdict is not the right one)"""
    return said, what, "" if said in _GOOD else look


def _text(head: str, rows: list[tuple[str, str, str]], foot: str) -> str:
    width = max(len(said) for said, _, _ in rows)
    lines = [head]
    for said, what, look in rows:
        lines.append(f"{said:{width}}  {what}")
        lines += textwrap.wrap(look, 92, initial_indent=" " * (width + 4), subsequent_indent=" " * (width + 4))
    return "\n".join([*lines, *foot.split("\n")] if foot else lines)


def _markdown(head: str, rows: list[tuple[str, str, str]], foot: str) -> str:
    table = [f"| {'✅' if said in _GOOD else '🔎'}\u00a0{said} | {what} | {look} |" for said, what, look in rows]
    lines = [f"**{head}**", "", "| | layer | where to look |", "|---|---|---|", *table]
    return "\n".join(lines) + (f"\n\n{foot}".replace("\n", "  \n") if foot else "")
