"""The PyTorch layer against public reports of what goes wrong elsewhere."""

import math

import numpy as np
import pytest

from tests.reference import g, says, torch_layout_params
from tests.reports import reported

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from mha_lesson.pytorch.cores.sdpa import attention, attention_weights  # noqa: E402
from mha_lesson.pytorch.heads import share_heads  # noqa: E402
from mha_lesson.pytorch.masks import causal_mask  # noqa: E402
from tests.pytorch.helpers import (  # noqa: E402
    DTYPES,
    all_finite,
    allowed,
    gradients,
    leaf,
    numbers,
    randomise,
    report_layer,
    same,
    t,
)

# ---------------------------------------------------------------------------- what tests share


def report_torch(**options):
    """The same weights in nn.MultiheadAttention."""
    module = nn.MultiheadAttention(4, 2, dtype=torch.float64, **{"batch_first": True, **options})
    module.load_state_dict({name: torch.from_numpy(a) for name, a in torch_layout_params(4).items()})
    return module


def close(got, want):
    """`want`: six printed digits."""
    torch.testing.assert_close(got.detach().double(), t(want), rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------- public reports


@reported("pytorch/pytorch#34537")
def test_weights_come_back_for_each_head():
    """PyTorch's default is their mean, from which no output can be rebuilt."""
    x = t(g((1, 3, 4)))
    output, weights = report_layer()(x, need_weights=True)
    assert weights.shape == (1, 2, 3, 3)
    close(weights[0, :, 0], [[0.606527, 0.015655, 0.377818], [0.590313, 0.021853, 0.387834]])
    theirs, mean = report_torch()(x, x, x)
    assert mean.shape == (1, 3, 3)
    close(mean[0, 0], [0.598420, 0.018754, 0.382826])
    same(output, theirs, 1e-12)


@reported("rasbt/LLMs-from-scratch#1061")
def test_true_means_may_attend():
    """nn.MultiheadAttention means the opposite, SDPA the same."""
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


@reported("pytorch/pytorch#41508")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_sample_of_padding_spoils_no_gradient(training, need_weights, causal):
    """nn.MultiheadAttention gives 48 NaN of 48 here if weights are asked for."""
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


@reported("pytorch/pytorch#160064")
def test_one_head_may_be_empty():
    """The other head goes on."""
    keep = torch.ones(1, 2, 3, 3, dtype=torch.bool)
    keep[:, 1] = False
    output, weights = report_layer()(t(g((1, 3, 4))), keep=keep, need_weights=True)
    close(output[0, 0], [0.795018, 0.268675, -0.880481, 0.733953])
    assert not weights[:, 1].any()


@reported("pytorch/pytorch#41508")
def test_the_gradient_of_the_full_row_is_right():
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


@reported("pytorch/pytorch#41508")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["none", "causal", "padding", "any", "nothing"])
def test_no_nan_in_any_dtype_on_any_path(how, dtype):
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


@reported("NVIDIA/apex#1105")
def test_masked_keys_never_win_in_half_precision():
    """The scores -30000, -29999, 5 with the last one masked, which beats a fill of -1e4."""
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


@reported("NVIDIA/apex#1105")
def test_scores_above_the_largest_half():
    """300 * 300 * 4 / 2 = 180000, above 65504: computed in float32, it is a number like any other."""
    q = torch.full((1, 1, 1, 4), 300.0, dtype=torch.float16)
    k = torch.cat([q, -q], dim=2)
    same(attention_weights(q, k), torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float16), 0)


@reported("line/lighthouse#77")
def test_one_mask_for_each_sample():
    """In nn.MultiheadAttention `mask.repeat(H, 1, 1)` mixes samples of unequal length."""
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


@reported("pytorch/pytorch#118972")
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_causal_is_no_hint(training, need_weights):
    """is_causal alone is an error in nn.MultiheadAttention."""
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


@reported("pytorch/pytorch#103082")
def test_the_last_query_sees_all_keys():
    """SDPA's is_causal is aligned with the first query instead."""
    q, k, v = t([[[[1, 0]]]]), t(g((1, 1, 4, 2))), t([1, 2, 4, 8]).view(1, 1, 4, 1)
    close(attention(q, k, v, causal=True).ravel(), [2.801998])
    close(F.scaled_dot_product_attention(q, k, v, is_causal=True).ravel(), [1])
    q, k, v = t(g((1, 1, 2, 2), 0.5, 0.2)), t(g((1, 1, 5, 2))), t([1, 2, 4, 8, 16]).view(1, 1, 5, 1)
    close(attention(q, k, v, causal=True).ravel(), [2.786643, 4.006895])
    close(F.scaled_dot_product_attention(q, k, v, is_causal=True).ravel(), [1, 1.584771])


@reported("pytorch/pytorch#124464")
def test_no_dropout_in_evaluation():
    """SDPA drops whenever it is given dropout_p."""
    layer = report_layer(dropout=0.5).eval()
    x = t(g((2, 3, 4)))
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(layer(x), report_layer()(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))


