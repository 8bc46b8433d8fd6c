"""Lesson 11's plain functions: shared heads, the cache, and what it weighs, against loops and PyTorch."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_lesson.steps.serving import PUBLISHED, cache_chunk, cache_step, kv_cache_bytes, repeat_heads
from tests.reference import g, loop_attention, near, read_only, says, stable
from tests.reports import reported

DTYPES = [(np.float64, 1e-12), (np.float32, 2e-6)]


def tokens(n, d, width, dtype=np.float64):
    arrays = g((n, d), 0.7, 0.3, 2.0), g((n, d), 0.9, 0.1), g((n, width), 1.3, 0.4)
    return read_only(*(x.astype(dtype) for x in arrays))


def whole(query, key, value):
    """Causal attention over all tokens, in loops over Python floats."""
    keep = [[j <= i for j in range(len(key))] for i in range(len(query))]
    return np.array(loop_attention(query.tolist(), key.tolist(), value.tolist(), keep)[0])


def fed(step, arrays, sizes):
    """The outputs below each other, and the last cache. sizes: of the pieces, one after the other."""
    cache, rows, start = None, [], 0
    for size in sizes:
        output, cache = step(cache, *(x[start : start + size] for x in arrays))
        rows.append(output)
        start += size
    assert start == len(arrays[0])
    return np.concatenate(rows), cache


# -- shared heads ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("lead", [(), (2,), (2, 1)])
def test_neighbours_share_a_head(lead, dtype):
    key = read_only(g((*lead, 3, 5, 7)).astype(dtype))
    out = repeat_heads(key, 4)
    assert out.shape == (*lead, 12, 5, 7) and out.dtype == dtype
    for h in range(12):
        assert np.array_equal(out[..., h, :, :], key[..., h // 4, :, :])


def test_one_head_for_all_and_each_its_own():
    key = g((2, 1, 3, 5))
    assert np.array_equal(repeat_heads(key, 6), np.broadcast_to(key, (2, 6, 3, 5)))
    key = g((2, 3, 3, 5))
    assert np.array_equal(repeat_heads(key, 1), key)


SHARED = {"right": [1.592634, 1.592634, 12.864542, 12.864542], "tiled": [1.592634, 12.864542, 1.592634, 12.864542]}


@reported("onnx/onnx#7274")
@pytest.mark.parametrize("name, spread", [("right", repeat_heads), ("tiled", lambda x, n: np.tile(x, (1, n, 1, 1)))])
def test_four_query_heads_over_two_key_heads(name, spread):
    """Both have the right shape, and different numbers."""
    query, key = np.ones((1, 4, 1, 2)), g((1, 2, 2, 2))
    value = np.array([[1.0, 2], [10, 20]]).reshape(1, 2, 2, 1)
    keys, values = spread(key, 2), spread(value, 2)
    out = [loop_attention(query[0, h].tolist(), keys[0, h].tolist(), values[0, h].tolist(), [[1, 1]])[0][0][0]
           for h in range(4)]  # fmt: skip
    near(np.array(out), SHARED[name], 1e-6)


@pytest.mark.torch
def test_the_order_is_that_of_pytorch():
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    q, k, v = g((2, 6, 5, 3)), g((2, 2, 7, 3), 0.9), g((2, 2, 7, 4), 1.1)
    theirs = sdpa(*map(torch.from_numpy, (q, k, v)), enable_gqa=True)
    ours = sdpa(*map(torch.from_numpy, (q, repeat_heads(k, 3), repeat_heads(v, 3))))
    near(ours.numpy(), theirs.numpy())
    assert np.array_equal(repeat_heads(k, 3), torch.from_numpy(k).repeat_interleave(3, dim=1).numpy())


@pytest.mark.parametrize("n", [0, -1, 1.5, None])
def test_how_often_a_head_comes_is_a_whole_number(n):
    with pytest.raises(ValueError, match=says("n:", "whole number", "from 1 on", repr(n))):
        repeat_heads(np.ones((1, 2, 3, 4)), n)


def test_a_key_without_heads_is_refused():
    with pytest.raises(ValueError, match=says("key:", "(..., heads, tokens, width)", "(3, 4)", "key[None]")):
        repeat_heads(np.ones((3, 4)), 2)


# -- the cache ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
def test_serial_is_in_one_go(dtype, tolerance):
    arrays = tokens(11, 3, 5, dtype)
    output, (keys, values) = fed(cache_step, arrays, [1] * 11)
    near(output, whole(*arrays), tolerance)
    assert output.dtype == dtype
    assert np.array_equal(keys, arrays[1]) and np.array_equal(values, arrays[2])


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 11])
def test_chunked_is_in_one_go(size, dtype, tolerance):
    arrays = tokens(11, 3, 5, dtype)
    sizes = [size] * (11 // size) + [11 % size] * (11 % size > 0)
    output, (keys, values) = fed(cache_chunk, arrays, sizes)
    near(output, whole(*arrays), tolerance)
    assert output.dtype == dtype
    assert np.array_equal(keys, arrays[1]) and np.array_equal(values, arrays[2])


@stable
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), d=st.integers(1, 4), width=st.integers(1, 4))
def test_any_cut_gives_the_same(sizes, d, width):
    arrays = tokens(sum(sizes), d, width)
    near(fed(cache_chunk, arrays, sizes)[0], whole(*arrays))


def test_chunks_and_single_tokens_may_take_turns():
    arrays = tokens(9, 2, 3)
    first, cache = cache_chunk(None, *(x[:4] for x in arrays))
    second, cache = cache_step(cache, *(x[4:5] for x in arrays))
    third, cache = cache_chunk(cache, *(x[5:] for x in arrays))
    near(np.concatenate([first, second, third]), whole(*arrays))


@reported("hyprstream/hyprstream#1521")
def test_a_chunk_of_two_behind_three_tokens():
    """One new token alone passes with no mask at all; two do not."""
    arrays = g((5, 2)), g((5, 2), 0.9, 0.1), np.array([[1.0], [2], [4], [8], [16]])
    output, _ = fed(cache_chunk, arrays, [3, 2])
    near(output[3:, 0], [4.688096, 6.239676], 1e-6)


@reported("pytorch/pytorch#103082")
def test_one_query_over_four_keys_sees_them_all():
    """A triangle in the upper left corner would give 1 and [1, 1.584771]."""
    cache = g((3, 2)), np.array([[1.0], [2], [4]])
    output, _ = cache_step(cache, np.array([[1.0, 0]]), g((4, 2))[3:], np.array([[8.0]]))
    near(output, [[2.801998]], 1e-6)
    key, value = g((5, 2)), np.array([[1.0], [2], [4], [8], [16]])
    output, _ = cache_chunk((key[:3], value[:3]), g((2, 2), 0.5, 0.2), key[3:], value[3:])
    near(output[:, 0], [2.786643, 4.006895], 1e-6)


@pytest.mark.torch
def test_a_chunk_is_pytorch_with_a_mask_in_the_lower_right_corner():
    import torch
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    q, k, v = tokens(7, 3, 5)
    output, _ = cache_chunk((k[:4], v[:4]), q[4:], k[4:], v[4:])
    q, k, v = (torch.tensor(x) for x in (q[4:], k, v))
    theirs = sdpa(q[None, None], k[None, None], v[None, None], attn_mask=causal_lower_right(3, 7))
    near(output, theirs[0, 0].numpy())


def test_the_first_token_is_its_own_value():
    query, key, value = tokens(1, 3, 5)
    output, (keys, values) = cache_step(None, query, key, value)
    near(output, value)
    assert keys.shape == (1, 3) and values.shape == (1, 5)


@pytest.mark.parametrize("step, n", [(cache_step, 1), (cache_chunk, 3)])
def test_the_old_cache_stays_as_it_was(step, n):
    """Two ways to go on from one beginning, as a search over several texts does."""
    arrays = tokens(8, 2, 3)
    _, cache = cache_chunk(None, *(x[:4] for x in arrays))
    old = tuple(x.copy() for x in cache)
    new = [x[4 : 4 + n] for x in arrays]
    once, _ = step(cache, *new)
    step(cache, *(x + 1 for x in new))
    again, _ = step(cache, *new)
    assert np.array_equal(once, again)
    assert all(np.array_equal(a, b) for a, b in zip(cache, old, strict=True))


def test_later_tokens_change_nothing_earlier():
    q, k, v = (np.array(x) for x in tokens(6, 2, 3))
    before, _ = cache_chunk(None, q, k, v)
    k[4:], v[4:] = 9.0, -9.0
    after, _ = cache_chunk(None, q, k, v)
    assert np.array_equal(before[:4], after[:4]) and not np.allclose(before[4:], after[4:])


def test_scores_of_a_thousand_do_no_harm():
    query, key, value = np.full((3, 1), 40.0), np.array([[0.0], [30], [29]]), np.array([[1.0], [2], [4]])
    output, _ = fed(cache_step, (query, key, value), [1, 1, 1])
    near(output, [[1], [2], [2]])


GOOD = {"query": np.ones((1, 3)), "key": np.ones((1, 3)), "value": np.ones((1, 5))}


OLD = np.ones((4, 3)), np.ones((4, 5))


BAD = [
    (None, {"key": np.ones((1, 2))}, ValueError, says("query, key", "(1, 3) and (1, 2)")),
    (None, {"query": np.ones(3)}, ValueError, says("query", "(3,)")),
    (None, {"query": np.ones((1, 1, 3)), "key": np.ones((1, 1, 3))}, ValueError, says("query, key", "(1, 1, 3)")),
    (OLD, {"key": np.ones((5, 3))}, ValueError, says("query, key", "(5, 3)", "the old keys are in the cache")),
    (None, {"value": np.ones((2, 5))}, ValueError, says("value:", "each of the 1 keys", "(2, 5)")),
    (None, {"value": np.ones(5)}, ValueError, says("value:", "(5,)")),
    (np.ones((4, 3)), {}, TypeError, says("cache:", "None or the pair (keys, values)", "ndarray")),
    ((*OLD, 4), {}, TypeError, says("cache:", "tuple")),
    ({"k": OLD[0], "v": OLD[1]}, {}, TypeError, says("cache:", "dict", "second result")),
    (OLD[::-1], {}, ValueError, says("cache[0]:", "(4, 3)", "(4, 5)", "Keys come first")),
    ((OLD[0], OLD[1][:3]), {}, ValueError, says("cache[1]:", "(4, 5)", "(3, 5)")),
]


@pytest.mark.parametrize("step", [cache_step, cache_chunk])
@pytest.mark.parametrize("cache, change, kind, pattern", BAD)
def test_what_does_not_fit_is_refused(step, cache, change, kind, pattern):
    step(OLD, **GOOD)
    with pytest.raises(kind, match=pattern):
        step(cache, **(GOOD | change))


def test_a_single_step_takes_a_single_token():
    """Without a mask the first of two would see the second."""
    with pytest.raises(ValueError, match=says("query:", "one token (1, D)", "(2, 3)", "cache_chunk")):
        cache_step(None, np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 5)))


# -- bytes ----------------------------------------------------------------------------------


def test_bytes_are_those_of_the_arrays_that_are_kept():
    layers, heads, d_head, n, batch = 3, 2, 5, 7, 11
    for dtype in (np.float16, np.float32, np.float64):
        caches = [
            cache_chunk(None, *(np.ones((n, d_head), dtype) for _ in range(3)))[1]
            for _ in range(layers * heads * batch)
        ]
        held = sum(x.nbytes for cache in caches for x in cache)
        assert kv_cache_bytes(layers, heads, d_head, n, batch, np.dtype(dtype).itemsize) == held


def test_bytes_by_default_are_those_of_one_text_in_float16():
    assert kv_cache_bytes(3, 5, 7, 11) == kv_cache_bytes(3, 5, 7, 11, 1, 2) == 2 * 1155 * 2
    assert kv_cache_bytes(3, 5, 7, 0) == 0
    assert kv_cache_bytes(2, 2, 2, 2, bytes_per_number=0.5) == 16, "4 bits a number"


@pytest.mark.parametrize("place", range(6))
def test_no_number_is_below_zero(place):
    numbers = [1, 2, 3, 4, 5, 6]
    numbers[place] = -1
    with pytest.raises(ValueError, match=says("no number below 0", str(tuple(numbers)))):
        kv_cache_bytes(*numbers)


# Worked by hand: the bytes of one token, 2 · layers · kv heads · width · 2 bytes, and of a full text.
BY_HAND = {
    "GPT-2 small": (36_864, 37_748_736),  # 36 KiB, 36 MiB
    "GPT-3": (4_718_592, 9_663_676_416),  # 4.5 MiB, 9 GiB
    "Llama 2 7B": (524_288, 2 * 2**30),  # half a MiB, exactly 2 GiB
    "Llama 2 70B": (327_680, 1_342_177_280),  # 320 KiB, 1.25 GiB: less than the 7B's
    "Falcon 7B": (8_192, 16 * 2**20),  # one head for 71
    "Mistral 7B": (131_072, 512 * 2**20),  # 8192 tokens, of which the window keeps 4096
    "Gemma 2B": (18_432, 144 * 2**20),
    "Llama 3 8B": (131_072, 2**30),
    "Llama 3 70B": (327_680, 2_684_354_560),  # 2.5 GiB
    "Qwen2.5 7B": (57_344, 7 * 2**30),  # 131072 tokens
}


def test_each_published_model_is_worked_by_hand():
    assert {m.name for m in PUBLISHED} == set(BY_HAND)


@pytest.mark.parametrize("m", PUBLISHED, ids=lambda m: m.name)
def test_bytes_of_a_published_model(m):
    one, full = BY_HAND[m.name]
    assert m.cache_bytes(1) == one
    assert m.cache_bytes(m.context) == full
    assert m.cache_bytes(m.context, batch=3, bytes_per_number=4) == 6 * full
    kept = min(m.context, m.window or m.context)
    assert kv_cache_bytes(m.layers, m.kv_heads, m.d_head, kept) == full


# The width of the model, from the same sources.
WIDTH = {
    "GPT-2 small": 768, "GPT-3": 12288, "Llama 2 7B": 4096, "Llama 2 70B": 8192, "Falcon 7B": 4544,
    "Mistral 7B": 4096, "Gemma 2B": 2048, "Llama 3 8B": 4096, "Llama 3 70B": 8192, "Qwen2.5 7B": 3584,
}  # fmt: skip


@pytest.mark.parametrize("m", PUBLISHED, ids=lambda m: m.name)
def test_shapes_of_a_published_model_fit_together(m):
    assert m.heads * m.d_head == WIDTH[m.name]
    assert m.heads % m.kv_heads == 0
    assert m.source and (m.window is None or m.window <= m.context)
    with pytest.raises(dataclasses.FrozenInstanceError):
        m.layers = 1


def test_a_window_holds_the_cache_down():
    mistral = next(m for m in PUBLISHED if m.window)
    sizes = [mistral.cache_bytes(n) for n in (1, 4095, 4096, 4097, 100_000)]
    assert sizes[0] < sizes[1] < sizes[2] == sizes[3] == sizes[4]


def test_no_two_models_have_the_same_name():
    assert all(a.name != b.name for a, b in itertools.combinations(PUBLISHED, 2))


# -- annotations ----------------------------------------------------------------------------


def test_annotations_are_true():
    """With beartype at every annotation: right calls pass, wrong widths do not."""
    beartype = pytest.importorskip("beartype")
    jaxtyping = pytest.importorskip("jaxtyping")
    typed = jaxtyping.jaxtyped(typechecker=beartype.beartype)
    repeat, step, chunk = typed(repeat_heads), typed(cache_step), typed(cache_chunk)
    for dtype in (np.float16, np.float32, np.float64):
        assert repeat(np.ones((2, 3, 5, 7), dtype), 2).shape == (2, 6, 5, 7)
        _, cache = step(None, *tokens(1, 3, 5, dtype))
        chunk(cache, *tokens(4, 3, 5, dtype))
    with pytest.raises(jaxtyping.TypeCheckError):
        chunk(None, np.ones((2, 3)), np.ones((3, 3)), np.ones((2, 5)))
