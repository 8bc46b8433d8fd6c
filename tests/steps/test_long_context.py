"""Lesson 12's plain functions: one pass, parts that merge, tiles, and attention without a softmax."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_lesson.steps import long_context
from mha_lesson.steps.long_context import (
    features,
    linear_attention,
    linear_attention_chunked,
    merge,
    online_softmax,
    partial,
    tiled_attention,
)
from tests.reference import g, loop_attention, loop_softmax, near, read_only, says, stable

INF = np.inf


DTYPES = [(np.float64, 1e-12), (np.float32, 5e-6)]


seeds = st.integers(0, 2**16)


def shares_of(scores, values):
    """softmax(scores) @ values in loops over Python floats; -inf is a score that is not allowed."""
    share = loop_softmax(scores, [s != -INF for s in scores])
    rows = np.atleast_2d(np.asarray(values, float).T).T.tolist()
    return np.array([math.fsum(w * row[c] for w, row in zip(share, rows, strict=True)) for c in range(len(rows[0]))])


def some_scores(rng, *shape):
    """Between -40 and 40, some of them -inf, some rows wholly so."""
    scores = rng.uniform(-40, 40, shape)
    scores[rng.random(shape) < 0.3] = -INF
    if len(shape) > 1:
        scores[rng.random(shape[:-1]) < 0.2] = -INF
    return scores


# -- one pass -------------------------------------------------------------------------------


@stable
@given(seed=seeds, S=st.integers(1, 13), block=st.integers(1, 15), width=st.integers(0, 3))
def test_one_pass_is_softmax(seed, S, block, width):
    rng = np.random.default_rng(seed)
    scores = some_scores(rng, S)
    values = rng.standard_normal((S, width) if width else S)
    scores, values = read_only(scores, values)
    want = shares_of(scores.tolist(), values)
    near(online_softmax(scores, values, block), want if width else want[0])


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5])
def test_four_scores_whatever_the_block(block):
    values = np.array([1.0, 2, 100, 200])
    near(online_softmax(np.array([0, 1, 3, 2.7]), values, block), 129.019610, 1e-6)
    near(online_softmax(np.array([3.0, 2, 1, 0]), values, block), 16.243832, 1e-6)


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("hidden", [(0,), (0, 1), (0, 1, 2), (2, 3), (3, 4, 5), (4, 5), (0, 1, 4, 5)])
def test_blocks_of_which_nothing_is_allowed(hidden, block):
    """The first ones, one in between, the last ones."""
    scores = g((6,), s=3)
    scores[list(hidden)] = -INF
    near(online_softmax(scores, np.arange(6.0), block), shares_of(scores.tolist(), np.arange(6.0))[0])


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("S", [0, 1, 5])
def test_nothing_allowed_gives_zero(S, dtype, shape):
    out = online_softmax(np.full(S, -INF, dtype), np.ones((S, *shape), dtype), 2)
    assert np.shape(out) == shape and np.all(out == 0) and out.dtype == dtype


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("far", [1000.0, -1000.0, 3e38])
def test_scores_far_from_zero(far, block):
    scores = np.array([far, far, -INF])
    near(online_softmax(scores, np.array([1.0, 3, 9]), block), 2.0)


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
def test_one_pass_keeps_the_type(dtype, tolerance):
    scores, values = g((11,), s=5).astype(dtype), g((11, 3), 1.1).astype(dtype)
    out = online_softmax(scores, values, 4)
    assert out.dtype == dtype
    near(out, shares_of(scores.tolist(), values), tolerance)


def test_a_score_that_is_not_a_number_is_not_swallowed():
    """max(-inf, nan) is -inf in plain Python: the block would be skipped, and nobody would know."""
    for place in range(4):
        scores = g((4,))
        scores[place] = np.nan
        assert np.isnan(online_softmax(scores, np.ones(4), 2))


@pytest.mark.parametrize("block", [0, -2, 1.5, None])
def test_a_block_is_a_whole_number(block):
    with pytest.raises(ValueError, match=says("block:", "whole number from 1 on", repr(block))):
        online_softmax(np.ones(3), np.ones(3), block)


def test_scores_and_values_belong_together():
    with pytest.raises(ValueError, match=says("values:", "(3,)", "(4,)")):
        online_softmax(np.ones(3), np.ones(4), 2)


# -- parts that merge -----------------------------------------------------------------------


def answer(m, l, o):
    return o / np.where(l == 0, 1, l)[..., None]


def test_a_part_by_hand():
    m, l, o = partial(np.array([[0.0, math.log(3)], [5, -INF]]), np.array([[1.0, 10], [2, 20]]))
    near(m, [math.log(3), 5])
    near(l, [4 / 3, 1])
    near(o, [[1 / 3 + 2, 10 / 3 + 20], [1, 10]])


@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 3, 0)])
def test_a_part_without_keys(shape):
    m, l, o = partial(np.zeros(shape), np.zeros((0, 5)))
    assert m.shape == l.shape == shape[:-1] and o.shape == (*shape[:-1], 5)
    assert np.all(m == -INF) and np.all(l == 0) and np.all(o == 0)


@stable
@given(seed=seeds, sizes=st.lists(st.integers(0, 4), min_size=2, max_size=4))
def test_any_cut_any_order_any_grouping(seed, sizes):
    """Empty pieces and queries that may see nothing are among them."""
    rng = np.random.default_rng(seed)
    scores, values = some_scores(rng, 5, sum(sizes)), rng.standard_normal((sum(sizes), 3))
    want = np.array([shares_of(row, values) if len(row) else np.zeros(3) for row in scores.tolist()])
    cuts = np.cumsum(sizes)[:-1]
    parts = [partial(s, v) for s, v in zip(np.split(scores, cuts, 1), np.split(values, cuts), strict=True)]
    for order in itertools.permutations(parts):
        left = order[0]
        for part in order[1:]:
            left = merge(*left, *part)
        right = order[-1]
        for part in order[-2::-1]:
            right = merge(*part, *right)
        near(answer(*left), want)
        near(answer(*right), want)
        assert np.array_equal(left[0], scores.max(1, initial=-INF))


def test_merging_by_hand():
    """m 1 and 3: the first part shrinks by exp(-2), the second stays."""
    m, l, o = merge(*map(np.array, ([1.0], [2.0], [[4.0, 6]], [3.0], [5.0], [[7.0, 8]])))
    e = math.exp(-2)
    near(m, [3])
    near(l, [2 * e + 5])
    near(o, [[4 * e + 7, 6 * e + 8]])


PART = np.array([2.0, -1]), np.array([3.0, 1]), np.array([[1.0, 2, 3], [4, 5, 6]])


EMPTY = np.full(2, -INF), np.zeros(2), np.zeros((2, 3))


def test_an_empty_part_adds_nothing():
    for merged in (merge(*PART, *EMPTY), merge(*EMPTY, *PART)):
        assert all(np.array_equal(a, b) for a, b in zip(merged, PART, strict=True))
    merged = merge(*EMPTY, *EMPTY)
    assert all(np.array_equal(a, b) for a, b in zip(merged, EMPTY, strict=True))


def test_a_part_that_counts_for_nothing():
    """No overflow and no warning, however far apart the maxima are."""
    far = PART[0] - 2000, *PART[1:]
    for merged in (merge(*PART, *far), merge(*far, *PART)):
        assert all(np.array_equal(a, b) for a, b in zip(merged, PART, strict=True))


def test_numbers_merge_as_well():
    m, l, o = merge(1.0, 2.0, np.array([4.0, 6]), 3.0, 5.0, np.array([7.0, 8]))
    assert np.shape(m) == np.shape(l) == () and o.shape == (2,)
    near(o / l, np.array([4 * math.exp(-2) + 7, 6 * math.exp(-2) + 8]) / (2 * math.exp(-2) + 5))
    m, l, o = merge(-INF, 0.0, np.zeros(2), -INF, 0.0, np.zeros(2))
    assert m == -INF and l == 0 and np.array_equal(o, [0, 0])


def test_more_axes_merge_as_well():
    rng = np.random.default_rng(3)
    scores, values = rng.standard_normal((2, 3, 5, 7)), rng.standard_normal((7, 4))
    merged = merge(*partial(scores[..., :3], values[:3]), *partial(scores[..., 3:], values[3:]))
    want = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) @ values
    near(answer(*merged), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_keep_their_type(dtype):
    parts = partial(g((2, 3)).astype(dtype), g((3, 5)).astype(dtype))
    assert [x.dtype for x in merge(*parts, *parts)] == [dtype] * 3


def test_parts_are_not_written_into():
    parts = read_only(*PART)
    merge(*parts, *parts)


@pytest.mark.parametrize(
    "m, l, o",
    [
        ((3, 1), (3, 1), (3, 5)),  # kept axes: (3, 1, 1) · (3, 5) would be (3, 3, 5)
        ((3,), (1,), (3, 5)),
        ((3,), (3,), (3,)),
        ((3,), (3,), (5, 3)),
        ((3,), (3,), (2, 3, 5)),
        ((), (), ()),
    ],
)
@pytest.mark.parametrize("second", [False, True])
def test_parts_of_other_shapes_are_refused(m, l, o, second):
    good, bad = (np.ones(3), np.ones(3), np.ones((3, 5))), (np.ones(m), np.ones(l), np.ones(o))
    with pytest.raises(ValueError, match=says("m, l, o: expected (L,), (L,) and (L, V)", str(m), str(l), str(o))):
        merge(*(good + bad if second else bad + good))


def test_values_of_a_part_are_rows():
    with pytest.raises(ValueError, match=says("values:", "(S, V)", "(3,)", "values[:, None]")):
        partial(np.ones((2, 3)), np.ones(3))
    with pytest.raises(ValueError, match=says("values:", "(2, 3)", "(4, 5)")):
        partial(np.ones((2, 3)), np.ones((4, 5)))


# -- tiles ----------------------------------------------------------------------------------


def qkv(L, S, D, V, dtype=np.float64, size=2.0):
    arrays = g((L, D), 0.7, 0.3, size), g((S, D), 0.9, 0.1), g((S, V), 1.3, 0.4)
    return read_only(*(x.astype(dtype) for x in arrays))


def whole(query, key, value, causal):
    L, S = len(query), len(key)
    keep = [[not causal or j <= i + S - L for j in range(S)] for i in range(L)]
    return np.array(loop_attention(query.tolist(), key.tolist(), value.tolist(), keep)[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L, S", [(7, 7), (3, 11), (11, 5), (1, 7), (7, 1)])
@pytest.mark.parametrize("block_q, block_k", [(1, 1), (2, 3), (3, 2), (4, 4), (64, 64)])
def test_tiles_are_attention(L, S, causal, block_q, block_k):
    """With more queries than keys, causal, the first ones see nothing: 0."""
    arrays = qkv(L, S, 3, 5)
    near(tiled_attention(*arrays, causal, block_q, block_k), whole(*arrays, causal))


@pytest.mark.parametrize("dtype, tolerance", [*DTYPES, (np.float16, 2e-3)])
def test_tiles_keep_the_type(dtype, tolerance):
    arrays = qkv(11, 13, 3, 5, dtype)
    out = tiled_attention(*arrays, block_q=3, block_k=5)
    assert out.dtype == dtype
    near(out.astype(float), whole(*arrays, False), tolerance)


def test_tiles_of_whole_numbers_are_not_rounded():
    arrays = np.arange(6).reshape(3, 2), np.arange(6, 0, -1).reshape(3, 2), np.arange(9).reshape(3, 3)
    near(tiled_attention(*arrays), whole(*arrays, False))


def test_tiles_in_the_future_are_skipped(monkeypatch):
    sizes = []
    original = long_context.partial

    def watched(scores, values):
        sizes.append(scores.shape)
        return original(scores, values)

    monkeypatch.setattr(long_context, "partial", watched)
    tiled_attention(*qkv(16, 32, 3, 5), causal=True, block_q=4, block_k=8)
    # The rows stand at places 16-19, 20-23, 24-27, 28-31: three tiles of keys, then four.
    assert sizes == [(4, 8)] * (3 + 3 + 4 + 4)


def test_no_array_is_as_large_as_the_table():
    """Not the scores, and not a mask: one of 512 × 512 booleans alone takes 256 KiB."""
    arrays = qkv(512, 512, 2, 2)
    tracemalloc.start()
    try:
        tiled_attention(*arrays, causal=True, block_q=64, block_k=64)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * 1024, "64 × 64 scores in float64 take 32 KiB"


def test_without_keys_the_answer_is_zero():
    out = tiled_attention(np.ones((3, 2)), np.ones((0, 2)), np.ones((0, 5)))
    assert np.array_equal(out, np.zeros((3, 5)))
    assert tiled_attention(np.ones((0, 2)), np.ones((3, 2)), np.ones((3, 5))).shape == (0, 5)


@pytest.mark.torch
def test_tiles_are_pytorch():
    import torch

    arrays = qkv(5, 13, 3, 7)
    theirs = torch.nn.functional.scaled_dot_product_attention(*(torch.tensor(x)[None] for x in arrays))
    near(tiled_attention(*arrays, block_q=2, block_k=5), theirs[0].numpy())


@pytest.mark.parametrize("name", ["block_q", "block_k"])
def test_tiles_have_a_size(name):
    with pytest.raises(ValueError, match=says(f"{name}:", "from 1 on", "0")):
        tiled_attention(*qkv(3, 3, 2, 2), **{name: 0})


SHAPES = [
    (((2, 3, 4), (3, 4), (3, 5)), says("query:", "one head", "(2, 3, 4)")),
    (((3, 4), (3, 5), (3, 5)), says("key:", "width 4", "(3, 5)")),
    (((3, 4), (3, 4), (2, 5)), says("value:", "each of the 3 keys", "(2, 5)")),
    (((3, 4), (3, 4), (3,)), says("value:", "one head", "(3,)")),
]


@pytest.mark.parametrize("function", [tiled_attention, linear_attention, linear_attention_chunked])
@pytest.mark.parametrize("shapes, pattern", SHAPES)
def test_shapes_that_do_not_fit_are_refused(function, shapes, pattern):
    with pytest.raises(ValueError, match=pattern):
        function(*map(np.ones, shapes))


# -- without a softmax ----------------------------------------------------------------------


def phi(x):
    return x + 1 if x > 0 else math.exp(x)


def linear_loop(query, key, value):
    """Every weight phi(q_t) · phi(k_j), j <= t, one by one."""
    rows = []
    for t, q in enumerate(query.tolist()):
        weights = [math.fsum(phi(a) * phi(b) for a, b in zip(q, k, strict=True)) for k in key[: t + 1].tolist()]
        total = math.fsum(weights)
        rows.append([math.fsum(w * v for w, v in zip(weights, column, strict=True)) / total
                     for column in value[: t + 1].T.tolist()])  # fmt: skip
    return np.array(rows)


def test_features_by_hand():
    near(features(np.array([-1000.0, -1, 0, 0.5, 3])), [0, math.exp(-1), 1, 1.5, 4])
    near(features(np.array([800.0])), [801])  # no overflow, no warning
    assert features(np.float32([1, -1])).dtype == np.float32


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("L, D, V", [(1, 3, 2), (7, 3, 5), (11, 2, 2), (5, 7, 1)])
def test_the_state_gives_the_table(L, D, V, dtype, tolerance):
    arrays = qkv(L, L, D, V, dtype)
    out = linear_attention(*arrays)
    assert out.dtype == dtype
    near(out, linear_loop(*arrays), tolerance)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 11, 64])
def test_in_chunks_the_same(chunk):
    arrays = qkv(11, 11, 3, 5)
    near(linear_attention_chunked(*arrays, chunk), linear_loop(*arrays))
    assert linear_attention_chunked(*qkv(11, 11, 3, 5, np.float32), chunk).dtype == np.float32


@stable
@given(seed=seeds, L=st.integers(1, 9), chunk=st.integers(1, 10))
def test_state_and_chunks_agree(seed, L, chunk):
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(0, 3, (L, 4)), rng.normal(0, 3, (L, 4)), rng.normal(0, 1, (L, 3))
    near(linear_attention_chunked(q, k, v, chunk), linear_attention(q, k, v), 1e-11)


@pytest.mark.parametrize("function", [linear_attention, linear_attention_chunked])
def test_a_linear_answer_lies_between_the_values(function):
    """Its weights are positive and add up to 1."""
    q, k, v = qkv(9, 9, 3, 4)
    out = function(q, k, v)
    for t in range(9):
        assert np.all(out[t] >= v[: t + 1].min(0) - 1e-12) and np.all(out[t] <= v[: t + 1].max(0) + 1e-12)
    near(function(q, k, np.ones((9, 4))), np.ones((9, 4)))
    near(function(q, k, v)[0], v[0])


@pytest.mark.parametrize("function", [linear_attention, linear_attention_chunked])
def test_linear_attention_does_not_see_the_future(function):
    q, k, v = (np.array(x) for x in qkv(8, 8, 3, 4))
    before = function(q, k, v)
    q[5:], k[5:], v[5:] = 3.0, -3.0, 9.0
    after = function(q, k, v)
    assert np.array_equal(before[:5], after[:5]) and not np.allclose(before[5:], after[5:])


def test_linear_attention_is_not_softmax_attention():
    q, k, v = qkv(8, 8, 3, 4)
    assert np.abs(linear_attention(q, k, v) - whole(q, k, v, True)).max() > 0.05


@pytest.mark.parametrize("function", [linear_attention, linear_attention_chunked])
def test_features_that_vanish_give_zero_and_no_nan(function):
    q, k = np.full((3, 2), -800.0), np.full((3, 2), -800.0)
    assert np.array_equal(function(q, k, np.ones((3, 4))), np.zeros((3, 4)))


@pytest.mark.parametrize("function", [linear_attention, linear_attention_chunked])
def test_without_tokens_there_is_no_row(function):
    assert function(np.ones((0, 2)), np.ones((0, 2)), np.ones((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("function", [linear_attention, linear_attention_chunked])
def test_queries_and_keys_are_the_same_tokens(function):
    with pytest.raises(ValueError, match=says("query:", "(3, 2)", "(2, 2)", "token t asks when key t is in")):
        function(np.ones((2, 2)), np.ones((3, 2)), np.ones((3, 4)))


def test_a_chunk_has_a_size():
    with pytest.raises(ValueError, match=says("chunk:", "from 1 on", "0")):
        linear_attention_chunked(*qkv(3, 3, 2, 2), 0)


# -- annotations ----------------------------------------------------------------------------


def test_annotations_are_true():
    """With beartype at every annotation: right calls pass, wrong widths do not."""
    beartype = pytest.importorskip("beartype")
    jaxtyping = pytest.importorskip("jaxtyping")
    typed = jaxtyping.jaxtyped(typechecker=beartype.beartype)
    online, part, linear = typed(online_softmax), typed(partial), typed(linear_attention)
    for dtype in (np.float16, np.float32, np.float64):
        s, v = g((7,)).astype(dtype), g((7, 3)).astype(dtype)
        online(s, v, 2), online(s, v[:, 0], 2), part(s, v), part(np.stack([s, s]), v)
        linear(*qkv(5, 5, 3, 2, dtype))
    with pytest.raises(jaxtyping.TypeCheckError):
        online(np.ones(3), np.ones((4, 2)), 2)
    with pytest.raises(jaxtyping.TypeCheckError):
        linear(np.ones((5, 3)), np.ones((4, 3)), np.ones((4, 2)))
