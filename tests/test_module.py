"""The PyTorch layer: against plain autograd, NumPy and nn.MultiheadAttention, and public reports.

Gradients are compared wherever outputs are: a layer can be right forwards and train wrongly.
"""

import copy
import io
import math
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mha_lesson
from mha_lesson.attention import MultiHeadAttention as NumpyLayer
from tests.reference import g, numpy_layout_params, says, stable, torch_layout_params

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from mha_lesson.pytorch import layer as layer_file  # noqa: E402
from mha_lesson.pytorch.cores.sdpa import attention, attention_weights  # noqa: E402
from mha_lesson.pytorch.heads import merge_heads, share_heads, split_heads  # noqa: E402
from mha_lesson.pytorch.masks import causal_mask  # noqa: E402

ROOT = Path(mha_lesson.__file__).resolve().parents[1]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
DTYPES = [pytest.param(dtype, id=str(dtype)[6:]) for dtype in TOLERANCE]
HAS_COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("cl")

needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="torch.compile needs a C++ compiler, and there is none")


def devices():
    """The CPU, and the others with the reason why they are skipped."""
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [
        pytest.param(name, marks=[] if there else pytest.mark.skip(reason=f"no {name} device"))
        for name, there in here.items()
    ]


# ---------------------------------------------------------------------------- what tests share


@st.composite
def sizes(draw):
    """B, L, S, G, R, D: all different primes, some 1. G key/value heads serve R query heads each."""
    values = (*draw(st.permutations([5, 7, 11, 13])), *draw(st.permutations([2, 3])))
    one = draw(st.sampled_from(["", "", "B", "L", "S", "D", "G", "R", "square"]))
    chosen = {name: 1 if name == one else value for name, value in zip("BLSDGR", values, strict=True)}
    if one == "square":
        chosen["S"] = chosen["L"]
    return tuple(chosen[name] for name in "BLSGRD")


seeds = st.integers(0, 2**16)
mask_kinds = st.sampled_from(
    ["none", "causal as keep", "padding", "nothing", "any (L, S)", "any (L, 1)", "any (S,)", "any (B, 1, L, S)",
     "any (B, H, L, S)", "any (1, H, 1, S)", "any (B, 1, L, 1)"]
)  # fmt: skip


def make_keep(rng, kind, B, H, L, S):
    """A mask of this kind, some of its rows empty."""
    if kind == "none":
        return None
    if kind == "causal as keep":
        return torch.from_numpy(lower_right(L, S))
    if kind == "padding":
        lengths = rng.integers(0, S + 1, B)
        return torch.from_numpy(np.arange(S) < lengths[:, None])[:, None, None, :]
    if kind == "nothing":
        return torch.zeros(L, S, dtype=torch.bool)
    shape = {"B": B, "H": H, "L": L, "S": S, "1": 1}
    names = kind.removeprefix("any (").removesuffix(")").replace(",", " ").split()
    return torch.from_numpy(rng.random(tuple(shape[name] for name in names)) < 0.6)


def lower_right(L, S):
    """With loops: query i of L is token i + S - L of S."""
    return np.array([[j <= i + S - L for j in range(S)] for i in range(L)], dtype=bool).reshape(L, S)


def allowed(keep, causal, B, H, L, S):
    """(B, H, L, S) in full."""
    full = np.broadcast_to(np.True_ if keep is None else keep.numpy(), (B, H, L, S))
    return torch.from_numpy(full & lower_right(L, S) if causal else full.copy())


def randomise(module, seed):
    """Weights of variance 1 / width and biases that are not 0, as those of a new layer are."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=draw, dtype=torch.float64) * tensor.shape[-1] ** -0.5)
    return module


def numbers(rng, *shape, dtype=torch.float64):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def leaf(x):
    return x.detach().clone().requires_grad_()


def plain(module, query, key, value, mask):
    """Naive attention with autograd alone: a loop over heads, softmax written out, safe rows.

    mask (B, H, L, S). Head h reads key/value head h // R, found by counting.
    """
    p = dict(module.named_parameters())

    def linear(name, x):
        made = torch.einsum("bta,ea->bte", x, p[f"{name}.weight"])
        return made + p[f"{name}.bias"] if f"{name}.bias" in p else made

    q, k, v = linear("q_proj", query), linear("k_proj", key), linear("v_proj", value)
    D, R = module.d_model // module.num_heads, module.num_heads // module.num_kv_heads
    contexts, all_weights = [], []
    for h in range(module.num_heads):
        mine, shared = slice(h * D, (h + 1) * D), slice(h // R * D, (h // R + 1) * D)
        scores = torch.einsum("bld,bsd->bls", q[..., mine], k[..., shared]) / math.sqrt(D)
        scores = torch.where(mask[:, h], scores, torch.full_like(scores, -math.inf))
        peak = scores.detach().amax(-1, keepdim=True).clamp(min=-1e6)
        e = torch.exp(scores - peak)
        total = e.sum(-1, keepdim=True)
        weights = e / torch.where(total == 0, torch.ones_like(total), total)
        contexts.append(torch.einsum("bls,bsd->bld", weights, v[..., shared]))
        all_weights.append(weights)
    return linear("out_proj", torch.cat(contexts, -1)), torch.stack(all_weights, 1)


def gradients(loss, module, inputs):
    wanted = [*inputs, *module.parameters()]
    return torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)


def same(got, want, atol):
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=atol, atol=atol)


def all_finite(*tensors):
    return all(bool(t.isfinite().all()) for t in tensors)


def report_layer(dtype=torch.float64, **changes):
    """The weights P(4) of the public reports, two heads."""
    layer = MultiHeadAttention.from_numpy(NumpyLayer.from_params(numpy_layout_params(4), 2), dtype=dtype)
    for name, value in changes.items():
        setattr(layer, name, value)
    return layer


def report_torch(**options):
    """The same weights in nn.MultiheadAttention."""
    module = nn.MultiheadAttention(4, 2, dtype=torch.float64, **{"batch_first": True, **options})
    module.load_state_dict({name: torch.from_numpy(a) for name, a in torch_layout_params(4).items()})
    return module


def t(array):
    return torch.as_tensor(array, dtype=torch.float64)


def close(got, want):
    """`want`: six printed digits."""
    torch.testing.assert_close(got.detach().double(), t(want), rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------- plain autograd


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@stable
@given(sizes=sizes(), kind=mask_kinds, causal=st.booleans(), bias=st.booleans(), own=st.booleans(), seed=seeds)
def test_outputs_weights_and_gradients_are_plain_autograd(dtype, sizes, kind, causal, bias, own, seed):
    B, L, S, G, R, D = sizes
    H = G * R
    E = H * D
    rng = np.random.default_rng(seed)
    S, kdim, vdim = (L, None, None) if own else (S, 17, 19)
    layer = randomise(MultiHeadAttention(E, H, G, bias=bias, kdim=kdim, vdim=vdim, dtype=dtype), seed)
    keep = make_keep(rng, kind, B, H, L, S)
    mask = allowed(keep, causal, B, H, L, S)
    if own:
        inputs = (leaf(numbers(rng, B, L, E, dtype=dtype)),)
        roles = inputs * 3
    else:
        inputs = roles = [leaf(numbers(rng, B, *s, dtype=dtype)) for s in ((L, E), (S, kdim), (S, vdim))]
    probes = numbers(rng, B, L, E, dtype=dtype) / L, numbers(rng, B, H, L, S, dtype=dtype) / L
    want_output, want_weights = plain(layer, *roles, mask)
    output = layer(*inputs, keep=keep, causal=causal)
    again, weights = layer(*inputs, keep=keep, causal=causal, need_weights=True)
    atol = TOLERANCE[dtype]
    assert torch.equal(output, again)
    same(output, want_output, atol)
    same(weights, want_weights, atol)
    same(weights.sum(-1), mask.any(-1).to(dtype), atol)
    assert not weights[~mask].any()
    for got, want in zip(
        gradients((output * probes[0]).sum(), layer, inputs),
        gradients((want_output * probes[0]).sum(), layer, inputs), strict=True,
    ):  # fmt: skip
        same(got, want, 20 * atol)
    for got, want in zip(
        gradients((again * probes[0]).sum() + (weights * probes[1]).sum(), layer, inputs),
        gradients((want_output * probes[0]).sum() + (want_weights * probes[1]).sum(), layer, inputs), strict=True,
    ):  # fmt: skip
        same(got, want, 20 * atol)


@pytest.mark.parametrize("S", [3, 5])  # without a mask, and with one
def test_gradients_and_second_gradients_by_finite_differences(S):
    layer = randomise(MultiHeadAttention(6, 2, kdim=5, vdim=4, dtype=torch.float64), 3)
    rng = np.random.default_rng(1)
    inputs = [leaf(numbers(rng, 2, *s)) for s in ((3, 6), (S, 5), (S, 4))]
    keep = torch.tensor([[True] * S, [False] * S, [True, False] + [True] * (S - 2)])
    for mask in (None, keep):
        assert torch.autograd.gradcheck(lambda *x, mask=mask: layer(*x, keep=mask, causal=True), inputs)
    weights = lambda *x: layer(*x, keep=keep, need_weights=True)[1]  # noqa: E731
    assert torch.autograd.gradcheck(weights, inputs)
    assert torch.autograd.gradgradcheck(weights, inputs)


# ---------------------------------------------------------------------------- the NumPy layer


@stable
@given(sizes=sizes(), kind=mask_kinds, bias=st.booleans(), seed=seeds)
def test_the_numpy_layer_says_the_same(sizes, kind, bias, seed):
    B, L, S, G, R, D = sizes
    H, E = G * R, G * R * D
    rng = np.random.default_rng(seed)
    layer = randomise(MultiHeadAttention(E, H, G, bias=bias, kdim=17, vdim=19, dtype=torch.float64), seed)
    roles = [numbers(rng, B, *s) for s in ((L, E), (S, 17), (S, 19))]
    keep = make_keep(rng, kind, B, H, L, S)
    there = layer.to_numpy()
    want = there(*(x.numpy() for x in roles), keep=None if keep is None else keep.numpy())
    back = MultiHeadAttention.from_numpy(there)
    assert back.num_kv_heads == H
    for module in (layer, back):
        output, weights = module(*roles, keep=keep, need_weights=True)
        same(output.detach(), torch.from_numpy(want[0]), 1e-12)
        same(weights.detach(), torch.from_numpy(want[1]), 1e-12)


def test_to_and_from_numpy_are_copies_of_the_same_weights():
    there = NumpyLayer.random(12, 3)
    layer = MultiHeadAttention.from_numpy(there)
    assert layer.q_proj.weight.dtype == torch.float64
    back = layer.to_numpy()
    for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"):
        np.testing.assert_array_equal(getattr(back, name), getattr(there, name))
    with torch.no_grad():
        layer.q_proj.weight.zero_()
    assert back.w_q.any() and there.w_q.any()
    back.w_k[:] = 0
    assert layer.k_proj.weight.detach().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_dtypes(dtype):
    """NumPy has no bfloat16: it becomes float32 there, which holds each of its values."""
    layer = MultiHeadAttention(6, 2, dtype=dtype)
    there = layer.to_numpy()
    assert there.w_q.dtype == (np.float32 if dtype == torch.bfloat16 else str(dtype)[6:])
    back = MultiHeadAttention.from_numpy(there, dtype=dtype)
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), back.parameters(), strict=True))


def test_a_numpy_layer_with_some_biases():
    """nn.Linear maps come with or without bias all four: a missing one becomes 0."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 6, 6))
    there = NumpyLayer(*w, 2, b_v=np.ones(6))
    layer = MultiHeadAttention.from_numpy(there)
    x = rng.standard_normal((2, 5, 6))
    same(layer(t(x)).detach(), torch.from_numpy(there(x)[0]), 1e-12)
    assert MultiHeadAttention.from_numpy(NumpyLayer(*w, 2)).q_proj.bias is None


