"""The layer: against PyTorch, against plain loops, against public reports, and its invariants."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mha_lesson
from mha_lesson.attention import (
    MultiHeadAttention,
    multi_head_attention,
    scaled_dot_product_attention,
    weighted_sum,
)
from mha_lesson.steps.embeddings import rotary
from mha_lesson.steps.masks import (
    causal_mask,
    combine_masks,
    from_torch_mha,
    from_torch_sdpa,
    padding_mask,
    to_torch_mha,
    to_torch_sdpa,
)
from mha_lesson.steps.softmax import softmax
from tests.reference import (
    g,
    loop_attention,
    loop_multi_head,
    near,
    numpy_layout_params,
    read_only,
    says,
    stable,
    torch_layout_params,
)

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as torch_sdpa
except ImportError:
    torch = None

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
ROOT = Path(mha_lesson.__file__).resolve().parents[1]


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


def make_layer(rng, E, H, kdim=None, vdim=None, bias=True, dtype=float):
    """Random weights of the layer; w_q is read-only, like all the rest."""

    def draw(*shape):
        return read_only((rng.standard_normal(shape) / shape[0] ** 0.5).astype(dtype))

    biases = [draw(E) for _ in range(4)] if bias else [None] * 4
    return MultiHeadAttention(draw(E, E), draw(kdim or E, E), draw(vdim or E, E), draw(E, E), H, *biases)


def params_of(layer):
    return {name: getattr(layer, name) for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")}


@pytest.fixture(scope="module")
def report_layer():
    """The weights P(4) of the public reports, two heads."""
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


def to_tensor(array):
    return None if array is None else torch.from_numpy(np.array(array))


def run_torch(module, query, key, value, **masks):
    masks = {name: to_tensor(mask) for name, mask in masks.items()}
    output, weights = module(*map(to_tensor, (query, key, value)), average_attn_weights=False, **masks)
    return output.detach().numpy(), weights.detach().numpy()


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


# --------------------------------------------------------------------------- public reports


def test_A01_weights_come_back_for_each_head(report_layer):
    x = g((1, 3, 4))
    output, weights = report_layer(x)
    assert weights.shape == (1, 2, 3, 3)
    near(weights[0, :, 0], [[0.606527, 0.015655, 0.377818], [0.590313, 0.021853, 0.387834]], 1e-6)
    near(weights.mean(1)[0, 0], [0.598420, 0.018754, 0.382826], 1e-6)
    value = x @ report_layer.w_v + report_layer.b_v
    rebuilt = weights.mean(1) @ value @ report_layer.w_o + report_layer.b_o
    near(np.abs(rebuilt - output).max(), 0.036551, 1e-6)


@pytest.mark.torch
def test_A01_torch_agrees_on_both(report_layer):
    module = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    module.load_state_dict({name: to_tensor(a) for name, a in torch_layout_params(4).items()})
    x = to_tensor(g((1, 3, 4)))
    output, weights = report_layer(g((1, 3, 4)))
    near(module(x, x, x)[0].detach().numpy(), output, 1e-14)
    near(module(x, x, x)[1].detach().numpy(), weights.mean(1), 1e-14)
    near(module(x, x, x, average_attn_weights=False)[1].detach().numpy(), weights, 1e-14)
    near(MultiHeadAttention.from_torch(module)(g((1, 3, 4)))[0], output, 1e-15)


def test_A02_keep_means_may_attend():
    q, k = np.array([[[1.0, 0.0]]]), np.array([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
    v = np.array([[[10.0], [20.0], [30.0]]])
    pad = np.array([[[False, False, True]]])
    output, weights = scaled_dot_product_attention(q, k, v, ~pad)
    near(weights, [[[0.669762, 0.330238, 0]]], 1e-6)
    near(output, [[[13.302385]]], 1e-6)
    near(scaled_dot_product_attention(q, k, v, pad)[0], [[[30]]], 1e-6)
    near(scaled_dot_product_attention(q, k, v, from_torch_mha(pad))[0], output)
    q, k, v = g((1, 1, 3, 2)), g((1, 1, 3, 2), 0.9, 0.1), np.array([1.0, 2, 3]).reshape(1, 1, 3, 1)
    triu = np.triu(np.ones((3, 3), bool), 1)
    near(scaled_dot_product_attention(q, k, v, causal_mask(3, 3))[0].ravel(), [1, 1.587016, 2.263402], 1e-6)
    near(scaled_dot_product_attention(q, k, v, triu)[0].ravel(), [2.249920, 3, 0], 1e-6)
    near(scaled_dot_product_attention(q, k, v, from_torch_mha(triu))[0].ravel(), [1, 1.587016, 2.263402], 1e-6)


def test_A03_an_empty_row_gives_the_output_bias(report_layer):
    keep = np.array([[True] * 3, [False] * 3])[:, None, None, :]
    output, weights = report_layer(g((2, 3, 4)), keep=keep)
    assert (weights[1] == 0).all()
    near(output[1], [[0.047943, 0.099957, 0.042738, -0.061186]] * 3, 1e-6)
    near(output[:1], report_layer(g((2, 3, 4))[:1])[0])


def test_A03_one_head_may_be_empty(report_layer):
    x = g((1, 3, 4))
    keep = np.array([True, False])[None, :, None, None]
    output, weights = report_layer(x, keep=keep)
    assert (weights[:, 1] == 0).all()
    near(weights[:, 0], report_layer(x)[1][:, 0])
    first = weights[0, 0] @ (x[0] @ report_layer.w_v + report_layer.b_v)[:, :2]
    near(output[0], first @ report_layer.w_o[:2] + report_layer.b_o)


def test_A04_half_precision():
    q, k = np.array([[1.0, 1.0]], np.float16), np.array([[1, 0], [1, 1], [200, 200]], np.float16)
    v = np.array([[1], [2], [1000]], np.float16)
    output, weights = scaled_dot_product_attention(q, k, v, np.array([[True, True, False]]))
    assert output.dtype == weights.dtype == np.float16
    share = 1 / (1 + np.exp(1 / np.sqrt(2)))
    near(weights.astype(float), [[share, 1 - share, 0]], 1e-3)
    near(output.astype(float), [[2 - share]], 2e-3)


def test_A05_each_sample_has_its_own_mask(report_layer):
    ignore = np.broadcast_to(np.array([[[False] * 3], [[False, True, True]]]), (2, 3, 3))
    output, _ = report_layer(g((2, 3, 4)), keep=~ignore[:, None])
    near(output[1, 0], [0.311214, -0.516696, 0.423263, 0.158194], 1e-6)
    near(output[0, 0], [0.100731, 0.920312, -0.866514, 0.067734], 1e-6)
    if torch is not None:
        module = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
        module.load_state_dict({name: to_tensor(a) for name, a in torch_layout_params(4).items()})
        x = g((2, 3, 4))
        near(run_torch(module, x, x, x, attn_mask=to_torch_mha(~ignore[:, None], 2, 2))[0], output)
        tiled = np.tile(ignore, (2, 1, 1))
        wrong = run_torch(module, x, x, x, attn_mask=tiled)[0]
        near(np.abs(wrong - output).max(), 1.283092, 1e-6)


def test_A06_causal_is_a_mask_not_a_hint(report_layer):
    x = g((1, 3, 4))
    near(report_layer(x, keep=causal_mask(3, 3))[0][0, 0], [0.173517, 0.946186, -0.966313, 0.146051], 1e-6)
    near(report_layer(x)[0][0, 0], [0.100731, 0.920312, -0.866514, 0.067734], 1e-6)
    near(report_layer(x, keep=np.ones((3, 3), bool))[0], report_layer(x)[0])


def test_A07_causal_is_aligned_lower_right():
    q, k, v = np.array([[[[1.0, 0.0]]]]), g((1, 1, 4, 2)), np.array([1.0, 2, 4, 8]).reshape(1, 1, 4, 1)
    near(scaled_dot_product_attention(q, k, v, causal_mask(1, 4))[0].ravel(), [2.801998], 1e-6)
    q, k, v = g((1, 1, 2, 2), 0.5, 0.2), g((1, 1, 5, 2)), 2.0 ** np.arange(5).reshape(1, 1, 5, 1)
    near(scaled_dot_product_attention(q, k, v, causal_mask(2, 5))[0].ravel(), [2.786643, 4.006895], 1e-6)
    upper_left = np.tril(np.ones((2, 5), bool))
    near(scaled_dot_product_attention(q, k, v, upper_left)[0].ravel(), [1, 1.584771], 1e-6)


def test_A08_two_calls_give_the_same():
    q = read_only(g((1, 1, 4, 2)))
    first, second = (scaled_dot_product_attention(q, q, q)[0] for _ in range(2))
    assert np.array_equal(first, second)
    near(first.ravel()[:4], [0.397803, 0.390268, 0.525268, 0.465253], 1e-6)


def test_A10_the_batch_comes_first(report_layer):
    x = g((2, 3, 4))
    output, weights = report_layer(x)
    assert weights.shape == (2, 2, 3, 3)
    changed = x.copy()
    changed[1] += 1
    assert np.array_equal(report_layer(changed)[0][0], output[0])
    assert np.abs(report_layer(changed)[0][1] - output[1]).max() > 0.1


@pytest.mark.parametrize("dtype", [float, np.int64])
def test_A11_a_mask_of_0_and_1_is_refused(report_layer, dtype):
    x, mask = g((1, 3, 4)), np.array([[1, 1, 0]], dtype)
    wanted = says("keep: expected a boolean mask", "holding only 0 and 1", "keep.astype(bool)")
    with pytest.raises(ValueError, match=wanted):
        report_layer(x, keep=mask)
    with pytest.raises(ValueError, match=wanted):
        scaled_dot_product_attention(x, x, x, mask)
    near(report_layer(x, keep=mask.astype(bool))[1][0, 0, 0], [0.974839, 0.025161, 0], 1e-6)


def test_A12_a_mask_for_each_sample_needs_an_axis_for_the_heads():
    q, k, v = g((2, 2, 3, 2)), g((2, 2, 3, 2), 0.9, 0.1), g((2, 2, 3, 1), 0.4, 0.2)
    keep = np.ones((2, 3, 3), bool)
    keep[1, :, 1:] = False
    wanted = says("keep: expected 2 axes (L, S) or 4 axes", "got 3 axes (2, 3, 3)", "keep[:, None]")
    with pytest.raises(ValueError, match=wanted):
        scaled_dot_product_attention(q, k, v, keep)
    right = scaled_dot_product_attention(q, k, v, keep[:, None])[0]
    near(right[1, 0, :, 0], [0.515501] * 3, 1e-6)
    near(right[0, 1, :, 0], [0.916641, 0.934146, 0.946804], 1e-6)
    on_heads = scaled_dot_product_attention(q, k, v, keep[None])[0]
    near(on_heads[1, 0, :, 0], [0.022605, 0.345116, 0.320078], 1e-6)
    near(on_heads[0, 1, :, 0], [0.985450] * 3, 1e-6)


A13_Q, A13_K = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
A13_V, A13_KEEP = np.array([[5.0, 6.0], [7.0, 8.0]]), np.array([[True, False]])


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf, 1e10])
def test_A13_a_forbidden_key_counts_for_nothing(rubbish):
    key = A13_K.copy()
    key[1, 0] = rubbish
    near(scaled_dot_product_attention(A13_Q, key, A13_V, A13_KEEP)[0], [[5, 6]])


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf, 1e300])
def test_A13_a_forbidden_value_counts_for_nothing(rubbish):
    value = A13_V.copy()
    value[1, 0] = rubbish
    with np.errstate(invalid="ignore"):
        near(scaled_dot_product_attention(A13_Q, A13_K, value, A13_KEEP)[0], [[5, 6]])


def test_A13_a_forbidden_value_does_not_warn():
    value = np.array([[5.0, 6.0], [np.inf, 8.0]])
    near(scaled_dot_product_attention(A13_Q, A13_K, value, A13_KEEP)[0], [[5, 6]])


def test_A13_a_huge_forbidden_key_does_not_warn():
    key = np.array([[1.0, 0.0], [6e4, 6e4]], np.float16)
    query = np.array([[2.0, 2.0]], np.float16)
    output, _ = scaled_dot_product_attention(query, key, A13_V.astype(np.float16), A13_KEEP)
    near(output, [[5, 6]])


def test_A13_a_nan_that_may_be_attended_to_is_never_hidden():
    value = np.array([[5.0, 6.0], [np.nan, 8.0]])
    output, weights = scaled_dot_product_attention(A13_Q, A13_K, value)
    assert np.isnan(output[0, 0])
    near(output[0, 1], weights[0] @ [6, 8])
    output, _ = scaled_dot_product_attention(A13_Q[[0, 0]], A13_K, value, np.tri(2, 2, dtype=bool))
    near(output[0], [5, 6])
    assert np.isnan(output[1, 0])


def test_A15_rotary_scores_depend_on_the_distance_alone():
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    here, there = (
        scaled_dot_product_attention(rotary(x, at), rotary(x, at), x, causal_mask(5, 5))[0]
        for at in (np.arange(5), np.arange(5) + 7)
    )
    near(here, there)
    assert np.abs(here - scaled_dot_product_attention(x, x, x, causal_mask(5, 5))[0]).max() > 0.01


def test_A16_a_chunk_sees_the_cache_and_itself():
    q, k, v = g((1, 1, 5, 2)), g((1, 1, 5, 2), 0.9, 0.1), 2.0 ** np.arange(5).reshape(1, 1, 5, 1)
    chunk = scaled_dot_product_attention(q[:, :, 3:], k, v, causal_mask(2, 5))[0]
    near(chunk.ravel(), [4.688096, 6.239676], 1e-6)
    whole = scaled_dot_product_attention(q, k, v, causal_mask(5, 5))[0]
    near(chunk, whole[:, :, 3:])


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_A16_chunked_equals_full(chunk):
    rng = np.random.default_rng(3)
    layer, x = make_layer(rng, 6, 3), rng.standard_normal((2, 7, 6))
    whole, _ = layer(x, keep=causal_mask(7, 7))
    for start in range(0, 7, chunk):
        seen = min(start + chunk, 7)
        part, _ = layer(x[:, start:seen], x[:, :seen], keep=causal_mask(seen - start, seen))
        near(part, whole[:, start:seen])


def test_A17_no_token_gets_heads_of_another():
    """With each token attending to itself alone, and unit matrices, the layer changes nothing."""
    eye = np.eye(6)
    layer = MultiHeadAttention(eye, eye, eye, eye, 3)
    x = g((2, 5, 6))
    near(layer(x, keep=np.eye(5, dtype=bool))[0], x)


def test_A18_weights_are_shares_of_the_keys():
    query, key, value = g((2, 3, 2)), g((2, 5, 2), 0.9), g((2, 5, 4), 0.4)
    _, weights = scaled_dot_product_attention(query, key, value)
    near(weights.sum(-1), np.ones((2, 3)))
    assert np.abs(weights.sum(-2) - 1).min() > 1e-3


def test_A19_the_scale_is_of_the_head_not_of_the_model():
    q, k = np.array([[3.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 3.0]])
    near(scaled_dot_product_attention(q, k, k)[1], [[0.998280, 0.001720]], 1e-6)
    eye = np.eye(8)
    layer = MultiHeadAttention(eye, eye, eye, eye, num_heads=4)
    near(layer(np.tile(q, 4), np.tile(k, (1, 4)))[1], [[[0.998280, 0.001720]]] * 4, 1e-6)
    near(softmax((q / 2**0.5) @ k.T), scaled_dot_product_attention(q, k, k)[1], 1e-15)


@pytest.mark.torch
def test_A20_a_torch_weight_is_out_in():
    module = torch.nn.MultiheadAttention(2, 1, batch_first=True, dtype=torch.float64)
    stored = np.arange(1.0, 13.0).reshape(6, 2)
    with torch.no_grad():
        module.in_proj_weight.copy_(to_tensor(stored))
    layer = MultiHeadAttention.from_torch(module)
    near(np.eye(2) @ layer.w_q, [[1, 3], [2, 4]])
    near(layer.w_k, [[5, 7], [6, 8]])
    near(layer.w_v, [[9, 11], [10, 12]])


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


# ------------------------------------------------------------------------- annotations, imports


def run_python(code):
    """A fresh interpreter, in which nothing is imported yet, and no bytecode of a checked module is kept."""
    with tempfile.TemporaryDirectory() as cache:
        return _run_python(code, cache)


def _run_python(code, cache):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPYCACHEPREFIX": str(cache)},
    )  # fmt: skip


TYPED_CALLS = """
from jaxtyping import install_import_hook
with install_import_hook(["mha_lesson.steps", "mha_lesson.attention"], "beartype.beartype"):
    from mha_lesson.attention import *
    from mha_lesson.attention import MultiHeadAttention as Layer
    from mha_lesson.steps.embeddings import *
    from mha_lesson.steps.heads import *
    from mha_lesson.steps.lookup import *
    from mha_lesson.steps.masks import *
    from mha_lesson.steps.projections import *
    from mha_lesson.steps.scores import *
    from mha_lesson.steps.softmax import *
