"""What stands in for `triton.language`: the words of a kernel, in NumPy.

A tile is a NumPy array with a number format. It follows Triton's rules, not NumPy's, where they
differ and a kernel would notice:

    int32 tile · 0.5            float32 (NumPy: float64)
    float16 tile · 0.5          float16: a number written in the source takes the tile's format
    float16 tile · scale        float32 if `scale` came as an argument: that is a float32 of its own
    -7 // 2, -7 % 2             -3 and -1, cut off towards zero (NumPy: -4 and 1)
    maximum(x, NaN)             x (NumPy: NaN)
    m += 1                      a new tile; another name for the old one keeps the old numbers
    exp(a float16 tile)         an error, as on a GPU: .to(tl.float32) first
    tile[3]                     an error: the numbers of a tile are spread over many threads

    Tile         .numbers: an array of any shape, () for a single number; .dtype: its format
    Pointer      places in the memory of one tensor
    load, store  read and write there: inside the tensor, or an IndexError

Where a GPU would go on with rubbish, this stops or shows NaN: at a place outside the tensor, and
at what a mask left out of a `load` that has no `other`.

Source: the reference of triton.language, and Triton's `semantic.py` for the rules above; Tillet et
al. 2019, "Triton".
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import builtins
from functools import cache

import numpy as np

# ------------------------------------------------------------------------------ number formats


class DType:
    """A number format: how Triton calls it, and the NumPy format that holds its values."""

    def __init__(self, name: str, held: str):
        self.name, self.held = name, np.dtype(held)

    def __repr__(self) -> str:
        return self.name

    def is_floating(self) -> bool:
        return self.held.kind == "f"

    def is_int(self) -> bool:
        return not self.is_floating()


float64, float32, float16 = DType("fp64", "f8"), DType("fp32", "f4"), DType("fp16", "f2")
bfloat16 = DType("bf16", "f4")  # NumPy has none: held as float32, rounded to what bfloat16 can say
int64, int32, int16, int8 = (DType(f"int{8 * n}", f"i{n}") for n in (8, 4, 2, 1))
uint64, uint32, uint16, uint8 = (DType(f"uint{8 * n}", f"u{n}") for n in (8, 4, 2, 1))
int1 = DType("int1", "?")
HALF = (float16, bfloat16)
_FORMATS = {
    d.held: d
    for d in (float64, float32, float16, int64, int32, int16, int8, uint64, uint32, uint16, uint8, int1)
}  # fmt: skip


def round_to_bfloat16(x) -> np.ndarray:
    """float32 numbers that bfloat16 has: the nearest one, the even one of two. NaN and inf stay."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def constexpr(value):
    """A number that is known when a kernel is compiled. Here all numbers are known."""
    return value


def _format_of_number(x) -> DType:
    """The format of a number written in the source."""
    if isinstance(x, bool):
        return int1
    if isinstance(x, int):
        return int32 if -(2**31) <= x < 2**31 else int64
    if isinstance(x, float):
        return float32
    raise TypeError(f"expected a tile or a number, got {type(x).__name__}. A kernel has nothing else to compute with.")


_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2}  # NumPy's letters; a number gives way to its own kind and to later ones


@cache
def _meeting(a: DType, b: DType, a_weak: bool, b_weak: bool, divide: bool) -> DType:
    """The format in which two meet. Weak: a number written in the source, which gives way to a tile."""
    if a_weak != b_weak:
        number, tile = (a, b) if a_weak else (b, a)
        if _KINDS[number.held.kind] <= _KINDS[tile.held.kind]:
            a = b = tile
    if float64 in (a, b):
        return float64
    if divide and (a.is_floating() or b.is_floating()):
        return float32
    if float32 in (a, b):
        return float32
    if float16 in (a, b):
        return float16
    if bfloat16 in (a, b):
        return bfloat16 if a is b else float32
    return _FORMATS[np.promote_types(a.held, b.held)] if a is not b else a


def _meet(x, y, divide: bool = False) -> tuple:
    """(numbers of x, numbers of y, format), both in the format in which they meet."""
    is_x, is_y = isinstance(x, Tile), isinstance(y, Tile)
    a, b = x.dtype if is_x else _format_of_number(x), y.dtype if is_y else _format_of_number(y)
    dtype = _meeting(a, b, not is_x, not is_y, divide)
    x = x.to(dtype).numbers if is_x else dtype.held.type(x)
    y = y.to(dtype).numbers if is_y else dtype.held.type(y)
    return x, y, dtype


