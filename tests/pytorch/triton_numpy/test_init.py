"""The stand-in for Triton runs kernels: arguments, grids, one program alone, what is refused."""

import functools
import os
import subprocess
import sys

import pytest

from mha_lesson.course.paths import ROOT

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import triton_numpy  # noqa: E402
from mha_lesson.pytorch.triton_numpy import language as tl  # noqa: E402
from tests.pytorch.triton_numpy.helpers import copy_kernel  # noqa: E402

NAN = float("nan")


# ------------------------------------------------------------------------------ programs


def test_numbers_that_are_arguments_have_a_format_and_numbers_in_the_source_have_none():
    def kernel(X, scale, N, BLOCK: tl.constexpr):
        x = tl.load(X + tl.arange(0, BLOCK))
        assert (x * scale).dtype is tl.float32 and (x * 0.5).dtype is tl.float16
        assert (N * 2).dtype is tl.int32 and isinstance(BLOCK, int)
        for i in range(0, N, BLOCK):  # computed, too
            assert i.dtype is tl.int32

    triton_numpy.run(kernel, (1,), torch.ones(4, dtype=torch.float16), 0.5, 8, BLOCK=4)


def test_a_program_that_the_grid_does_not_have():
    with pytest.raises(ValueError, match=r"only: expected the number of a program of the grid \(3,\), got \(3,\)"):
        triton_numpy.run(copy_kernel, (3,), torch.ones(9), torch.ones(9), 9, BLOCK=4, only=3)


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_complex_numbers_are_refused(shape):
    with pytest.raises(TypeError, match=r"X: expected real numbers, got torch\.complex64"):
        triton_numpy.run(copy_kernel, (1,), torch.ones(shape, dtype=torch.complex64), torch.ones(4), 4, BLOCK=4)


TRITONS = """
import torch, triton, triton.language as tl
from mha_lesson.pytorch import triton_numpy

SHIFT = tl.constexpr(3)

@triton.jit
def add(x, y):
    return x + y

def inside(place, N):  # no @triton.jit: a GPU would refuse it, here it is a function like any other
    return tl.where(place < N, True, False) if N > 0 else inside(place, -N)

@triton.jit
def kernel(X, Y, N, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + place, mask=inside(place, N), other=0.0)
    for _ in range(tl.cdiv(N, BLOCK)):
        x = add(x, SHIFT)
    tl.store(Y + place, x, mask=place < N)

x, y = torch.arange(10.0), torch.full((10,), float("nan"))
triton_numpy.run(kernel, (triton.cdiv(10, 4),), x, y, 10, BLOCK=4, num_warps=2)
assert torch.equal(y, x + 9), y
print("all right")
"""


def test_a_kernel_made_for_real_triton_runs_here(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed (pip install triton, on Linux)")
    (tmp_path / "code.py").write_text(TRITONS, encoding="utf-8")
    variables = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, tmp_path / "code.py"], env=variables, capture_output=True, text=True)
    assert done.stdout == "all right\n", done.stderr


def test_every_program_of_the_grid_runs_once_and_knows_its_number():
    def kernel(Y):
        a, b, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        place = (a * tl.num_programs(1) + b) * tl.num_programs(2) + c
        tl.store(Y + place, tl.load(Y + place) + 1 + place)

    y = torch.zeros(2, 3, 5)
    triton_numpy.run(kernel, (2, 3, 5), y)
    assert torch.equal(y.flatten(), torch.arange(1.0, 31))


def test_one_program_alone():
    x, y = torch.arange(12.0), torch.full((12,), NAN)
    triton_numpy.run(copy_kernel, (3,), x, y, 12, BLOCK=4, only=1)
    assert y[4:8].tolist() == [4, 5, 6, 7] and y[:4].isnan().all() and y[8:].isnan().all()


def test_jit_grids_and_kernels_that_call_kernels():
    @triton_numpy.jit
    def twice(x):
        return x + x

    @triton_numpy.jit
    def kernel(X, N: tl.constexpr):
        place = tl.arange(0, N)
        tl.store(X + place, twice(tl.load(X + place)))

    x = torch.arange(4.0)
    kernel[lambda meta: (meta["N"] // 4,)](x, N=4, num_warps=8)
    assert x.tolist() == [0, 2, 4, 6]
    assert [triton_numpy.cdiv(7, 3), triton_numpy.next_power_of_2(5), triton_numpy.next_power_of_2(16)] == [3, 8, 16]


def test_print_in_a_kernel_shows_numbers(capsys):
    def kernel(X, N: tl.constexpr):
        print(tl.load(X + tl.arange(0, N)))

    triton_numpy.run(kernel, (1,), torch.tensor([1.5, 2.0]), N=2)
    assert capsys.readouterr().out == "[1.5 2. ]\n"


def test_a_pointer_is_wanted():
    def kernel(X):
        tl.load(X)

    with pytest.raises(TypeError, match="expected a pointer"):
        triton_numpy.run(kernel, (1,), 3.0)


def test_a_kernel_may_take_any_number_of_arguments():
    def kernel(*arguments):
        copy_kernel(*arguments)

    x, y = torch.arange(5.0), torch.full((5,), NAN)
    triton_numpy.run(kernel, (2,), x, y, 5, 4)
    assert torch.equal(x, y)


def test_a_function_wrapped_around_a_kernel_is_left_out():
    """What comes in as keyword or by place has its format, which a function (*args, **kwargs) does not tell."""

    def around(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            raise AssertionError("this one is no kernel")

        return wrapped

    x = torch.arange(10.0)
    for kernel in (around(copy_kernel), around(around(copy_kernel)), triton_numpy.jit(around(copy_kernel))):
        for arguments, more in (((10, 4), {}), ((10,), {"BLOCK": 4})):
            y = torch.full((10,), NAN)
            triton_numpy.run(kernel, (3,), x, y, *arguments, **more)
            assert torch.equal(y, x)
            y = torch.full((10,), NAN)
            triton_numpy.run(around(triton_numpy.jit(kernel)), (3,), x, y, *arguments, **more)
            assert torch.equal(y, x)
