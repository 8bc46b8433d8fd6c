"""Softmax, plain and masked: against a loop, in every number format, on empty rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_lesson.steps.softmax import masked_softmax, softmax
from tests.reference import loop_softmax, near, read_only, stable
from tests.reports import reported


@reported("nerminnuraydogan/vision-transformer#1")
def test_softmax_runs_over_the_keys():
    z = read_only(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 4.0]]))
    want = [[0.090031, 0.244728, 0.665241], [0.017668, 0.017668, 0.964663]]
    near(softmax(z), want, 1e-6)
    near(masked_softmax(z, np.True_), want, 1e-6)
    near(softmax(z).sum(-1), [1, 1])
    assert not np.allclose(softmax(z).sum(0), 1)


@stable
@given(shape=st.sampled_from([(7,), (5, 7), (2, 3, 5, 7), (3, 1)]), seed=st.integers(0, 2**16))
def test_softmax_is_the_loop_and_does_not_see_a_shift(shape, seed):
    rng = np.random.default_rng(seed)
    z = read_only(4 * rng.standard_normal(shape))
    rows = z.reshape(-1, shape[-1]).tolist()
    want = np.array([loop_softmax(row, [True] * len(row)) for row in rows]).reshape(shape)
    near(softmax(z), want)
    near(masked_softmax(z, np.ones(shape, bool)), want)
    shift = rng.integers(-1000, 1000, (*shape[:-1], 1)) * 1.0
    near(softmax(z + shift), want, 1e-11)
    near(softmax(z).sum(-1), np.ones(shape[:-1]))


@pytest.mark.parametrize("run", [softmax, lambda z: masked_softmax(z, np.True_)])
def test_softmax_never_overflows(run):
    near(run(np.array([1000.0, 1000.0, -1000.0])), [0.5, 0.5, 0])
    near(run(np.array([[1e308, -1e308], [-1000.0, -1000.0]]) / 2), [[1, 0], [0.5, 0.5]])
    near(run(np.array([60000, 0, 60000], np.float16)), [0.5, 0, 0.5])


@stable
@given(
    seed=st.integers(0, 2**16),
    share=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    mask_shape=st.sampled_from([(2, 3, 5, 7), (5, 7), (2, 1, 1, 7), (7,)]),
    rubbish=st.sampled_from([np.nan, np.inf, -np.inf, 1e300]),
)
def test_masked_softmax_sees_only_what_is_kept(seed, share, mask_shape, rubbish):
    rng = np.random.default_rng(seed)
    z = 4 * rng.standard_normal((2, 3, 5, 7))
    keep = read_only(rng.random(mask_shape) < share)
    full = np.broadcast_to(keep, z.shape)
    want = [loop_softmax(r.tolist(), k.tolist()) for r, k in zip(z.reshape(-1, 7), full.reshape(-1, 7), strict=True)]
    want = np.array(want).reshape(z.shape)
    near(masked_softmax(read_only(z), keep), want)
    got = masked_softmax(read_only(np.where(full, z, rubbish)), keep)
    near(got, want)
    near(got.sum(-1), full.any(-1) * 1.0)
    assert (got[~full] == 0).all()


@reported("NVIDIA/apex#1105")
def test_half_precision_has_no_room_for_a_finite_fill():
    keep = np.array([[True, True, False]])
    for scores in ([[1, 2, 3]], [[-30000, -29999, 5]]):
        got = masked_softmax(np.array(scores, np.float64), keep)
        near(got, [[0.268941, 0.731059, 0]], 1e-6)
    for scores in ([[1, 2, 3]], [[-60000, -60000, 5]], [[-65504, -65504, 65504]]):
        scores = np.array(scores, np.float16)
        got = masked_softmax(scores, keep)
        assert got.dtype == np.float16
        near(got, [[0.268941, 0.731059, 0]] if scores[0, 0] == 1 else [[0.5, 0.5, 0]], 5e-4)


@reported("pytorch/pytorch#41508")
def test_an_empty_row_is_zero_before_the_division():
    """Forward and gradient of out[1] = softmax(W q k) v by hand, with row 0 empty."""
    q, k, v = np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.array([10.0, 20.0])
    keep = np.array([[False, False], [True, True]])
    weights = masked_softmax(np.outer(q, k), keep)
    near(weights @ v, [0, 19.820138], 1e-6)
    d_weights = np.outer([0.0, 1.0], v)  # loss = out[1]
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    d_w = (d_scores * np.outer(q, k)).sum()
    near(d_w, 0.706508, 1e-6)
    step = 1e-6
    ends = [(masked_softmax(w * np.outer(q, k), keep) @ v)[1] for w in (1 + step, 1 - step)]
    near((ends[0] - ends[1]) / (2 * step), 0.706508, 1e-6)


def test_no_key_at_all_is_an_empty_row():
    assert masked_softmax(np.empty((2, 0)), np.True_).shape == (2, 0)


@pytest.mark.parametrize("keep", [[1.0, 1.0, 0.0], [1, 1, 0], [0.0, 0.0, -np.inf]])
def test_masked_softmax_refuses_what_is_not_boolean(keep):
    """An additive mask read as truth values is the opposite mask: -inf counts as true."""
    with pytest.raises(ValueError, match="keep: expected a boolean mask"):
        masked_softmax(np.array([1.0, 2.0, 3.0]), np.array(keep))


def test_masked_softmax_refuses_a_mask_that_does_not_fit():
    with pytest.raises(ValueError, match="keep: expected a shape that broadcasts"):
        masked_softmax(np.array([1.0, 2.0, 3.0]), np.ones((2, 3), bool))
