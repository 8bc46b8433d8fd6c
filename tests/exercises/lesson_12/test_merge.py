"""12.merge, as learners write it."""

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY, adopt
from tests.exercises.helpers import mistake

# -- answers as they are written ------------------------------------------------------------


def merge_as_in_the_paper(m1, l1, o1, m2, l2, o2):
    m = np.maximum(m1, m2)
    a, b = np.exp(m1 - m), np.exp(m2 - m)
    return m, l1 * a + l2 * b, o1 * a[:, None] + o2 * b[:, None]


def merge_only_o(m1, l1, o1, m2, l2, o2):
    m = np.maximum(m1, m2)
    a, b = np.exp(m1 - m), np.exp(m2 - m)
    return m, l1 + l2, o1 * a[:, None] + o2 * b[:, None]


MERGE = {
    "nan_when_empty": merge_as_in_the_paper,
    "only_o+nan_when_empty": merge_only_o,
}


@pytest.mark.parametrize("name", MERGE)
def test_merge_as_learners_write_it(name):
    assert mistake("12.merge", MERGE[name]) == name


# -- odd answers to the steps ---------------------------------------------------------------


def test_a_list_is_as_good_as_a_pair():
    merge = REGISTRY["12.merge"].solution
    assert mistake("12.merge", lambda *parts: list(merge(*parts))) == "correct"
    parts = REGISTRY["12.merge"].probe_list[0].args
    adopted = adopt("12.merge", lambda *parts: list(merge(*parts)))(*parts)
    assert isinstance(adopted, tuple) and all(map(np.array_equal, adopted, merge(*parts)))
