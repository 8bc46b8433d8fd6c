"""A right answer that changes what it was given is told so, whatever it was given."""

import copy
import functools
import random
import types
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from mha_lesson.exercises.engine.changes import Change, first_change
from tests.exercises.engine.helpers import exercise


@dataclass
class Cache:
    keys: np.ndarray
    rows: list = field(default_factory=list)
    filled: int = 0


class Slots:
    __slots__ = ("_hidden", "at")

    def __init__(self):
        self.at = 3


def found(thing, change):
    """What is noticed of `change` to a copy of the thing."""
    after = copy.deepcopy(thing)
    assert first_change(thing, after) is None, "a copy is no change"
    change(after)
    return first_change(thing, after)


CASES = {
    "an array": (np.zeros(3), lambda x: x.fill(1), Change("", "array")),
    "an array of NaN stays": (np.full(3, np.nan), lambda x: x.fill(np.nan), None),
    "an array gets NaN": (np.zeros(3), lambda x: x.fill(np.nan), Change("", "array")),
    "an array with no room": (np.zeros((2, 3)), lambda x: x.resize((3, 2), refcheck=False), Change("", "array")),
    "a list": ([1, 2], lambda x: x.append(3), Change("", "list")),
    "an item of a list": ([1, 2], lambda x: x.reverse(), Change("[0]", "number")),
    "an array in a list": ([np.zeros(2), np.zeros(2)], lambda x: x[1].fill(3), Change("[1]", "array")),
    "something odd in a list": ([1, 2], lambda x: x.__setitem__(1, object()), Change("[1]", "number")),
    "a deque": (deque([1]), lambda x: x.append(2), Change("", "list")),
    "a dictionary": ({"a": 1}, lambda x: x.update(b=2), Change("", "dictionary")),
    "an array in a dictionary": (
        {"a": {"w_q": np.ones(2)}},
        lambda x: x["a"]["w_q"].fill(0),
        Change("['a']['w_q']", "array"),
    ),
    "a set": ({1, 2}, lambda x: x.add(3), Change("", "set")),
    "a bytearray": (bytearray(b"ab"), lambda x: x.append(3), Change("", "set")),
    "a field": (Cache(np.zeros(2)), lambda x: setattr(x, "filled", 1), Change(".filled", "number")),
    "an array in a field": (Cache(np.zeros(2)), lambda x: x.keys.fill(1), Change(".keys", "array")),
    "a list in a field": (Cache(np.zeros(2)), lambda x: x.rows.append(1), Change(".rows", "list")),
    "a new attribute": (Cache(np.zeros(2)), lambda x: setattr(x, "more", 1), Change("", "object")),
    "a slot": (Slots(), lambda x: setattr(x, "at", 4), Change(".at", "number")),
    "an empty slot": (Slots(), lambda x: setattr(x, "_hidden", 4), Change("", "object")),
    "NumPy's generator": (np.random.default_rng(0), lambda x: x.random(), Change("", "generator")),
    "NumPy's old generator": (np.random.RandomState(0), lambda x: x.rand(), Change("", "generator")),
    "Python's generator": (random.Random(0), lambda x: x.random(), Change("", "generator")),
    "a generator in a dictionary": (
        {"rng": np.random.default_rng(0)},
        lambda x: x["rng"].random(),
        Change("['rng']", "generator"),
    ),
    "a function": ({"f": len}, lambda x: None, None),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_noticed_and_named(name):
    thing, change, want = CASES[name]
    assert found(thing, change) == want


def test_what_contains_itself_is_looked_at_once():
    thing = [1]
    thing.append(thing)
    assert found(thing, lambda x: x.__setitem__(0, 2)) == Change("[0]", "number")


def test_what_cannot_be_compared_counts_as_changed():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError("not me")

        __hash__ = object.__hash__

    assert first_change({1}, {Odd()}) == Change("", "set")


def test_a_library_in_an_object_is_left_alone():
    thing = types.SimpleNamespace(np=np, at=1)
    assert first_change(thing, types.SimpleNamespace(np=np, at=1)) is None
    assert first_change(thing, types.SimpleNamespace(np=np, at=2)) == Change(".at", "number")


def test_arrays_of_arrays():
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.ones(2), np.ones(3)]
    assert found(ragged, lambda x: None) is None
    assert found(ragged, lambda x: x[1].__iadd__(1)) == Change("", "array")


