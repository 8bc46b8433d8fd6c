"""Tell two values apart, and say kindly how they differ.

Learners answer with arrays, torch tensors, nested lists or plain numbers. `plain` brings them
all to NumPy; `difference` then names the first thing that is not as expected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mha_lesson.show.numbers import number

TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-6}  # by bytes of the expected float


class NotPlain(TypeError):
    """The value is no array, tensor, number or nested list of them."""


class Unreadable(NotPlain):
    """Looking at the value raises an error of the value's own."""


@dataclass(frozen=True)
class Difference:
    kind: str  # wrong_type, wrong_names, wrong_shape, wrong_dtype, nan, different, unreadable
    text: str


def plain(value: Any) -> Any:
    """The value as a NumPy array, or as a tuple or a dictionary of them if it is one."""
    try:
        return _plain(value)
    except NotPlain:
        raise
    except (Exception, SystemExit) as error:  # an object with tricks of its own, a tensor that NumPy cannot hold
        raise Unreadable(type(error).__name__) from None


def _plain(value: Any) -> Any:
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a torch tensor, torch not imported
        return value.detach().cpu().numpy()
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, list) and any(hasattr(v, "shape") for v in value):
        value = [plain(v) for v in value]
    try:
        array = np.asarray(value)
    except Exception as error:  # rows of unequal length, or an object with tricks of its own
        raise NotPlain(str(error)) from None
    if array.dtype.kind not in "biufc":
        raise NotPlain(type(value).__name__)
    return array


