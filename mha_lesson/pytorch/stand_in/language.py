"""What stands in for `triton.language`: the words of a kernel, in NumPy.

A tile is a NumPy array with a number format. All of NumPy's arithmetic works on it, and follows
Triton's rules where kernels meet them: a plain Python number takes the format of the tile beside
it, half formats stay half until they meet float32, and `dot` adds up in float32.

    Tile         an array (any shape) that may be bfloat16, which NumPy does not have
    Pointer      places in the memory of one tensor
    load, store  read and write there: inside the tensor, or an IndexError

Where a GPU would go on with rubbish, this stops or shows NaN: at a place outside the tensor, and
at what a mask left out of a `load` that has no `other`.

Source: the reference of triton.language; Tillet et al. 2019.
"""

import builtins

import numpy as np

# ------------------------------------------------------------------------------ number formats


class DType:
    """A number format: how Triton calls it, and the NumPy format that holds its values."""

    def __init__(self, name: str, held):
        self.name, self.held = name, np.dtype(held)

    def __repr__(self) -> str:
        return self.name

    @property
    def is_floating(self) -> bool:
        return self.held.kind == "f"


float64, float32, float16 = DType("fp64", "f8"), DType("fp32", "f4"), DType("fp16", "f2")
bfloat16 = DType("bf16", "f4")  # held as float32 that is rounded to what bfloat16 can say
int64, int32, int16, int8 = (DType(f"int{8 * n}", f"i{n}") for n in (8, 4, 2, 1))
uint16, int1 = DType("uint16", "u2"), DType("int1", "?")
_FORMATS = {d.held: d for d in (float64, float32, float16, int64, int32, int16, int8, uint16, int1)}


def round_to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 numbers that bfloat16 has: the nearest one, the even one of two. NaN and inf stay."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded).reshape(np.shape(x))


def constexpr(value):
    """A number that is known when a kernel is compiled. Here all numbers are known."""
    return value


class Tile(np.ndarray):
    """An array with a number format. bfloat16 is kept as rounded float32, and `brain` says so."""

    brain = False

    def __array_finalize__(self, origin):
        self.brain = getattr(origin, "brain", False)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        plain = [np.asarray(x) if isinstance(x, Tile) else x for x in inputs]
        if out is not None:
            options["out"] = tuple(np.asarray(x) for x in out)
        result = getattr(ufunc, method)(*plain, **options)
        arrays = [x for x in inputs if isinstance(x, np.ndarray) and np.asarray(x).dtype.kind == "f"]
        brain = builtins.bool(arrays) and all(getattr(x, "brain", False) for x in arrays)
        return _tile(result, brain and np.asarray(result).dtype.kind == "f")

    @property
    def dtype(self) -> DType:
        """The number format, in Triton's words. (np.asarray(tile).dtype is NumPy's.)"""
        return bfloat16 if self.brain else _FORMATS[np.asarray(self).dtype]

    def __repr__(self) -> str:  # what print in a kernel shows
        return str(np.asarray(self))

    __str__ = __repr__

    def to(self, dtype: DType) -> "Tile":
        """The same numbers in another format, rounded to what it has."""
        return _tile(np.asarray(self).astype(dtype.held), dtype is bfloat16)

    def __index__(self) -> int:  # a loop may run to a number that was computed
        return int(np.asarray(self))


def _tile(array, brain: bool = False) -> Tile:
    array = np.asarray(array)
    tile = (round_to_bfloat16(array) if brain else array).view(Tile)
    tile.brain = brain
    return tile


def _format(x) -> DType | None:
    """The format of a tile; None for a plain number, which has none of its own."""
    return x.dtype if isinstance(x, Tile) else None


# ------------------------------------------------------------------------------ programs

_program = (0, 0, 0)  # set by the launcher
_programs = (1, 1, 1)


def program_id(axis: int) -> Tile:
    """The number of this program along one axis of the grid."""
    return _tile(np.int32(_program[axis]))


def num_programs(axis: int) -> Tile:
    return _tile(np.int32(_programs[axis]))


# ------------------------------------------------------------------------------ memory