class Lazy:
    def __init__(self):
        self.x = 3

    @functools.cached_property
    def square(self):
        return self.x**2


def test_what_an_object_notes_down_when_it_is_looked_at_is_no_change():
    assert found(Lazy(), lambda x: x.square) is None
    assert found(Lazy(), lambda x: setattr(x, "y", x.square)) == Change("", "object")
    assert found(Lazy(), lambda x: setattr(x, "x", 4)) == Change(".x", "number")


def test_what_stands_in_many_places_is_looked_at_once():
    deep = [1]
    for _ in range(60):  # one by one, the places would be 2**60
        deep = [deep, deep]
    assert found(deep, lambda x: None) is None
    innermost = [1]
    twice = [[innermost], [innermost]]
    assert found(twice, lambda x: x[1][0].append(2)) == Change("[0][0]", "list")


@pytest.mark.torch
class TestTorch:
    def test_tensors(self):
        import torch

        x = torch.tensor([1.0, float("nan")])
        assert found(x, lambda x: None) is None
        assert found(x, lambda x: x.add_(1)) == Change("", "tensor")
        assert found(x.bfloat16(), lambda x: x.mul_(2)) == Change("", "tensor")
        assert found(x, lambda x: x.requires_grad_()) == Change("", "gradient")
        leaf = torch.ones(2, requires_grad=True)
        assert found(leaf, lambda x: x.data.add_(1)) == Change("", "tensor")
        assert found({"w": x}, lambda w: w["w"].add_(1)) == Change("['w']", "tensor")

    def test_modules(self):
        import torch

        module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        assert found(module, lambda m: m.eval()) == Change("", "mode")
        assert found(module, lambda m: m[1].eval()) == Change(".1", "mode")
        assert found(module, lambda m: m[0].weight.data.zero_()) == Change(".0.weight", "parameter")
        assert found(module, lambda m: m[0].weight.requires_grad_(False)) == Change(".0.weight", "parameter")
        assert found(module, lambda m: m[1].running_mean.add_(1)) == Change(".1.running_mean", "parameter")
        assert found(module, lambda m: m.append(torch.nn.Linear(2, 2))) == Change(".2.weight", "parameter")
        assert found(module, lambda m: m(torch.ones(3, 2))) is not None, "batch norm counts"
        assert found(module.eval(), lambda m: m(torch.ones(3, 2))) is None

    def test_gradients_that_are_left_behind(self):
        import torch

        leaf = torch.ones(2, requires_grad=True)
        assert found(leaf, lambda x: torch.autograd.grad((2 * x).sum(), x)) is None
        assert found(leaf, lambda x: (2 * x).sum().backward()) == Change(".grad", "grad")
        module = torch.nn.Linear(2, 2)
        assert found(module, lambda m: m(torch.ones(2)).sum().backward()) == Change(".weight.grad", "grad")
        assert found({"m": [module]}, lambda m: m["m"][0](torch.ones(2)).sum().backward()) == Change(
            "['m'][0].weight.grad", "grad"
        )
        _, text = said(leaf, lambda x: (2 * x).sum().backward())
        assert "leaves a gradient in x.grad" in text and "`torch.autograd.grad(loss, inputs)`" in text

    def test_settings_of_a_module(self):
        import torch

        module = torch.nn.Sequential(torch.nn.Dropout(0.5))
        assert found(module, lambda m: setattr(m[0], "p", 0.0)) == Change(".0.p", "setting")
        assert "at x.0.p, and the caller's module is changed" in said(module, lambda m: setattr(m[0], "p", 0.0))[1]

    def test_what_no_comparison_can_tell_is_nobodys_change(self):
        import torch

        assert found(torch.ones(2, device="meta"), lambda x: None) is None
        assert found({"a": torch.ones(2, device="meta"), "b": [1]}, lambda x: None) is None

    def test_generators(self):
        import torch

        rng = torch.Generator().manual_seed(3)
        assert found(rng, lambda g: torch.rand(1, generator=g)) == Change("", "generator")


