"""An adopted answer of several parts comes back in the form of the course's own."""

import numpy as np

from mha_lesson.exercises import REGISTRY, adopt
from tests.exercises.engine.helpers import exercise

A, B = np.arange(3.0), np.ones((2, 2))


def test_lists_in_lists_become_what_the_course_gives(monkeypatch):
    monkeypatch.setitem(REGISTRY, "99.f", exercise(lambda x: ((A, B), {"w": (B, A)}, x), (2.0,)))
    pair, named, number = adopt("99.f", lambda x: [[A.tolist(), B.tolist()], {"w": [B, A.tolist()]}, x])(5.0)
    assert [type(part) for part in (*pair, *named["w"], number)] == [np.ndarray] * 5
    assert pair[1].shape == (2, 2) and named["w"][1].shape == (3,) and number == 5


def test_an_adopted_function_takes_its_arguments_by_name_too(monkeypatch):
    """Also where answers are read: the names are the learner's, not those of the course's function."""
    answer = adopt("07.cost", lambda L, S, E: [REGISTRY["07.cost"].solution(L, S, E)])
    assert answer(L=2, S=3, E=4) == answer(2, 3, 4) == REGISTRY["07.cost"].solution(2, 3, 4)