def as_many_as(expected: Any, value: Any) -> Any:
    """[a, b] is as good as a, b where several things are expected, and so is it inside of them."""
    if isinstance(expected, tuple) and isinstance(value, (list, tuple)):
        if len(value) != len(expected):
            return tuple(value)
        return tuple(map(as_many_as, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return {name: as_many_as(expected.get(name), part) for name, part in value.items()}
    return value


def in_parts(expected: Any) -> Any:
    """What an exercise expects, with tuples for the lists whose parts make no single array."""
    if isinstance(expected, list) and not _is_plain(expected):
        expected = tuple(expected)
    if isinstance(expected, tuple):
        return tuple(map(in_parts, expected))
    return {name: in_parts(part) for name, part in expected.items()} if isinstance(expected, dict) else expected


def same(expected: Any, got: Any) -> bool:
    """Equal within the tolerance of the expected type. Used for known mistakes too."""
    if isinstance(expected, tuple):
        return isinstance(got, tuple) and len(got) == len(expected) and all(map(same, expected, got))
    if isinstance(expected, dict):
        return isinstance(got, dict) and got.keys() == expected.keys() and all(same(expected[n], got[n]) for n in got)
    if isinstance(got, (tuple, dict)) or got.shape != expected.shape:
        return False
    if (expected.dtype == bool) != (got.dtype == bool):
        return False
    return bool(_close(expected, got).all())


def difference(expected: Any, value: Any) -> Difference | None:
    """The first thing in which the learner's value is not the expected one; None if it is right."""
    expected = plain(expected)
    try:
        got = plain(as_many_as(expected, value))
    except Unreadable as error:
        return _unreadable(str(error))
    except NotPlain:
        return Difference("wrong_type", _type_text(expected, value))
    except Exception as error:  # what is expected was read before: it is the answer that raises
        return _unreadable(type(error).__name__)
    if isinstance(expected, dict):
        return _dict_difference(expected, got)
    if isinstance(got, dict):
        return Difference("wrong_type", _type_text(expected, value))
    if isinstance(expected, tuple):
        return _tuple_difference(expected, got)
    if isinstance(got, tuple):  # a tuple of numbers is fine where one array is expected
        if not all(isinstance(v, np.ndarray) and v.shape == got[0].shape for v in got):
            return Difference("wrong_type", _type_text(expected, value))
        got = np.asarray(got)
    return _array_difference(expected, got)


def _unreadable(error: str) -> Difference:
    return Difference("unreadable", f"the answer could not be read ({error}). Return a plain NumPy array")


def shorter(expected: Any, value: Any) -> Difference | None:
    """Where the numbers agree: floats of fewer bytes than those expected, if there are any."""
    want, got = plain(expected), plain(value)
    if isinstance(want, dict):
        return _first_of(want, got, lambda name: f"{name}: ")
    if isinstance(want, tuple):
        return _first_of(dict(enumerate(want)), dict(enumerate(got)), lambda i: f"result {i + 1} of {len(want)}: ")
    if want.dtype.kind != "f" or got.dtype.kind != "f" or got.dtype.itemsize >= want.dtype.itemsize:
        return None
    text = f"the numbers are right, but rounded to {got.dtype} where the input has {want.dtype}"
    return Difference("wrong_dtype", f"{text}: leave out .float() and .astype, and the type stays")


def _first_of(expected: dict, got: dict, where: Callable[[Any], str]) -> Difference | None:
    found = ((name, shorter(want, got[name])) for name, want in expected.items())
    return next((Difference(d.kind, where(name) + d.text) for name, d in found if d), None)


def _tuple_difference(expected: tuple, got: Any, inside: bool = False) -> Difference | None:
    """inside: these are the parts of one result of several."""
    n = len(expected)
    if isinstance(got, dict):
        return Difference("wrong_type", f"expected {_several(expected)}, got a dictionary")
    if not isinstance(got, tuple) and (got.ndim == 0 or len(got) != n):
        what = "a single number" if got.ndim == 0 else f"one of shape {got.shape}"
        return Difference("wrong_type", f"expected {_several(expected)}, got {what}")
    if len(got) != n:
        return Difference("wrong_type", f"expected {_several(expected)}, got {len(got)}")
    for i, (want, have) in enumerate(zip(expected, got, strict=True)):
        several = isinstance(want, tuple)
        found = _tuple_difference(want, have, inside=True) if several else difference(want, have)
        if found:
            name = f"part {i + 1}" if inside else f"result {i + 1} of {n}"
            joint = ", " if several and found.text.startswith("part ") else ": "
            return Difference(found.kind, name + joint + found.text)
    return None


def _dict_difference(expected: dict, got: Any) -> Difference | None:
    if not isinstance(got, dict):
        return Difference("wrong_type", _type_text(expected, got))
    missing = [name for name in expected if name not in got]
    more = [str(name) for name in got if name not in expected]
    if missing or more:
        text = [f"{', '.join(missing)} missing"] * bool(missing) + [f"{', '.join(more)} not asked for"] * bool(more)
        return Difference("wrong_names", f"expected the names {', '.join(expected)}: {', and '.join(text)}")
    for name, want in expected.items():
        found = difference(want, got[name])
        if found:
            return Difference(found.kind, f"{name}: {found.text}")
    return None


def _array_difference(expected: np.ndarray, got: np.ndarray) -> Difference | None:
    if got.shape != expected.shape:
        text = f"expected shape {expected.shape}, got {got.shape}"
        return Difference("wrong_shape", text)
    if (expected.dtype == bool) != (got.dtype == bool):
        return Difference("wrong_dtype", _dtype_text(expected, got))
    # Whole numbers are fine where the answer is made of them (2 for 2.0); elsewhere an array of them is a slip.
    whole = expected.dtype.kind == "f" and got.dtype.kind in "iu" and expected.ndim > 0
    close = _close(expected, got)
    if got.dtype.kind == "c" or (whole and not (close.all() and _all_whole(expected))):
        return Difference("wrong_dtype", _dtype_text(expected, got))
    if close.all():
        return None
    place = tuple(int(i) for i in np.argwhere(~close)[0]) if close.ndim else ()
    want, have = expected[place], got[place]
    where = f"at [{', '.join(map(str, place))}] " if place else ""
    text = f"{where}expected {_item(want)}, got {_item(have)}"
    if _only_rounded(expected, got):
        text = f"right to a few digits, but computed in {got.dtype} where the input is {expected.dtype}"
        return Difference("wrong_dtype", text)
    return Difference("nan" if np.isnan(have) and not np.isnan(want) else "different", text)


def _all_whole(expected: np.ndarray) -> bool:
    return bool((np.isfinite(expected) & (expected == np.round(expected))).all())


def _close(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    if expected.dtype.kind != "f":
        return np.asarray(expected == got)
    tolerance = TOLERANCE.get(expected.dtype.itemsize, 1e-6)
    with np.errstate(all="ignore"):
        return np.isclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def _only_rounded(expected: np.ndarray, got: np.ndarray) -> bool:
    if got.dtype.kind != "f" or got.dtype.itemsize >= expected.dtype.itemsize:
        return False
    coarse = TOLERANCE.get(got.dtype.itemsize, 1e-5)
    return bool(np.isclose(got, expected, rtol=10 * coarse, atol=10 * coarse, equal_nan=True).all())


def _item(x: Any) -> str:
    return number(x, 6) if x.dtype.kind == "f" else str(x)


def _dtype_text(expected: np.ndarray, got: np.ndarray) -> str:
    return f"expected values of type {expected.dtype}, got {got.dtype}"


def _type_text(expected: Any, value: Any) -> str:
    if isinstance(expected, dict):
        got = _article(type(value).__name__)
        odd = [name for name in expected if isinstance(value, dict) and not _is_plain(value.get(name, 0))]
        if odd:
            got = f"one with {_article(type(value[odd[0]]).__name__)} for {odd[0]}"
        return f"expected a dictionary of arrays with the names {', '.join(expected)}, got {got}"
    if isinstance(value, tuple) and not isinstance(expected, tuple):
        return f"expected one result, got {len(value)}: return the first one alone?"
    if isinstance(value, (list, tuple)):
        return "expected an array, got a list that is not a rectangle of numbers"
    if isinstance(value, np.ndarray):
        return f"expected an array of numbers, got one of type {value.dtype}"
    want = _several(expected) if isinstance(expected, tuple) else "an array"
    if not isinstance(expected, tuple) and expected.ndim == 0:
        want = "True or False" if expected.dtype == bool else "a number"
    return f"expected {want}, got {_article(type(value).__name__)}"


def _several(expected: tuple) -> str:
    """What a tuple holds, in words: 2 numbers, 3 arrays."""
    if any(isinstance(e, (tuple, dict)) for e in expected):
        return f"{len(expected)} results"
    numbers = all(e.ndim == 0 for e in expected)
    return f"{len(expected)} {'numbers' if numbers else 'arrays'}"


def _is_plain(value: Any) -> bool:
    try:
        plain(value)
    except NotPlain:
        return False
    return True


def _article(name: str) -> str:
    return ("an " if name[0] in "aeiou" else "a ") + name