# -- what the learner reads --------------------------------------------------------------------


def said(thing, change, solution=lambda x: 1.0, **more):
    """What an answer is told that is right, and does this to its argument."""

    def answer(x):
        change(x)
        return 1.0

    result = exercise(solution, (thing,), **more).diagnose(answer)
    return result.mistake, result.message


READ = {
    "array": (np.zeros(3), lambda x: x.fill(1), "writes into its argument x, and the caller's array", "`x = x.copy()`"),
    "dictionary": (
        {"w": np.ones(1)},
        lambda x: x["w"].fill(0),
        "at x['w'], and the caller's dictionary",
        "`w = x['w'] / 2`",
    ),
    "keys": (
        {"w": 1},
        lambda x: x.pop("w"),
        "writes into its argument x, and the caller's dictionary",
        "`x = dict(x)`",
    ),
    "list": ([3, 1], lambda x: x.sort(), "at x[0], and the caller's list is changed", "`x = list(x)`"),
    "arrays": (
        [np.zeros(2)],
        lambda x: x[0].fill(1),
        "at x[0], and the caller's list",
        "`x = [each.copy() for each in x]`",
    ),
    "tuple": (
        (np.zeros(2), [1]),
        lambda x: x[1].append(2),
        "at x[1], and the caller's tuple",
        "`x = copy.deepcopy(x)`",
    ),
    "set": ({1}, lambda x: x.add(2), "the caller's set is changed", "`x = set(x)`"),
    "cache": (
        Cache(np.zeros(2)),
        lambda x: x.rows.append(1),
        "at x.rows, and the caller's object",
        "`x = copy.deepcopy(x)`",
    ),
    "generator": (
        np.random.default_rng(0),
        lambda x: x.random(),
        "draws from x, and whoever draws next",
        "`x = copy.deepcopy(x)`",
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_the_words_name_what_changed_and_a_mend(kind):
    thing, change, what, mend = READ[kind]
    mistake, message = said(thing, change)
    assert mistake == "changes_input" and message.startswith("The result is right. But the function ")
    assert what in message and mend in message, message


@pytest.mark.torch
def test_the_words_for_tensors_modules_and_generators():
    import torch

    layer = torch.nn.Linear(2, 2)
    assert "switches x between training and evaluation" in said(layer, lambda m: m.eval())[1]
    assert "`was = x.training`" in said(layer, lambda m: m.eval())[1]
    assert "at x.weight, and the caller's module is changed" in said(layer, lambda m: m.weight.data.zero_())[1]
    assert "the caller's tensor is changed" in said(torch.ones(2), lambda x: x.add_(1))[1]
    assert "switches the gradient of x on or off" in said(torch.ones(2), lambda x: x.requires_grad_())[1]
    assert "draws from x" in said(torch.Generator(), lambda g: torch.rand(1, generator=g))[1]


def test_what_the_courses_own_function_changes_may_be_changed():
    def solution(x):
        x.random()
        return 1.0

    assert said(np.random.default_rng(0), lambda x: x.random(3), solution)[0] is None


def test_a_wrong_answer_is_told_what_is_wrong_not_what_it_changes():
    def answer(x):
        x += 1
        return 2.0

    assert exercise(lambda x: 1.0, (np.zeros(2),)).diagnose(answer).mistake == "different"