# ------------------------------------------------------------------------------ tiles


def _operator(ufunc, divide: bool = False, answers: DType | None = None, turned: bool = False):
    """A method such as __add__. answers: int1 for comparisons. turned: the tile stands on the right."""

    def method(self, other):
        if isinstance(other, Tile) and other.dtype is self.dtype and not divide:  # as most are; turned is for numbers
            return _tile(ufunc(self.numbers, other.numbers), answers or self.dtype)
        if isinstance(other, Pointer):
            return NotImplemented
        x, y, dtype = _meet(other, self, divide) if turned else _meet(self, other, divide)
        return _tile(ufunc(x, y), answers or dtype)

    return method


def _both(ufunc):
    """(the operator, the same with the tile on the right)"""
    return _operator(ufunc), _operator(ufunc, turned=True)


def _cut_division(x, y):
    """x // y for whole numbers, cut off towards zero as in C: -7 // 2 is -3."""
    return ((x - np.fmod(x, y)) // y).astype(x.dtype)


class Tile:
    """Numbers of one format. Every operation makes a new tile."""

    __slots__ = ("dtype", "numbers")
    __array_ufunc__ = None  # NumPy's own functions are not part of a kernel

    def __init__(self, numbers, dtype: DType):
        self.numbers, self.dtype = numbers, dtype

    __add__, __radd__ = _both(np.add)
    __sub__, __rsub__ = _both(np.subtract)
    __mul__, __rmul__ = _both(np.multiply)
    __and__, __rand__ = _both(np.bitwise_and)
    __or__, __ror__ = _both(np.bitwise_or)
    __xor__, __rxor__ = _both(np.bitwise_xor)
    __lshift__, __rlshift__ = _both(np.left_shift)
    __rshift__, __rrshift__ = _both(np.right_shift)
    __mod__, __rmod__ = _operator(np.fmod, divide=True), _operator(np.fmod, divide=True, turned=True)
    __lt__, __le__ = _operator(np.less, answers=int1), _operator(np.less_equal, answers=int1)
    __gt__, __ge__ = _operator(np.greater, answers=int1), _operator(np.greater_equal, answers=int1)
    __eq__, __ne__ = _operator(np.equal, answers=int1), _operator(np.not_equal, answers=int1)
    __hash__ = None

    def __floordiv__(self, other):
        x, y, dtype = _meet(self, other, divide=True)
        if dtype.is_floating():
            raise TypeError(f"//: expected whole numbers, got {dtype}. Triton has // for these alone.")
        return _tile(_cut_division(x, y), dtype)

    def __rfloordiv__(self, other):
        return cast(other, _format_of_number(other)) // self

    def __truediv__(self, other):
        x, y, dtype = _meet(self, other, divide=True)
        if dtype.is_int():  # 7 / 2 is 3.5
            dtype = float32
            x, y = x.astype(np.float32), y.astype(np.float32)
        return _tile(np.true_divide(x, y), dtype)

    def __rtruediv__(self, other):
        return cast(other, _format_of_number(other)) / self

    def __matmul__(self, other):
        raise TypeError("@: a kernel has no such operator. Use tl.dot(a, b).")

    def __neg__(self):
        return Tile(-self.numbers, self.dtype)

    def __invert__(self):
        return Tile(~self.numbers, self.dtype)

    def __getitem__(self, index) -> "Tile":
        """[:, None] and [None, :]: one more axis."""
        steps = index if isinstance(index, tuple) else (index,)
        if not all(step is None or step == slice(None) for step in steps):
            raise TypeError(
                "tile[...]: a tile has no single elements in a kernel; only : and None may stand there, as in "
                "[:, None]. Use load with the places you want, or tl.sum(tl.where(chosen, tile, 0), 0)."
            )
        return Tile(self.numbers[index], self.dtype)

    def __bool__(self) -> bool:
        if np.size(self.numbers) != 1:
            raise ValueError(
                f"if, max, min, and, or, not: expected one number, got a tile of {self.shape}. Use tl.where(condition, "
                f"a, b), tl.maximum, tl.minimum, &, |, ~."
            )
        return bool(self.numbers)

    def __index__(self) -> int:  # a loop may run to a number that was computed
        return int(self.numbers)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.numbers)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.numbers, dtype)

    def __repr__(self) -> str:  # what print in a kernel shows
        return str(self.numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.numbers)

    @property
    def T(self) -> "Tile":
        return trans(self)

    def to(self, dtype: DType) -> "Tile":
        """The same numbers in another format, rounded to what it has."""
        if dtype is self.dtype:
            return self
        return _tile(self.numbers.astype(dtype.held), dtype)


