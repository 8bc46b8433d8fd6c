"""The stand-in's language: formats, masks, memory, against NumPy, PyTorch and the rules of Triton."""

import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import triton_numpy  # noqa: E402
from mha_lesson.pytorch.triton_numpy import language as tl  # noqa: E402
from tests.pytorch.triton_numpy.helpers import copy_kernel  # noqa: E402

NAN = float("nan")


# ------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("n", [1, 7, 8, 13])
def test_every_format_is_copied_bit_by_bit(dtype, n):
    x = 100 * torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x.to(getattr(torch, dtype))
    y = torch.zeros(n + 3, dtype=x.dtype)
    triton_numpy.run(copy_kernel, (-(-n // 8),), x, y, n, BLOCK=8)
    assert torch.equal(y[:n], x) and (y[n:] == 0).all(), "behind the mask nothing may change"


def test_numpy_arrays_are_pointers_too():
    x, y = np.arange(5.0), np.full(5, NAN)
    triton_numpy.run(copy_kernel, (2,), x, y, 5, BLOCK=4)
    assert np.array_equal(x, y)


def strided_kernel(X, Y, x_row, x_column, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(Y + rows * N + columns, tl.load(X + rows * x_row + columns * x_column))


@pytest.mark.parametrize("view", ["plain", "transposed", "slice", "every second"])
def test_views_are_read_through_their_strides(view):
    base = torch.arange(400.0).view(20, 20)
    x = {
        "plain": base[:4, :4],
        "transposed": base.T[3:7, 5:9],
        "slice": base[2:6, 7:11],
        "every second": base[:8:2, 1:9:2],
    }[view]
    y = torch.full((4, 4), NAN)
    triton_numpy.run(strided_kernel, (1,), x, y, *x.stride(), N=4)
    assert torch.equal(x, y)


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_place_outside_the_tensor_is_an_error_even_inside_its_memory(what):
    def kernel(X, Y, BLOCK: tl.constexpr):
        place = tl.arange(0, BLOCK)
        tl.store(Y + place, tl.load(X + place))

    memory = torch.zeros(16)
    short, long = memory[4:9], torch.zeros(8)
    x, y = (short, long) if what == "read" else (long, short)
    with pytest.raises(IndexError, match=r"3 places lie outside.*element 5 of one with 5.*mask="):
        triton_numpy.run(kernel, (1,), x, y, BLOCK=8)
    assert (memory == 0).all()


def test_before_the_tensor_is_outside_too():
    def kernel(X):
        tl.load(X - 1)

    with pytest.raises(IndexError, match="element -1"):
        triton_numpy.run(kernel, (1,), torch.zeros(9)[3:])


def test_what_a_mask_left_out_is_nan_unless_other_says_what():
    def kernel(X, Y, Z, N, BLOCK: tl.constexpr):
        place = tl.arange(0, BLOCK)
        tl.store(Y + place, tl.load(X + place, mask=place < N))
        tl.store(Z + place, tl.load(X + place, mask=place < N, other=7.0))

    y, z = torch.zeros(4), torch.zeros(4)
    triton_numpy.run(kernel, (1,), torch.ones(2), y, z, 2, BLOCK=4)
    assert y[:2].tolist() == [1, 1] and y[2:].isnan().all()
    assert z.tolist() == [1, 1, 7, 7]


def test_adding_to_the_same_place_twice_adds_twice():
    def kernel(X, Y, BLOCK: tl.constexpr):
        tl.atomic_add(Y + tl.arange(0, BLOCK) % 2, tl.load(X + tl.arange(0, BLOCK)))

    y = torch.zeros(2)
    triton_numpy.run(kernel, (1,), torch.arange(8.0), y, BLOCK=8)
    assert y.tolist() == [12, 16]


# ------------------------------------------------------------------------------ number formats


def test_bfloat16_rounds_as_pytorch_does():
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 1e-40], np.float32)
    x = np.concatenate([bits.view(np.float32), special])
    want = torch.from_numpy(x).bfloat16().float().numpy()
    with np.errstate(all="ignore"):
        got = tl.round_to_bfloat16(x)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got[~np.isnan(want)].view(np.uint32), want[~np.isnan(want)].view(np.uint32))


FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.mark.parametrize("a", FORMATS)
@pytest.mark.parametrize("b", FORMATS)
def test_sums_and_products_have_the_format_and_numbers_of_pytorch(a, b):
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(16, generator=generator).to(FORMATS[f]) for f in (a, b))
    formats = {"fp16": tl.float16, "bf16": tl.bfloat16, "fp32": tl.float32}
    ours = [tl.Tile(t.float().numpy(), tl.float32).to(formats[f]) for t, f in ((x, a), (y, b))]
    if {a, b} == {"fp16", "bf16"}:  # Triton: float16; PyTorch: float32
        x, y = x.half(), y.half()
    for operation in (lambda p, q: p + q, lambda p, q: p * q, lambda p, q: p - q):
        got, want = operation(*ours), operation(x, y)
        assert got.dtype.name == {v: k for k, v in FORMATS.items()}[want.dtype]
        assert np.array_equal(np.asarray(got, np.float32), want.float().numpy())


