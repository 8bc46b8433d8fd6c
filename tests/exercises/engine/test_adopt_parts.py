"""What an adopted function answers has the form of the course's own, however deep that is."""

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY, adopt
from mha_lesson.exercises.engine import Protocol
from tests.exercises.engine.helpers import exercise

A, B = np.arange(3.0), np.ones((2, 2))


@pytest.fixture
def adopted(monkeypatch):
    def enter(solution, answer, **more):
        monkeypatch.setitem(REGISTRY, "99.f", exercise(solution, (1,), **more))
        return adopt("99.f", answer)

    return enter


def same(want, got):
    if isinstance(want, (tuple, dict)):
        parts = want.items() if isinstance(want, dict) else enumerate(want)
        return type(got) is type(want) and len(got) == len(want) and all(same(part, got[i]) for i, part in parts)
    return isinstance(got, np.ndarray) and np.array_equal(want, got)


@pytest.mark.parametrize(
    "want, answer",
    [
        ((A, B), [A.tolist(), B]),
        (((A, B), A), [[A, B.tolist()], A]),
        ({"pair": (A, B), "one": A}, {"pair": [A, B], "one": A.tolist()}),
        (((A, {"b": (B, A)}), A), ((A, {"b": [B, A]}), A)),
    ],
    ids=["pair", "pair in a pair", "pair in a dictionary", "deeper"],
)
def test_tuples_and_dictionaries_with_arrays_in_them(adopted, want, answer):
    assert same(want, adopted(lambda x: want, lambda x: answer)(1))


def test_a_list_of_arrays_that_make_no_single_one_comes_as_a_tuple(adopted):
    assert same((A, B), adopted(lambda x: [A, B], lambda x: (A, B.tolist()))(1))


def test_what_is_given_is_made_patient_by_name_too(adopted):
    f = adopted(lambda x: x + 1, lambda x: x + 1, protocol=Protocol(given=int))
    assert f("2") == f(x="2") == 3


def test_an_adopted_function_takes_its_arguments_by_name_too(monkeypatch):
    """Also where answers are read: the names are the learner's, not those of the course's function."""
    answer = adopt("07.cost", lambda L, S, E: [REGISTRY["07.cost"].solution(L, S, E)])
    assert answer(L=2, S=3, E=4) == answer(2, 3, 4) == REGISTRY["07.cost"].solution(2, 3, 4)
