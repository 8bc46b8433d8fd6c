"""Heads: cut apart, joined again, projected."""

import numpy as np
import pytest

from mha_lesson.steps.heads import merge_heads, output_projection, split_heads
from tests.reference import g, near, read_only, says
from tests.reports import reported


@reported("jsbaan/transformer-from-scratch#6")
def test_heads_are_joined_side_by_side():
    o = np.array([[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]], float)
    near(merge_heads(o), [[[1, 2, 5, 6], [3, 4, 7, 8]]])
    near(merge_heads(o[0]), [[1, 2, 5, 6], [3, 4, 7, 8]])


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("L, H, D", [(5, 3, 2), (3, 3, 3), (7, 1, 4), (1, 5, 2), (4, 2, 1)])
def test_split_cuts_features_and_merge_undoes_it(lead, L, H, D):
    x = read_only(g((*lead, L, H * D)))
    split = split_heads(x, H)
    assert split.shape == (*lead, H, L, D)
    for *b, h, i, d in np.ndindex(split.shape):
        assert split[(*b, h, i, d)] == x[(*b, i, h * D + d)]
    assert np.array_equal(merge_heads(split), x)
    assert np.array_equal(split_heads(merge_heads(read_only(split)), H), split)


@pytest.mark.parametrize("heads", [5, 8, 13])
def test_split_refuses_what_does_not_divide(heads):
    wanted = says("num_heads: expected a divisor of d_model = 12", f"got {heads}", "not a whole number")
    with pytest.raises(ValueError, match=wanted):
        split_heads(g((3, 12)), heads)


@pytest.mark.parametrize("heads", [0, -2, 2.0])
def test_split_refuses_a_number_of_heads_that_cannot_be(heads):
    with pytest.raises((TypeError, ValueError), match="num_heads: expected"):
        split_heads(g((3, 12)), heads)


def test_output_projection_is_a_sum_over_heads():
    heads, w_o, b_o = read_only(g((2, 3, 5, 2)), g((6, 7), 0.9), g((7,), 0.4))
    joined = output_projection(merge_heads(heads), w_o, b_o)
    blocks = w_o.reshape(3, 2, 7)
    near(joined, sum(heads[:, h] @ blocks[h] for h in range(3)) + b_o)
    near(output_projection(merge_heads(heads), w_o), joined - b_o)