# ---------------------------------------------------------------------------- nn.MultiheadAttention


def to_blocked(mask, B, H, L, S):
    """(B, H, L, S), True = may attend, as nn.MultiheadAttention wants it: (B * H, L, S), True = blocked."""
    return ~mask.reshape(B * H, L, S)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@stable
@given(
    sizes=sizes(), kind=st.sampled_from(["none", "padding", "any (L, S)", "any (B, H, L, S)"]), causal=st.booleans(),
    bias=st.booleans(), own=st.booleans(), batch_first=st.booleans(), seed=seeds,
)  # fmt: skip
def test_from_torch_says_the_same_where_torch_is_right(dtype, sizes, kind, causal, bias, own, batch_first, seed):
    """Where some row allows nothing, nn.MultiheadAttention gives NaN (A03 below): such rows get key 0."""
    B, L, S, G, R, D = sizes
    H, E = G * R, G * R * D
    rng = np.random.default_rng(seed)
    S, kdim, vdim = (L, None, None) if own else (S, 17, 19)
    module = randomise(
        nn.MultiheadAttention(E, H, bias=bias, kdim=kdim, vdim=vdim, batch_first=batch_first, dtype=dtype), seed
    )
    layer = MultiHeadAttention.from_torch(module)
    shapes = [(L, E)] if own else [(L, E), (S, kdim), (S, vdim)]
    inputs = [leaf(numbers(rng, B, *s, dtype=dtype)) for s in shapes]
    mask = allowed(make_keep(rng, kind, B, H, L, S), causal, B, H, L, S)
    mask[..., 0] |= ~mask.any(-1)
    roles = inputs * 3 if own else inputs
    given = roles if batch_first else [x.transpose(0, 1) for x in roles]
    want, want_weights = module(*given, attn_mask=to_blocked(mask, B, H, L, S), average_attn_weights=False)
    want = want if batch_first else want.transpose(0, 1)
    output, weights = layer(*inputs, keep=mask, need_weights=True)
    atol = TOLERANCE[dtype]
    same(output, want, atol)
    same(weights, want_weights, atol)
    probe = numbers(rng, B, L, E, dtype=dtype) / L
    for x in inputs:
        got, wanted = (torch.autograd.grad((o * probe).sum(), x, retain_graph=True)[0] for o in (output, want))
        same(got, wanted, 20 * atol)
    got, wanted = (
        torch.autograd.grad((o * probe).sum(), list(m.parameters()), materialize_grads=True, allow_unused=True)
        for o, m in ((output, layer), (want, module))
    )
    assert sum(x.numel() for x in got) == sum(x.numel() for x in wanted)
    flat = {name: x for (name, _), x in zip(layer.named_parameters(), got, strict=True)}
    other = {name: x for (name, _), x in zip(module.named_parameters(), wanted, strict=True)}
    if own:
        same(torch.cat([flat[f"{n}_proj.weight"] for n in "qkv"]), other["in_proj_weight"], 20 * atol)
    else:
        for n in "qkv":
            same(flat[f"{n}_proj.weight"], other[f"{n}_proj_weight"], 20 * atol)
    if bias:
        same(torch.cat([flat[f"{n}_proj.bias"] for n in "qkv"]), other["in_proj_bias"], 20 * atol)
    same(flat["out_proj.weight"], other["out_proj.weight"], 20 * atol)


def test_from_torch_takes_over_the_rest():
    module = nn.MultiheadAttention(6, 2, dropout=0.25, dtype=torch.bfloat16).eval()
    layer = MultiHeadAttention.from_torch(module)
    assert (layer.dropout, layer.training, layer.q_proj.weight.dtype) == (0.25, False, torch.bfloat16)
    assert MultiHeadAttention.from_torch(module.train()).training
    with torch.no_grad():
        layer.q_proj.weight.zero_()
        layer.out_proj.weight.zero_()
    assert module.in_proj_weight.detach().all() and module.out_proj.weight.detach().any()  # copies


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_from_torch_refuses_what_it_cannot_do(option):
    with pytest.raises(ValueError, match=says("module: expected", "without add_bias_kv and add_zero_attn", "Build")):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(6, 2, **{option: True}))
    with pytest.raises(TypeError, match=says("module: expected a torch.nn.MultiheadAttention, got Linear")):
        MultiHeadAttention.from_torch(nn.Linear(6, 6))
    with pytest.raises(TypeError, match=says("layer: expected mha_lesson.attention.MultiHeadAttention, got Linear")):
        MultiHeadAttention.from_numpy(nn.Linear(6, 6))