import numpy as np

def a(*shape, dtype=float):
    return np.ones(shape, dtype)

def b(*shape):
    return np.ones(shape, bool)
"""


def test_annotations_are_true():
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    done = run_python(
        TYPED_CALLS
        + """
for dtype in (np.float16, np.float32, np.float64):
    for lead in ((), (2,), (2, 3)):
        for L, S, H, D in ((5, 7, 3, 2), (1, 4, 1, 3), (4, 4, 2, 1), (7, 5, 2, 2)):
            E = H * D
            def f(*shape):
                return a(*shape, dtype=dtype)
            double(f(*lead, L)); soft_lookup(f(D), f(S, D), f(S, 4))
            ids = np.zeros((*lead, L), int)
            lookup(ids, f(9, E)); embed(ids, f(9, E))
            sinusoidal_positions(L, 2 * D); rotary(f(*lead, L, 2 * D), np.arange(L))
            rotary(f(*lead, L, 2 * D), np.arange(L) / 2, 10.0)
            add_positions(f(2, L, E), f(L + 1, E)); dot_product_variance(D)
            project(f(*lead, L, E), f(E, 11)); project(f(*lead, L, E), f(E, 11), f(11))
            qkv(f(*lead, L, E), f(E, 11), f(E, 11), f(E, 13))
            attention_scores(f(*lead, L, D), f(*lead, S, D))
            softmax(f(*lead, S)); masked_softmax(f(*lead, L, S), b(L, S))
            split_heads(f(*lead, L, E), H); merge_heads(f(*lead, H, L, D))
            output_projection(f(*lead, L, E), f(E, 11), f(11))
            output_projection(f(*lead, L, E), f(E, 11))
            causal_mask(L, S); window_mask(L, S, 2); padding_mask([1, S], S)
            combine_masks(b(L, S), b(2, S)); as_keep(b(L, S)); check_keep(b(L, S), (2, H, L, S))
            to_torch_sdpa(b(L, S)); from_torch_sdpa(b(L, S)); from_torch_mha(b(L, S))
            to_torch_mha(b(L, S)); to_torch_mha(b(2, 1, L, S), 2, H, L)
            from_torch_mha(f(L, S) * 0); from_torch_sdpa(f(L, S) * 0)
            scaled_dot_product_attention(f(*lead, L, D), f(*lead, S, D), f(*lead, S, 4), b(L, S))
            scaled_dot_product_attention(f(*lead, L, D), f(*lead, S, D), f(*lead, S, 4))
            weighted_sum(f(*lead, L, S), f(*lead, S, 4))
            weighted_sum(f(*lead, L, S), f(*lead, S, 4) * np.nan, b(L, S))
            if len(lead) < 2:
                w = [f(E, E), f(11, E), f(13, E), f(E, E)]
                for biases in ([], [f(E)] * 4):
                    layer = Layer(*w, H, *biases)
                    layer(f(*lead, L, E), f(*lead, S, 11), f(*lead, S, 13), b(L, S))
                params = {n: f(E, E) for n in ("w_q", "w_k", "w_v", "w_o")}
                params |= {n: f(E) for n in ("b_q", "b_k", "b_v", "b_o")}
                multi_head_attention(f(*lead, L, E), params, H)
                Layer.from_params(params, H)(f(*lead, L, E))
                Layer.random(E, H)(f(*lead, L, E), f(*lead, S, E))
