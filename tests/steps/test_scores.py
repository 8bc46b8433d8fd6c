"""Scores: the loop they stand for, the scale, the variance of a dot product."""

import math

import numpy as np
import pytest

from mha_lesson.steps.scores import attention_scores, dot_product_variance
from mha_lesson.steps.softmax import softmax
from tests.reference import g, near, read_only, says
from tests.reports import reported


@reported("getalp/Flaubert#45")
@reported("Graylab/DL4Proteins-notebooks#12")
def test_the_scale_is_the_root_of_the_head_width():
    q, k = np.array([[3.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 3.0]])
    right = [[0.998280, 0.001720]]
    near(softmax(attention_scores(q, k)), right, 1e-6)
    near(softmax((q / 2**0.5) @ k.T), right, 1e-6)  # scaled before the product: the same
    near(softmax((q / 2**0.25) @ (k / 2**0.25).T), right, 1e-6)  # or half of it on each


@pytest.mark.parametrize("width", [1, 2, 3, 5, 16])
def test_scores_are_the_loop(width):
    query, key = read_only(g((2, 3, 5, width)), g((2, 3, 7, width), 0.9, 0.1))
    got = attention_scores(query, key)
    assert got.shape == (2, 3, 5, 7)
    for b, h, i, j in np.ndindex(got.shape):
        dot = math.fsum(float(a) * float(c) for a, c in zip(query[b, h, i], key[b, h, j], strict=True))
        assert got[b, h, i, j] == pytest.approx(dot / width**0.5, abs=1e-12)


def test_scores_keep_variance_one():
    rng = np.random.default_rng(0)
    for width in (4, 64, 256):
        scores = attention_scores(*rng.standard_normal((2, 300, width)))
        assert scores.var() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("d", [1, 2, 7, 64, 1000])
def test_variance_of_a_dot_product(d):
    assert dot_product_variance(d) == pytest.approx((d, 1))


def test_scores_name_the_widths():
    wanted = says("key: expected the query's width 3", "(5, 4)", "query (2, 3)", "same width")
    with pytest.raises(ValueError, match=wanted):
        attention_scores(g((2, 3)), g((5, 4)))
