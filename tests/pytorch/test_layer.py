"""The PyTorch layer: against plain autograd, NumPy and nn.MultiheadAttention; invariants and words."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_lesson.attention import MultiHeadAttention as NumpyLayer
from tests.reference import g, says, stable

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch import nn  # noqa: E402

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from tests.pytorch.helpers import (  # noqa: E402
    DTYPES,
    TOLERANCE,
    all_finite,
    allowed,
    gradients,
    leaf,
    lower_right,
    numbers,
    o,
    randomise,
    report_layer,
    run_python,
    same,
    t,
)

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
    """Where some row allows nothing, nn.MultiheadAttention gives NaN (test_layer_reports.py): such rows get key 0."""
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


# ---------------------------------------------------------------------------- the file


def test_annotations_are_true():
    pytest.importorskip("beartype")
    done = run_python(
        """
from jaxtyping import install_import_hook
with install_import_hook("mha_lesson.pytorch", "beartype.beartype"):
    from mha_lesson.pytorch.cores.sdpa import attention
    from mha_lesson.pytorch.heads import split_heads
    from mha_lesson.pytorch.masks import causal_mask
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
