"""11.chunk: many tokens at once, and wrong masks."""

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY
from mha_lesson.exercises.lesson_11 import chunk
from tests.exercises.helpers import mistake, variant
from tests.exercises.lesson_11.helpers import attends_then_appends, fed, mask_for_one_query, no_mask
from tests.reference import g, near
from tests.reports import reported

# -- answers as they are written ------------------------------------------------------------


CHUNK = {
    "upper_left_mask": mask_for_one_query,
    "attends_first": attends_then_appends,
    "no_mask": no_mask,
    "correct": chunk._by_loop,
}


@pytest.mark.parametrize("name", CHUNK)
def test_chunk_as_learners_write_it(name):
    assert mistake("11.chunk", CHUNK[name]) == name


# -- worked values, and those that wrong answers give ----------------------------------------


@reported("hyprstream/hyprstream#1521")
@pytest.mark.parametrize(
    "name, last_two",
    [
        (None, [4.688096, 6.239676]),
        ("upper_left_mask", [1, 1.416938]),
        ("no_mask", [5.325303, 6.239676]),
        ("not_itself", [3.316661, 3.940555]),
    ],
)
def test_a_chunk_of_two_behind_three_tokens(name, last_two):
    """The right numbers, and those of three wrong masks."""
    q, k, v = g((5, 2)), g((5, 2), 0.9, 0.1), np.array([[1.0], [2], [4], [8], [16]])
    step = variant("11.chunk", name) if name else REGISTRY["11.chunk"].solution
    near(fed(step, q, k, v, (3, 2))[3:], last_two, 1e-6)