def test_a_plain_number_takes_the_format_of_the_tile():
    for dtype in (tl.float16, tl.bfloat16, tl.float32, tl.int32):
        tile = tl.full([4], 3, dtype)
        assert (tile * 2).dtype is dtype and (2 + tile).dtype is dtype
        assert tl.where(tile > 1, tile, 0).dtype is dtype
        assert tl.maximum(tile, 1).dtype is dtype


def test_dot_adds_up_in_float32_and_refuses_mixed_formats_and_small_tiles():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*s, generator=generator).bfloat16() for s in ((16, 64), (64, 32)))
    tiles = [tl.Tile(t.float().numpy(), tl.bfloat16) for t in (a, b)]
    got = tl.dot(*tiles)
    assert got.dtype is tl.float32
    assert np.allclose(got, a.double() @ b.double(), atol=1e-4)
    assert np.allclose(tl.dot(*tiles, tl.full([16, 32], 2, tl.float32)), a.double() @ b.double() + 2, atol=1e-4)
    with pytest.raises(TypeError, match="got bf16 and fp32"):
        tl.dot(tiles[0], tiles[1].to(tl.float32))
    with pytest.raises(ValueError, match="16 or more"):
        tl.dot(tl.zeros([8, 16], tl.float32), tl.zeros([16, 16], tl.float32))


def test_arange_wants_a_power_of_two():
    assert np.asarray(tl.arange(3, 7)).tolist() == [3, 4, 5, 6]
    for end in (0, 3, 12):
        with pytest.raises(ValueError, match="powers of two"):
            tl.arange(0, end)


def test_reductions_run_along_the_axis():
    x = tl.Tile(np.arange(6.0, dtype=np.float32).reshape(2, 3), tl.float32)
    assert np.asarray(tl.sum(x, 1)).tolist() == [3, 12] and np.asarray(tl.max(x, 0)).tolist() == [3, 4, 5]
    assert np.asarray(tl.min(x, 1)).tolist() == [0, 3] and np.asarray(tl.trans(x)).shape == (3, 2)


# ------------------------------------------------------------------------------ Triton's rules, where NumPy has others


RULES = {  # what a kernel writes -> the format that Triton gives it (semantic.py, computation_type_impl)
    "i + 1": "int32", "i * 0.5": "fp32", "0.5 * i": "fp32", "i / 2": "fp32", "i / i": "fp32", "i // 2": "int32",
    "h * 0.5": "fp16", "h * 2": "fp16", "h * i": "fp16", "h / 2": "fp32", "h * x": "fp32", "h * scale": "fp32",
    "b * 0.5": "bf16", "b * b": "bf16", "b * i": "fp32", "b / b": "fp32", "b * h": "fp16",
    "x * i": "fp32", "x * 0.5": "fp32", "i < 0.5": "int1", "(i < 2) & (h > 0)": "int1", "i < 2": "int1",
    "(i < 2) & True": "int1",
    "tl.where(i < 2, h, 0.0)": "fp16", "tl.where(i < 2, h, x)": "fp32", "tl.maximum(h, 0)": "fp16",
    "tl.max(h, 0)": "fp32", "tl.sum(h, 0)": "fp16", "tl.sum(b, 0)": "bf16", "tl.sum(i < 2, 0)": "int32",
}  # fmt: skip


