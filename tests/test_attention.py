"""The layer in NumPy: against plain loops, against PyTorch, its invariants, its words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_lesson.attention import MultiHeadAttention, multi_head_attention, scaled_dot_product_attention, weighted_sum
from mha_lesson.steps.masks import (
    causal_mask,
    combine_masks,
    from_torch_mha,
    from_torch_sdpa,
    padding_mask,
    to_torch_mha,
    to_torch_sdpa,
)
from tests.helpers import make_layer, run_torch, to_tensor
from tests.reference import g, loop_attention, loop_multi_head, near, numpy_layout_params, read_only, says, stable

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as torch_sdpa
except ImportError:
    torch = None


TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@st.composite
def sizes(draw):
    """B, L, S, H, D: different primes, so that no two axes can be taken for each other; some 1."""
    primes = draw(st.permutations([2, 3, 5, 7, 11]))
    one = draw(st.sampled_from(["", "", "", "B", "L", "S", "H", "D"]))
    return tuple(1 if name == one else prime for name, prime in zip("BLSHD", primes, strict=True))


seeds = st.integers(0, 2**16)


mask_kinds = st.sampled_from(
    ["none", "causal", "padding", "both", "any (L, S)", "any (B, 1, L, S)", "any (B, H, L, S)"]
)


def make_keep(rng, kind, B, H, L, S):
    """A mask of this kind; some rows of it are empty."""
    lengths = rng.integers(0, S + 1, B)
    if kind == "none":
        return None
    if kind == "causal":
        return causal_mask(L, S)
    if kind == "padding":
        return np.broadcast_to(padding_mask(lengths, S)[:, None, None, :], (B, 1, L, S))
    if kind == "both":
        return combine_masks(causal_mask(L, S), padding_mask(lengths, S))
    shape = {"any (L, S)": (L, S), "any (B, 1, L, S)": (B, 1, L, S), "any (B, H, L, S)": (B, H, L, S)}
    return rng.random(shape[kind]) < 0.6


def full(keep, *shape):
    return np.broadcast_to(np.True_ if keep is None else keep, shape)


def params_of(layer):
    return {name: getattr(layer, name) for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")}


@pytest.fixture(scope="module")
def report_layer():
    """The weights that all tests of public reports use, two heads."""
    return MultiHeadAttention.from_params(numpy_layout_params(4), num_heads=2)


# ------------------------------------------------------------------------------- plain loops


@stable
@given(sizes=sizes(), kind=mask_kinds, seed=seeds)
def test_attention_is_the_loop(sizes, kind, seed):
    B, L, S, H, D = sizes
    rng = np.random.default_rng(seed)
    V = int(rng.choice([1, 4]))
    query, key, value = read_only(*(rng.standard_normal(shape) for shape in [(B, H, L, D), (B, H, S, D), (B, H, S, V)]))
    keep = make_keep(rng, kind, B, H, L, S)
    output, weights = scaled_dot_product_attention(query, key, value, keep)
    all_keep = full(keep, B, H, L, S)
    for b in range(B):
        for h in range(H):
            want = loop_attention(*(a[b, h].tolist() for a in (query, key, value, all_keep)))
            near(output[b, h], want[0])
            near(weights[b, h], want[1])
    near(weights.sum(-1), all_keep.any(-1) * 1.0)


@stable
@given(sizes=sizes(), kind=mask_kinds, bias=st.booleans(), seed=seeds)
def test_layer_is_the_loop(sizes, kind, bias, seed):
    B, L, S, H, D = sizes
    rng = np.random.default_rng(seed)
    layer = make_layer(rng, H * D, H, kdim=13, vdim=17, bias=bias)
    query, key, value = read_only(*(rng.standard_normal(shape) for shape in [(B, L, H * D), (B, S, 13), (B, S, 17)]))
    keep = make_keep(rng, kind, B, H, L, S)
    output, weights = layer(query, key, value, keep)
    want = loop_multi_head(query, key, value, params_of(layer), H, full(keep, B, H, L, S))
    near(output, want[0])
    near(weights, want[1])


@stable
@given(sizes=sizes(), kind=mask_kinds, seed=seeds)
def test_the_eight_lines_are_the_layer(sizes, kind, seed):
    B, L, _, H, D = sizes
    rng = np.random.default_rng(seed)
    layer = make_layer(rng, H * D, H)
    x = read_only(rng.standard_normal((B, L, H * D)))
    keep = make_keep(rng, kind, B, H, L, L)
    params = params_of(layer)
    output = multi_head_attention(x, params, H, keep)
    near(output, loop_multi_head(x, x, x, params, H, full(keep, B, H, L, L))[0])
    near(output, MultiHeadAttention.from_params(params, H)(x, keep=keep)[0])


# ---------------------------------------------------------------------------------- PyTorch


def torch_layer(seed, E, H, kdim, vdim, bias, dtype):
    """A torch layer whose biases are not 0, as they are after its own initialisation."""
    module = torch.nn.MultiheadAttention(
        E, H, kdim=kdim, vdim=vdim, bias=bias, batch_first=True, dtype=getattr(torch, dtype)
    )
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.normal_(0, tensor.shape[-1] ** -0.5, generator=draw)
    return module.eval()


def same_where_torch_is_finite(got, want, keep, b_o, atol):
    """Rows with no allowed key are NaN in torch; ours are 0, then the bias of the output."""
    output, weights = got
    torch_output, torch_weights = want
    assert output.dtype == torch_output.dtype and output.shape == torch_output.shape
    assert weights.dtype == torch_weights.dtype and weights.shape == torch_weights.shape
    empty = ~full(keep, *weights.shape).any(-1)  # (B, H, L)
    assert np.isnan(torch_weights[empty]).all() and (weights[empty] == 0).all()
    np.testing.assert_allclose(weights[~empty], torch_weights[~empty], rtol=0, atol=atol)
    some_empty, all_empty = empty.any(-2), empty.all(-2)  # (B, L)
    np.testing.assert_allclose(output[~some_empty], torch_output[~some_empty], rtol=0, atol=atol)
    assert np.isfinite(output).all()
    bias = 0 if b_o is None else b_o
    np.testing.assert_allclose(output[all_empty] - bias, 0, rtol=0, atol=atol)


def additive(blocked, dtype):
    return np.where(blocked, -np.inf, 0).astype(dtype)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(stable, max_examples=40)
@given(
    sizes=sizes(),
    kind=mask_kinds,
    own_widths=st.booleans(),
    bias=st.booleans(),
    float_mask=st.booleans(),
    seed=seeds,
)
def test_cross_attention_equals_torch(dtype, sizes, kind, own_widths, bias, float_mask, seed):
    B, L, S, H, D = sizes
    E = H * D
    kdim, vdim = (13, 17) if own_widths else (E, E)
    rng = np.random.default_rng(seed)
    module = torch_layer(seed, E, H, kdim, vdim, bias, dtype)
    layer = MultiHeadAttention.from_torch(module)
    query, key, value = read_only(
        *(rng.standard_normal(s).astype(dtype) for s in [(B, L, E), (B, S, kdim), (B, S, vdim)])
    )
    keep = make_keep(rng, kind, B, H, L, S)
    mask = None if keep is None else to_torch_mha(keep, B, H, L)
    if float_mask and mask is not None:
        mask = additive(mask, dtype)
    want = run_torch(module, query, key, value, attn_mask=mask)
    got = layer(query, key, value, keep)
    same_where_torch_is_finite(got, want, keep, layer.b_o, TOLERANCE[dtype])


@pytest.mark.torch
@pytest.mark.parametrize("dtype", TOLERANCE)
@stable
@given(sizes=sizes(), bias=st.booleans(), float_mask=st.booleans(), causal=st.booleans(), seed=seeds)
def test_self_attention_with_padding_equals_torch(dtype, sizes, bias, float_mask, causal, seed):
    """Here torch gets its masks as people write them; ours come out of the converters."""
    B, L, _, H, D = sizes
    rng = np.random.default_rng(seed)
    module = torch_layer(seed, H * D, H, None, None, bias, dtype)
    layer = MultiHeadAttention.from_torch(module)
    x = read_only(rng.standard_normal((B, L, H * D)).astype(dtype))
    lengths = rng.integers(1, L + 1, B)
    padding = np.arange(L)[None, :] >= lengths[:, None]  # True = padding, as torch has it
    future = np.triu(np.ones((L, L), bool), 1) if causal else np.zeros((L, L), bool)
    if float_mask:
        padding, future = additive(padding, dtype), additive(future, dtype)
    want = run_torch(module, x, x, x, key_padding_mask=padding, attn_mask=future)
    keep = combine_masks(from_torch_mha(future), from_torch_mha(padding))
    assert np.array_equal(from_torch_mha(padding), padding_mask(lengths, L))
    same_where_torch_is_finite(layer(x, keep=keep), want, keep, layer.b_o, TOLERANCE[dtype])


@pytest.mark.torch
@stable
@given(sizes=sizes(), masked=st.booleans(), seed=seeds)
def test_unbatched_attention_equals_torch(sizes, masked, seed):
    _, L, S, H, D = sizes
    rng = np.random.default_rng(seed)
    module = torch_layer(seed, H * D, H, None, None, True, "float64")
    layer = MultiHeadAttention.from_torch(module)
    query, memory = rng.standard_normal((L, H * D)), rng.standard_normal((S, H * D))
    keep = rng.random((L, S)) < 0.6 if masked else None
    mask = None if keep is None else to_torch_mha(keep)
    output, weights = layer(query, memory, keep=keep)
    want_output, want_weights = run_torch(module, query, memory, memory, attn_mask=mask)
    assert output.shape == (L, H * D) and weights.shape == (H, L, S)
    same_where_torch_is_finite(
        (output[None], weights[None]), (want_output[None], want_weights[None]), keep, layer.b_o, 1e-12
    )


@pytest.mark.torch
@pytest.mark.parametrize("dtype", TOLERANCE)
@stable
@given(sizes=sizes(), kind=mask_kinds, float_mask=st.booleans(), seed=seeds)
def test_attention_equals_torch_sdpa(dtype, sizes, kind, float_mask, seed):
    B, L, S, H, D = sizes
    rng = np.random.default_rng(seed)
    query, key, value = read_only(
        *(rng.standard_normal(s).astype(dtype) for s in [(B, H, L, D), (B, H, S, D), (B, H, S, 4)])
    )
    keep = make_keep(rng, kind, B, H, L, S)
    mask = None if keep is None else to_torch_sdpa(keep)
    if float_mask and mask is not None:
        mask = additive(~mask, dtype)
    want = torch_sdpa(*map(to_tensor, (query, key, value)), attn_mask=to_tensor(mask)).numpy()
    output, _ = scaled_dot_product_attention(query, key, value, None if mask is None else from_torch_sdpa(mask))
    assert output.dtype == want.dtype
    empty = np.isnan(want)
    np.testing.assert_allclose(output[~empty], want[~empty], rtol=0, atol=TOLERANCE[dtype])
    nothing = ~full(keep, B, H, L, S).any(-1)
    assert (output[nothing] == 0).all() and not empty[~nothing].any()


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("own_widths", [True, False])
def test_from_torch_copies_and_transposes(dtype, own_widths):
    kdim, vdim = (5, 7) if own_widths else (6, 6)
    module = torch_layer(0, 6, 3, kdim, vdim, True, dtype)
    layer = MultiHeadAttention.from_torch(module)
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    stored = [getattr(module, n) for n in names] if own_widths else module.in_proj_weight.chunk(3)
    stored = [*stored, module.out_proj.weight]
    for name, weight in zip(("w_q", "w_k", "w_v", "w_o"), stored, strict=True):
        assert getattr(layer, name).tolist() == weight.double().T.tolist()
    biases = [*module.in_proj_bias.chunk(3), module.out_proj.bias]
    for name, bias in zip(("b_q", "b_k", "b_v", "b_o"), biases, strict=True):
        assert getattr(layer, name).tolist() == bias.double().tolist()
    assert layer.w_q.dtype == np.dtype("float32" if dtype == "bfloat16" else dtype)
    assert layer.num_heads == 3
    before = {name: np.array(array) for name, array in params_of(layer).items()}
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.zero_()
    for name, array in params_of(layer).items():
        assert np.array_equal(array, before[name])


@pytest.mark.torch
@pytest.mark.parametrize("extra", ["add_bias_kv", "add_zero_attn"])
def test_from_torch_refuses_what_this_layer_lacks(extra):
    module = torch.nn.MultiheadAttention(4, 2, **{extra: True})
    wanted = says("module: expected one without add_bias_kv and add_zero_attn", "Build nn.Multi")
    with pytest.raises(ValueError, match=wanted):
        MultiHeadAttention.from_torch(module)


@pytest.mark.torch
def test_a_padding_mask_for_torch_is_accepted_by_torch_or_refused_by_us():
    module = torch_layer(0, 4, 2, None, None, True, "float64")
    x = g((2, 3, 4))
    keep = padding_mask([2, 3], 3)[:, None, None, :]
    try:
        mask = to_torch_mha(keep, 2, 2)
    except ValueError as error:
        assert "keep: expected" in str(error)
    else:
        want = run_torch(module, x, x, x, attn_mask=mask)
        near(MultiHeadAttention.from_torch(module)(x, keep=keep)[0], want[0])


# ------------------------------------------------------------------------------- invariants


@stable
@given(sizes=sizes(), seed=seeds)
def test_order_of_the_tokens(sizes, seed):
    """Queries in another order: outputs in that order. Keys in another order: nothing changes."""
    B, L, S, H, D = sizes
    rng = np.random.default_rng(seed)
    layer = make_layer(rng, H * D, H)
    x, memory = rng.standard_normal((B, L, H * D)), rng.standard_normal((B, S, H * D))
    keep = rng.random((B, 1, L, S)) < 0.7
    output, weights = layer(x, memory, keep=keep)
    rows, columns = rng.permutation(L), rng.permutation(S)
    moved, moved_weights = layer(x[:, rows], memory[:, columns], keep=keep[:, :, rows][..., columns])
    near(moved, output[:, rows])
    near(moved_weights, weights[:, :, rows][..., columns])
    near(layer(x[:, rows])[0], layer(x)[0][:, rows])


@stable
@given(
    sizes=sizes(),
    extra=st.integers(1, 4),
    rubbish=st.sampled_from([0.0, 1e6, np.nan, np.inf, "mixed"]),
    causal=st.booleans(),
    seed=seeds,
)
def test_padding_changes_nothing(sizes, extra, rubbish, causal, seed):
    B, L, _, H, D = sizes
    rng = np.random.default_rng(seed)
    layer = make_layer(rng, H * D, H)
    x = rng.standard_normal((B, L, H * D))
    padded = np.full((B, L + extra, H * D), 0.0 if rubbish == "mixed" else rubbish)
    if rubbish == "mixed":
        padded[:] = rng.choice([0.0, 7.0, np.nan, np.inf, -np.inf], padded.shape)
    padded[:, :L] = x
    order = causal_mask(L, L) if causal else np.ones((L, L), bool)
    wide = causal_mask(L + extra, L + extra) if causal else np.ones((L + extra,) * 2, bool)
    want, want_weights = layer(x, keep=order)
    keep = combine_masks(wide, padding_mask([L] * B, L + extra))
    with np.errstate(invalid="ignore"):  # the projections of inf in the padding
        output, weights = layer(padded, keep=keep)
    near(output[:, :L], want)
    near(weights[:, :, :L, :L], want_weights)
    assert (weights[:, :, :L, L:] == 0).all()


@stable
@given(sizes=sizes(), rubbish=st.sampled_from([1.0, 1e3, np.nan]), seed=seeds)
def test_no_token_sees_the_future(sizes, rubbish, seed):
    B, L, _, H, D = sizes
    rng = np.random.default_rng(seed)
    layer = make_layer(rng, H * D, H)
    x = rng.standard_normal((B, L, H * D))
    before, _ = layer(x, keep=causal_mask(L, L))
    at = int(rng.integers(L))
    changed = x.copy()
    changed[:, at] += rubbish
    after, _ = layer(changed, keep=causal_mask(L, L))
    near(after[:, :at], before[:, :at])
    if rubbish == rubbish:  # and the present and the past are seen
        assert (np.abs(after[:, at:] - before[:, at:]).max(axis=(0, 2)) > 0).all()
    else:
        assert np.isnan(after[:, at:]).all()


@stable
@given(sizes=sizes(), kind=mask_kinds, seed=seeds)
def test_a_batch_is_a_loop_over_samples(sizes, kind, seed):
    B, L, S, H, D = sizes
    rng = np.random.default_rng(seed)
    layer = make_layer(rng, H * D, H)
    x, memory = rng.standard_normal((B, L, H * D)), rng.standard_normal((B, S, H * D))
    keep = full(make_keep(rng, kind, B, H, L, S), B, H, L, S)
    output, weights = layer(x, memory, keep=keep)
    for b in range(B):
        alone, alone_weights = layer(x[b], memory[b], keep=keep[b])
        near(output[b], alone)
        near(weights[b], alone_weights)


@stable
@given(sizes=sizes(), seed=seeds)
def test_order_of_the_heads_is_a_matter_of_names(sizes, seed):
    """Heads in another order, rows of W_O in the same one: the output stays."""
    B, L, S, H, D = sizes
    rng = np.random.default_rng(seed)
    layer = make_layer(rng, H * D, H)
    order = rng.permutation(H)
    features = (order[:, None] * D + np.arange(D)).ravel()
    moved = MultiHeadAttention(
        *(w[:, features] for w in (layer.w_q, layer.w_k, layer.w_v)), layer.w_o[features], H,
        *(b[features] for b in (layer.b_q, layer.b_k, layer.b_v)), layer.b_o,
    )  # fmt: skip
    x, memory = rng.standard_normal((B, L, H * D)), rng.standard_normal((B, S, H * D))
    output, weights = layer(x, memory)
    near(moved(x, memory)[0], output)
    near(moved(x, memory)[1], weights[:, order])


def test_one_head_is_plain_attention():
    rng = np.random.default_rng(5)
    layer = make_layer(rng, 6, 1)
    x = rng.standard_normal((2, 5, 6))
    q, k, v = (
        x @ w + b for w, b in zip((layer.w_q, layer.w_k, layer.w_v), (layer.b_q, layer.b_k, layer.b_v), strict=True)
    )
    plain, weights = scaled_dot_product_attention(q, k, v, causal_mask(5, 5))
    near(layer(x, keep=causal_mask(5, 5))[0], plain @ layer.w_o + layer.b_o)
    near(layer(x, keep=causal_mask(5, 5))[1], weights[:, None])


def test_the_output_is_a_sum_over_heads():
    rng = np.random.default_rng(6)
    layer = make_layer(rng, 6, 3)
    x = rng.standard_normal((2, 5, 6))
    output, weights = layer(x)
    value = x @ layer.w_v + layer.b_v
    parts = [weights[:, h] @ value[..., 2 * h : 2 * h + 2] @ layer.w_o[2 * h : 2 * h + 2] for h in range(3)]
    near(output, sum(parts) + layer.b_o)


def test_key_stands_in_for_value_and_query_for_key():
    rng = np.random.default_rng(7)
    layer = make_layer(rng, 6, 3)
    x, memory = rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 7, 6))
    near(layer(x, memory)[0], layer(x, memory, memory)[0])
    near(layer(x)[0], layer(x, x, x)[0])
    assert np.abs(layer(x, memory)[0] - layer(x, memory, 2 * memory)[0]).max() > 0.1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_keeps_the_dtype_and_its_inputs(dtype, bias):
    layer = make_layer(np.random.default_rng(8), 6, 3, bias=bias, dtype=dtype)
    x, memory = read_only(g((2, 5, 6)).astype(dtype), g((2, 7, 6)).astype(dtype))
    for keep in (None, causal_mask(5, 7), read_only(np.zeros((5, 7), bool))):
        output, weights = layer(x, memory, keep=keep)
        assert output.dtype == weights.dtype == dtype
    if bias:
        assert multi_head_attention(x, params_of(layer), 3, causal_mask(5, 5)).dtype == dtype
    memory = read_only(np.where(np.arange(7)[:, None] == 6, np.nan, memory).astype(dtype))
    output, weights = layer(x, memory, keep=padding_mask([6, 6], 7)[:, None, None])
    assert output.dtype == weights.dtype == dtype and np.isfinite(output).all()


def test_weighted_sum_alone():
    weights, value = read_only(g((2, 3, 5, 7)), g((2, 3, 7, 4), 0.9))
    want = np.einsum("bhls,bhsv->bhlv", weights, value)
    near(weighted_sum(weights, value), want)
    spoilt = np.concatenate([value, np.full((2, 3, 1, 4), np.nan)], axis=2)
    wide = np.concatenate([weights, np.zeros((2, 3, 5, 1))], axis=3)
    near(weighted_sum(wide, read_only(spoilt), np.arange(8) < 7), want)
    assert np.isnan(weighted_sum(wide, spoilt)).all()


@pytest.mark.parametrize("keep", [[1.0, 0.0], [0.0, -np.inf]])
def test_weighted_sum_refuses_what_is_not_boolean(keep):
    value = np.array([[1.0], [np.nan]])
    with pytest.raises(ValueError, match="keep: expected a boolean mask"):
        weighted_sum(np.array([[1.0, 0.0]]), value, np.array(keep))


def test_random_layers_are_the_same_for_the_same_seed():
    one, two, other = (MultiHeadAttention.random(12, 3, seed=s) for s in (1, 1, 2))
    x = g((2, 5, 12))
    assert np.array_equal(one(x)[0], two(x)[0])
    assert np.abs(one(x)[0] - other(x)[0]).max() > 0.1
    wide = MultiHeadAttention.random(400, 4)
    for name in ("w_q", "w_k", "w_v", "w_o"):
        assert getattr(wide, name).shape == (400, 400)
        assert getattr(wide, name).var() * 400 == pytest.approx(1, abs=0.02)
    assert np.std([wide.b_q, wide.b_k, wide.b_v, wide.b_o]) == pytest.approx(0.1, abs=0.01)
    assert len({getattr(wide, name)[0, 0] for name in ("w_q", "w_k", "w_v", "w_o")}) == 4


# ----------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("rows", [2, 4])
def test_one_value_for_each_key(rows):
    wanted = says("value: expected one row for each of the 3 keys", "(3, 4)", f"got ({rows}, 4)")
    with pytest.raises(ValueError, match=wanted):
        scaled_dot_product_attention(g((5, 4)), g((3, 4)), g((rows, 4)))


def test_the_layer_names_rows_of_value(report_layer):
    wanted = says("value: expected one row for each of the 3 keys", "got")
    with pytest.raises(ValueError, match=wanted):
        report_layer(g((2, 5, 4)), g((2, 3, 4)), g((2, 2, 4)))


def test_the_layer_names_the_shape_of_value_that_came(report_layer):
    with pytest.raises(ValueError, match=says("value: expected", "got (2, 2, 4)")):
        report_layer(g((2, 5, 4)), g((2, 3, 4)), g((2, 2, 4)))


def test_value_without_key(report_layer):
    with pytest.raises(ValueError, match=says("value: came without key", "Pass the key too")):
        report_layer(g((2, 5, 4)), value=g((2, 5, 4)))


def test_widths_of_query_and_key():
    with pytest.raises(ValueError, match=says("key: expected the query's width 4", "(3, 5)", "(2, 4)")):
        scaled_dot_product_attention(g((2, 4)), g((3, 5)), g((3, 5)))


def test_the_layer_names_a_width_that_does_not_fit(report_layer):
    with pytest.raises(ValueError, match=says("w: expected (in, out) with in = 5", "got (4, 4)")):
        report_layer(g((2, 3, 5)))


def test_heads_that_do_not_divide():
    with pytest.raises(ValueError, match=says("num_heads: expected a divisor of d_model = 4", "got 3")):
        multi_head_attention(g((2, 3, 4)), numpy_layout_params(4), 3)
    with pytest.raises(ValueError, match=says("num_heads: expected a divisor of d_model = 5", "got 2")):
        MultiHeadAttention.random(5, 2)(g((2, 3, 5)))


@pytest.mark.parametrize(
    "keep, parts",
    [
        (np.ones((2, 3), bool), ["a shape that broadcasts to the scores (1, 2, 3, 3)", "got (2, 3)"]),
        (np.ones((3, 1, 3, 3), bool), ["a shape that broadcasts", "got (3, 1, 3, 3)"]),
        (np.zeros((3, 3)) - np.tri(3) / 0.5, ["a boolean mask", "got float64 of shape (3, 3)"]),
        (np.array([0, 0, -np.inf]), ["a boolean mask", "additive float64", "Pass keep == 0"]),
        (np.ones((2, 3, 3), bool), ["4 axes (B, 1 or H, L, S)", "keep[:, None]", "keep[None]"]),
    ],
)
def test_the_layer_names_a_mask_that_does_not_fit(report_layer, keep, parts):
    with pytest.raises(ValueError, match=says("keep: expected", *parts)):
        report_layer(g((1, 3, 4)), keep=keep)
