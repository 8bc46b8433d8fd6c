"""What may be given as a core: one of the course's, a function, a module, a class of one's own."""

import math
from functools import partial

import pytest

from tests.reference import says

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from mha_lesson.pytorch.cache import KVCache  # noqa: E402
from mha_lesson.pytorch.cores import (  # noqa: E402
    Can,
    Core,
    FlashCore,
    FunctionCore,
    LinearCore,
    RingCore,
    SDPACore,
    TiledCore,
    WindowCore,
)
from mha_lesson.pytorch.cores import core as core_file  # noqa: E402
from mha_lesson.pytorch.cores.core import as_core  # noqa: E402
from mha_lesson.pytorch.cores.flash_triton import flash_attention  # noqa: E402
from mha_lesson.pytorch.cores.linear import linear_attention  # noqa: E402
from mha_lesson.pytorch.cores.sdpa import attention  # noqa: E402
from mha_lesson.pytorch.cores.tiled import tiled_attention  # noqa: E402
from mha_lesson.pytorch.cores.window import window_attention  # noqa: E402
from mha_lesson.pytorch.parallel import ring_attention  # noqa: E402
from tests.pytorch.cores.oracle import close, draw, layer_with  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("given", "core"),
    [
        (attention, SDPACore()),
        (tiled_attention, TiledCore()),
        (flash_attention, FlashCore()),
        (linear_attention, LinearCore()),
        (ring_attention, RingCore()),
        (partial(window_attention, width=64), WindowCore(64)),
        (partial(window_attention, width=64, sinks=4), WindowCore(64, sinks=4)),
        (partial(tiled_attention, block_q=16), TiledCore(block_q=16)),
        (partial(flash_attention, backend="stand-in"), FlashCore("stand-in")),
    ],
)
def test_functions_of_the_course_know_their_core(given, core):
    made = as_core(given)
    assert type(made) is type(core) and vars(made) == vars(core)


def mine(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def mine_with_a_mask(q, k, v, keep=None, causal=False):
    return attention(q, k, v, keep, causal)


def test_any_function_is_a_core_and_declares_by_its_signature():
    x = draw(2, 5, 33, dtype=torch.float32)
    layer = layer_with(mine, torch.float32)
    plain = layer_with(SDPACore(), torch.float32)
    close(layer(x), plain(x))
    for options, text in (
        ({"causal": True}, "causal: expected False with the core 'mine', got True"),
        ({"keep": torch.ones(5, 5, dtype=torch.bool)}, "keep: expected None with the core 'mine'"),
        ({"need_weights": True}, "need_weights: expected False with the core 'mine'"),
        ({"cache": KVCache()}, "cache: expected None with the core 'mine'"),
    ):
        with pytest.raises(ValueError, match=says(text)):
            layer.eval()(x, **options)
    keep = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(1)) < 0.6
    masked = layer_with(mine_with_a_mask, torch.float32)
    close(masked(x, keep=keep, causal=True), plain(x, keep=keep, causal=True))
    assert "core=mine" in repr(layer)


def test_key_heads_are_repeated_for_a_function_unless_it_says_that_it_shares():
    seen = []

    def spy(q, k, v):
        seen.append(k.shape[1])
        return mine(
            q, k if k.shape[1] == 6 else k.repeat_interleave(3, 1), v if v.shape[1] == 6 else v.repeat_interleave(3, 1)
        )

    x = draw(2, 5, 12, dtype=torch.float32)
    for core, heads in ((spy, 6), (FunctionCore(spy, Can(shared_heads=True)), 2)):
        layer = MultiHeadAttention(12, 6, 2, core=core)
        plain = MultiHeadAttention(12, 6, 2)
        plain.load_state_dict(layer.state_dict())
        close(layer(x), plain(x))
        assert seen[-1] == heads


def test_a_module_as_a_core_is_trained_with_the_layer():
    class Sharper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, q, k, v, causal=False):
            return attention(q * self.factor, k, v, causal=causal)

    layer = MultiHeadAttention(12, 3, core=Sharper())
    layer(draw(2, 5, 12, dtype=torch.float32), causal=True).square().sum().backward()
    assert layer.core.factor.grad.abs() > 0 and "core.factor" in layer.state_dict()


@pytest.mark.parametrize(
    ("core", "error", "text"),
    [
        ("tiled", TypeError, "core: expected a core such as TiledCore(), or a function"),
        (TiledCore, TypeError, "core: expected a core, got the class TiledCore. Make one: TiledCore()."),
        (3, TypeError, "core: expected a core such as TiledCore()"),
    ],
)
def test_what_is_no_core(core, error, text):
    with pytest.raises(error, match=says(text)):
        MultiHeadAttention(6, 2, core=core)


@pytest.mark.parametrize("wrong", [lambda q, k, v: q.flatten(2), lambda q, k, v: None, lambda q, k, v: q[:, :1]])
def test_a_function_that_gives_no_context_is_told(wrong):
    with pytest.raises(ValueError, match=says("to give a context (B, H, L, D) = (2, 3, 5, 11), got")):
        layer_with(wrong, torch.float32)(draw(2, 5, 33, dtype=torch.float32))


def test_a_core_of_ones_own():
    class Mean(Core):
        name = "mean"
        can = Can(masks="none", causal=(False,), weights=False, cache=False, exact=False)

        def attend(self, q, k, v, *, keep, causal, dropout):
            return v.mean(2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1).expand_as(q)

    layer, x = layer_with(Mean(), torch.float32), draw(2, 5, 33, dtype=torch.float32)
    output = layer(x)
    assert torch.equal(output, output[:, :1].expand_as(output))
    with pytest.raises(ValueError, match=says("causal: expected False with the core 'mean', got True")):
        layer(x, causal=True)


def test_names_of_the_package():
    from mha_lesson.pytorch import cores

    assert all(isinstance(getattr(cores, name), type) for name in cores.__all__)
    with pytest.raises(AttributeError, match=says("mha_lesson.pytorch.cores has no 'Sdpa'. It has Can, Core")):
        cores.Sdpa  # noqa: B018


def test_an_unknown_pytorch_is_not_asked_for_its_private_parts(monkeypatch):
    monkeypatch.delattr(torch._C, "_functorch")
    assert core_file.is_transformed(torch.ones(1)) is False
