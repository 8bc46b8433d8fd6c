"""Attention by blocks: the same numbers as the form with the N×N array, and little memory."""

import os
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_lesson import blocked
from mha_lesson.attention import blocked_attention, scaled_dot_product_attention
from mha_lesson.course.paths import ROOT
from mha_lesson.steps.masks import causal_mask
from tests.reference import loop_attention, near, read_only, says, stable

ATOL = {np.float64: 1e-12, np.float32: 1e-5}


BLOCKS = [1, 2, 3, 7, 1000]


seeds = st.integers(0, 2**16)


blocks = st.sampled_from(BLOCKS)


dtypes = st.sampled_from([np.float64, np.float32])


loudness = st.sampled_from([1, 30])  # 30: scores too large to leave the largest one in


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Five keys at a time, so that rows of these tests are cut into several tiles."""
    monkeypatch.setattr(blocked, "TILE", 5)


def draw(seed, shape_q, shape_k, shape_v, dtype=np.float64, loud=1):
    rng = np.random.default_rng(seed)
    query, key, value = (rng.standard_normal(shape) for shape in (shape_q, shape_k, shape_v))
    return rng, *read_only(*(x.astype(dtype) for x in (loud * query, key, value)))


def whole(query, key, value, keep=None, causal=False):
    """The same in float64 through the N×N array."""
    if causal:
        keep = causal_mask(query.shape[-2], key.shape[-2]) & (True if keep is None else keep)
    return scaled_dot_product_attention(*(x.astype(np.float64) for x in (query, key, value)), keep)[0]


@stable
@given(seeds, blocks, dtypes, loudness, st.booleans(), st.permutations([2, 3, 5, 7, 11, 13]),
       st.sampled_from(["none", "(L, S)", "(B, 1, L, S)", "(B, H, L, S)", "(B, 1, 1, S)"]))  # fmt: skip
def test_same_as_with_the_whole_array(seed, block, dtype, loud, causal, primes, kind):
    B, H, L, S, D, V = primes
    rng, query, key, value = draw(seed, (B, H, L, D), (B, H, S, D), (B, H, S, V), dtype, loud)
    shapes = {
        "(L, S)": (L, S),
        "(B, 1, L, S)": (B, 1, L, S),
        "(B, H, L, S)": (B, H, L, S),
        "(B, 1, 1, S)": (B, 1, 1, S),
    }
    keep = None
    if kind != "none":
        keep = rng.random(shapes[kind]) < 0.5
        keep[..., rng.integers(keep.shape[-2]), :] = False  # one row of it is empty
    got = blocked_attention(query, key, value, keep, causal, block)
    assert got.dtype == dtype
    near(got, whole(query, key, value, keep, causal), ATOL[dtype])


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("loud", [1, 30])
@pytest.mark.parametrize(("L", "S"), [(13, 13), (5, 17), (17, 5), (1, 11), (11, 1), (14, 7)])
def test_causal_sees_what_plain_loops_see(L, S, loud, block):
    """Lower right alignment, also with more queries than keys, whose first rows see nothing."""
    _, query, key, value = draw(L, (L, 3), (S, 3), (S, 2), loud=loud)
    keep = [[j - S <= i - L for j in range(S)] for i in range(L)]
    want, _ = loop_attention(query.tolist(), key.tolist(), value.tolist(), keep)
    near(blocked_attention(query, key, value, causal=True, block=block), want)
    assert (blocked_attention(query, key, value, causal=True, block=block)[: max(L - S, 0)] == 0).all()


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_same_as_torch(dtype, causal):
    torch = pytest.importorskip("torch")
    _, query, key, value = draw(1, (2, 3, 37, 5), (2, 3, 37, 5), (2, 3, 37, 5), dtype)
    tensors = (torch.tensor(x) for x in (query, key, value))
    want = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal).numpy()
    near(blocked_attention(query, key, value, causal=causal, block=7), want, ATOL[dtype])


@stable
@given(seeds, blocks, st.booleans(), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_stands_in_a_forbidden_place_does_not_count(seed, block, causal, wild):
    L, S = 11, 13
    _, query, key, value = draw(seed, (2, 3, L, 5), (2, 3, S, 5), (2, 3, S, 7))
    keep = np.ones((2, 1, 1, S), bool)
    keep[0, ..., :4] = keep[1, ..., 6:] = False
    dirty_key, dirty_value = key.copy(), value.copy()
    for b, hidden in enumerate(~keep[:, 0, 0]):
        dirty_key[b][:, hidden] = wild
        dirty_value[b][:, hidden] = wild
    want = whole(query, key, value, keep, causal)
    assert np.isfinite(want).all()
    near(blocked_attention(query, dirty_key, value, keep, causal, block), want)
    near(blocked_attention(query, key, dirty_value, keep, causal, block), want)
    near(blocked_attention(query, dirty_key, dirty_value, keep, causal, block), want)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("wild", [np.nan, np.inf])
def test_the_future_does_not_count_and_the_present_does(wild, block):
    """Key 4 is wild: the rows before it do not notice, the others must show it."""
    L = 11
    _, query, key, value = draw(5, (L, 3), (L, 3), (L, 2))
    clean = whole(query, key, value, causal=True)
    dirty_value = value.copy()
    dirty_value[4, 1] = wild
    got = blocked_attention(query, key, dirty_value, causal=True, block=block)
    near(got[:4], clean[:4])
    near(got[:, 0], clean[:, 0])  # a wild number stays in its column
    np.testing.assert_array_equal(got[4:, 1], np.full(L - 4, wild))
    dirty_key = key.copy()
    dirty_key[4] = np.nan
    got = blocked_attention(query, dirty_key, value, causal=True, block=block)
    near(got[:4], clean[:4])
    assert np.isnan(got[4:]).all()


def test_each_row_minds_its_own_mask():
    """A wild value reaches the rows that may attend to it, and no other."""
    _, query, key, value = draw(6, (7, 3), (5, 3), (5, 2))
    dirty = value.copy()
    dirty[3] = np.nan
    keep = np.ones((7, 5), bool)
    keep[::2, 3] = False
    got = blocked_attention(query, key, dirty, keep, block=3)
    near(got[::2], whole(query, key, value, keep)[::2])
    assert np.isnan(got[1::2]).all()


@pytest.mark.parametrize(
    ("batch_q", "batch_k", "batch_v"),
    [((2, 3), (2, 1), (2, 1)), ((3,), (2, 1), (1,)), ((), (2, 3), ()), ((), (), (2, 3)), ((0, 3), (1, 3), (3,))],
)
def test_leading_axes_broadcast(batch_q, batch_k, batch_v):
    _, query, key, value = draw(7, (*batch_q, 11, 5), (*batch_k, 13, 5), (*batch_v, 13, 7))
    keep = np.random.default_rng(0).random((11, 13)) < 0.5
    near(blocked_attention(query, key, value, keep, True, 4), whole(query, key, value, keep, True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("L", "S"), [(0, 5), (3, 0), (0, 0)])
def test_no_queries_or_no_keys(L, S, causal):
    for query in (np.ones((2, L, 3)), np.full((2, L, 3), np.nan)):
        got = blocked_attention(query, np.ones((2, S, 3)), np.ones((2, S, 4)), causal=causal)
        np.testing.assert_array_equal(got, np.zeros((2, L, 4)))


def test_dtypes():
    _, query, key, value = draw(8, (3, 11, 5), (3, 11, 5), (3, 11, 7))
    half = [x.astype(np.float16) for x in (query, key, value)]
    got = blocked_attention(*half, causal=True)
    assert got.dtype == np.float16
    # Computed in float32: the only rounding is that of the result, half a step of float16.
    want = whole(*half, causal=True)
    assert (abs(got - want) <= 0.51 * np.spacing(abs(want).astype(np.float16))).all()
    assert blocked_attention(half[0], key.astype(np.float32), half[2]).dtype == np.float32
    assert blocked_attention(half[0], half[1], value).dtype == np.float64


def test_scores_that_would_overflow_exp():
    """exp(89) is inf in float32: without the shift these rows would be NaN."""
    _, query, key, value = draw(9, (11, 5), (11, 5), (11, 3), np.float32, loud=300)
    assert (query @ key.T / 5**0.5).max() > 89
    near(blocked_attention(query, key, value, causal=True), whole(query, key, value, causal=True), 1e-4)
    # All scores far below 0: without the shift every share would be 0.
    got = blocked_attention(-100 * np.ones((2, 3)), np.ones((5, 3)), value[:5].astype(np.float64))
    near(got, np.broadcast_to(value[:5].mean(axis=0, dtype=np.float64), (2, 3)))


def test_views_of_split_heads_and_order():
    rng = np.random.default_rng(10)
    x = rng.standard_normal((2, 11, 3, 5)).swapaxes(1, 2)  # (B, H, L, D), as split_heads gives it
    turned = np.asfortranarray(x)
    want = whole(x, x, x, causal=True)
    near(blocked_attention(x, x, x, causal=True, block=4), want)
    near(blocked_attention(turned, turned, turned, causal=True, block=4), want)


def test_errors_name_the_argument():
    q, k, v = np.ones((2, 3, 7, 5)), np.ones((2, 3, 11, 5)), np.ones((2, 3, 11, 5))
    with pytest.raises(ValueError, match=says("key:", "width 5", "(2, 3, 11, 4)")):
        blocked_attention(q, k[..., :4], v)
    with pytest.raises(ValueError, match=says("value:", "11 keys", "(2, 3, 10, 5)")):
        blocked_attention(q, k, v[..., :10, :])
    with pytest.raises(ValueError, match=says("block:", "1 row", "0")):
        blocked_attention(q, k, v, block=0)
    with pytest.raises(ValueError, match=says("query, key, value:", "broadcast", "(2, 3, 11, 5)")):
        blocked_attention(np.ones((2, 4, 7, 5)), k, v)
    with pytest.raises(ValueError, match=says("keep:", "3 axes", "(2, 7, 11)")):
        blocked_attention(q, k, v, np.ones((2, 7, 11), bool))
    with pytest.raises(ValueError, match=says("keep:", "boolean", "0 and 1")):
        blocked_attention(q, k, v, np.ones((7, 11)))


@pytest.mark.parametrize("loud", [1, 30])
def test_memory_grows_with_one_block_of_rows(monkeypatch, loud):
    monkeypatch.setattr(blocked, "TILE", 1024)
    H, N, D, block = 1, 2048, 16, 64
    _, query, key, value = draw(11, (H, N, D), (H, N, D), (H, N, D), np.float32, loud)
    tracemalloc.start()
    try:
        blocked_attention(query, key, value, causal=True, block=block)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    output = query.nbytes
    # One buffer of scores (block, N); one head of Q, K and [V, 1] with a temporary or two.
    assert peak - output < 4 * (block * N + 6 * N * (D + 1))
    assert 4 * (block * N + 6 * N * (D + 1)) < 4 * N * N / 9  # what one N×N array would take


def test_shapes_in_the_annotations_hold(tmp_path):
    """With beartype on, in a process of its own: leading axes may broadcast, widths may not differ."""
    code = """
        import numpy as np, pytest
        from jaxtyping import TypeCheckError, install_import_hook
        with install_import_hook(["mha_lesson.blocked"], "beartype.beartype"):
            from mha_lesson.blocked import blocked_attention
        q, k, v = np.ones((2, 3, 7, 5)), np.ones((1, 11, 5)), np.ones((11, 4))
        assert blocked_attention(q, k, v).shape == (2, 3, 7, 4)
        with pytest.raises(TypeCheckError):
            blocked_attention(q.astype(int), k, v)
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    # A cache of its own: bytecode of the checked module must not be mixed up with the plain one.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