# ---------------------------------------------------------------------------- public reports


def test_a01_weights_come_back_for_each_head():
    """pytorch/pytorch#34537: torch's default is their mean, from which no output can be rebuilt."""
    x = t(g((1, 3, 4)))
    output, weights = report_layer()(x, need_weights=True)
    assert weights.shape == (1, 2, 3, 3)
    close(weights[0, :, 0], [[0.606527, 0.015655, 0.377818], [0.590313, 0.021853, 0.387834]])
    theirs, mean = report_torch()(x, x, x)
    assert mean.shape == (1, 3, 3)
    close(mean[0, 0], [0.598420, 0.018754, 0.382826])
    same(output, theirs, 1e-12)


def test_a02_true_means_may_attend():
    """rasbt/LLMs-from-scratch#1061: nn.MultiheadAttention means the opposite, SDPA the same."""
    q, k, v = t([[[[1, 0]]]]), t([[[[1, 0], [0, 1], [-1, 0]]]]), t([[[[10], [20], [30]]]])
    pad = torch.tensor([False, False, True])
    close(attention_weights(q, k, ~pad), [[[[0.669762, 0.330238, 0]]]])
    close(attention(q, k, v, ~pad[None]), [[[[13.302385]]]])
    close(F.scaled_dot_product_attention(q, k, v, pad[None]), [[[[30]]]])
    q, k, v = t(g((1, 1, 3, 2))), t(g((1, 1, 3, 2), 0.9, 0.1)), t([1, 2, 3]).view(1, 1, 3, 1)
    for keep, causal in ((None, True), (torch.ones(3, 3).tril().bool(), False)):
        close(attention(q, k, v, keep, causal).ravel(), [1, 1.587016, 2.263402])
    close(attention(q, k, v, torch.ones(3, 3).triu(1).bool()).ravel(), [2.249920, 3, 0])
    x = t(g((1, 3, 4)))
    keep = torch.tensor([[True, False, False], [True, True, False], [False, True, True]])
    same(report_layer()(x, keep=keep), report_torch()(x, x, x, attn_mask=~keep)[0], 1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a03_a_sample_of_padding_spoils_no_gradient(training, need_weights, causal):
    """pytorch/pytorch#41508: nn.MultiheadAttention gives 48 NaN of 48 here if weights are asked for."""
    x = leaf(t(g((2, 3, 4))))
    keep = torch.tensor([[True] * 3, [False] * 3])[:, None, None, :]
    layer = report_layer().train(training)
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        output = layer(x, keep=keep, causal=causal, need_weights=need_weights)
        output, weights = output if need_weights else (output, torch.zeros(2, 2, 3, 3))
        close(output[1], [[0.047943, 0.099957, 0.042738, -0.061186]] * 3)
        assert not weights[1].any()
        loss = output[0].sum() + weights.sum()
        found = gradients(loss, layer, [x])
    assert sum(f.isnan().sum() for f in found) == 0
    assert sum(f.numel() for f in found[1:]) == 48 + 12 + 16 + 4 == sum(p.numel() for p in layer.parameters())
    assert not found[0][1].any()
    with torch.no_grad():
        same(layer(x, keep=keep, causal=causal), output.detach(), 1e-12)
    sdpa_path = report_torch()(x, x, x, key_padding_mask=~keep[:, 0, 0], need_weights=False)[0]  # right in torch, too
    same(layer(x, keep=keep), sdpa_path, 1e-12)


def test_a03_one_head_of_nothing():
    """pytorch/pytorch#160064: the other head goes on."""
    keep = torch.ones(1, 2, 3, 3, dtype=torch.bool)
    keep[:, 1] = False
    output, weights = report_layer()(t(g((1, 3, 4))), keep=keep, need_weights=True)
    close(output[0, 0], [0.795018, 0.268675, -0.880481, 0.733953])
    assert not weights[:, 1].any()


def test_a03_the_gradient_of_the_full_row_is_right():
    """q = [[1], [2]] W: the first row is empty, the loss is of the second. dW = 0.706508, not NaN."""
    k, v = t([1, 3]).view(1, 1, 2, 1), t([10, 20]).view(1, 1, 2, 1)
    keep = torch.tensor([[False, False], [True, True]])
    for how in ("attention", "weights"):
        W = leaf(t([[1]]))
        q = t([1, 2]).view(1, 1, 2, 1) @ W
        out = attention(q, k, v, keep) if how == "attention" else attention_weights(q, k, keep) @ v
        close(out.ravel(), [0, 19.820138])
        out[0, 0, 1].sum().backward()
        close(W.grad, [[0.706508]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["none", "causal", "padding", "any", "nothing"])
def test_a03_no_nan_in_any_dtype_on_any_path(how, dtype):
    """More queries than keys, so that `causal` alone leaves rows empty, too."""
    rng = np.random.default_rng(5)
    layer = randomise(MultiHeadAttention(6, 3, dropout=0.3, dtype=dtype), 0)
    x, memory = leaf(numbers(rng, 2, 7, 6, dtype=dtype)), leaf(numbers(rng, 2, 5, 6, dtype=dtype))
    keep = {
        "padding": torch.tensor([[False] * 5, [True, True, False, False, False]])[:, None, None],
        "any": torch.from_numpy(rng.random((2, 3, 7, 5)) < 0.2),
        "nothing": torch.zeros(7, 5, dtype=torch.bool),
    }.get(how)
    mask = allowed(keep, how == "causal", 2, 3, 7, 5)
    assert (how == "none") != bool((~mask.any(-1)).any())
    for training in (False, True):
        for need_weights in (False, True):
            layer.train(training)
            with torch.autograd.set_detect_anomaly(True):
                found = layer(x, memory, keep=keep, causal=how == "causal", need_weights=need_weights)
                output, weights = found if need_weights else (found, x)
                grads = gradients(output.sum() + weights.sum(), layer, [x, memory])
            assert all_finite(output, weights, *grads)
            assert output.dtype == weights.dtype == dtype
            empty = ~mask.any(-1).any(1)
            assert torch.equal(output[empty], layer.out_proj.bias.expand_as(output)[empty])


def test_a04_masked_keys_never_win_in_half_precision():
    """NVIDIA/apex#1105: the scores -30000, -29999, 5 with the last one masked, which beats a fill of -1e4."""
    for dtype, scores in (
        (torch.float16, [1, 2, 3]),
        (torch.float16, [-30000, -29984, 5]),
        (torch.float32, [-3e4, -29999, 5]),
    ):
        q, k = torch.ones(1, 1, 1, 1, dtype=dtype), torch.tensor(scores, dtype=dtype).view(1, 1, 3, 1)
        v = torch.tensor([0, 1, 1000], dtype=dtype).view(1, 1, 3, 1)
        keep = torch.tensor([[True, True, False]])
        want = [0, 1, 0] if -29984 in scores else [0.268941, 0.731059, 0]
        torch.testing.assert_close(attention_weights(q, k, keep).ravel().double(), t(want), rtol=0, atol=1e-3)
        torch.testing.assert_close(attention(q, k, v, keep).double().item(), float(want[1]), rtol=0, atol=1e-3)


def test_a04_scores_above_the_largest_half():
    """300 * 300 * 4 / 2 = 180000, above 65504: computed in float32, it is a number like any other."""
    q = torch.full((1, 1, 1, 4), 300.0, dtype=torch.float16)
    k = torch.cat([q, -q], dim=2)
    same(attention_weights(q, k), torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float16), 0)


def test_a05_one_mask_for_each_sample():
    """line/lighthouse#77: in nn.MultiheadAttention `mask.repeat(H, 1, 1)` mixes samples of unequal length."""
    x = t(g((2, 3, 4)))
    keep = torch.tensor([[True, True, True], [True, False, False]])[:, None, None, :]
    layer = report_layer()
    for mask in (keep, keep.expand(2, 1, 3, 3), keep.expand(2, 2, 3, 3)):
        output = layer(x, keep=mask)
        close(output[:, 0], [[0.100731, 0.920312, -0.866514, 0.067734], [0.311214, -0.516696, 0.423263, 0.158194]])
    per_sample = ~keep[:, 0].expand(2, 3, 3)
    same(output, report_torch()(x, x, x, attn_mask=per_sample.repeat_interleave(2, 0))[0], 1e-12)
    tiled = report_torch()(x, x, x, attn_mask=per_sample.repeat(2, 1, 1))[0]
    assert abs((tiled - output).abs().max().item() - 1.283092) < 1e-6


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a06_causal_is_no_hint(training, need_weights):
    """pytorch/pytorch#118972: is_causal alone is an error in nn.MultiheadAttention."""
    x = t(g((1, 3, 4)))
    layer = report_layer().train(training)

    def first(**options):
        found = layer(x, need_weights=need_weights, **options)
        return (found[0] if need_weights else found)[0, 0]

    close(first(causal=True), [0.173517, 0.946186, -0.966313, 0.146051])
    close(first(), [0.100731, 0.920312, -0.866514, 0.067734])
    everything = torch.ones(3, 3, dtype=torch.bool)
    same(first(causal=True, keep=everything), first(causal=True), 1e-12)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        report_torch()(x, x, x, is_causal=True, need_weights=need_weights)


def test_a07_the_last_query_sees_all_keys():
    """pytorch/pytorch#103082: SDPA's is_causal is aligned with the first query instead."""
    q, k, v = t([[[[1, 0]]]]), t(g((1, 1, 4, 2))), t([1, 2, 4, 8]).view(1, 1, 4, 1)
    close(attention(q, k, v, causal=True).ravel(), [2.801998])
    close(F.scaled_dot_product_attention(q, k, v, is_causal=True).ravel(), [1])
    q, k, v = t(g((1, 1, 2, 2), 0.5, 0.2)), t(g((1, 1, 5, 2))), t([1, 2, 4, 8, 16]).view(1, 1, 5, 1)
    close(attention(q, k, v, causal=True).ravel(), [2.786643, 4.006895])
    close(F.scaled_dot_product_attention(q, k, v, is_causal=True).ravel(), [1, 1.584771])


@pytest.mark.parametrize("L", range(6))
@pytest.mark.parametrize("S", range(6))
def test_the_causal_mask_is_the_numpy_one(L, S):
    from mha_lesson.steps.masks import causal_mask as numpy_causal_mask

    np.testing.assert_array_equal(causal_mask(L, S).numpy(), numpy_causal_mask(L, S))
    np.testing.assert_array_equal(causal_mask(L, S).numpy(), lower_right(L, S).reshape(L, S))


def test_a08_no_dropout_in_evaluation():
    """pytorch/pytorch#124464: SDPA drops whenever it is given dropout_p."""
    layer = report_layer(dropout=0.5).eval()
    x = t(g((2, 3, 4)))
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(layer(x), report_layer()(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


def test_a08_weights_are_those_before_dropout():
    """pytorch/pytorch#42929: with one key the weight is 1. nn.MultiheadAttention(dropout=0.2) says 0 or 1.25."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(4, 1, dropout=0.2)
    query, key = torch.ones(1, 50, 4), torch.ones(1, 1, 4)
    output, weights = layer(query, key, need_weights=True)
    same(weights, torch.ones(1, 1, 50, 1), 1e-6)
    full = layer.eval()(query, key)
    share = (output / full)[0, :, 0].detach()  # the bias of a new layer is 0
    assert set(share.round(decimals=4).tolist()) == {0.0, 1.25}


def test_a10_changing_one_sample_changes_no_other():
    """pytorch/pytorch#122959: batch_first is False in nn.MultiheadAttention. It is not an option here."""
    x = t(g((2, 3, 4)))
    changed = x.clone()
    changed[1] += 1
    layer = report_layer()
    for options in ({}, {"causal": True}, {"keep": torch.tensor([[True, True, False]] * 2)[:, None, None]}):
        output, weights = layer(x, need_weights=True, **options)
        other, other_weights = layer(changed, need_weights=True, **options)
        assert weights.shape == (2, 2, 3, 3)
        assert torch.equal(output[0], other[0]) and torch.equal(weights[0], other_weights[0])
        assert not torch.equal(output[1], other[1])
    module = report_torch(batch_first=False)
    assert abs((module(x, x, x)[0] - module(changed, changed, changed)[0])[0].abs().max().item() - 0.518665) < 1e-6
    same(MultiHeadAttention.from_torch(module)(x), report_torch()(x, x, x)[0], 1e-12)


def test_a11_a_mask_of_0_and_1_is_refused():
    """pytorch/pytorch#136816: nn.MultiheadAttention adds it to the scores, which hides nothing."""
    x = t(g((1, 3, 4)))
    layer = report_layer()
    keep = torch.tensor([True, True, False])
    close(layer(x, keep=keep[None], need_weights=True)[1][0, 0, 0], [0.974839, 0.025161, 0])
    added = report_torch()(x, x, x, key_padding_mask=keep.double()[None], average_attn_weights=False)[1]
    close(added[0, 0, 0], [0.796832, 0.020566, 0.182602])
    for dtype in (torch.float64, torch.float32, torch.int64, torch.uint8):
        with pytest.raises(
            ValueError, match=says("keep: expected a boolean mask", str(dtype), "only 0 and 1", "keep.bool()")
        ):
            layer(x, keep=keep.to(dtype)[None])


@pytest.mark.parametrize("H", [2, 4])
def test_a12_a_mask_without_an_axis_for_heads_is_refused(H):
    """pytorch/pytorch#177482: SDPA puts (B, L, S) on the heads, silently if B = H."""
    keep = torch.ones(2, 3, 3, dtype=torch.bool)
    keep[1, :, 1:] = False
    layer = randomise(MultiHeadAttention(4, H, dtype=torch.float64), 0)
    with pytest.raises(
        ValueError, match=says("keep: expected 2 axes (L, S) or 4 axes", "got 3 axes (2, 3, 3)", "keep[:, None]")
    ):
        layer(t(g((2, 3, 4))), keep=keep)
    q, k, v = t(g((2, 2, 3, 2))), t(g((2, 2, 3, 2), 0.9, 0.1)), t(g((2, 2, 3, 1), 0.4, 0.2))
    right = attention(q, k, v, keep[:, None])
    close(right[1, 0, :, 0], [0.515501] * 3)
    close(right[0, 1, :, 0], [0.916641, 0.934146, 0.946804])
    wrong = F.scaled_dot_product_attention(q, k, v, keep)
    close(wrong[1, 0, :, 0], [0.022605, 0.345116, 0.320078])


BROKEN = [float("nan"), float("inf"), -float("inf"), 1e10]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("where", ["key", "value", "both"])
def test_a13_nan_in_a_forbidden_place_is_erased(where, broken):
    """pytorch/pytorch#101967. SDPA gives NaN for it: 0 * NaN is NaN."""
    q, k, v = t([[[[1, 0]]]]), t([[[[1, 0], [0, 1]]]]), t([[[[5, 6], [7, 8]]]])
    if where != "value":
        k[0, 0, 1, 0] = broken
    if where != "key":
        v[0, 0, 1, 0] = broken
    keep = torch.tensor([[True, False]])
    close(attention(q, k, v, keep).ravel(), [5, 6])
    close(attention_weights(q, k, keep).ravel(), [1, 0])


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_a13_broken_padding_reaches_neither_outputs_nor_gradients(kv_heads, broken):
    rng = np.random.default_rng(7)
    layer = randomise(MultiHeadAttention(15, 3, kv_heads, kdim=7, vdim=11, dtype=torch.float64), 1)
    x, key, value = numbers(rng, 2, 5, 15), numbers(rng, 2, 13, 7), numbers(rng, 2, 13, 11)
    keep = (torch.arange(13) < torch.tensor([[9], [4]]))[:, None, None, :]
    want = None
    for hole in (0.0, broken):
        padded = ~keep[:, 0, 0, :, None]
        inputs = [leaf(x), leaf(key.masked_fill(padded, hole)), leaf(value.masked_fill(padded, hole))]
        output, weights = layer(*inputs, keep=keep, causal=True, need_weights=True)
        found = [output, weights, *gradients(output.square().sum() + weights.square().sum(), layer, inputs)]
        assert all_finite(*found)
        if want is not None:
            for got, wanted in zip(found, want, strict=True):
                same(got, wanted, 1e-12)
        want = found


@pytest.mark.parametrize("broken", BROKEN[:3])
def test_a13_a_broken_token_is_seen_by_those_who_may_look(broken):
    """Under `causal` token 3 is allowed to some: what came before it is untouched, the rest shows it."""
    rng = np.random.default_rng(7)
    layer = randomise(MultiHeadAttention(15, 3, 1, dtype=torch.float64), 1)
    x = numbers(rng, 2, 5, 15)
    hurt = x.clone()
    hurt[1, 3, 2] = broken
    window = causal_mask(5, 5) & ~causal_mask(5, 5).roll(-1, 1).roll(1, 0).logical_not().triu(-1)  # any other mask
    for options in (
        {"causal": True},
        {"keep": causal_mask(5, 5)},
        {"keep": causal_mask(5, 5), "causal": True},
        {"keep": window},
    ):
        want, output = layer(x, **options), layer(hurt, **options)
        mask = allowed(options.get("keep"), options.get("causal", False), 1, 1, 5, 5)[0, 0]
        touched = mask[:, 3].clone()
        touched[3] = True  # its own query
        same(output[0], want[0], 1e-12)
        same(output[1][~touched], want[1][~touched], 1e-12)
        assert not output[1][touched].isfinite().any()
        again, weights = layer(hurt, need_weights=True, **options)
        torch.testing.assert_close(again, output, rtol=0, atol=0, equal_nan=True)
        assert weights[1][:, ~touched].isfinite().all()
        there = layer.to_numpy()(hurt.numpy(), keep=mask.numpy())
        np.testing.assert_array_equal(np.isfinite(there[0]), output.isfinite().numpy())


def test_a13_nor_do_gradients_pass_through_a_broken_value():
    """The loss is of the row that may not look at it; the other row's NaN times 0 would be NaN again."""
    q, k, v = (leaf(t(g((1, 1, 2, 2), a))) for a in (0.5, 0.7, 0.9))
    hurt = leaf(torch.cat([v.detach()[:, :, :1], torch.full((1, 1, 1, 2), math.nan, dtype=torch.float64)], 2))
    want = torch.autograd.grad(attention(q, k, v, causal=True)[0, 0, 0].sum(), (q, k, v))
    found = torch.autograd.grad(attention(q, k, hurt, causal=True)[0, 0, 0].sum(), (q, k, hurt))
    for got, wanted in zip(found, want, strict=True):
        same(got, wanted, 1e-12)


def test_a13_what_a_query_may_attend_to_is_never_hidden():
    q, k, v = t([[[[1, 0], [0, 1]]]]), t([[[[1, 0], [0, 1]]]]), t([[[[5, 6], [math.nan, 8]]]])
    for keep in (None, torch.tensor([[True, True], [True, False]])):
        output = attention(q, k, v, keep)
        assert output[0, 0, 0, 0].isnan()
    close(output[0, 0, 1], [5, 6])
    single = attention(q[:, :, :1], k[:, :, 1:], v[:, :, 1:], causal=True)  # L = S = 1: nothing is forbidden
    assert single[0, 0, 0, 0].isnan()


def test_a14_neighbouring_query_heads_share():
    """onnx/onnx#7274: heads 0 and 1 read the first key/value head, 2 and 3 the second."""
    q, k = t(np.ones((1, 4, 1, 2))), t(g((1, 2, 2, 2)))
    v = t([[[[1], [2]], [[10], [20]]]])
    close(attention(q, k, v).ravel(), [1.592634, 1.592634, 12.864542, 12.864542])
    close((attention_weights(q, k) @ share_heads(v, 4)).ravel(), [1.592634, 1.592634, 12.864542, 12.864542])
    with pytest.raises(ValueError, match=says("num_kv_heads: expected a divisor of num_heads = 4, got 3")):
        MultiHeadAttention(8, 4, 3)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a16_chunks_with_all_keys_are_the_full_run(size):
    """hyprstream/hyprstream#1521. Right by luck in the last row without a mask: so look at all rows."""
    q, k = t(g((1, 1, 5, 2))), t(g((1, 1, 5, 2), 0.9, 0.1))
    v = t([1, 2, 4, 8, 16]).view(1, 1, 5, 1)
    whole = attention(q, k, v, causal=True)
    close(whole.ravel()[3:], [4.688096, 6.239676])
    for end in range(size, 6):
        new = slice(end - size, end)
        chunk = attention(q[:, :, new], k[:, :, :end], v[:, :, :end], causal=True)
        same(chunk, whole[:, :, new], 1e-12)


def test_a17_heads_are_swapped_back_before_they_are_joined():
    """jsbaan/transformer-from-scratch#6: the shape does not show it, and neither did training."""
    o = t([[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]])
    same(merge_heads(o), t([[[1, 2, 5, 6], [3, 4, 7, 8]]]), 0)
    same(split_heads(merge_heads(o), 2), o, 0)


def test_a18_the_softmax_runs_over_the_keys():
    """nerminnuraydogan/vision-transformer#1: over the queries, rows would add up to 1.88 and 1.12."""
    scores = t([[1, 2, 3], [0, 0, 4]])
    q, k = math.sqrt(3) * torch.eye(3, dtype=torch.float64)[:2], torch.zeros(3, 3, dtype=torch.float64)
    k[:, :2] = scores.T
    weights = attention_weights(q[None, None], k[None, None])[0, 0]
    close(weights, [[0.090031, 0.244728, 0.665241], [0.017668, 0.017668, 0.964663]])
    close(weights.sum(-1), [1, 1])
    assert (weights.sum(0) - 1).abs().min() > 0.1


# ---------------------------------------------------------------------------- invariants


@stable
@given(sizes=sizes(), kind=mask_kinds, causal=st.booleans(), training=st.booleans(), seed=seeds)
def test_asking_for_weights_changes_not_one_bit(sizes, kind, causal, training, seed):
    B, L, S, G, R, D = sizes
    rng = np.random.default_rng(seed)
    layer = randomise(MultiHeadAttention(G * R * D, G * R, G, dropout=0.25), seed).train(training)
    x, memory = numbers(rng, B, L, G * R * D).float(), numbers(rng, B, S, G * R * D).float()
    options = {"keep": make_keep(rng, kind, B, G * R, L, S), "causal": causal}
    torch.manual_seed(seed)
    output = layer(x, memory, **options)
    after = torch.random.get_rng_state()
    torch.manual_seed(seed)
    again, weights = layer(x, memory, need_weights=True, **options)
    assert torch.equal(output, again)
    assert torch.equal(after, torch.random.get_rng_state())
    assert weights.shape == (B, G * R, L, S)


@stable
@given(sizes=sizes(), kind=mask_kinds, causal=st.booleans(), seed=seeds)
def test_no_leak(sizes, kind, causal, seed):
    """Another key, or NaN for it, where no one may look changes nothing; nor does another sample."""
    B, L, S, G, R, D = sizes
    H, E = G * R, G * R * D
    rng = np.random.default_rng(seed)
    layer = randomise(MultiHeadAttention(E, H, G, dtype=torch.float64), seed)
    x, memory = numbers(rng, B, L, E), numbers(rng, B, S, E)
    keep = make_keep(rng, kind, B, H, L, S)
    mask = allowed(keep, causal, B, H, L, S)
    want = layer(x, memory, keep=keep, causal=causal)
    b, s = rng.integers(B), rng.integers(S)
    for other in (numbers(rng, E) * 10, torch.full((E,), math.nan, dtype=torch.float64)):
        changed = memory.clone()
        changed[b, s] = other
        output = layer(x, changed, keep=keep, causal=causal)
        sees = torch.zeros(B, L, dtype=torch.bool)
        sees[b] = mask[b, :, :, s].any(0)
        same(output[~sees], want[~sees], 1e-12)
        assert (output - want)[sees].abs().sum(-1).ne(0).all()


@pytest.mark.parametrize(
    ("L", "S", "options", "is_causal", "mask"),
    [
        (5, 5, {"causal": True}, True, None),
        (5, 5, {}, False, None),
        (3, 5, {}, False, None),
        (1, 5, {"causal": True}, False, None),  # the last query, alone: nothing is hidden from it
        (3, 5, {"causal": True}, False, (3, 5)),
        (5, 5, {"causal": True, "keep": torch.ones(2, 1, 1, 5, dtype=torch.bool)}, False, (2, 1, 5, 5)),
        (5, 5, {"keep": torch.ones(2, 1, 1, 5, dtype=torch.bool)}, False, (2, 1, 1, 5)),  # not B L S of them
    ],
)
def test_sdpa_is_called_once_with_the_least_mask(monkeypatch, L, S, options, is_causal, mask):
    calls = []
    honest = F.scaled_dot_product_attention

    def spy(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **others):
        calls.append((is_causal, None if attn_mask is None else tuple(attn_mask.shape)))
        return honest(q, k, v, attn_mask, dropout_p, is_causal, **others)

    monkeypatch.setattr(layer_file.F, "scaled_dot_product_attention", spy)
    x, memory = torch.randn(2, L, 6), torch.randn(2, S, 6)
    MultiHeadAttention(6, 2)(x, memory, need_weights=True, **options)
    assert calls == [(is_causal, mask)]
    MultiHeadAttention(6, 2)(x * math.nan, memory, **options)  # a query that holds NaN has nothing to mend
    assert len(calls) == 2


def test_dropout_keeps_the_mean():
    torch.manual_seed(0)
    layer = randomise(MultiHeadAttention(6, 2, dropout=0.5, dtype=torch.float64), 0)
    x = t(g((1, 5, 6)))
    many = layer(x.expand(20_000, -1, -1), causal=True)
    want = layer.eval()(x, causal=True)[0]
    deviation = many.std(0) / 20_000**0.5
    assert ((many.mean(0) - want).abs() < 5 * deviation).all()


@stable
@given(sizes=sizes(), kind=mask_kinds, causal=st.booleans(), seed=seeds)
def test_shared_heads_are_repeated_heads(sizes, kind, causal, seed):
    B, L, S, G, R, D = sizes
    H, E = G * R, G * R * D
    rng = np.random.default_rng(seed)
    shared = randomise(MultiHeadAttention(E, H, G, dtype=torch.float64), seed)
    full = MultiHeadAttention(E, H, dtype=torch.float64)
    repeated = {
        name: x.unflatten(0, (G, D)).repeat_interleave(R, 0).flatten(0, 1) if name[0] in "kv" else x
        for name, x in shared.state_dict().items()
    }
    full.load_state_dict(repeated)
    x, memory = numbers(rng, B, L, E), numbers(rng, B, S, E)
    options = {"keep": make_keep(rng, kind, B, H, L, S), "causal": causal, "need_weights": True}
    for got, want in zip(shared(x, memory, **options), full(x, memory, **options), strict=True):
        same(got, want, 1e-12)


def test_without_a_batch():
    layer = report_layer()
    x, memory = t(g((3, 4))), t(g((5, 4), 0.2))
    masks = [
        None,
        torch.ones(3, 5).tril().bool(),
        torch.ones(2, 3, 5).tril().bool(),
        torch.tensor([True] * 4 + [False]),
    ]
    for keep in masks:
        for causal in (False, True):
            output, weights = layer(x, memory, keep=keep, causal=causal, need_weights=True)
            four = keep[None] if keep is not None and keep.dim() == 3 else keep
            want = layer(x[None], memory[None], keep=four, causal=causal, need_weights=True)
            assert torch.equal(output, want[0][0]) and torch.equal(weights, want[1][0])
            assert torch.equal(output, layer(x, memory, keep=keep, causal=causal))
    assert layer(x).shape == (3, 4)


@pytest.mark.parametrize(("B", "L", "S"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (2, 0, 0)])
def test_nothing_in_nothing_out(B, L, S):
    layer = randomise(MultiHeadAttention(6, 2), 0)
    x, memory = torch.zeros(B, L, 6, requires_grad=True), torch.zeros(B, S, 6, requires_grad=True)
    for keep in (None, torch.ones(L, S, dtype=torch.bool)):
        for causal in (False, True):
            output, weights = layer(x, memory, keep=keep, causal=causal, need_weights=True)
            assert (output.shape, weights.shape) == ((B, L, 6), (B, 2, L, S))
            assert all_finite(*gradients(output.sum() + weights.sum(), layer, [x, memory]))
            if S == 0:
                same(output, layer.out_proj.bias.expand(B, L, 6), 0)


def test_key_and_value_default_to_what_came_before():
    layer = report_layer()
    x, memory = t(g((2, 3, 4))), t(g((2, 5, 4), 0.2))
    assert torch.equal(layer(x), layer(x, x, x))
    assert torch.equal(layer(x, memory), layer(x, memory, memory))


def test_inputs_and_masks_are_left_alone():
    layer = report_layer()
    x, memory = t(g((2, 3, 4))), t(g((2, 5, 4), 0.2))
    keep = (torch.arange(5) < torch.tensor([[0], [4]]))[:, None, None, :]
    copies = [a.clone() for a in (x, memory, keep)]
    layer(x, memory, keep=keep, causal=True, need_weights=True)
    assert all(torch.equal(a, b) for a, b in zip((x, memory, keep), copies, strict=True))


# ---------------------------------------------------------------------------- a normal citizen


def test_state_dict():
    layer = MultiHeadAttention(12, 4, 2, kdim=5, vdim=7)
    shapes = {name: tuple(x.shape) for name, x in layer.state_dict().items()}
    assert shapes == {
        "q_proj.weight": (12, 12), "q_proj.bias": (12,), "k_proj.weight": (6, 5), "k_proj.bias": (6,),
        "v_proj.weight": (6, 7), "v_proj.bias": (6,), "out_proj.weight": (12, 12), "out_proj.bias": (12,),
    }  # fmt: skip
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = MultiHeadAttention(12, 4, 2, kdim=5, vdim=7)
    other.load_state_dict(torch.load(file, weights_only=True))
    roles = torch.randn(2, 3, 12), torch.randn(2, 5, 5), torch.randn(2, 5, 7)
    assert torch.equal(layer(*roles), other(*roles))
    assert not any(name.endswith("bias") for name in MultiHeadAttention(12, 4, bias=False).state_dict())


def test_deepcopy_and_pickle():
    layer = MultiHeadAttention(6, 3, 1, dropout=0.5).eval()
    x = torch.randn(2, 5, 6)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
        assert str(other) == str(layer)
        assert other.q_proj.weight.data_ptr() != layer.q_proj.weight.data_ptr()


def test_what_it_prints():
    assert repr(MultiHeadAttention(12, 3)).splitlines()[1].strip() == "d_model=12, num_heads=3"
    layer = MultiHeadAttention(12, 6, 2, kdim=5, vdim=7, dropout=0.1)
    assert layer.extra_repr() == "d_model=12, num_heads=6, num_kv_heads=2, kdim=5, vdim=7, dropout=0.1"


def test_new_weights_keep_the_variance():
    torch.manual_seed(0)
    layer = MultiHeadAttention(96, 4, 1, kdim=48)
    for linear in layer.projections():
        want = 2 / sum(linear.weight.shape)
        assert abs(linear.weight.var().item() / want - 1) < 0.1
        assert not linear.bias.detach().any()


def test_meta_device():
    layer = MultiHeadAttention(12, 3, 1, device="meta")
    x = torch.empty(2, 5, 12, device="meta")
    keep = torch.empty(2, 1, 5, 5, dtype=torch.bool, device="meta")
    output, weights = layer(x, keep=keep, causal=True, need_weights=True)
    assert (output.shape, weights.shape, output.is_meta) == ((2, 5, 12), (2, 3, 5, 5), True)
    with pytest.raises(ValueError, match=says("keep: expected a boolean mask", "torch.float32 of shape")):
        layer(x, keep=keep.float())
    real = layer.to_empty(device="cpu")
    real.reset_parameters()
    assert all_finite(real(torch.randn(2, 5, 12)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", devices())
def test_devices_and_dtypes(device, dtype):
    if device == "mps" and dtype == torch.float64:
        pytest.skip("mps has no float64")
    rng = np.random.default_rng(0)
    wide = randomise(MultiHeadAttention(24, 6, 2, dtype=torch.float64), 0)
    layer = copy.deepcopy(wide).to(device, dtype)
    x, memory = numbers(rng, 2, 5, 24), numbers(rng, 2, 7, 24)
    keep = torch.from_numpy(rng.random((2, 6, 5, 7)) < 0.4)
    keep[0, :, 1] = False
    for mask in (None, keep):
        for causal in (False, True):
            options = {"causal": causal, "need_weights": True}
            want = wide(x, memory, keep=mask, **options)
            mask_there = None if mask is None else mask.to(device)
            found = layer(x.to(device, dtype), memory.to(device, dtype), keep=mask_there, **options)
            for got, wanted in zip(found, want, strict=True):
                assert got.dtype == dtype and got.device.type == device
                torch.testing.assert_close(got.double().cpu(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
            assert all_finite(*gradients(found[0].sum(), layer, []))


@pytest.mark.gpu
def test_mask_on_another_device():
    layer = MultiHeadAttention(6, 2, device="cuda")
    with pytest.raises(ValueError, match=says("keep: expected it on the query's device cuda", "got cpu", "keep.to(")):
        layer(torch.zeros(1, 3, 6, device="cuda"), keep=torch.ones(3, 3, dtype=torch.bool))


def test_mask_on_another_device_without_a_gpu():
    layer = MultiHeadAttention(6, 2, device="meta")
    with pytest.raises(ValueError, match=says("keep: expected it on the query's device meta", "got cpu", "keep.to(")):
        layer(torch.zeros(1, 3, 6, device="meta"), keep=torch.ones(3, 3, dtype=torch.bool))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_autocast(half):
    layer = randomise(MultiHeadAttention(24, 6, 2), 0)
    x = leaf(torch.from_numpy(g((2, 5, 24))).float())
    keep = torch.tensor([[True] * 5, [False] * 5])[:, None, None]
    want, want_weights = layer(x, keep=keep, causal=True, need_weights=True)
    with torch.autocast("cpu", half):
        output, weights = layer(x, keep=keep, causal=True, need_weights=True)
        assert torch.equal(output, layer(x, keep=keep, causal=True))
    assert output.dtype == half
    torch.testing.assert_close(output.float(), want, rtol=0.05, atol=0.05)
    torch.testing.assert_close(weights.float(), want_weights, rtol=0.05, atol=0.05)
    found = gradients(output.float().sum(), layer, [x])
    assert all_finite(*found) and all(f.dtype == torch.float32 for f in found)


def with_and_without_compiler(layer, compiled, backward, **options):
    inputs = [leaf(torch.randn(2, 5, 24)), leaf(torch.randn(2, 5, 24))]
    found, want = compiled(*inputs, **options), layer(*inputs, **options)
    found, want = (y if isinstance(y, tuple) else (y,) for y in (found, want))
    for got, wanted in zip(found, want, strict=True):
        same(got, wanted, 1e-5)
    if backward:
        for got, wanted in zip(*(gradients(y[0].sum(), layer, inputs) for y in (found, want)), strict=True):
            same(got, wanted, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_traced_whole(masked):
    """fullgraph: no part falls back to Python. This back end needs no C++ compiler."""
    torch.compiler.reset()
    layer = randomise(MultiHeadAttention(24, 6, 2), 0)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    keep = torch.tensor([[True] * 3 + [False] * 2, [False] * 5])[:, None, None]
    options = {"keep": keep, "need_weights": True} if masked else {}
    with_and_without_compiler(layer, compiled, backward=True, causal=True, **options)


@needs_compiler
@pytest.mark.slow
def test_compiled():
    """Forwards only: each kernel that the gradients and a mask need takes the C++ compiler seconds more."""
    torch.compiler.reset()
    layer = randomise(MultiHeadAttention(24, 6, 2), 0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the compiler's own, on machines that it finds unusual
        with_and_without_compiler(layer, torch.compile(layer, fullgraph=True), backward=False, causal=True)


def test_exported():
    layer = randomise(MultiHeadAttention(24, 6, 2), 0).eval()
    x = torch.randn(2, 5, 24)
    exported = torch.export.export(layer, (x,), {"causal": True})
    same(exported.module()(x, causal=True), layer(x, causal=True), 1e-6)


def test_functional_call_and_grad():
    layer = randomise(MultiHeadAttention(12, 3, 1, dtype=torch.float64), 0)
    x, keep = t(g((2, 5, 12))), torch.ones(5, 5, dtype=torch.bool).tril(-1)
    params = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(params, x):
        return torch.func.functional_call(layer, params, (x,), {"keep": keep}).square().sum()

    found = torch.func.grad(loss)(params, x)
    want = torch.autograd.grad(layer(x, keep=keep).square().sum(), list(layer.parameters()))
    for got, wanted in zip(found.values(), want, strict=True):
        same(got, wanted, 1e-11)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_vmap_gives_a_gradient_for_each_sample():
    """torch vectorises SDPA for the CPU with a loop, and warns that it is slow."""
    layer = randomise(MultiHeadAttention(12, 3, 1, dtype=torch.float64), 0)
    xs = t(g((4, 5, 12)))
    params = {name: p.detach() for name, p in layer.named_parameters()}
    keep = torch.ones(5, 5, dtype=torch.bool).tril(-1)
    for options in ({"causal": True}, {"keep": keep}):

        def loss(params, x, options=options):
            return torch.func.functional_call(layer, params, (x,), options).square().sum()

        found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, xs)
        for i, x in enumerate(xs):
            want = torch.autograd.grad(layer(x, **options).square().sum(), list(layer.parameters()))
            for got, wanted in zip(found.values(), want, strict=True):
                same(got[i], wanted, 1e-11)


def test_hooks_run_once():
    """A layer that calls itself for inputs without a batch would run them twice."""
    layer, calls = MultiHeadAttention(6, 2), []
    layer.register_forward_hook(lambda *_: calls.append(1))
    layer(torch.zeros(3, 6))
    assert calls == [1]


def test_training_learns():
    """The one thing a layer is for: to copy the first token is learnt in a few steps, padding and all."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2)
    x = torch.randn(64, 5, 8)
    keep = (torch.arange(5) < torch.randint(0, 6, (64, 1)))[:, None, None, :]
    marked = torch.cat([x[:, :1] + torch.tensor([3.0] + [0.0] * 7), x[:, 1:]], dim=1)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    some = keep[:, 0, 0, 0]
    losses = []
    for _ in range(60):
        loss = (layer(marked, keep=keep)[some] - x[some, :1]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((0, 1), ["d_model: expected a whole number from 1 on, got 0"]),
        ((6, 0), ["num_heads: expected a whole number from 1 on, got 0"]),
        ((6, 2.0), ["num_heads: expected a whole number from 1 on, got 2.0"]),
        ((6, 2, 0), ["num_kv_heads: expected a whole number from 1 on, got 0"]),
        ((6, 4), ["num_heads: expected a divisor of d_model = 6, got 4: 6 / 4 features"]),
        ((6, 3, 2), ["num_kv_heads: expected a divisor of num_heads = 3, got 2"]),
        ((6, 2, 4), ["num_kv_heads: expected a divisor of num_heads = 2, got 4"]),
        ((6, 2, {"kdim": -1}), ["kdim: expected a whole number from 1 on, got -1"]),
        ((6, 2, {"vdim": "8"}), ["vdim: expected a whole number from 1 on, got '8'"]),
        ((6, 2, {"dropout": 1.0}), ["dropout: expected a share from 0 to below 1, got 1.0"]),
        ((6, 2, {"dropout": -0.1}), ["dropout: expected a share from 0 to below 1, got -0.1"]),
    ],
    ids=str,
)
def test_sizes_that_cannot_be(arguments, parts):
    options = arguments[-1] if isinstance(arguments[-1], dict) else {}
    with pytest.raises(ValueError, match=says(*parts)):
        MultiHeadAttention(*(a for a in arguments if a is not options), **options)


def test_numpy_whole_numbers_are_whole_numbers():
    assert MultiHeadAttention(np.int64(6), np.int64(2))(torch.zeros(3, 6)).shape == (3, 6)


def z(*shape):
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("inputs", "error", "parts"),
    [
        ([z(2, 3, 7)], ValueError, ["query: expected (batch, tokens, 6), or (tokens, 6)", "got (2, 3, 7)"]),
        ([z(6)], ValueError, ["query: expected (batch, tokens, 6)", "got (6,)"]),
        ([z(2, 2, 3, 6)], ValueError, ["query: expected (batch, tokens, 6)", "got (2, 2, 3, 6)"]),
        ([np.zeros((2, 3, 6))], TypeError, ["query: expected a torch.Tensor, got ndarray", "torch.as_tensor(query)"]),
        ([z(2, 3, 6), z(2, 5, 6), z(2, 5, 4)], ValueError, ["key: expected (batch, tokens, 4)", "got (2, 5, 6)"]),
        ([z(2, 3, 6), z(2, 5, 4), z(2, 5, 6)], ValueError, ["value: expected (batch, tokens, 5)", "got (2, 5, 6)"]),
        ([z(2, 3, 6), z(1, 5, 4), z(1, 5, 5)], ValueError, ["key: expected the batch of query (2, 3, 6), got (1, 5, 4)",
                                                           "key.expand(2, -1, -1)"]),
        ([z(2, 3, 6), z(5, 4), z(5, 5)], ValueError, ["key: expected the batch of query (2, 3, 6), got (5, 4)"]),
        ([z(3, 6), z(2, 5, 4), z(2, 5, 5)], ValueError, ["key: expected the batch of query (3, 6), got (2, 5, 4)"]),
        ([z(2, 3, 6), z(2, 5, 4), z(2, 7, 5)], ValueError, ["value: expected one row for each of", "got (2, 7, 5)"]),
        ([z(2, 3, 6), None, z(2, 5, 5)], ValueError, ["value: came without key. Pass the key too"]),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(inputs, error, parts):
    with pytest.raises(error, match=says(*parts)):
        MultiHeadAttention(6, 2, kdim=4, vdim=5)(*inputs)


def o(*shape, dtype=torch.bool):
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("keep", "error", "parts"),
    [
        (o(3, 4), ValueError, ["keep: expected a shape that broadcasts to the scores (2, 2, 3, 5), got (3, 4)"]),
        (o(2, 5), ValueError, ["keep: expected a shape that broadcasts", "got (2, 5)", "keep[:, None, None, :]"]),
        (o(2, 3, 3, 5), ValueError, ["keep: expected a shape that broadcasts", "got (2, 3, 3, 5)"]),
        (o(1, 2, 2, 3, 5), ValueError, ["keep: expected a shape that broadcasts", "got (1, 2, 2, 3, 5)"]),
        (o(2, 3, 5), ValueError, ["got 3 axes (2, 3, 5)", "keep[:, None]", "keep[None]"]),
        (np.ones((3, 5), bool), TypeError, ["keep: expected a boolean torch.Tensor", "ndarray", "as_tensor(keep)"]),
        (o(3, 5, dtype=torch.float32), ValueError, ["torch.float32 holding only 0 and 1", "pass keep.bool()"]),
        (o(3, 5, dtype=torch.int64) * 0, ValueError, ["holding only 0 and 1", "If it is added", "keep == 0"]),
        (o(3, 5) * -math.inf, ValueError, ["an additive torch.float32 mask of 0 and -inf. Pass keep == 0"]),
        (o(3, 5) * -1e9, ValueError, ["an additive torch.float32 mask of 0 and -1e+09. Pass keep == 0"]),
        (o(3, 5) * 0.5, ValueError, ["expected a boolean mask (True = may attend), got torch.float32 of shape (3, 5)"]),
        (o(3, 5) * 7, ValueError, ["expected a boolean mask (True = may attend), got torch.int64 of shape (3, 5)"]),
    ],
)  # fmt: skip
def test_masks_that_do_not_fit(keep, error, parts):
    with pytest.raises(error, match=says(*parts)):
        MultiHeadAttention(6, 2)(z(2, 3, 6), z(2, 5, 6), keep=keep)


def test_the_same_words_as_the_numpy_half():
    """One who has met an error in lesson 04 knows it again here."""
    from mha_lesson.steps.masks import check_keep as numpy_check_keep

    for keep in (np.ones((3, 4), bool), np.ones((2, 3, 5), bool), np.ones((3, 5)), np.where(np.eye(3, 5), 0, -np.inf)):
        messages = []
        for check, mask in ((numpy_check_keep, keep), (layer_file.check_keep, torch.from_numpy(keep))):
            with pytest.raises(ValueError) as caught:
                check(mask, (2, 2, 3, 5))
            messages.append(str(caught.value).replace("torch.", "").replace("keep.astype(bool)", "keep.bool()"))
        assert messages[0] == messages[1]


# ---------------------------------------------------------------------------- the file


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_without_torch_the_error_says_what_to_do():
    done = run_python("import sys; sys.modules['torch'] = None; import mha_lesson.pytorch")
    assert done.returncode == 1
    assert "ModuleNotFoundError: mha_lesson.pytorch needs PyTorch" in done.stderr
    assert "pip install torch" in done.stderr


def test_annotations_are_true():
    pytest.importorskip("beartype")
    done = run_python(
        """
from jaxtyping import install_import_hook
with install_import_hook("mha_lesson.pytorch", "beartype.beartype"):
    from mha_lesson.pytorch.layer import *
    from mha_lesson.pytorch import MultiHeadAttention as Layer
import torch
from mha_lesson.attention import MultiHeadAttention as NumpyLayer
keeps = [None, torch.ones(3, 5).bool(), torch.ones(2, 1, 1, 5).bool(), torch.zeros(2, 6, 3, 5).bool()]
for layer in (Layer(12, 6), Layer(12, 6, 2, kdim=5, vdim=7), Layer.from_torch(torch.nn.MultiheadAttention(12, 6)),
              Layer.from_numpy(NumpyLayer.random(12, 6)).float()):
    layer.to_numpy()
    roles = [torch.ones(2, n, w) for n, w in ((3, 12), (5, layer.kdim), (5, layer.vdim))]
    for keep in keeps:
        for causal in (False, True):
            for need_weights in (False, True):
                layer(*roles, keep=keep, causal=causal, need_weights=need_weights)
                roles[1][0, 4] = torch.nan
    layer(torch.ones(3, 12), *(x[0] for x in roles[1:]), need_weights=True)
for wrong in (lambda: split_heads(torch.ones(5, 6), 2), lambda: causal_mask(3.0, 3),
              lambda: attention(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 5), torch.ones(1, 2, 3, 4))):
    try:
        wrong()
    except Exception as error:
        assert "TypeCheck" in type(error).__name__ or "Beartype" in type(error).__name__, error
    else:
        raise SystemExit("passed")
print("all calls passed")
"""
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "all calls passed\n"
