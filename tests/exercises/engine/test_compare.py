"""Two values told apart."""

import numpy as np

from mha_lesson.exercises.engine.compare import difference, plain
from mha_lesson.exercises.engine.probes import wave

# ---------------------------------------------------------------------------- answers in many shapes


def test_whole_numbers_pass_where_the_answer_is_made_of_them():
    zeros, halves = np.zeros(3), np.array([0.5, 1, 2])
    assert difference(zeros, [0, 0, 0]) is None and difference(np.array([2.0, 5]), (2, 5)) is None
    assert difference(zeros, [0, 1, 0]).kind == "wrong_dtype"
    assert difference(halves, [0, 1, 2]).kind == "wrong_dtype"
    assert difference(np.array([np.nan, 1]), [0, 1]).kind == "wrong_dtype"


# -- comparing ------------------------------------------------------------------------------


def test_plain_reads_tensors_lists_and_numbers():
    assert plain([[1, 2], [3, 4]]).shape == (2, 2)
    assert plain(2.0).shape == ()
    assert plain([np.ones(2), np.zeros(2)]).shape == (2, 2)
    assert [a.shape for a in plain((np.ones(2), [1.0]))] == [(2,), (1,)]


def test_difference_finds_nothing_in_equal_values_and_the_first_place_in_others():
    x = wave(3, 5)
    assert difference(x, x.tolist()) is None
    y = x.copy()
    y[1, 2] += 0.1
    assert difference(x, y).text.startswith("at [1, 2] expected")
    assert difference(x, x[:, :4]).kind == "wrong_shape"
    assert difference(np.tri(2, dtype=bool), np.tri(2)).kind == "wrong_dtype"
    assert difference(np.asarray(2.0), 2) is None
