"""The PyTorch layer as a normal citizen: stored, copied, moved, compiled, traced, trained."""

import copy
import io
import pickle
import shutil
import sys
import warnings

import numpy as np
import pytest

from tests.reference import g, says

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from tests.pytorch.helpers import (  # noqa: E402
    DTYPES,
    TOLERANCE,
    all_finite,
    gradients,
    leaf,
    numbers,
    randomise,
    same,
    t,
)

HAS_COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("cl")


needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="torch.compile needs a C++ compiler, and there is none")


def devices():
    """The CPU, and the others with the reason why they are skipped."""
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [
        pytest.param(name, marks=[] if there else pytest.mark.skip(reason=f"no {name} device"))
        for name, there in here.items()
    ]


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
def test_compiled(monkeypatch):
    """Forwards only: each kernel that the gradients and a mask need takes the C++ compiler seconds more."""
    torch.compiler.reset()
    for name in [name for name in sys.modules if name.split(".")[0] == "distutils"]:
        monkeypatch.delitem(sys.modules, name)  # Python 3.11's own, loaded by a test of pip, keeps setuptools out
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
