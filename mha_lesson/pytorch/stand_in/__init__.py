"""What stands in for Triton: kernels run in NumPy, on any system, one program after the other.

    @jit
    def kernel(X, Y, N, BLOCK: tl.constexpr): ...

    kernel[(3,)](x, y, 10, BLOCK=4)                  3 programs
    run(kernel, (3,), x, y, 10, BLOCK=4)             the same, also for a kernel made for real Triton
    run(kernel, (3,), x, y, 10, BLOCK=4, only=1)     program 1 alone: put print or breakpoint() into it

A kernel is a plain Python function here, so it can be stepped through, and a mistake stops it: a
place outside a tensor is an IndexError. It is slow beside a GPU, and far faster than Triton's own
interpreter, because a whole tile is one NumPy operation.

`language.py` holds the words of a kernel, `tl`. `run` puts them in the place of `triton.language`,
so that the source of a kernel is one and the same wherever it runs.
"""

import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable
from numbers import Integral

import numpy as np
import torch

from mha_lesson.pytorch.stand_in import language

__version__ = "stand-in"


def cdiv(x: int, y: int) -> int:
    """x / y, rounded up: how many blocks of y cover x."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


class Kernel:
    """A kernel: kernel[grid](...) starts it, and another kernel may call it as a function."""

    def __init__(self, fn: Callable):
        self.fn = fn
        functools.update_wrapper(self, fn)

    def __getitem__(self, grid) -> Callable:
        return functools.partial(run, self, grid)

    def __call__(self, *args, **kwargs):
        return _bound(self)(*args, **kwargs)


def jit(fn: Callable | None = None, **_):
    """Marks a function as a kernel. What real Triton's jit takes beside it is advice to its compiler."""
    return Kernel(fn) if fn is not None else Kernel


def run(kernel: Callable, grid, *args, only=None, num_warps=None, num_stages=None, **kwargs) -> None:
    """Run a kernel's programs one after the other; tensors and arrays are passed as pointers.

    grid: how many programs along each axis, or a function of the keyword arguments that says so.
    only: the number of one program, for example 2 or (2, 0), to run alone.
    num_warps, num_stages: for a GPU; ignored.
    """
    function = _bound(kernel)
    grid = grid(kwargs) if callable(grid) else grid
    grid = (grid,) if isinstance(grid, Integral) else tuple(map(int, grid))
    only = None if only is None else (only,) if isinstance(only, Integral) else tuple(only)
    args = [_as_pointer(x) for x in args]
    kwargs = {name: _as_pointer(x) for name, x in kwargs.items()}
    language._programs = (*grid, 1, 1)[:3]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # inf - inf, as on a GPU
        for program in itertools.product(*(range(n) for n in grid)):
            if only is None or program == only:
                language._program = (*program, 0, 0)[:3]
                function(*args, **kwargs)


def _bound(kernel: Callable) -> Callable:
    """The kernel's plain function, with the stand-in where its source says triton and tl."""
    function = inspect.unwrap(kernel, stop=lambda f: isinstance(f, types.FunctionType) and not hasattr(f, "_own"))
    while not isinstance(function, types.FunctionType):
        function = function.fn
    function = getattr(function, "_own", function)
    names = {**function.__globals__}
    names |= {name: _stands_in_for(names[name]) for name in function.__code__.co_names if name in names}
    bound = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound


def _stands_in_for(value):
    """What a kernel finds in the place of something of Triton's; everything else as it is."""
    if isinstance(value, types.ModuleType) and value.__name__.split(".")[0] == "triton":
        return language if value.__name__.startswith("triton.language") else sys.modules[__name__]
    if type(value).__module__.split(".")[0] == "triton" and hasattr(value, "value"):  # a constexpr
        return value.value
    if hasattr(value, "fn") and type(value).__name__ in ("JITFunction", "InterpretedFunction", "Kernel"):
        return _bound(value)
    return value


def _as_pointer(x):
    """A tensor or an array as a pointer to its first element; anything else as it is."""
    if isinstance(x, torch.Tensor):
        if x.device.type != "cpu":
            raise ValueError(f"expected tensors on the CPU, got one on {x.device}: this is NumPy. Pass x.cpu().")
        return _pointer(x.detach(), language.bfloat16 if x.dtype == torch.bfloat16 else None)
    if isinstance(x, np.ndarray):
        return _pointer(torch.from_numpy(x), None)
    return x


def _pointer(x: torch.Tensor, element_ty) -> language.Pointer:
    """A pointer into the flat memory that a tensor, which may be a transposed view, looks at."""
    stored = x.view(torch.uint16) if element_ty else x
    flat = torch.as_strided(stored, (stored.untyped_storage().nbytes() // stored.element_size(),), (1,), 0).numpy()
    first = x.storage_offset()
    last = first + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else first - 1
    memory = language.Memory(flat, first, last, element_ty or language._FORMATS[flat.dtype])
    return language.Pointer(memory, np.int64(first))