def rule_operands():
    """The tiles that the rules name; scale is a number that came as an argument."""
    numbers = np.array([1, 2, 3, 4])
    return {"i": tl.cast(tl.arange(1, 5), tl.int32), "scale": tl.cast(0.5, tl.float32)} | {
        name: tl.Tile(numbers.astype(np.float32), tl.float32).to(dtype)
        for name, dtype in (("h", tl.float16), ("b", tl.bfloat16), ("x", tl.float32))
    }


@pytest.mark.parametrize("rule", RULES)
def test_formats_meet_as_in_triton(rule):
    assert eval(rule, {"tl": tl}, rule_operands()).dtype.name == RULES[rule]


def test_the_rules_are_those_of_the_installed_triton():
    """Asked of Triton itself: which format would its compiler give?"""
    triton = pytest.importorskip("triton", reason="Triton is not installed (pip install triton, on Linux)")
    semantic = importlib.import_module("triton.language.semantic").TritonSemantic
    names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
    names |= {name: name for name in ("int1", "int8", "int32", "int64")}
    ours = {name: getattr(tl, names[name]) for name in names}
    theirs = {name: getattr(triton.language, names[name]) for name in names}
    asker = semantic(None)
    for a in names:
        for b in names:
            for a_weak, b_weak in ((False, False), (True, False), (False, True)):
                for divide in (False, True):
                    if divide and "int1" in (a, b):
                        continue  # Triton refuses most of these
                    want = asker.computation_type_impl(theirs[a], a_weak, theirs[b], b_weak, divide)
                    got = tl._meeting(ours[a], ours[b], a_weak, b_weak, divide)
                    assert got.name == want.name, (a, b, a_weak, b_weak, divide)


def test_whole_numbers_are_divided_towards_zero():
    i = tl.arange(0, 8) - 4  # -4 ... 3
    assert np.asarray(i // 3).tolist() == [-1, -1, 0, 0, 0, 0, 0, 1]
    assert np.asarray(i % 3).tolist() == [-1, 0, -2, -1, 0, 1, 2, 0]
    assert np.asarray(7 // (i + 8)).tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert float(tl.cast(7, tl.int32) / 2) == 3.5
    with pytest.raises(TypeError, match="whole numbers"):
        tl.cast(7.0, tl.float32) // 2


def test_the_larger_of_a_number_and_nan_is_the_number():
    x, y = tl.full([2], NAN, tl.float32), tl.full([2], 3, tl.float32)
    for found in (tl.maximum(x, y), tl.minimum(y, x), tl.max(tl.where(tl.arange(0, 2) < 1, x, y), 0)):
        assert (np.asarray(found) == 3).all()


def test_adding_in_place_leaves_the_old_tile_alone():
    m = tl.zeros([4], tl.float32)
    before = m
    m += 1
    assert np.asarray(before).tolist() == [0] * 4 and np.asarray(m).tolist() == [1] * 4


REFUSED = {
    "tl.exp(h)": (TypeError, "float32 or float64, got fp16"),
    "tl.exp(i)": (TypeError, "got int32"),
    "x[2]": (TypeError, "no single elements"),
    "x[1:3]": (TypeError, "no single elements"),
    "1 if x > 2 else 0": (ValueError, "tl.where"),
    "tl.zeros([3], tl.float32)": (ValueError, "powers of two"),
    "x + [1, 2, 3, 4]": (TypeError, "got list"),
    "tl.dot(x, x)": (ValueError, r"expected \(m, k\) and \(k, n\)"),
    "tl.dot(tl.zeros([16, 32], tl.float32), tl.zeros([16, 32], tl.float32))": (ValueError, "tl.trans"),
    "tl.make_block_ptr": (AttributeError, "the stand-in has no such word"),
    "np.exp(x)": (TypeError, "ufunc"),
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_a_gpu_cannot_do_is_refused(code):
    error, words = REFUSED[code]
    with pytest.raises(error, match=words):
        eval(code, {"tl": tl, "np": np}, rule_operands())