print("all calls passed")
"""
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "all calls passed\n"


def test_annotations_catch_wrong_shapes():
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    done = run_python(
        TYPED_CALLS
        + """
wrong = {
    "double": lambda: double(np.ones(3, int)),
    "soft_lookup query": lambda: soft_lookup(a(2), a(3, 4), a(3, 5)),
    "soft_lookup values": lambda: soft_lookup(a(4), a(3, 4), a(2, 5)),
    "lookup ids": lambda: lookup(a(3), a(4, 5)),
    "lookup table": lambda: lookup(np.zeros(3, int), a(4)),
    "embed": lambda: embed(np.zeros(3, int), a(4, 5, 6)),
    "positions": lambda: sinusoidal_positions(4.0, 6),
    "rotary pos": lambda: rotary(a(5, 4), np.arange(3)),
    "rotary x": lambda: rotary(np.ones((5, 4), int), np.arange(5)),
    "add_positions": lambda: add_positions(a(3, 4), a(3, 4)),
    "add_positions width": lambda: add_positions(a(2, 3, 4), a(3, 1)),
    "dot_product_variance": lambda: dot_product_variance(4.0),
    "project": lambda: project(a(2, 3), a(4, 5)),
    "project bias": lambda: project(a(2, 3), a(3, 5), a(1)),
    "qkv": lambda: qkv(a(2, 3), a(3, 4), a(3, 5), a(3, 4)),
    "scores width": lambda: attention_scores(a(2, 3), a(2, 4)),
    "scores batch": lambda: attention_scores(a(2, 5, 3), a(1, 5, 3)),
    "softmax": lambda: softmax(np.ones((2, 3), int)),
    "masked_softmax": lambda: masked_softmax(np.ones((2, 3), int), b(2, 3)),
    "split_heads": lambda: split_heads(a(6), 3),
    "split_heads heads": lambda: split_heads(a(5, 6), 3.0),
    "merge_heads": lambda: merge_heads(a(5, 6)),
    "output_projection": lambda: output_projection(a(5, 6), a(6, 4), a(6)),
    "causal_mask": lambda: causal_mask(3.0, 3),
    "window_mask": lambda: window_mask(3, 3, 1.5),
    "padding_mask": lambda: padding_mask([1], 2.0),
    "combine_masks": lambda: combine_masks(b(3, 3), b(2, 4)),
    "combine_masks axes": lambda: combine_masks(b(1, 3, 3), b(2, 3)),
    "to_torch_mha": lambda: to_torch_mha(b(2, 1, 3, 3), "2", 2),
    "sdpa width": lambda: scaled_dot_product_attention(a(5, 3), a(7, 4), a(7, 4)),
    "sdpa rows": lambda: scaled_dot_product_attention(a(5, 3), a(7, 3), a(6, 3)),
    "sdpa batch": lambda: scaled_dot_product_attention(a(2, 5, 3), a(1, 7, 3), a(2, 7, 3)),
    "weighted_sum": lambda: weighted_sum(a(5, 7), a(6, 3)),
    "multi_head_attention": lambda: multi_head_attention(a(5, 6), [], 3),
    "layer w_q": lambda: Layer(a(6, 5), a(6, 6), a(6, 6), a(6, 6), 3),
    "layer w_o": lambda: Layer(a(6, 6), a(6, 6), a(6, 6), a(6, 5), 3),
    "layer bias": lambda: Layer(a(6, 6), a(6, 6), a(6, 6), a(6, 6), 3, a(5)),
    "layer call": lambda: Layer.random(6, 3)(a(5, 6), a(1, 7, 6)),
    "layer batch": lambda: Layer.random(6, 3)(a(2, 5, 6), a(3, 7, 6)),
    "random": lambda: Layer.random(6.0, 3),
}
for name, call in wrong.items():
    try:
        call()
    except Exception as error:
        if "TypeCheck" not in type(error).__name__ and "Beartype" not in type(error).__name__:
            print(name, "ended in", type(error).__name__, error)
    else:
        print(name, "passed")
print(len(wrong), "calls")
"""
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "40 calls\n"


def test_the_numpy_half_starts_without_torch_and_matplotlib():
    done = run_python(
        """
        import importlib, pkgutil, sys
        import mha_lesson
        assert "numpy" not in sys.modules, "import mha_lesson alone is light"
        import mha_lesson.steps
        names = [m.name for m in pkgutil.iter_modules(mha_lesson.steps.__path__)]
        for name in names:
            importlib.import_module("mha_lesson.steps." + name)
        import mha_lesson.attention
        print(sorted(names))
        print(sorted({"torch", "matplotlib", "IPython", "ipywidgets"} & set(sys.modules)))
        """
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names, heavy = done.stdout.splitlines()
    for name in ("embeddings", "heads", "lookup", "masks", "projections", "scores", "softmax"):
        assert f"'{name}'" in names
    assert heavy == "[]"
