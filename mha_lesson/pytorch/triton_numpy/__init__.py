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

# Quoted word for word by tests/faults/faults.py: change both together.

import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable
from numbers import Integral

import numpy as np
import torch

from mha_lesson.pytorch.triton_numpy import language

__version__ = "stand-in"
ADVICE = {"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion"}


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
        return bind(self)(*args, **kwargs)


def jit(fn: Callable | None = None, **_):
    """Marks a function as a kernel. What real Triton's jit takes beside it is advice to its compiler."""
    return Kernel(fn) if fn is not None else Kernel


def run(kernel: Callable, grid, *args, only=None, **kwargs) -> None:
    """Run a kernel's programs one after the other; tensors and arrays are passed as pointers.

    grid: how many programs along each axis, or a function of the keyword arguments that says so.
    only: the number of one program, for example 2 or (2, 0), to run alone.
    What the compiler of a GPU is told beside (num_warps, num_stages, ...) is ignored.
    """
    function = bind(kernel)
    signature = inspect.signature(function)
    parameters = signature.parameters
    given = {name: x for name, x in kwargs.items() if name in parameters or name not in ADVICE}
    given = signature.bind(*args, **given)
    given.apply_defaults()
    grid = grid(dict(given.arguments)) if callable(grid) else grid
    programs = itertools.product(*(range(n) for n in _whole_numbers(grid)))
    if only is not None:
        programs = [_one_of(_whole_numbers(only), _whole_numbers(grid))]
    for name, parameter in parameters.items():
        if "constexpr" not in str(getattr(parameter.annotation, "__name__", parameter.annotation)):
            x = given.arguments[name]
            several = parameter.kind is parameter.VAR_POSITIONAL  # def kernel(*arguments)
            given.arguments[name] = tuple(_as_argument(name, y) for y in x) if several else _as_argument(name, x)
    args, kwargs = given.args, given.kwargs
    with np.errstate(all="ignore"):  # inf - inf is NaN, as on a GPU
        for program in programs:
            language.start_program(program, _whole_numbers(grid))
            function(*args, **kwargs)


def _whole_numbers(x) -> tuple[int, ...]:
    return (int(x),) if isinstance(x, Integral) else tuple(map(int, x))


def _one_of(program: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, ...]:
    program += (0,) * (len(grid) - len(program))
    if len(program) != len(grid) or not all(0 <= i < n for i, n in zip(program, grid, strict=True)):
        raise ValueError(f"only: expected the number of a program of the grid {grid}, got {program}.")
    return program


def bind(kernel: Callable, done: dict | None = None) -> types.FunctionType:
    """The kernel's plain function, with the stand-in where its source says triton and tl.

    Where functools.wraps put another function around it, the one within counts: real Triton, too,
    reads the source of that one.
    done: functions that are bound already, since a kernel may call others, and they each other.
    """
    function = inspect.unwrap(kernel)
    while not isinstance(function, types.FunctionType):
        function = inspect.unwrap(function.fn)
    done = {} if done is None else done
    if function in done:
        return done[function]
    names, cells = {**function.__globals__}, tuple(types.CellType() for _ in function.__closure__ or ())
    bound = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells or None)
    bound.__kwdefaults__ = function.__kwdefaults__
    bound.__annotations__ = function.__annotations__
    done[function] = bound
    names |= {name: _stands_in_for(names[name], done) for name in function.__code__.co_names if name in names}
    names.setdefault("range", language.range)
    for cell, theirs in zip(cells, function.__closure__ or (), strict=True):
        cell.cell_contents = _stands_in_for(theirs.cell_contents, done)
    return bound


def _stands_in_for(value, done: dict):
    """What a kernel finds in the place of something of Triton's; everything else as it is."""
    if _is_triton(value):
        return language if value.__name__.startswith("triton.language") else sys.modules[__name__]
    if type(value).__module__.split(".")[0] == "triton" and hasattr(value, "value"):  # a constexpr
        return value.value
    if hasattr(value, "fn") and type(value).__name__ in ("JITFunction", "InterpretedFunction", "Kernel"):
        return bind(value, done)
    if isinstance(value, types.FunctionType):  # a helper without @jit, as one writes in a notebook
        words = (value.__globals__.get(name) for name in value.__code__.co_names)
        if any(_is_triton(word) or word is language for word in words):
            return bind(value, done)
    return value


def _is_triton(value) -> bool:
    return isinstance(value, types.ModuleType) and value.__name__.split(".")[0] == "triton"


def _as_argument(name: str, x):
    """A tensor or an array as a pointer to its first element; a number in the format that a GPU is given."""
    if isinstance(x, torch.Tensor):
        if x.device.type != "cpu":
            raise ValueError(f"{name}: expected a tensor on the CPU, got one on {x.device}. Pass {name}.cpu().")
        return _pointer(name, x.detach())
    if isinstance(x, np.ndarray):
        return _pointer(name, torch.from_numpy(x))
    if isinstance(x, bool | int | float):
        return language.cast(x, language._format_of_number(x))
    return x


def _pointer(name: str, x: torch.Tensor) -> language.Pointer:
    """A pointer into the flat memory that a tensor, which may be a transposed view, looks at."""
    brain = x.dtype == torch.bfloat16
    stored = x.view(torch.uint16) if brain else x
    flat = torch.as_strided(stored, (stored.untyped_storage().nbytes() // stored.element_size(),), (1,), 0).numpy()
    if flat.dtype not in language._FORMATS:
        raise TypeError(f"{name}: expected real numbers, got {x.dtype}.")
    first = x.storage_offset()
    last = first + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else first - 1
    element_ty = language.bfloat16 if brain else language._FORMATS[flat.dtype]
    return language.Pointer(language.Memory(flat, first, last, element_ty), np.int64(first))
