"""Masks: who sees whom, what is refused, and the border to PyTorch."""

import numpy as np
import pytest

from mha_lesson.steps.masks import (
    as_keep,
    causal_mask,
    check_keep,
    combine_masks,
    from_torch_mha,
    from_torch_sdpa,
    padding_mask,
    to_torch_mha,
    to_torch_sdpa,
    window_mask,
)
from tests.reference import read_only, says
from tests.reports import reported

FLOATS = [np.float16, np.float32, np.float64]


# ------------------------------------------------------------------------------------- 04 masks


@reported("pytorch/pytorch#103082")
@pytest.mark.parametrize("L", [1, 2, 3, 5])
@pytest.mark.parametrize("S", [1, 2, 3, 5, 7])
def test_causal_is_aligned_lower_right(L, S):
    mask = causal_mask(L, S)
    assert mask.dtype == bool
    assert mask.tolist() == [[j - S <= i - L for j in range(S)] for i in range(L)]
    assert mask[-1].all()


@pytest.mark.parametrize("L, S", [(5, 5), (2, 5), (1, 4), (4, 3)])
@pytest.mark.parametrize("width", [1, 2, 3, 9])
def test_window_counts_back_from_the_query(L, S, width):
    mask = window_mask(L, S, width)
    assert mask.dtype == bool
    want = [[j in range(i + S - L - width + 1, i + S - L + 1) for j in range(S)] for i in range(L)]
    assert mask.tolist() == want


def test_a_wide_window_is_causal():
    assert window_mask(3, 5, 5).tolist() == causal_mask(3, 5).tolist()


@pytest.mark.parametrize("width", [0, -1])
def test_window_refuses_no_width(width):
    with pytest.raises(ValueError, match=says("width: expected 1 or more", f"got {width}.")):
        window_mask(3, 3, width)


def test_padding_keeps_the_first_of_each_sequence():
    mask = padding_mask([0, 2, 5, 1], 5)
    assert mask.dtype == bool
    assert mask.tolist() == [[j < n for j in range(5)] for n in (0, 2, 5, 1)]
    assert padding_mask([], 3).shape == (0, 3)


@pytest.mark.parametrize("lengths", [[2, 6], [-1, 2]])
def test_padding_refuses_lengths_out_of_range(lengths):
    with pytest.raises(ValueError, match=says("lengths: expected 0 to S = 5", f"got {lengths}")):
        padding_mask(lengths, 5)


@pytest.mark.parametrize(
    "lengths, came", [([1.0, 2.0], "float64"), ([True, False], "bool"), (3, "()"), ([[1]], "(1, 1)")]
)
def test_padding_refuses_what_is_not_a_list_of_lengths(lengths, came):
    wanted = says("lengths: expected one whole number for each sequence", "[3, 5]", "got", came)
    with pytest.raises(ValueError, match=wanted):
        padding_mask(lengths, 5)


@pytest.mark.parametrize("L, S", [(5, 5), (3, 5), (3, 3)])
def test_combined_masks_need_both(L, S):
    lengths = [3, 1, 2]
    keep = combine_masks(causal_mask(L, S), padding_mask(lengths, S))
    assert keep.dtype == bool and keep.shape == (3, 1, L, S)
    for b, _, i, j in np.ndindex(keep.shape):
        assert keep[b, 0, i, j] == (j <= i + S - L and j < lengths[b])


def test_combine_names_the_mask_that_is_not_boolean():
    with pytest.raises(ValueError, match=says("causal: expected a boolean", "causal.astype(bool)")):
        combine_masks(np.tril(np.ones((3, 3))), padding_mask([2], 3))
    with pytest.raises(ValueError, match=says("padding: expected", "int64", "padding.astype")):
        combine_masks(causal_mask(3, 3), np.array([[1, 1, 0]]))


@pytest.mark.parametrize("shape", [(2, 4), (2, 1, 1, 3), (3,)])
def test_combine_names_shapes_that_do_not_fit(shape):
    with pytest.raises(ValueError, match="padding: expected"):
        combine_masks(causal_mask(3, 3), np.ones(shape, bool))


def test_as_keep_hands_booleans_on():
    mask = read_only(np.array([[True, False]]))
    assert as_keep(mask).tolist() == [[True, False]] and as_keep(mask).dtype == bool
    assert as_keep([[True, False]]).tolist() == [[True, False]]


@reported("pytorch/pytorch#136816")
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_a_mask_of_0_and_1_is_refused(dtype):
    mask = np.array([1, 1, 0], dtype)
    wanted = says(
        "keep: expected a boolean mask (True = may attend)", f"got {mask.dtype} holding only 0 and 1",
        "pass keep.astype(bool)",
    )  # fmt: skip
    with pytest.raises(ValueError, match=wanted):
        as_keep(mask)
    with pytest.raises(ValueError, match=wanted):
        check_keep(mask, (1, 2, 3, 3))
    with pytest.raises(ValueError, match=wanted):
        to_torch_sdpa(mask)
    with pytest.raises(ValueError, match=wanted):
        to_torch_mha(mask)


def test_an_additive_mask_is_refused_with_its_mend():
    wanted = says("keep: expected a boolean", "additive float32 mask of 0 and -inf", "Pass keep == 0")
    with pytest.raises(ValueError, match=wanted):
        as_keep(np.array([0, -np.inf], np.float32))


@pytest.mark.parametrize(
    "mask, came",
    [
        ([0.5, -2.0], "float64 of shape (2,)"),
        ("causal", "shape ()"),
        ([0, -1e9], "mask of 0 and -1e+09. Pass keep == 0"),
    ],
)
def test_other_masks_are_refused(mask, came):
    with pytest.raises(ValueError, match=says("keep: expected a boolean mask", "got", came)):
        as_keep(mask)


