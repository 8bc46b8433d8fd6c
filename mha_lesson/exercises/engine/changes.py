"""What a call did to the things that it was given.

`first_change(before, after)` looks into arrays, tensors, lists, dictionaries, sets, modules,
random generators and objects of any class, and names the first thing that is no longer as it was.
Functions, classes and iterators count as unchanged: nobody can look into them.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Change:
    """One thing that was changed.

    path: where it is, as it is written behind the name of the whole: "", "['w_q']", ".weight"
    kind: array, tensor, gradient (wanted or not), grad (what backward leaves), list, dictionary, set,
          parameter, mode or setting (of a module), generator, number or object
    """

    path: str
    kind: str


def first_change(before: Any, after: Any) -> Change | None:
    """The first difference between a thing and what became of it; None if there is none."""
    try:
        return next(_changes(before, after, "", set()), None)
    except Exception:  # it cannot be compared at all, or something was put into it that cannot
        return Change("", kind_of(before)) if _can_be_compared(before) else None


def _can_be_compared(thing: Any) -> bool:
    try:
        return not any(_changes(thing, thing, "", set()))
    except Exception:
        return False


def _changes(before: Any, after: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[Change]:
    """All differences. `seen`: what stands in several places, or in itself, is looked at once."""
    pair = (id(before), id(after))
    if pair in seen:
        return
    kind = kind_of(before)
    if type(before) is not type(after):
        yield Change(path, kind)
    elif kind in _EQUAL:
        if not _EQUAL[kind](before, after):
            yield Change(path, kind)
    elif kind == "tensor":
        yield from _tensor_changes(before, after, path)
    else:
        seen.add(pair)
        yield from _changes_inside(kind, before, after, path, seen)


def _changes_inside(kind: str, before: Any, after: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[Change]:
    """Differences in the parts of a thing, and in which parts it has."""
    if kind == "module":
        yield from _module_changes(before, after, path)
        return
    old, new = _parts(kind, before), _parts(kind, after)
    if list(old) != list(new):
        yield Change(path, kind)
        return
    for where, part in old.items():
        yield from _changes(part, new[where], path + where, seen)


def kind_of(thing: Any) -> str:
    """What it is, as far as changes go; torch is not imported for that."""
    if isinstance(thing, np.ndarray):
        return "array"
    if isinstance(thing, dict):
        return "dictionary"
    if isinstance(thing, (list, tuple, deque)):
        return "list"
    if isinstance(thing, (set, frozenset, bytearray)):
        return "set"
    if isinstance(thing, (int, float, complex, str, bytes, np.generic)):
        return "number"
    if isinstance(thing, (np.random.Generator, np.random.RandomState, random.Random)):
        return "generator"
    origin = type(thing).__module__
    if hasattr(thing, "detach") and hasattr(thing, "numpy"):
        return "tensor"
    if origin.startswith("torch") and hasattr(thing, "manual_seed"):
        return "generator"
    return "module" if hasattr(thing, "named_parameters") and hasattr(thing, "named_buffers") else "object"


def _same_array(before: np.ndarray, after: np.ndarray) -> bool:
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if before.dtype.hasobject:
        return first_change(before.tolist(), after.tolist()) is None
    return np.array_equal(before, after, equal_nan=before.dtype.kind in "fc")


def _same_generator(before: Any, after: Any) -> bool:
    """Would both draw the same numbers next?"""
    return first_change(_state(before), _state(after)) is None


def _state(generator: Any) -> Any:
    """All that decides what is drawn next."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()  # torch's, and NumPy's old one


def _same_number(before: Any, after: Any) -> bool:
    return bool(before == after or before != before)  # NaN stays NaN


_EQUAL = {
    "array": _same_array,
    "generator": _same_generator,
    "number": _same_number,
    "set": lambda before, after: before == after,
}


def _tensor_changes(before: Any, after: Any, path: str) -> Iterator[Change]:
    if before.shape != after.shape or before.dtype != after.dtype or before.device != after.device:
        yield Change(path, "tensor")
    elif before.requires_grad != after.requires_grad:
        yield Change(path, "gradient")
    else:
        old, new = before.detach(), after.detach()
        if not bool(((old == new) | (old != old) & (new != new)).all()):
            yield Change(path, "tensor")
        elif before.is_leaf and first_change(before.grad, after.grad):
            yield Change(f"{path}.grad", "grad")


def _module_changes(before: Any, after: Any, path: str) -> Iterator[Change]:
    """Parameters and buffers, their names too; of each part, whether it is in training mode, and its settings."""
    old = {**dict(before.named_parameters()), **dict(before.named_buffers())}
    new = {**dict(after.named_parameters()), **dict(after.named_buffers())}
    for name in [*old, *(name for name in new if name not in old)]:
        place = f"{path}.{name}"
        found = next(_tensor_changes(old[name], new[name], place), None) if name in old and name in new else True
        if found:
            yield found if isinstance(found, Change) and found.kind == "grad" else Change(place, "parameter")
    parts = dict(after.named_modules())
    for name, part in before.named_modules():
        place = f"{path}.{name}" if name else path
        if name in parts and part.training != parts[name].training:
            yield Change(place, "mode")
        elif name in parts:
            old, new = _settings(part), _settings(parts[name])
            yield from (Change(f"{place}.{n}", "setting") for n in old if first_change(old[n], new.get(n)))


def _settings(module: Any) -> dict[str, Any]:
    """The numbers and words that a module was made with, such as its dropout."""
    return {
        name: value
        for name, value in vars(module).items()
        if kind_of(value) == "number" and name != "training" and not name.startswith("_")
    }


def _parts(kind: str, thing: Any) -> dict[str, Any]:
    """What is in it: {how it is written behind the name: the part}."""
    if kind == "dictionary":
        return {f"[{key!r}]": value for key, value in thing.items()}
    if kind == "list":
        return {f"[{i}]": part for i, part in enumerate(thing)}
    if isinstance(thing, (type, ModuleType)) or hasattr(thing, "__next__"):
        return {}
    names = [*getattr(thing, "__dict__", {}), *_slots(type(thing))]
    # What an object notes down for itself when it is only looked at does not count.
    names = [name for name in names if not isinstance(getattr(type(thing), name, None), cached_property)]
    return {f".{name}": getattr(thing, name) for name in names if hasattr(thing, name)}


def _slots(kind: type) -> list[str]:
    """The names that the class and those above it give room to."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else [name for name in slots if not name.startswith("__")]
    return found
