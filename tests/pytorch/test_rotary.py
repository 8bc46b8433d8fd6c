"""Rotary positions in PyTorch: against the NumPy step, worked values of public reports, and in the layer."""

import math

import numpy as np
import pytest

from mha_lesson.attention import scaled_dot_product_attention
from mha_lesson.steps import embeddings
from tests.reference import says
from tests.reports import reported

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch import nn  # noqa: E402

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from mha_lesson.pytorch.heads import share_heads, split_heads  # noqa: E402
from mha_lesson.pytorch.rotary import rotary  # noqa: E402

pytestmark = pytest.mark.torch


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(got, want, atol=1e-12):
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=got.dtype), rtol=0, atol=atol)


# ---------------------------------------------------------------------------- the function


@pytest.mark.parametrize("base", [100.0, 10000.0])
@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4], [7, 3, 3, 100000, 0], [0.5, -2.0, 1e6, 3.0, 9.25]])
def test_it_gives_the_numbers_of_lesson_01(positions, base):
    x = numbers(2, 3, 5, 14)
    last_digit = 1e-15 * max(map(abs, positions))  # of a power of the base, which may be rounded either way
    ours = rotary(x, torch.tensor(positions), base)
    close(ours, embeddings.rotary(x.numpy(), np.array(positions), base), 1e-12 + last_digit)


def test_the_base_is_that_of_models():
    x, positions = numbers(1, 1, 3, 8), torch.arange(3)
    assert torch.equal(rotary(x, positions), rotary(x, positions, 10000.0))


@reported("karpathy/nanochat#264")
def test_neighbours_are_turned_and_not_halves():
    """The other layout gives [-1.413353, 0.728592, -2.828857, 4.412386]."""
    x = torch.tensor([[[[1.0, 2, 3, 4]]]], dtype=torch.float64)
    want = [[[[-1.272233, -1.838865, 1.683929, 4.707907]]]]
    close(rotary(x, torch.tensor([3]), base=100.0), want, atol=1e-6)


def test_only_the_distance_counts():
    q = torch.tensor([[[[1.0, 2, 3, 4]]]], dtype=torch.float64)
    k = torch.tensor([[[[0.5, -1, 2, 0.25]]]], dtype=torch.float64)
    for query, key in ((5, 2), (8, 5), (3, 0)):
        score = rotary(q, torch.tensor([query]), 100.0) * rotary(k, torch.tensor([key]), 100.0)
        assert score.sum().item() == pytest.approx(5.747583, abs=1e-6)


def test_each_sequence_may_have_positions_of_its_own():
    x, positions = numbers(2, 3, 5, 4), torch.tensor([[0, 1, 2, 3, 4], [11, 12, 13, 14, 15]])
    turned = rotary(x, positions)
    for b in range(2):
        close(turned[b], embeddings.rotary(x[b].numpy(), positions[b].numpy(), 10000.0))
    square = numbers(3, 2, 3, 4)  # B = L: the shape does not say which axis is which
    places = torch.tensor([[0, 1, 2], [5, 6, 7], [9, 10, 11]])
    for b in range(3):
        close(rotary(square, places)[b], embeddings.rotary(square[b].numpy(), places[b].numpy(), 10000.0))


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-6), (torch.float16, 2.5e-3), (torch.bfloat16, 2e-2)]
)  # fmt: skip
def test_far_positions_are_exact_in_narrow_types(dtype, atol):
    """Angles in float32 would be off by 0.005, those in half types by whole turns."""
    x, positions = numbers(1, 2, 64, 64, dtype=dtype), torch.arange(99937, 100001)
    x = x.clamp(-1, 1)
    turned = rotary(x, positions)
    assert turned.dtype == dtype
    want = embeddings.rotary(x.double().numpy(), positions.numpy(), 10000.0)
    assert np.abs(turned.double().numpy() - want).max() < atol
    assert torch.equal(turned, rotary(x.float(), positions).to(dtype)), "turned in float32"


def test_gradients_turn_back():
    """Lengths stay, so the gradient of x is what comes back, turned the other way."""
    x, back, positions = numbers(2, 2, 3, 4).requires_grad_(), numbers(2, 2, 3, 4, seed=1), torch.tensor([4, 9, 2])
    rotary(x, positions).backward(back)
    close(x.grad, rotary(back, -positions))