@reported("pytorch/pytorch#177482")
def test_three_axes_on_the_head_axis_are_refused():
    for shape in [(2, 2, 3, 3), (2, 4, 3, 3)]:
        wanted = says("(L, S) or 4 axes", str(shape), "got 3 axes (2, 3, 3)", "keep[:, None]", "keep[None]")
        with pytest.raises(ValueError, match=wanted):
            check_keep(np.ones((2, 3, 3), bool), shape)


@pytest.mark.parametrize(
    "mask, scores",
    [((3, 5), (3, 5)), ((3, 5), (2, 4, 3, 5)), ((2, 1, 1, 5), (2, 4, 3, 5)), ((5,), (2, 4, 3, 5)),
     ((1, 4, 3, 5), (2, 4, 3, 5)), ((4, 3, 5), (4, 3, 5)), ((), (3, 5))],
)  # fmt: skip
def test_masks_that_fit_are_handed_on(mask, scores):
    keep = np.arange(int(np.prod(mask))).reshape(mask) % 2 == 0
    assert np.array_equal(check_keep(keep, scores), keep)


@pytest.mark.parametrize(
    "mask, scores",
    [((5, 3), (2, 4, 3, 5)), ((2, 5), (2, 4, 3, 5)), ((3, 1, 3, 5), (2, 4, 3, 5)),
     ((2, 3, 5), (3, 5)), ((2, 2, 3, 5), (2, 4, 3, 5)), ((2, 4, 3, 5), (1, 4, 3, 5))],
)  # fmt: skip
def test_masks_that_do_not_fit_are_refused(mask, scores):
    mend = "keep[:, None, None, :]" if len(scores) > 2 else "each of the 3 queries and a column for each of the 5"
    wanted = says("keep: expected a shape that broadcasts to the scores", str(scores), f"got {mask}", mend)
    with pytest.raises(ValueError, match=wanted):
        check_keep(np.ones(mask, bool), scores)


# ------------------------------------------------------------------ 04 masks: border to PyTorch


@reported("rasbt/LLMs-from-scratch#1061")
def test_torch_has_two_meanings():
    keep = read_only(np.array([[True, True, False], [True, False, False]]))
    assert to_torch_sdpa(keep).tolist() == keep.tolist()
    assert to_torch_mha(keep).tolist() == (~keep).tolist()
    assert from_torch_sdpa(keep).tolist() == keep.tolist()
    assert from_torch_mha(keep).tolist() == (~keep).tolist()


@reported("line/lighthouse#77")
@pytest.mark.parametrize("heads_in_mask", [1, 3])
def test_all_heads_of_a_sample_stand_together(heads_in_mask):
    keep = np.random.default_rng(1).random((2, heads_in_mask, 5, 7)) < 0.5
    blocked = to_torch_mha(keep, batch=2, num_heads=3)
    assert blocked.shape == (6, 5, 7) and blocked.dtype == bool
    for b in range(2):
        for h in range(3):
            assert np.array_equal(blocked[3 * b + h], ~keep[b, h % heads_in_mask])


def test_one_mask_for_all_samples_is_repeated():
    keep = np.random.default_rng(1).random((1, 3, 5, 7)) < 0.5
    blocked = to_torch_mha(keep, batch=2, num_heads=3)
    assert np.array_equal(blocked, ~np.concatenate([keep[0], keep[0]]))


@pytest.mark.parametrize("shape, sizes", [((2, 3, 3), (2, 2)), ((2, 1, 3, 3), ()), ((2, 1, 3, 3), (2,))])
def test_to_torch_mha_says_what_it_needs(shape, sizes):
    wanted = says("keep: expected (L, S), or (B, 1 or H, L, S)", "batch and num_heads", f"got shape {shape}")
    with pytest.raises(ValueError, match=wanted):
        to_torch_mha(np.ones(shape, bool), *sizes)


def test_to_torch_mha_names_a_batch_that_does_not_fit():
    with pytest.raises(ValueError, match="keep: expected"):
        to_torch_mha(np.ones((2, 1, 3, 3), bool), 3, 2)


def test_to_torch_mha_never_makes_a_mask_that_torch_refuses():
    """(B, 1, 1, S) has no L: nn.MultiheadAttention wants (B * H, L, S)."""
    with pytest.raises(ValueError, match="keep: expected"):
        to_torch_mha(padding_mask([2, 3], 3)[:, None, None, :], 2, 2)


@pytest.mark.parametrize("convert", [from_torch_mha, from_torch_sdpa])
@pytest.mark.parametrize("dtype", FLOATS)
def test_additive_masks_mean_the_same_for_both(convert, dtype):
    keep = convert(read_only(np.array([[0, -np.inf, 0]], dtype)))
    assert keep.tolist() == [[True, False, True]] and keep.dtype == bool


@pytest.mark.parametrize("convert", [from_torch_mha, from_torch_sdpa])
@pytest.mark.parametrize("mask", [[1.0, 0.0], [1, 0], [0.0, -1e9], [0.0, np.inf], [0.0, np.nan]])
def test_other_torch_masks_are_refused(convert, mask):
    wanted = says("mask: expected booleans", "0 (may attend) and -inf (blocked)", "got", "other values")
    with pytest.raises(ValueError, match=wanted):
        convert(np.array(mask))


@pytest.mark.parametrize("convert", [from_torch_mha, from_torch_sdpa])
def test_whole_numbers_are_never_an_additive_mask(convert):
    with pytest.raises(ValueError, match="mask: expected booleans"):
        convert(np.zeros(3, int))