def _tile(numbers, dtype: DType) -> Tile:
    """A tile of what was just computed."""
    return Tile(round_to_bfloat16(numbers) if dtype is bfloat16 else numbers, dtype)


# ------------------------------------------------------------------------------ programs

_program = (0, 0, 0)
_programs = (1, 1, 1)


def start_program(program: tuple[int, ...], grid: tuple[int, ...]) -> None:
    """From here on a kernel is this program of the grid. `run` says so; it is no word for kernels."""
    global _program, _programs
    _program, _programs = (*program, 0, 0)[:3], (*grid, 1, 1)[:3]


def program_id(axis: int) -> Tile:
    """The number of this program along one axis of the grid."""
    return Tile(np.int32(_program[axis]), int32)


def num_programs(axis: int) -> Tile:
    return Tile(np.int32(_programs[axis]), int32)


# ------------------------------------------------------------------------------ memory


class Memory:
    """The flat memory behind one tensor or array, and which of it belongs to the tensor."""

    def __init__(self, numbers: np.ndarray, first: int, last: int, element_ty: DType):
        self.numbers, self.first, self.last, self.element_ty = numbers, first, last, element_ty

    def read(self, at) -> Tile:
        numbers = self.numbers[at]
        if self.element_ty is bfloat16:  # stored as the upper half of a float32
            numbers = (numbers.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return Tile(numbers, self.element_ty)

    def write(self, at, tile: Tile) -> None:
        numbers = tile.to(self.element_ty).numbers
        if self.element_ty is bfloat16:
            numbers = (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        self.numbers[at] = numbers


class Pointer:
    """Places in one memory. Whole numbers move it on: pointer + tile points at many places."""

    __slots__ = ("at", "memory")

    def __init__(self, memory: Memory, at):
        self.memory, self.at = memory, at

    def __add__(self, steps) -> "Pointer":
        return Pointer(self.memory, self.at + self._whole(steps))

    __radd__ = __add__

    def __sub__(self, steps) -> "Pointer":
        return Pointer(self.memory, self.at - self._whole(steps))

    def _whole(self, steps):
        steps = steps if isinstance(steps, Tile) else cast(steps, _format_of_number(steps))
        if steps.dtype.is_floating():
            raise TypeError(f"pointer + steps: expected whole numbers, got {steps.dtype}.")
        return steps.numbers

    def __getitem__(self, index) -> "Pointer":
        return Pointer(self.memory, Tile(self.at, int64)[index].numbers)

    def __repr__(self) -> str:
        return f"pointer to {self.element_ty}, element {self.at - self.memory.first}"

    @property
    def dtype(self) -> "Pointer":
        return self

    @property
    def element_ty(self) -> DType:
        return self.memory.element_ty


def _places(pointer: Pointer, mask, what: str) -> tuple:
    """(places, mask or None if it is True everywhere); IndexError if an allowed place is not the tensor's."""
    if not isinstance(pointer, Pointer):
        raise TypeError(f"tl.{what}: expected a pointer, such as X + places, got {type(pointer).__name__}.")
    at, memory, allowed = pointer.at, pointer.memory, None
    if mask is not None:
        mask = np.asarray(mask.numbers if isinstance(mask, Tile) else mask, bool)
        if not mask.all():
            at, mask = np.broadcast_arrays(at, mask)
            allowed = mask
            if not mask.any():
                return at, allowed
            at = np.where(mask, at, memory.first)  # a hidden place is never touched
    if at.min() < memory.first or at.max() > memory.last:
        wrong = at[(at < memory.first) | (at > memory.last)]
        raise IndexError(
            f"tl.{what}: {np.unique(wrong).size} places lie outside the tensor: element "
            f"{wrong.flat[0] - memory.first} of one with {memory.last - memory.first + 1} (program {_program}). "
            f"A GPU would {'read' if what == 'load' else 'overwrite'} what lies there. Pass mask=..., False where "
            f"there is nothing."
        )
    return at, allowed


def load(pointer: Pointer, mask=None, other=None, **_) -> Tile:
    """What stands at these places; `other` where the mask is False (NaN if no `other` is given)."""
    at, mask = _places(pointer, mask, "load")
    dtype = pointer.element_ty
    if mask is None:
        return pointer.memory.read(at)
    if other is None:
        other = float("nan") if dtype.is_floating() else 0
    other = cast(other, dtype).numbers
    if not mask.any():
        return Tile(np.array(np.broadcast_to(other, at.shape)), dtype)
    return Tile(np.where(mask, pointer.memory.read(at).numbers, other), dtype)


def store(pointer: Pointer, value, mask=None, **_) -> None:
    """Writes a tile there, rounded to the tensor's format. Where the mask is False nothing happens."""
    at, mask = _places(pointer, mask, "store")
    value = value if isinstance(value, Tile) else cast(value, _format_of_number(value))
    if mask is None:
        return pointer.memory.write(at, value)
    numbers = np.broadcast_to(value.numbers, at.shape)
    pointer.memory.write(at[mask], Tile(numbers[mask], value.dtype))


def atomic_add(pointer: Pointer, value, mask=None, **_) -> Tile:
    """Adds a tile to what stands there. Programs run one after the other here: nobody gets in between."""
    at, mask = _places(pointer, mask, "atomic_add")
    at = np.asarray(at)
    mask = np.ones(at.shape, bool) if mask is None else mask
    before = load(pointer, Tile(mask, int1), 0)
    numbers = np.broadcast_to(cast(value, pointer.element_ty).numbers, at.shape)
    for place, number in zip(at[mask], numbers[mask], strict=True):  # the same place may come twice
        pointer.memory.write(place, pointer.memory.read(place) + Tile(number, pointer.element_ty))
    return before


# ------------------------------------------------------------------------------ making tiles


def _wanted(x, what: str) -> Tile:
    """x, if it is a tile."""
    if not isinstance(x, Tile):
        raise TypeError(
            f"tl.{what}: expected a tile, got {type(x).__name__}. What NumPy or torch makes is none: use the words of "
            f"tl."
        )
    return x


def _sides(shape, what: str) -> tuple[int, ...]:
    shape = tuple(map(int, shape))
    for n in shape:
        if n < 1 or n & (n - 1):
            raise ValueError(
                f"tl.{what}: expected sides that are powers of two, as a GPU's threads share them, got {n}. "
                f"Take the next one, and mask what is too much."
            )
    return shape


def arange(start: int, end: int) -> Tile:
    """start, start + 1, ... end - 1; a power of two many."""
    _sides([int(end) - int(start)], f"arange({start}, {end})")
    return Tile(np.arange(int(start), int(end), dtype=np.int32), int32)


def full(shape, value, dtype: DType) -> Tile:
    return cast(Tile(np.full(_sides(shape, "full"), value), float64), dtype)


def zeros(shape, dtype: DType) -> Tile:
    return Tile(np.zeros(_sides(shape, "zeros"), dtype.held), dtype)


def cast(x, dtype: DType) -> Tile:
    """x, a tile or a number, in this format."""
    return x.to(dtype) if isinstance(x, Tile) else _tile(dtype.held.type(x), dtype)


def broadcast_to(x, shape) -> Tile:
    return Tile(np.array(np.broadcast_to(x.numbers, _sides(shape, "broadcast_to"))), x.dtype)


def expand_dims(x, axis: int) -> Tile:
    return Tile(np.expand_dims(x.numbers, axis), x.dtype)


def reshape(x, *shape) -> Tile:
    shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return Tile(np.reshape(x.numbers, _sides(shape, "reshape")), x.dtype)


def trans(x, *axes) -> Tile:
    """Rows become columns; with axes, those in this order."""
    return Tile(np.transpose(_wanted(x, "trans").numbers, axes or None), x.dtype)


# ------------------------------------------------------------------------------ arithmetic


def dot(a, b, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=float32) -> Tile:
    """The matrix product a b (+ acc), added up in float32. Sides of 16 at least, both of one format.

    input_precision: GPUs may round float32 to "tf32", 11 digits of 24, before they multiply. Not here.
    """
    a, b = _wanted(a, "dot"), _wanted(b, "dot")
    if a.dtype is not b.dtype:
        raise TypeError(f"tl.dot: expected two tiles of one format, got {a.dtype} and {b.dtype}. Cast one: .to(...).")
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"tl.dot: expected (m, k) and (k, n), got {a.shape} and {b.shape}. Perhaps tl.trans of one?")
    if builtins.min(a.shape[-2:] + b.shape[-2:]) < 16:
        raise ValueError(f"tl.dot: expected sides of 16 or more, as the hardware has, got {a.shape} and {b.shape}.")
    if input_precision not in (None, "ieee", "tf32", "tf32x3"):
        raise ValueError(f"tl.dot: input_precision: expected 'ieee', 'tf32' or 'tf32x3', got {input_precision!r}.")
    wide = float64 if a.dtype is float64 else float32
    product = np.matmul(a.numbers.astype(wide.held, copy=False), b.numbers.astype(wide.held, copy=False))
    product = _tile(product.astype(out_dtype.held, copy=False), out_dtype) if wide is float32 else Tile(product, wide)
    if acc is None:
        return product
    if acc.shape != product.shape or acc.dtype is not product.dtype:
        raise ValueError(
            f"tl.dot: expected acc {product.shape} in {product.dtype} to add to, got {acc.shape} in {acc.dtype}."
        )
    return acc + product


def where(condition, x, y) -> Tile:
    """x where the condition holds, y elsewhere, in the format in which x and y meet."""
    x, y, dtype = _meet(x, y)
    return Tile(np.where(condition.numbers if isinstance(condition, Tile) else condition, x, y), dtype)


def maximum(x, y, **_) -> Tile:
    """The larger one of two; of a number and NaN the number."""
    x, y, dtype = _meet(x, y)
    return Tile(np.fmax(x, y), dtype)


def minimum(x, y, **_) -> Tile:
    """The smaller one of two; of a number and NaN the number."""
    x, y, dtype = _meet(x, y)
    return Tile(np.fmin(x, y), dtype)


def _elementwise(name: str, ufunc):
    def function(x):
        x = x if isinstance(x, Tile) else cast(x, float32)
        if x.dtype not in (float32, float64):
            raise TypeError(f"tl.{name}: expected float32 or float64, got {x.dtype}. Cast it: .to(tl.float32).")
        return Tile(ufunc(x.numbers), x.dtype)

    function.__name__ = name
    function.__doc__ = f"{name} of each number; for float32 and float64, as on a GPU."
    return function


exp, exp2 = _elementwise("exp", np.exp), _elementwise("exp2", np.exp2)
log, log2 = _elementwise("log", np.log), _elementwise("log2", np.log2)
sqrt, cos, sin = _elementwise("sqrt", np.sqrt), _elementwise("cos", np.cos), _elementwise("sin", np.sin)


def abs(x) -> Tile:
    return Tile(np.abs(x.numbers), x.dtype)


def _reduction(name: str, ufunc, widen: bool):
    """max, min, sum along an axis. widen: half formats come out as float32 (sum keeps them)."""

    def function(x, axis=None, keep_dims=False):
        x = _wanted(x, name)
        small = x.dtype in HALF or x.dtype.held.itemsize < 4
        wide = x.to(float32 if x.dtype.is_floating() else int32) if small else x
        numbers = ufunc.reduce(wide.numbers, axis=axis, keepdims=keep_dims, dtype=wide.dtype.held)
        result = Tile(numbers, wide.dtype)
        return result if widen or x.dtype not in HALF else result.to(x.dtype)

    function.__name__ = name
    return function


max, min = _reduction("max", np.fmax, True), _reduction("min", np.fmin, True)
sum = _reduction("sum", np.add, False)


def cdiv(x, y):
    """x / y, rounded up."""
    return (x + y - 1) // y


for _name in ("abs", "exp", "exp2", "log", "log2", "max", "min", "reshape", "sqrt", "sum", "trans"):
    setattr(Tile, _name, globals()[_name])  # x.max(1) is tl.max(x, 1)


# ------------------------------------------------------------------------------ loops, and advice to the compiler


def static_range(*args):
    """A loop that the compiler writes out; its numbers are known then."""
    return builtins.range(*map(int, args))


def range(*args, **_):
    """The loop of a kernel. Its number is computed on the GPU: an int32, not a number of the source."""
    for i in builtins.range(*map(int, args)):
        yield Tile(np.int32(i), int32)


def multiple_of(x, _):
    return x


def max_contiguous(x, _):
    return x


def assume(_):
    return None


def static_assert(condition, message=""):
    assert condition, message


def device_assert(condition, message=""):
    assert np.all(condition.numbers if isinstance(condition, Tile) else condition), message


def device_print(prefix, *tiles):
    print(prefix, *tiles)


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"tl.{name}: the stand-in has no such word. It knows what the kernels of this course need.")
