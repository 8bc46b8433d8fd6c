"""The kernel, forwards and backwards, on every backend that this machine has: against float64 attention.

On a machine with a CUDA device:  python -m pytest tests/pytorch/cores/test_flash_triton.py -m gpu
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mha_lesson.course.paths import ROOT

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import triton_numpy  # noqa: E402
from mha_lesson.pytorch.cores import flash_triton  # noqa: E402
from mha_lesson.pytorch.cores.flash_triton import flash_attention, flash_forward  # noqa: E402
from mha_lesson.steps.gpu import agrees  # noqa: E402
from tests.pytorch.cores.helpers import exact  # noqa: E402

HAS_TRITON = flash_triton.triton is not triton_numpy


needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed (pip install triton, on Linux)")


HAS_COMPILER = HAS_TRITON and flash_triton.available()["interpreter"] != "yes"


needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no compiler of Triton (pip install triton, on Linux)")


BACKENDS = ["stand-in", pytest.param("triton", marks=pytest.mark.gpu)]


DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


# batch, heads, key heads, queries, keys, width
SHAPES = {
    "ragged": (2, 3, 3, 37, 37, 16),
    "shared heads, more keys": (1, 6, 2, 29, 53, 32),
    "more queries than keys": (2, 2, 1, 53, 31, 64),
    "a width of 80": (1, 2, 2, 19, 41, 80),
    "a width of 5": (3, 2, 1, 7, 23, 5),
    "a width of 128": (1, 2, 1, 37, 43, 128),
    "one query": (3, 4, 1, 1, 67, 32),
    "whole tiles": (1, 2, 2, 64, 64, 16),
}


def inputs(shape, dtype, device="cpu", seed=0):
    """Fresh random numbers. q and v are transposed views, k has a row that is longer than its width."""
    B, H, G, L, S, D = shape
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(B, L, H, D, generator=generator).to(device, dtype).transpose(1, 2)
    k = torch.randn(B, G, S, D + 3, generator=generator).to(device, dtype)[..., :D]
    v = torch.randn(B, S, G, D, generator=generator).to(device, dtype).transpose(1, 2)
    return q, k, v


def close(got, want, dtype, slack=1.0):
    """As far as the format can say; `slack` times that for sums over more roundings."""
    got, want = got.detach().double().cpu().numpy(), want.detach().double().cpu().numpy()
    return agrees((got - want) / slack + want, want, dtype)


def place(backend):
    return "cuda" if backend == "triton" else "cpu"


@pytest.fixture
def poisoned(monkeypatch):
    """Every tensor that is made without being filled holds NaN: a place that is forgotten shows."""
    real = torch.empty, torch.empty_like

    def filled(make):
        def empty(*args, **kwargs):
            x = make(*args, **kwargs)
            return x.fill_(float("nan")) if x.is_floating_point() else x

        return empty

    monkeypatch.setattr(flash_triton.torch, "empty", filled(real[0]))
    monkeypatch.setattr(flash_triton.torch, "empty_like", filled(real[1]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_forwards_as_float64(dtype, shape, causal, backend, poisoned):
    q, k, v = inputs(shape, DTYPES[dtype], place(backend))
    out, lse = flash_forward(q, k, v, causal=causal, backend=backend, block_q=16, block_k=32)
    assert out.dtype == q.dtype and out.shape == q.shape
    assert close(out, exact(q, k, v, causal), dtype)
    scores = q.double() @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).double().mT / q.shape[-1] ** 0.5
    if causal:
        future = torch.ones_like(scores, dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(future, -torch.inf)
    assert torch.allclose(lse.double(), scores.logsumexp(-1), atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, [31, 0, 17]], ids=["all keys", "lengths"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_as_float64(dtype, lengths, causal, backend, poisoned):
    shape = (3, 4, 2, 43, 31, 32)
    lengths = None if lengths is None else torch.tensor(lengths, device=place(backend))
    leaves = [x.detach().requires_grad_() for x in inputs(shape, DTYPES[dtype], place(backend))]
    probe = torch.randn(3, 43, 4, 32, generator=torch.Generator().manual_seed(9)).transpose(1, 2)
    probe = probe.to(place(backend), DTYPES[dtype])
    out = flash_attention(*leaves, causal=causal, lengths=lengths, backend=backend, block_q=16, block_k=16)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = exact(*wide, causal, lengths)
    assert close(out, want, dtype)
    grads = (torch.autograd.grad(out, leaves, probe), torch.autograd.grad(want, wide, probe.double()))
    for got, right in zip(*grads, strict=True):
        assert got.dtype == DTYPES[dtype] and close(got, right, dtype, slack=2)
    if lengths is not None:  # the second sequence has no key at all
        assert not out[1].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tiles", [(16, 16), (16, 64), (64, 16), (128, 32), (None, None)])
def test_the_tiles_do_not_change_the_numbers(tiles, backend, poisoned):
    leaves = [x.detach().requires_grad_() for x in inputs((1, 2, 1, 71, 83, 16), torch.float32, place(backend))]
    out = flash_attention(*leaves, causal=True, block_q=tiles[0], block_k=tiles[1], backend=backend)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = exact(*wide, True)
    assert close(out, want, "float32")
    grads = (torch.autograd.grad(o.square().sum(), x) for o, x in ((out, leaves), (want, wide)))
    for got, right in zip(*grads, strict=True):
        assert close(got, right, "float32", slack=4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e4])
def test_what_stands_in_padding_reaches_nothing(rubbish, backend, poisoned):
    q, k, v = inputs((2, 2, 1, 29, 37, 16), torch.float32, place(backend))
    lengths = torch.tensor([37, 19], device=q.device)
    k, v = k.clone(), v.clone()
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    want = exact(*wide, True, lengths)
    k[1, :, 19:], v[1, :, 19:] = rubbish, rubbish
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = flash_attention(*leaves, causal=True, lengths=lengths, backend=backend, block_q=16, block_k=16)
    assert close(out, want, "float32")
    for got, right in zip(torch.autograd.grad(out.sum(), leaves), torch.autograd.grad(want.sum(), wide), strict=True):
        assert close(got, right, "float32", slack=4)
    d_k, d_v = torch.autograd.grad(flash_attention(*leaves, lengths=lengths, backend=backend).sum(), leaves[1:])
    assert not d_k[1, :, 19:].any() and not d_v[1, :, 19:].any()


def test_a_second_derivative_is_an_error_and_no_wrong_number():
    leaves = [x.detach().requires_grad_() for x in inputs((1, 1, 1, 5, 7, 16), torch.float32)]
    out = flash_attention(*leaves, backend="stand-in", block_q=16, block_k=16)
    (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_rows_whose_steps_do_not_fit_are_copied():
    """Places in a head are counted with 32 bits: a view with longer steps is made contiguous first."""
    wide = torch.empty(1).expand(1, 1, 3, 16)
    assert flash_triton._rows_in_line(wide).stride(-1) == 1
    far = torch.empty_strided((1, 1, 2**20, 1), (0, 0, 2**12, 1), device="meta")
    assert flash_triton._rows_in_line(far).stride(2) == 1
    near = torch.empty_strided((1, 1, 2**20, 1), (0, 0, 2**10, 1), device="meta")
    assert flash_triton._rows_in_line(near) is near


def test_large_scores_do_not_overflow():
    q, k, v = inputs((1, 1, 1, 33, 33, 16), torch.float32)
    q = 100 * q
    assert close(flash_attention(q, k, v, backend="stand-in", block_q=16, block_k=16), exact(q, k, v), "float32", 100)


@pytest.mark.parametrize("shape", [(0, 2, 2, 3, 3, 16), (2, 2, 1, 0, 3, 16), (1, 2, 2, 3, 0, 16)])
def test_nothing_to_attend_to(shape, poisoned):
    leaves = [x.detach().requires_grad_() for x in inputs(shape, torch.float32)]
    out = flash_attention(*leaves, backend="stand-in")
    assert out.shape == leaves[0].shape and not out.any()
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert not gradient.any()


# ------------------------------------------------------------------------------ a wrong kernel is found out


BROKEN = {  # what is changed -> (kernel, old, new); "dK" and so on: what must come out wrong
    "no shrinking": ("forward_tile", "acc * shrink[:, None]", "acc"),
    "sum not shrunk": ("forward_tile", "l * shrink + tl.sum", "l + tl.sum"),
    "no scale": ("forward_tile", "s * scale - highest", "s - highest"),
    "largest score not scaled": ("forward_tile", "tl.max(s, 1) * scale", "tl.min(s, 1) * scale"),
    "mask one too far": ("forward_tile", "keys[None, :] <= last[:, None]", "keys[None, :] <= last[:, None] + 1"),
    "mask one too near": ("forward_tile", "keys[None, :] <= last[:, None]", "keys[None, :] < last[:, None]"),
    "upper left": ("last_key", "rows + (S - L)", "rows"),
    "lengths forgotten": ("last_key", "(stop - 1)", "(S - 1)"),
    "one tile unmasked too many": ("forward_kernel", "tl.maximum(first + 1, 0)", "tl.maximum(first + BLOCK_K, 0)"),
    "last tile left out": ("forward_kernel", "range(full, end, BLOCK_K)", "range(full, end - BLOCK_K, BLOCK_K)"),
    "first tile left out": ("forward_kernel", "range(0, full, BLOCK_K)", "range(BLOCK_K, full, BLOCK_K)"),
    "other key head": ("forward_kernel", "V += b * v_b + h // R * v_h", "V += b * v_b + h % (H // R) * v_h"),
    "not divided": ("forward_kernel", "acc / seen[:, None]", "acc"),
    "last rows not written": ("store_rows", "rows[:, None] < stop", "rows[:, None] < stop - 1"),
    "dQ without scale": ("query_gradient_kernel", "dq * scale", "dq"),
    "dQ without delta": ("query_gradient_kernel", "(dp - delta[:, None])", "dp"),
    "dQ mask one too far": ("query_gradient_kernel", "<= last[:, None]", "<= last[:, None] + 1"),
    "dQ ends early": ("query_gradient_kernel", "block * BLOCK_Q + BLOCK_Q + S - L", "block * BLOCK_Q + S - L"),
    "dK without scale": ("key_gradient_kernel", "dk * scale", "dk"),
    "dK without delta": ("key_gradient_kernel", "(dp - delta[:, None])", "dp"),
    "dK begins late": ("key_gradient_kernel", "(S - L), 0) // BLOCK_Q", "(S - L) + BLOCK_Q, 0) // BLOCK_Q"),
    "dK of one head of the group": ("key_gradient_kernel", "range(0, R)", "range(0, 1)"),
    "dV mask one too near": ("key_gradient_kernel", "<= last[:, None]", "< last[:, None]"),
}


@pytest.mark.parametrize("broken", [None, *BROKEN])
def test_a_broken_kernel_fails_the_same_comparison(broken, monkeypatch, poisoned):
    dtype = "bfloat16"  # which allows the largest errors
    monkeypatch.setattr(flash_triton, "tl", triton_numpy.language)  # also where Triton is installed
    if broken:
        name, old, new = BROKEN[broken]
        source = Path(flash_triton.__file__).read_text(encoding="utf-8")
        begin = source.index(f"def {name}(")
        source = source[begin : source.index("\n\n\n", begin)]
        assert source.count(old) == 1
        monkeypatch.setattr(flash_triton, name, triton_numpy.jit(compiled(source.replace(old, new), name)))
    leaves = [x.detach().requires_grad_() for x in inputs((2, 4, 2, 43, 47, 16), DTYPES[dtype])]
    lengths, probe = torch.tensor([47, 41]), inputs((2, 4, 2, 43, 47, 16), DTYPES[dtype], seed=1)[0]
    out = flash_attention(*leaves, causal=True, lengths=lengths, backend="stand-in", block_q=16, block_k=16)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = exact(*wide, True, lengths)
    grads = (torch.autograd.grad(out, leaves, probe), torch.autograd.grad(want, wide, probe.double()))
    right = [close(out, want, dtype)] + [close(*pair, dtype, slack=2) for pair in zip(*grads, strict=True)]
    if broken is None:
        assert all(right)
    elif broken[0] == "d":  # dQ ..., dK ..., dV ...: named after what comes out wrong
        assert right[0] and not right[1 + "QKV".index(broken[1])]
    else:
        assert not right[0]


def compiled(source, name):
    """The function that the source defines; it sees whatever the module holds when it is called."""
    names = vars(flash_triton) | {}
    exec(compile(source, "broken", "exec"), names)
    return names[name]


# ------------------------------------------------------------------------------ what it refuses and says


REFUSED = {
    "float64": (lambda q, k, v: (q.double(), k.double(), v.double(), {}), "float64"),
    "mixed": (lambda q, k, v: (q, k.half(), v, {}), "expected torch.float32"),
    "three axes": (lambda q, k, v: (q[0], k, v, {}), r"q: expected a tensor \(batch, heads"),
    "an array": (lambda q, k, v: (q.numpy(), k, v, {}), "ndarray"),
    "heads that do not divide": (lambda q, k, v: (q[:, :3], k, v, {}), "divides the 3 of q"),
    "other widths": (lambda q, k, v: (q, k[..., :8], v, {}), "k, v: expected both"),
    "fewer values": (lambda q, k, v: (q, k, v[:, :, 1:], {}), "k, v: expected both"),
    "too wide": (lambda q, k, v: (torch.ones(1, 2, 3, 256),) * 3 + ({},), "1 to 128"),
    "a tile of 24": (lambda q, k, v: (q, k, v, {"block_q": 24}), "power of two"),
    "lengths for one": (lambda q, k, v: (q, k, v, {"lengths": torch.tensor([3])}), "each of the 2 sequences"),
    "lengths too long": (lambda q, k, v: (q, k, v, {"lengths": torch.tensor([3, 9])}), "0 to 5"),
    "an unknown backend": (lambda q, k, v: (q, k, v, {"backend": "cuda"}), "expected triton, interpreter, stand-in"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_with_the_mend(what):
    make, words = REFUSED[what]
    q, k, v, options = make(torch.ones(2, 4, 5, 16), torch.ones(2, 2, 5, 16), torch.ones(2, 2, 5, 16))
    with pytest.raises(ValueError, match=words):
        flash_attention(q, k, v, **options)


def test_a_backend_that_cannot_run_says_why():
    able = flash_triton.available()
    assert list(able) == ["triton", "interpreter", "stand-in"] and able["stand-in"] == "yes"
    for backend, reason in able.items():
        if reason != "yes":
            with pytest.raises(ValueError, match=re.escape(reason)):
                flash_attention(*inputs(SHAPES["whole tiles"], torch.float32), backend=backend)


def test_without_a_gpu_the_stand_in_is_chosen():
    if HAS_TRITON and flash_triton.available()["interpreter"] == "yes":
        pytest.skip("the interpreter is on")
    plan = flash_triton._plan(*inputs(SHAPES["ragged"], torch.float32), False, None, None, None, None)
    assert plan.backend == "stand-in"


# ------------------------------------------------------------------------------ on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("d_head", [16, 32, 64, 80, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tiles_of_the_table_on_a_gpu(dtype, d_head, poisoned):
    leaves = [x.detach().requires_grad_() for x in inputs((2, 6, 3, 1031, 1277, d_head), DTYPES[dtype], "cuda")]
    lengths = torch.tensor([1277, 701], device="cuda")
    probe = inputs((2, 6, 3, 1031, 1, d_head), DTYPES[dtype], "cuda", seed=1)[0]
    out = flash_attention(*leaves, causal=True, lengths=lengths)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = exact(*wide, True, lengths)
    assert close(out, want, dtype)
    grads = (torch.autograd.grad(o, x, probe.to(o)) for o, x in ((out, leaves), (want, wide)))
    for got, right in zip(*grads, strict=True):
        assert close(got, right, dtype, slack=2)


@pytest.mark.gpu
def test_more_heads_than_an_axis_of_a_grid_has_room_for():
    q, k, v = inputs((4099, 16, 16, 3, 5, 16), torch.float16, "cuda")  # 65,584 heads
    assert close(flash_attention(q, k, v), exact(q, k, v), "float16")


@pytest.mark.gpu
def test_a_race_between_tiles():
    tiles = [flash_triton.Tiles(64, 64, 4, 2), flash_triton.Tiles(128, 64, 8, 2)]
    found = flash_triton.tune(*inputs((1, 2, 2, 256, 256, 64), torch.bfloat16, "cuda"), tiles=tiles)
    assert sorted(t for _, t in found) == tiles and found[0][0] <= found[1][0]


# ------------------------------------------------------------------------------ Triton without a GPU


INTERPRETED = """
import torch
from tests.pytorch.cores.test_flash_triton import close, exact, inputs
from mha_lesson.pytorch.cores.flash_triton import flash_attention, available
assert available()["interpreter"] == "yes", available()
for dtype in ("float32", "float16", "bfloat16"):
    leaves = [x.detach().requires_grad_() for x in inputs((2, 4, 2, 21, 29, 16), getattr(torch, dtype))]
    lengths, probe = torch.tensor([29, 11]), torch.randn(2, 4, 21, 16).to(leaves[0])
    out = flash_attention(*leaves, causal=True, lengths=lengths, block_q=16, block_k=16)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = exact(*wide, True, lengths)
    assert close(out, want, dtype), dtype
    for got, right in zip(torch.autograd.grad(out, leaves, probe), torch.autograd.grad(want, wide, probe.double())):
        assert close(got, right, dtype, slack=2), dtype
    here = flash_attention(*leaves, causal=True, lengths=lengths, block_q=16, block_k=16, backend="stand-in")
    assert close(here, want, dtype), dtype  # it runs kernels that Triton has already made its own
