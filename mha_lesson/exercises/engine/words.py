"""What the checker says where no known mistake says it: what was expected, what came, and how to mend it."""

import linecache
import platform
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mha_lesson
from mha_lesson.exercises.engine.changes import Change, kind_of
from mha_lesson.exercises.engine.compare import plain
from mha_lesson.exercises.engine.tricky import asked, said

PRINTS = "the function prints its result and returns nothing. Use `return` in place of `print`."
RETURNS_NONE = "the function returns None. Is there a `return` at its end, on every path?"
ENDLESS = (
    "still running after {seconds:.0f} seconds, so it was stopped. Look for a loop whose condition never becomes "
    "false. If the notebook stays slow, restart the kernel."
)


# -- before anything is run ------------------------------------------------------------------


def invitation(id: str, signature: str) -> str:
    return f'Write {signature} in the cell above this line, then run the cell again. Stuck? hint("{id}")'


def not_a_function(id: str, name: str, value: Any) -> str:
    return (
        f"This is {_kind(value)}, not a function. Pass the function itself, without brackets behind its name: "
        f'check("{id}", {name}).'
    )


def _kind(value: Any) -> str:
    name = type(value).__name__
    if name != "type":
        try:
            return f"an array of shape {tuple(value.shape)}"
        except Exception:  # most things have no shape, and some raise when they are asked
            pass
    return f"a value of type {name}"


def parameter_order(names: list[str], signature: str) -> str:
    return (
        f"The names are right, in another order: you have ({', '.join(names)}). The function is called as "
        f"{signature}, so the first argument would land in {names[0]}."
    )


def parameters(names: list[str], signature: str, n: int) -> str:
    return (
        f"Your function takes ({', '.join(names)}); it will be called with {n} argument{'s' * (n != 1)}, as "
        f"{signature}."
    )


# -- wrong answers ---------------------------------------------------------------------------


def right_so_far(n: int, of: int) -> str:
    return f"{n} of {of} probes {'is' if n == 1 else 'are'} right. " if n else ""


def two_at_once(first: str, second: str) -> str:
    return f"Two things at once explain every probe.\n1. {_fault(first)}\n2. {_fault(second)}"


def _fault(say: str) -> str:
    """What to change, without the praise before it: of two mistakes, one may spoil what the other keeps."""
    text = say.split(". ", 1)[-1].removeprefix("But ")
    # Code at the beginning, such as len(x) or x * x, keeps its letters.
    return text[0].upper() + text[1:] if re.match(r"[a-z]{2,} ", text) else text


_ADVICE = {
    "wrong_type": "An array, a tensor or a nested list of numbers is fine.",
    "wrong_names": "Each name is one key of the dictionary.",
    "wrong_shape": "Write the shape of each intermediate result beside its line, then compare.",
    "wrong_dtype": "The numbers may look right, but the next step computes something else with them.",
    "nan": "Look for 0/0, inf - inf, the logarithm of 0, or the root of a number below 0.",
    "different": "Work this one number out by hand. Then call your function in a cell of its own and print each step.",
    "unreadable": "A tensor needs to be a plain one in memory, an object of your own has to become an array.",
}


def advice(kind: str, expected: Any) -> str:
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
    if kind == "wrong_dtype" and _has_a_mask(plain(expected)):
        return _ADVICE[kind] + " A mask is the answer of a comparison (==, <, >=): that is boolean by itself."
    return _ADVICE[kind]


def _has_a_mask(expected: Any) -> bool:
    if isinstance(expected, tuple):
        return any(map(_has_a_mask, expected))
    return isinstance(expected, np.ndarray) and expected.dtype == bool


def shapes(names: list[str], values: tuple) -> str:
    """The shapes that came in: an error in a product of arrays is nearly always about them."""
    pairs = zip(names, values, strict=True)
    found = [f"{name} {tuple(value.shape)}" for name, value in pairs if hasattr(value, "shape")]
    return f"\nThe shapes that came in: {', '.join(found)}." if found else ""


