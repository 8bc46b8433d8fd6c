"""11.gqa: who shares a head."""

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY
from tests.exercises.helpers import mistake, variant
from tests.reference import near

# -- answers as they are written ------------------------------------------------------------


GQA = {
    "tiled": lambda k, n: np.concatenate([k] * n, axis=1),
    "tokens_repeated": lambda k, n: k.repeat(n, axis=2),
    "correct": lambda k, n: np.concatenate([k[:, i : i + 1] for i in range(k.shape[1]) for _ in range(n)], axis=1),
}


@pytest.mark.parametrize("name", GQA)
def test_gqa_as_learners_write_it(name):
    assert mistake("11.gqa", GQA[name]) == name


# -- worked values, and those that wrong answers give ----------------------------------------


@pytest.mark.parametrize("name, heads", [(None, [10, 10, 10, 20, 20, 20]), ("tiled", [10, 20, 10, 20, 10, 20])])
def test_two_heads_for_six(name, heads):
    function = variant("11.gqa", name) if name else REGISTRY["11.gqa"].solution
    near(function(np.array([10.0, 20]).reshape(1, 2, 1, 1), 3).ravel(), heads)