print("all right")
"""


@needs_triton
@pytest.mark.slow
def test_tritons_interpreter_gives_the_same():
    variables = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=variables, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "all right\n", done.stderr


def resources(kernel, tmp_path):
    """(registers, bytes on the stack) of a compiled kernel: numbers that spill out of the registers lie on the stack.

    Read from the code itself, by the tool that comes with Triton. (`n_spills` is known only once it is on a GPU.)
    """
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton has no cuobjdump")
    (tmp_path / "kernel.cubin").write_bytes(kernel.asm["cubin"])
    command = [tool, "--dump-resource-usage", tmp_path / "kernel.cubin"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


FAST_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}  # bytes that a program can have; CUDA's own table


AHEAD = {
    "H100, width 64": (90, torch.bfloat16, 64, {"padded": True}),
    "H100, width 128": (90, torch.bfloat16, 128, {}),
    "H100, all sizes 1": (90, torch.float16, 16, {"ones": ("L", "S", "H", "R"), "padded": True}),
    "A100, width 64": (80, torch.bfloat16, 64, {}),
    "A100, width 128": (80, torch.float16, 128, {}),
    "RTX 30, width 80": (86, torch.bfloat16, 80, {"causal": False}),
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kernel", flash_triton.KERNELS)
@pytest.mark.parametrize("what", AHEAD)
def test_it_compiles_for_gpus_that_are_not_here(what, kernel, tmp_path):
    arch, dtype, d_head, options = AHEAD[what]
    made = flash_triton.compile_ahead(kernel, arch, dtype, d_head, **options)
    registers, stack = resources(made, tmp_path)
    assert stack == 0 and registers <= 255, "numbers spill out of the registers: take smaller tiles"
    assert made.metadata.shared <= FAST_MEMORY[arch]
    unit = "wgmma.mma_async" if arch == 90 else "mma.sync"
    assert unit in made.asm["ptx"], "the matrix units are not used"


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["forward_kernel", "key_gradient_kernel"])
def test_float32_compiles_without_spilling(kernel, tmp_path):
    made = flash_triton.compile_ahead(kernel, 90, torch.float32, 64)
    assert resources(made, tmp_path)[1] == 0
    assert "tf32" not in made.asm["ptx"], "float32 is rounded to 11 digits before it is multiplied"


@needs_compiler
@pytest.mark.slow
def test_tiles_that_are_too_large_are_seen_to_spill(tmp_path):
    """The measure of the tests above can fail."""
    tiles = flash_triton.Tiles(128, 128, 4, 2)
    made = flash_triton.compile_ahead("forward_kernel", 80, torch.bfloat16, 64, tiles=tiles)
    assert resources(made, tmp_path)[1] > 0


@pytest.mark.skipif(HAS_TRITON, reason="Triton is installed")
def test_without_triton_compiling_ahead_says_what_is_missing():
    with pytest.raises(RuntimeError, match="pip install triton"):
        flash_triton.compile_ahead("forward_kernel", 90, torch.float16, 64)