def error_text(function: Callable, error: BaseException, a_test: bool = False) -> str:
    """Which error, at which of the learner's lines (of a_test or not). No file names and no addresses."""
    text = "it raises `" + _named(error).replace("`", "'") + "`"  # as code: what it says is no Markdown
    code = asked(function, "__code__")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if code is not None and frame.filename == code.co_filename:
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            if line:
                text += f"\nIt happens in this line: `{line}`"
            break
    if a_test and isinstance(error, AssertionError):
        text += "\nWhere a test is asked for, it returns False; it does not raise."
    return text


def _named(error: BaseException) -> str:
    """The error in one line, without addresses."""
    text = re.sub(r"0x[0-9a-fA-F]+", "0x…", said(error)).split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# -- right answers that do something else, too -----------------------------------------------


def changed(name: str, argument: Any, change: Change) -> str:
    """What was changed of an argument, and how to leave it alone."""
    whole = kind_of(argument)
    place = f"{name}{change.path}"
    if change.kind == "generator":
        return (
            f"The result is right. But the function draws from {place}, and whoever draws next gets other numbers "
            f"than before. {_mend(name, argument, change)}"
        )
    if change.kind == "grad":
        return (
            f"The result is right. But the function leaves a gradient in {place}, and the caller's next backward() "
            f"adds to it. {_mend(name, argument, change)}"
        )
    if change.kind == "mode":
        return (
            f"The result is right. But the function switches {place} between training and evaluation, and leaves it "
            f"so for the caller. {_mend(name, argument, change)}"
        )
    if change.kind == "gradient":
        did = f"switches the gradient of {place} on or off"
    elif change.path:
        did = f"writes into its argument {name}, at {place}"
    else:
        did = f"writes into its argument {name}"
    noun = "tuple" if isinstance(argument, tuple) else whole
    return (
        f"The result is right. But the function {did}, and the caller's {noun} is changed behind their back. "
        f"{_mend(name, argument, change)}"
    )


def _mend(name: str, argument: Any, change: Change) -> str:
    """How to leave an argument alone, in a line of code."""
    whole = kind_of(argument)
    if change.kind == "mode":
        return f"Note `was = {name}.training` at the beginning, and end with `{name}.train(was)`."
    if change.kind == "grad":
        return "`torch.autograd.grad(loss, inputs)` gives gradients and stores none."
    if change.kind == "gradient" and not change.path:
        return f"Work on a new tensor, for example `{name} = {name}.detach().clone().requires_grad_()`."
    if change.path and whole == "dictionary" and change.kind in ("array", "tensor"):  # its copy would share the arrays
        place = name + change.path
        return f"Write `w = {place} / 2`, a new {change.kind}, rather than `{place} /= 2`."
    if change.path and whole == "list" and change.kind == "array":
        return f"A copy of the list shares its arrays: `{name} = [each.copy() for each in {name}]`."
    itself = not change.path or (change.kind == "number" and re.fullmatch(r"\[[^][]*\]", change.path))
    if not itself:  # a copy of the whole would share what is in it
        return f"Work on a copy of all of it, `{name} = copy.deepcopy({name})`."
    copies = {
        "list": f"Work on a new list, for example `{name} = list({name})`.",
        "dictionary": f"Work on a new dictionary, for example `{name} = dict({name})`.",
        "set": f"Work on a new set, for example `{name} = set({name})`.",
        "tensor": f"Work on a new tensor, for example `{name} = {name}.clone()`.",
        "array": f"Work on a new array, for example `{name} = {name}.copy()`.",
    }
    return copies.get(whole, f"Work on a copy, for example `{name} = copy.deepcopy({name})`.")


# -- the checker's own failure ---------------------------------------------------------------


def checker_failed(id: str, error: BaseException) -> str:
    """What to report. Nobody's answer is to blame, so none is spoken of."""
    frames = traceback.extract_tb(error.__traceback__)
    package = Path(mha_lesson.__file__).parent
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(package)]
    place = f" ({ours[-1].filename.removeprefix(str(package.parent))[1:]}, line {ours[-1].lineno})" if ours else ""
    return (
        "The checker itself failed; your answer was not judged, and this counts as no attempt. Restart the kernel and "
        "run the lesson from its beginning. If it comes again, report this line to who maintains the course:\n"
        f"`{id}: {_named(error).replace('`', chr(39))}{place}; mha_lesson {mha_lesson.__version__}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}`"
    )