class Memory:
    """The flat memory behind one tensor or array, and which of it belongs to the tensor."""

    def __init__(self, numbers: np.ndarray, first: int, last: int, element_ty: DType):
        self.numbers, self.first, self.last, self.element_ty = numbers, first, last, element_ty

    def read(self, at: np.ndarray) -> Tile:
        numbers = self.numbers[at]
        if self.element_ty is bfloat16:  # stored as the upper half of a float32
            return _tile((numbers.astype(np.uint32) << np.uint32(16)).view(np.float32), True)
        return _tile(numbers)

    def write(self, at: np.ndarray, numbers: np.ndarray) -> None:
        if self.element_ty is bfloat16:
            numbers = (round_to_bfloat16(numbers).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        self.numbers[at] = numbers


class Pointer:
    """Places in one memory. Whole numbers move it on: pointer + tile points at many places."""

    def __init__(self, memory: Memory, at):
        self.memory, self.at = memory, at

    def __add__(self, steps) -> "Pointer":
        return Pointer(self.memory, self.at + np.asarray(steps))

    __radd__ = __add__

    def __sub__(self, steps) -> "Pointer":
        return Pointer(self.memory, self.at - np.asarray(steps))

    def __getitem__(self, index) -> "Pointer":
        return Pointer(self.memory, np.asarray(self.at)[index])

    @property
    def dtype(self) -> "Pointer":
        return self

    @property
    def element_ty(self) -> DType:
        return self.memory.element_ty


def _inside(pointer: Pointer, mask, what: str) -> tuple[np.ndarray, np.ndarray]:
    """(places, mask), both of one shape; IndexError if a place that is not masked is not the tensor's."""
    if not isinstance(pointer, Pointer):
        raise TypeError(f"tl.{what}: expected a pointer, such as X + places, got {type(pointer).__name__}.")
    at, mask = np.broadcast_arrays(pointer.at, True if mask is None else np.asarray(mask))
    wrong = mask & ((at < pointer.memory.first) | (at > pointer.memory.last))
    if wrong.any():
        size = pointer.memory.last - pointer.memory.first + 1
        place = int(at[wrong].flat[0]) - pointer.memory.first
        raise IndexError(
            f"tl.{what}: {wrong.sum()} of {wrong.size} places lie outside the tensor: element {place} of one "
            f"with {size} (program {_program}). A GPU would {'read' if what == 'load' else 'overwrite'} what "
            f"lies there. Pass mask=..., False where there is nothing."
        )
    return at, mask


def load(pointer: Pointer, mask=None, other=None, **_) -> Tile:
    """What stands at these places; `other` where the mask is False (NaN if no `other` is given)."""
    at, mask = _inside(pointer, mask, "load")
    if mask.all():
        return pointer.memory.read(at)
    found = pointer.memory.read(np.where(mask, at, pointer.memory.first))
    if other is None:
        other = np.nan if found.dtype.is_floating else 0
    return where(mask, found, other)


def store(pointer: Pointer, value, mask=None, **_) -> None:
    """Writes a tile there, rounded to the tensor's format. Where the mask is False nothing happens."""
    at, mask = _inside(pointer, mask, "store")
    value = np.broadcast_to(np.asarray(value), at.shape)
    pointer.memory.write(at[mask], value[mask].astype(pointer.element_ty.held))


def atomic_add(pointer: Pointer, value, mask=None, **_) -> Tile:
    """Adds a tile to what stands there. Programs run one after the other here: nobody gets in between."""
    at, mask = _inside(pointer, mask, "atomic_add")
    before = pointer.memory.read(at)
    value = np.broadcast_to(np.asarray(value), at.shape)
    for place, number in zip(at[mask], value[mask], strict=True):  # the same place may come twice
        store(Pointer(pointer.memory, place), pointer.memory.read(place) + number)
    return before


# ------------------------------------------------------------------------------ making tiles


def arange(start: int, end: int) -> Tile:
    """start, start + 1, ... end - 1. Their number must be a power of two, as on a GPU."""
    size = end - start
    if size < 1 or size & (size - 1):
        raise ValueError(f"tl.arange: expected a power of two many, got {size} (from {start} to {end}).")
    return _tile(np.arange(start, end, dtype=np.int32))


def full(shape, value, dtype: DType) -> Tile:
    return _tile(np.full(tuple(map(int, shape)), value, dtype.held), dtype is bfloat16)


def zeros(shape, dtype: DType) -> Tile:
    return full(shape, 0, dtype)


def cast(x, dtype: DType) -> Tile:
    return _tile(x).to(dtype) if not isinstance(x, Tile) else x.to(dtype)


def broadcast_to(x, shape) -> Tile:
    return _tile(np.broadcast_to(np.asarray(x), tuple(shape)).copy(), getattr(x, "brain", False))


def expand_dims(x, axis: int) -> Tile:
    return _tile(np.expand_dims(np.asarray(x), axis), getattr(x, "brain", False))


def reshape(x, *shape) -> Tile:
    shape = shape[0] if len(shape) == 1 else shape
    return _tile(np.asarray(x).reshape(tuple(shape)), getattr(x, "brain", False))


def trans(x, *axes) -> Tile:
    """Rows become columns; with axes, those in this order."""
    return _tile(np.transpose(np.asarray(x), axes or None), getattr(x, "brain", False))


# ------------------------------------------------------------------------------ arithmetic


def dot(a, b, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=float32) -> Tile:
    """The matrix product a b (+ acc), added up in float32. Sides of 16 at least, both of one format."""
    if a.dtype is not b.dtype:
        raise TypeError(f"tl.dot: expected two tiles of one format, got {a.dtype} and {b.dtype}. Cast one: .to(...).")
    if builtins.min(a.shape[-2:] + b.shape[-2:]) < 16:
        raise ValueError(f"tl.dot: expected sides of 16 or more, as the hardware has, got {a.shape} and {b.shape}.")
    wide = np.float64 if a.dtype is float64 else np.float32
    product = np.matmul(np.asarray(a).astype(wide, copy=False), np.asarray(b).astype(wide, copy=False))
    return _tile(product if acc is None else product + np.asarray(acc))


def where(condition, x, y) -> Tile:
    """x where the condition holds, y elsewhere. A plain number takes the format of the tile beside it."""
    formats = [f for f in (_format(x), _format(y)) if f is not None]
    if len(formats) == 2 and bfloat16 in formats and formats[0] is not formats[1]:  # both become float32
        x, y = x.to(float32), y.to(float32)
        formats = [float32, float32]
    held = np.result_type(*(f.held for f in formats)) if formats else None
    chosen = np.where(np.asarray(condition), np.asarray(x, held), np.asarray(y, held))
    return _tile(chosen, builtins.bool(formats) and all(f is bfloat16 for f in formats))


def _elementwise(ufunc):
    def function(*tiles):
        return ufunc(*(x if isinstance(x, Tile) else _tile(x) for x in tiles))

    function.__name__ = ufunc.__name__
    function.__doc__ = f"NumPy's {ufunc.__name__}, number by number."
    return function


exp, exp2, log, log2, sqrt, abs = map(_elementwise, (np.exp, np.exp2, np.log, np.log2, np.sqrt, np.abs))


def _weak(ufunc):
    """maximum and minimum of two: a plain number takes the format of the tile beside it."""

    def function(x, y, **_):
        return ufunc(x, y) if isinstance(x, Tile) or isinstance(y, Tile) else _tile(ufunc(x, y))

    function.__name__ = ufunc.__name__
    return function


maximum, minimum = _weak(np.maximum), _weak(np.minimum)


def _reduction(ufunc):
    def function(x, axis=None, keep_dims=False):
        wide = x.to(float32) if x.dtype in (float16, bfloat16) and ufunc is np.add else x
        result = ufunc.reduce(np.asarray(wide), axis=axis, keepdims=keep_dims)
        return _tile(result).to(x.dtype)

    return function


max, min, sum = map(_reduction, (np.maximum, np.minimum, np.add))


def cdiv(x, y):
    return (x + y - 1) // y


# ------------------------------------------------------------------------------ advice to the compiler


def static_range(*args):
    return builtins.range(*map(int, args))


def range(*args, num_stages=None, **_):
    return builtins.range(*map(int, args))


def multiple_of(x, _):
    return x


def max_contiguous(x, _):
    return x


def assume(_):
    return None


def static_assert(condition, message=""):
    assert condition, message


def device_print(prefix, *tiles):
    print(prefix, *tiles)