@reported("pytorch/pytorch#42929")
def test_weights_are_those_before_dropout():
    """With one key the weight is 1. nn.MultiheadAttention(dropout=0.2) says 0 or 1.25."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(4, 1, dropout=0.2)
    query, key = torch.ones(1, 50, 4), torch.ones(1, 1, 4)
    output, weights = layer(query, key, need_weights=True)
    same(weights, torch.ones(1, 1, 50, 1), 1e-6)
    full = layer.eval()(query, key)
    share = (output / full)[0, :, 0].detach()  # the bias of a new layer is 0
    assert set(share.round(decimals=4).tolist()) == {0.0, 1.25}


@reported("om-ai-lab/OmDet#19")
def test_changing_one_sample_changes_no_other():
    """batch_first is False in nn.MultiheadAttention. It is not an option here."""
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


@reported("pytorch/pytorch#136816")
def test_a_mask_of_0_and_1_is_refused():
    """nn.MultiheadAttention adds it to the scores, which hides nothing."""
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


@reported("pytorch/pytorch#177482")
@pytest.mark.parametrize("H", [2, 4])
def test_a_mask_without_an_axis_for_heads_is_refused(H):
    """SDPA puts (B, L, S) on the heads, silently if B = H."""
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


@reported("pytorch/pytorch#101967")
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("where", ["key", "value", "both"])
def test_nan_in_a_forbidden_place_is_erased(where, broken):
    """SDPA gives NaN for it: 0 * NaN is NaN."""
    q, k, v = t([[[[1, 0]]]]), t([[[[1, 0], [0, 1]]]]), t([[[[5, 6], [7, 8]]]])
    if where != "value":
        k[0, 0, 1, 0] = broken
    if where != "key":
        v[0, 0, 1, 0] = broken
    keep = torch.tensor([[True, False]])
    close(attention(q, k, v, keep).ravel(), [5, 6])
    close(attention_weights(q, k, keep).ravel(), [1, 0])


@reported("pytorch/pytorch#101967")
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_broken_padding_reaches_neither_outputs_nor_gradients(kv_heads, broken):
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


@reported("pytorch/pytorch#101967")
@pytest.mark.parametrize("broken", BROKEN[:3])
def test_a_broken_token_is_seen_by_those_who_may_look(broken):
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


@reported("pytorch/pytorch#101967")
def test_gradients_do_not_pass_through_a_broken_value():
    """The loss is of the row that may not look at it; the other row's NaN times 0 would be NaN again."""
    q, k, v = (leaf(t(g((1, 1, 2, 2), a))) for a in (0.5, 0.7, 0.9))
    hurt = leaf(torch.cat([v.detach()[:, :, :1], torch.full((1, 1, 1, 2), math.nan, dtype=torch.float64)], 2))
    want = torch.autograd.grad(attention(q, k, v, causal=True)[0, 0, 0].sum(), (q, k, v))
    found = torch.autograd.grad(attention(q, k, hurt, causal=True)[0, 0, 0].sum(), (q, k, hurt))
    for got, wanted in zip(found, want, strict=True):
        same(got, wanted, 1e-12)


@reported("pytorch/pytorch#101967")
def test_what_a_query_may_attend_to_is_never_hidden():
    q, k, v = t([[[[1, 0], [0, 1]]]]), t([[[[1, 0], [0, 1]]]]), t([[[[5, 6], [math.nan, 8]]]])
    for keep in (None, torch.tensor([[True, True], [True, False]])):
        output = attention(q, k, v, keep)
        assert output[0, 0, 0, 0].isnan()
    close(output[0, 0, 1], [5, 6])
    single = attention(q[:, :, :1], k[:, :, 1:], v[:, :, 1:], causal=True)  # L = S = 1: nothing is forbidden
    assert single[0, 0, 0, 0].isnan()


@reported("onnx/onnx#7274")
def test_neighbouring_query_heads_share():
    """Heads 0 and 1 read the first key/value head, 2 and 3 the second."""
    q, k = t(np.ones((1, 4, 1, 2))), t(g((1, 2, 2, 2)))
    v = t([[[[1], [2]], [[10], [20]]]])
    close(attention(q, k, v).ravel(), [1.592634, 1.592634, 12.864542, 12.864542])
    close((attention_weights(q, k) @ share_heads(v, 4)).ravel(), [1.592634, 1.592634, 12.864542, 12.864542])
    with pytest.raises(ValueError, match=says("num_kv_heads: expected a divisor of num_heads = 4, got 3")):
        MultiHeadAttention(8, 4, 3)


@reported("hyprstream/hyprstream#1521")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_chunks_with_all_keys_are_the_full_run(size):
    """Right by luck in the last row without a mask: so look at all rows."""
    q, k = t(g((1, 1, 5, 2))), t(g((1, 1, 5, 2), 0.9, 0.1))
    v = t([1, 2, 4, 8, 16]).view(1, 1, 5, 1)
    whole = attention(q, k, v, causal=True)
    close(whole.ravel()[3:], [4.688096, 6.239676])
    for end in range(size, 6):
        new = slice(end - size, end)
        chunk = attention(q[:, :, new], k[:, :, :end], v[:, :, :end], causal=True)
        same(chunk, whole[:, :, new], 1e-12)


@reported("nerminnuraydogan/vision-transformer#1")
def test_the_softmax_runs_over_the_keys():
    """Over the queries, rows would add up to 1.88 and 1.12."""
    scores = t([[1, 2, 3], [0, 0, 4]])
    q, k = math.sqrt(3) * torch.eye(3, dtype=torch.float64)[:2], torch.zeros(3, 3, dtype=torch.float64)
    k[:, :2] = scores.T
    weights = attention_weights(q[None, None], k[None, None])[0, 0]
    close(weights, [[0.090031, 0.244728, 0.665241], [0.017668, 0.017668, 0.964663]])
    close(weights.sum(-1), [1, 1])
    assert (weights.sum(0) - 1).abs().min() > 0.1