@pytest.mark.parametrize(
    ("shape", "positions", "parts"),
    [
        ((1, 2, 3, 5), torch.arange(3), ("x: expected an even width", "got 5")),
        ((2, 3, 4), torch.arange(3), ("x: expected floats (B, H, L, D)", "(2, 3, 4)")),
        ((2, 1, 3, 4), torch.arange(4), ("positions: expected one number for each token, (3,), or (2, 3)", "(4,)")),
        ((2, 1, 3, 4), torch.arange(3)[None], ("positions: ", "(2, 3)", "(1, 3)")),
        ((2, 1, 3, 4), torch.tensor(3), ("positions: ", "()")),
        ((2, 1, 3, 4), torch.tensor([True, False, True]), ("positions: ", "torch.bool")),
    ],
)
def test_what_it_refuses(shape, positions, parts):
    with pytest.raises(ValueError, match=says(*parts)):
        rotary(numbers(*shape), positions)


def test_whole_numbers_cannot_be_turned():
    with pytest.raises(ValueError, match=says("x: expected floats", "torch.int64")):
        rotary(torch.ones(1, 1, 2, 4, dtype=torch.long), torch.arange(2))


# ---------------------------------------------------------------------------- in the layer


def layer_of(num_kv_heads=None, **options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, 6, num_kv_heads, **options).double().eval()
    for linear in layer.projections():
        nn.init.normal_(linear.bias)
    return layer


@pytest.mark.parametrize("num_kv_heads", [6, 3, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_the_layer_turns_queries_and_keys_and_no_values(num_kv_heads, causal):
    layer, x = layer_of(num_kv_heads, rotary_base=100.0), numbers(2, 5, 24)
    output, weights = layer(x, causal=causal, need_weights=True)
    q = embeddings.rotary(split_heads(layer.q_proj(x), 6).detach().numpy(), np.arange(5), 100.0)
    k, v = (
        share_heads(split_heads(linear(x), num_kv_heads), 6).detach().numpy()
        for linear in (layer.k_proj, layer.v_proj)
    )  # fmt: skip
    k = embeddings.rotary(k, np.arange(5), 100.0)
    keep = np.tril(np.ones((5, 5), bool)) if causal else None
    context, want = scaled_dot_product_attention(q, k, v, keep)
    close(weights, want)
    close(output, layer.out_proj(torch.from_numpy(context.swapaxes(1, 2).reshape(2, 5, 24))))
    assert torch.equal(layer(x, causal=causal), output)
    assert torch.equal(layer(x, x, x, causal=causal), output)
    close(layer(x[1], causal=causal), output[1])


def test_without_a_mask_order_counts_with_rotary_positions_alone():
    x, shuffle = numbers(1, 5, 24), [3, 0, 4, 1, 2]
    plain, turned = layer_of(), layer_of(rotary_base=100.0)
    close(plain(x[:, shuffle]), plain(x)[:, shuffle])
    assert (turned(x[:, shuffle]) - turned(x)[:, shuffle]).abs().max() > 1e-2


def test_the_weights_of_a_layer_are_the_same_with_and_without():
    plain, turned = layer_of(), layer_of(rotary_base=100.0)
    assert plain.state_dict().keys() == turned.state_dict().keys()
    assert "rotary_base=100.0" in repr(turned)
    assert "rotary" not in repr(plain)


def test_what_the_layer_refuses():
    layer, x, memory = layer_of(rotary_base=100.0), numbers(1, 3, 24), numbers(1, 5, 24)
    with pytest.raises(ValueError, match=says("key: expected None", "rotary")):
        layer(x, memory)
    with pytest.raises(ValueError, match=says("key: expected None", "rotary")):
        layer(x, x.clone())
    with pytest.raises(ValueError, match=says("rotary_base: expected None", "embeddings.rotary")):
        layer.to_numpy()
    with pytest.raises(ValueError, match=says("rotary_base: expected an even width", "got 3")):
        MultiHeadAttention(6, 2, rotary_base=100.0)
    for base in (0, 1, -3.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=says("rotary_base: expected None or a number above 1")):
            MultiHeadAttention(8, 2, rotary_base=base)
    assert MultiHeadAttention(6, 2).rotary_base is None
