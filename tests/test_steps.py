"""The steps, lesson by lesson: values, invariants, and what the error messages say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_lesson.steps.embeddings import add_positions, embed, lookup, rotary, sinusoidal_positions
from mha_lesson.steps.heads import merge_heads, output_projection, split_heads
from mha_lesson.steps.lookup import double, soft_lookup
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
from mha_lesson.steps.projections import project, qkv
from mha_lesson.steps.scores import attention_scores, dot_product_variance
from mha_lesson.steps.softmax import masked_softmax, softmax
from tests.reference import g, loop_project, loop_softmax, near, read_only, says, stable

FLOATS = [np.float16, np.float32, np.float64]


# ---------------------------------------------------------------------------- 00 soft look-up


def test_double():
    x = read_only(g((2, 3)))
    near(double(x), [[2 * a for a in row] for row in x.tolist()])


def test_soft_lookup_is_the_share_of_each_value():
    query, keys, values = read_only(g((5,)), g((3, 5), 0.9, 0.1), g((3, 2), 0.4, 0.2))
    match = [math.fsum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    total = math.fsum(math.exp(m) for m in match)
    want = [math.fsum(math.exp(m) / total * v[c] for m, v in zip(match, values, strict=True)) for c in range(2)]
    near(soft_lookup(query, keys, values), want)


def test_soft_lookup_with_huge_matches_is_a_dictionary():
    keys, values = 1000.0 * np.eye(3), np.array([[1.0], [2.0], [4.0]])
    for j in range(3):
        near(soft_lookup(1000.0 * np.eye(3)[j], keys, values), values[j])


# -------------------------------------------------------------------------------- 01 embeddings


def test_lookup_takes_the_rows_that_the_ids_name():
    table = read_only(g((7, 5)))
    ids = np.array([[6, 0, 3], [1, 1, 2]])
    got = lookup(ids, table)
    assert got.shape == (2, 3, 5)
    for b in range(2):
        for i in range(3):
            assert got[b, i].tolist() == table[ids[b, i]].tolist()
    assert lookup(np.array([], int), table).shape == (0, 5)


@pytest.mark.parametrize("function", [lookup, embed])
@pytest.mark.parametrize("ids, bad", [([0, 3], 3), ([-1, 0], -1), ([[0, 5], [-1, 1]], 5)])
def test_ids_without_a_row_are_refused(function, ids, bad):
    wanted = says("ids: expected numbers from 0 to 2", "3 rows", f"got {bad}.", "vocabulary that belongs")
    with pytest.raises(ValueError, match=wanted):
        function(np.array(ids), g((3, 2)))


@pytest.mark.parametrize("ids", [[1.0, 0.0], [True, False, True]])
def test_ids_that_are_not_whole_numbers_are_refused(ids):
    with pytest.raises((TypeError, ValueError), match="ids: expected"):
        lookup(np.array(ids), g((3, 2)))


def test_embed_is_the_row_times_the_root_of_the_width():
    table = read_only(g((7, 5)))
    near(embed(np.array([3, 0]), table), table[[3, 0]] * 5**0.5)
    near(embed(np.array([[6]]), table), table[6].reshape(1, 1, 5) * 5**0.5)


def test_A23_positions_share_one_frequency_in_each_pair():
    positions = sinusoidal_positions(4, 6)
    want = [0.141120, -0.989992, 0.138798, 0.990321, 0.006463, 0.999979]
    near(positions[3], want, 1e-6)
    dots = [float(p @ q) for p, q in zip(positions, positions[2:], strict=False)]
    near(np.array(dots), [1.579538] * 2, 1e-6)


@stable
@given(n=st.integers(1, 40), pairs=st.integers(1, 9))
def test_positions_invariants(n, pairs):
    positions = sinusoidal_positions(n, 2 * pairs)
    assert positions.shape == (n, 2 * pairs)
    near((positions.reshape(n, pairs, 2) ** 2).sum(-1), np.ones((n, pairs)))
    gram = positions @ positions.T  # gram[p, q] is a matter of the distance p - q alone
    near(gram[1:, 1:], gram[:-1, :-1])
    want = [
        [f(p / 10000 ** (2 * i / (2 * pairs))) for i in range(pairs) for f in (math.sin, math.cos)] for p in range(n)
    ]
    near(positions, want)


def test_positions_refuse_an_odd_width():
    with pytest.raises(ValueError, match=says("d: expected an even width", "pairs", "got 5")):
        sinusoidal_positions(4, 5)


def test_A15_rotary_turns_neighbours():
    x = read_only(np.tile([1.0, 2.0, 3.0, 4.0], (2, 1)))
    turned = rotary(x, np.array([0, 3]))
    near(turned[0], x[0])
    near(turned[1], [-1.272233, -1.838865, 1.683929, 4.707907], 1e-6)
    near(np.linalg.norm(turned[1]), 5.477226, 1e-6)
    q, k = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.5, -1.0, 2.0, 0.25]])
    for m, n in [(5, 2), (8, 5), (3, 0)]:
        score = rotary(q, np.array([m])) @ rotary(k, np.array([n])).T
        near(score, [[5.747583]], 1e-6)


@stable
@given(
    length=st.integers(1, 6),
    pairs=st.integers(1, 5),
    base=st.sampled_from([10.0, 100.0, 10000.0]),
    shift=st.integers(-5, 50),
    seed=st.integers(0, 2**16),
)
def test_rotary_invariants(length, pairs, base, shift, seed):
    rng = np.random.default_rng(seed)
    x = read_only(rng.standard_normal((2, 3, length, 2 * pairs)))
    y = read_only(rng.standard_normal((2, 3, length, 2 * pairs)))
    pos = rng.integers(0, 30, length)
    turned = rotary(x, pos, base)
    for place in range(length):
        for i in range(pairs):
            angle = pos[place] / base ** (i / pairs)
            want = (x[..., place, 2 * i] + 1j * x[..., place, 2 * i + 1]) * np.exp(1j * angle)
            near(turned[..., place, 2 * i], want.real)
            near(turned[..., place, 2 * i + 1], want.imag)
    near(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1))
    here = turned @ rotary(y, pos, base).swapaxes(-1, -2)
    there = rotary(x, pos + shift, base) @ rotary(y, pos + shift, base).swapaxes(-1, -2)
    near(here, there, 1e-11)


def test_rotary_refuses_an_odd_width():
    with pytest.raises(ValueError, match=says("x: expected an even last axis", "(2, 3)")):
        rotary(g((2, 3)), np.arange(2))


def test_rotary_never_cuts_whole_numbers_short():
    """An array of whole numbers is turned like the same floats, or refused; never truncated."""
    x = np.array([[1, 2, 3, 4]])
    try:
        turned = rotary(x, np.array([3]))
    except (TypeError, ValueError) as error:
        assert "x: expected" in str(error)
    else:
        near(turned, rotary(x.astype(float), np.array([3])))


@pytest.mark.parametrize("places", [2, 1])
def test_rotary_wants_one_position_a_row(places):
    with pytest.raises(ValueError, match="pos: expected"):
        rotary(g((3, 4)), np.arange(places))


@pytest.mark.parametrize("B, L, n", [(2, 3, 3), (3, 3, 3), (3, 3, 7), (5, 1, 5), (4, 2, 4)])
def test_a_place_in_the_sentence_gets_the_same_row_in_every_sequence(B, L, n):
    x, positions = read_only(g((B, L, 4)), g((n, 4), 0.9, 0.1))
    got = add_positions(x, positions)
    assert got.shape == (B, L, 4)
    for b, place, e in np.ndindex(got.shape):
        assert got[b, place, e] == x[b, place, e] + positions[place, e]


def test_add_positions_needs_a_row_for_each_token():
    with pytest.raises(ValueError, match=says("positions: expected at least L = 3 rows", "got 2")):
        add_positions(g((2, 3, 4)), g((2, 4)))


# ------------------------------------------------------------------------------- 02 projections


def test_A20_a_matrix_is_in_out():
    identity, w = np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]])
    near(project(identity, w), [[1, 2], [3, 4]])
    near(project(identity, w.T), [[1, 3], [2, 4]])


@pytest.mark.parametrize("with_bias", [True, False])
def test_project_is_the_loop(with_bias):
    x, w, b = read_only(g((2, 5, 3)), g((3, 7), 0.9), g((7,), 0.4))
    got = project(x, w, b) if with_bias else project(x, w)
    want = [loop_project(s.tolist(), w.tolist(), b.tolist() if with_bias else None) for s in x]
    near(got, want)
    near(project(x[1], w, b), project(x, w, b)[1])


def test_project_names_the_layout_of_the_weight():
    wanted = says("w: expected (in, out) with in = 3", "(2, 3)", "got (5, 3)", "pass weight.T")
    with pytest.raises(ValueError, match=wanted):
        project(g((2, 3)), g((5, 3)))


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 4)])
def test_project_wants_one_bias_a_column(shape):
    with pytest.raises(ValueError, match="b: expected"):
        project(g((2, 3)), g((3, 4)), g(shape))


def test_qkv_gives_query_key_value_in_this_order():
    x = read_only(g((2, 5, 3)))
    w_q, w_k, w_v = read_only(g((3, 4), 0.5), g((3, 4), 0.9), g((3, 7), 1.3))
    got = qkv(x, w_q, w_k, w_v)
    assert isinstance(got, tuple) and len(got) == 3
    for part, w in zip(got, (w_q, w_k, w_v), strict=True):
        near(part, [loop_project(s.tolist(), w.tolist(), None) for s in x])


# ------------------------------------------------------------------------------------ 03 scores


def test_A19_the_scale_is_the_root_of_the_head_width():
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


# ------------------------------------------------------------------------------------- 04 masks


@pytest.mark.parametrize("L", [1, 2, 3, 5])
@pytest.mark.parametrize("S", [1, 2, 3, 5, 7])
def test_A07_causal_is_aligned_lower_right(L, S):
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


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_A11_a_mask_of_0_and_1_is_refused(dtype):
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


def test_A12_three_axes_on_the_head_axis_are_refused():
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


def test_A02_torch_has_two_meanings():
    keep = read_only(np.array([[True, True, False], [True, False, False]]))
    assert to_torch_sdpa(keep).tolist() == keep.tolist()
    assert to_torch_mha(keep).tolist() == (~keep).tolist()
    assert from_torch_sdpa(keep).tolist() == keep.tolist()
    assert from_torch_mha(keep).tolist() == (~keep).tolist()


@pytest.mark.parametrize("heads_in_mask", [1, 3])
def test_A05_all_heads_of_a_sample_stand_together(heads_in_mask):
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


# ----------------------------------------------------------------------------------- 05 softmax


def test_A18_softmax_runs_over_the_keys():
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


def test_A04_half_precision_has_no_room_for_a_finite_fill():
    keep = np.array([[True, True, False]])
    for scores in ([[1, 2, 3]], [[-30000, -29999, 5]]):
        got = masked_softmax(np.array(scores, np.float64), keep)
        near(got, [[0.268941, 0.731059, 0]], 1e-6)
    for scores in ([[1, 2, 3]], [[-60000, -60000, 5]], [[-65504, -65504, 65504]]):
        scores = np.array(scores, np.float16)
        got = masked_softmax(scores, keep)
        assert got.dtype == np.float16
        near(got, [[0.268941, 0.731059, 0]] if scores[0, 0] == 1 else [[0.5, 0.5, 0]], 5e-4)


def test_A03_an_empty_row_is_zero_before_the_division():
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


# ------------------------------------------------------------------------------------- 06 heads


def test_A17_heads_are_joined_side_by_side():
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


# --------------------------------------------------------------------------------- all of them

EVERY_STEP = {
    "double": lambda a: double(a((2, 3))),
    "soft_lookup": lambda a: soft_lookup(a((3,)), a((5, 3)), a((5, 2))),
    "lookup": lambda a: lookup(np.array([1, 0]), a((3, 2))),
    "embed": lambda a: embed(np.array([1, 0]), a((3, 2))),
    "add_positions": lambda a: add_positions(a((2, 5, 4)), a((7, 4))),
    "rotary": lambda a: rotary(a((2, 5, 4)), np.arange(5)),
    "project": lambda a: project(a((2, 5, 3)), a((3, 7)), a((7,))),
    "qkv": lambda a: np.stack(qkv(a((2, 5, 3)), a((3, 7)), a((3, 7)), a((3, 7)))),
    "attention_scores": lambda a: attention_scores(a((2, 5, 3)), a((2, 7, 3))),
    "softmax": lambda a: softmax(a((5, 7))),
    "masked_softmax": lambda a: masked_softmax(a((5, 7)), causal_mask(5, 7)),
    "masked_softmax, empty rows": lambda a: masked_softmax(a((7, 5)), causal_mask(7, 5)),
    "split_heads": lambda a: split_heads(a((2, 5, 6)), 3),
    "merge_heads": lambda a: merge_heads(a((2, 3, 5, 2))),
    "output_projection": lambda a: output_projection(a((2, 5, 6)), a((6, 3)), a((3,))),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", EVERY_STEP)
def test_steps_keep_the_dtype_and_their_inputs(name, dtype):
    got = EVERY_STEP[name](lambda shape: read_only(g(shape).astype(dtype)))
    exact = EVERY_STEP[name](g)
    assert got.dtype == dtype
    near(got.astype(float), exact, {np.float16: 2e-2, np.float32: 1e-5, np.float64: 0}[dtype])
