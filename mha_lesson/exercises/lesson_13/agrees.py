"""Exercise 13.agrees."""

from collections.abc import Callable

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import wave
from mha_lesson.steps.gpu import ROUNDING, agrees


def _off(exact, roundings: float, dtype: str, places=slice(None)):
    """`exact`, off at these places by so many roundings of the largest number."""
    output = exact.copy()
    output[places] += roundings * ROUNDING[dtype] * np.abs(exact).max()
    return output


def _with(exact, place, value):
    output = exact.copy()
    output[place] = value
    return output


def _results() -> list[Probe]:
    """Right results, and those of broken kernels. None lies near the edge of a sensible tolerance."""
    a, large, small, tiny = (wave(5, 3, size=size) for size in (1.0, 4000.0, 0.002, 5e-6))
    top = np.unravel_index(np.abs(a).argmax(), a.shape)
    near_zero = _with(a, (2, 1), 1e-6)
    long, many, negative = wave(97, 3), wave(401, 37), -1 - wave(5, 3) ** 2
    beside = "That number is a sum of larger ones, and as uncertain as they are: measure against the largest."
    return [
        Probe(
            (_off(a, 20, "float32", top), a, "float32"),
            "a right result in float32, from sums of many terms",
            "A sum of n terms is rounded n times: dozens of roundings of the format it is summed in.",
        ),
        Probe((_off(a, 1.5, "bfloat16", top), a, "bfloat16"), "a right result in bfloat16"),
        Probe((_off(large, 0.7, "float16", top), large, "float16"), "a right result in float16, numbers up to 4000"),
        Probe(
            (_off(near_zero, 3, "float32", (2, 1)), near_zero, "float32"),
            "a right result in float32, a number near 0 among larger ones",
            beside,
        ),
        Probe(
            (_off(near_zero, 1.2, "bfloat16", (2, 1)), near_zero, "bfloat16"),
            "a right result in bfloat16, a number near 0 among larger ones",
            beside,
        ),
        Probe((_off(small, 20, "float64"), small, "float64"), "a right result in float64, small numbers, many terms"),
        Probe((_off(negative, 1.2, "float16"), negative, "float16"), "a right result in float16, all numbers negative"),
        Probe((_off(small, 3, "float32"), small, "float64"), "called float64, but only as good as float32"),
        Probe((_off(a, 1.5, "bfloat16"), a, "float32"), "called float32, but only as good as bfloat16"),
        Probe((a * 1.06, a, "bfloat16"), "bfloat16, everything 6 percent too large"),
        Probe((_with(a, top, 0.97 * a[top]), a, "float16"), "float16, one number 3 percent too small"),
        Probe((_with(a, top, a[top] * (1 - 1e-4)), a, "float32"), "float32, one number off in its fourth digit"),
        Probe((_with(small, (1, 1), 0.0), small, "float16"), "float16, small numbers, one of them 0 by mistake"),
        Probe((_with(tiny, (1, 1), 0.0), tiny, "float32"), "float32, very small numbers, one of them 0 by mistake"),
        Probe((_with(a, (4, 2), np.nan), a, "bfloat16"), "bfloat16, one NaN"),
        Probe((_with(a, (4, 2), np.inf), a, "bfloat16"), "bfloat16, one infinite number"),
        Probe((_with(long, (50, 1), 0.0), long, "float32"), "float32, 97 tokens, one number wrong"),
        Probe((_with(many, (50, 1), many[50, 1] - 0.5), many, "bfloat16"), "bfloat16, 401 tokens, one number wrong"),
        Probe((a.reshape(3, 5), a, "float32"), "float32, the right numbers in another shape"),
        Probe((a[:, :1], np.repeat(a[:, :1], 3, axis=1), "float32"), "float32, one column where there should be three"),
        Probe((-a, a, "float16"), "float16, every sign wrong"),
    ]


def _within(output, exact, tolerance) -> bool:
    """Right but for the tolerance, one number or one for each place."""
    return bool(np.shape(output) == np.shape(exact) and (np.abs(output - exact) <= tolerance).all())


def _of_one_shape(rule: Callable) -> Callable:
    """The rule, and False for a result of another shape."""
    return lambda output, exact, dtype: bool(np.shape(output) == np.shape(exact) and rule(output, exact, dtype))


def _share(dtype) -> float:
    """A usual tolerance beside the largest number: some roundings of the format, dozens of the sums."""
    return 8 * ROUNDING[dtype] + 50 * ROUNDING["float64" if dtype == "float64" else "float32"]


def _usual(exact, dtype) -> float:
    return _share(dtype) * np.abs(exact).max()


SUMS = (
    "A share of the largest number that depends on dtype: right. But it is too small where dtype is also the format of "
    "the sums, which are rounded once for each term: some 50 roundings of float32 more (of float64 for float64)."
)


mistake = Mistakes()


@mistake
def always_true(output, exact, dtype):
    """Every right result is accepted. But so is every wrong one: compare output with exact."""
    return True


@mistake
def always_false(output, exact, dtype):
    """Every wrong result is rejected. But so is every right one: numbers in float16 are never equal to those in
    float64, they are close. Allow a few roundings."""
    return False


@mistake
def inverted(output, exact, dtype):
    """It tells right from wrong perfectly. But it answers the other way round: True must mean 'right'."""
    return not agrees(output, exact, dtype)


@mistake
def one_bound_strict(output, exact, dtype):
    """A bound of 1e-5 is about right for float32. But it is the same for all: bfloat16 cannot be that good, and right
    results are rejected. Let it depend on dtype."""
    return _within(output, exact, 1e-5)


@mistake
def one_bound_loose(output, exact, dtype):
    """A bound of 0.01 lets right results in bfloat16 pass. But it is the same for all, and then broken results in
    float32 pass too. Let it depend on dtype, and on the size of the numbers."""
    return _within(output, exact, 1e-2)


mistake.function(
    "allclose",
    """np.allclose compares, good. But its own tolerances are made for float64 and float32: half precision is rejected.
    Give it atol and rtol that depend on dtype.""",
    _of_one_shape(lambda output, exact, dtype: np.allclose(output, exact)),
)


@mistake
def each_number(output, exact, dtype):
    """The tolerance depends on dtype, good. But it is a share of each number: one near 0 is a sum of larger ones, and
    as uncertain as they are. Take a share of the largest: np.abs(exact).max()."""
    return _within(output, exact, _share(dtype) * np.abs(exact))


@mistake
def no_scale(output, exact, dtype):
    """The tolerance depends on dtype, good. But not on the size of the numbers: results of 4000 are off by more,
    results of 0.002 by less. Multiply it by np.abs(exact).max()."""
    return _within(output, exact, _share(dtype))


mistake.function(
    "sums_forgotten",
    SUMS,
    lambda output, exact, dtype: _within(output, exact, 8 * ROUNDING[dtype] * np.abs(exact).max()),
)

mistake.function(
    "sums_and_shape_forgotten",
    SUMS + " (And compare the shapes: one column for three passes, spread by broadcasting.)",
    lambda output, exact, dtype: bool((np.abs(output - exact) <= 8 * ROUNDING[dtype] * np.abs(exact).max()).all()),
)


@mistake
def many_roundings_of_all(output, exact, dtype):
    """Right results pass, and the tolerance depends on dtype. But dozens of roundings of bfloat16 are a quarter of the
    number: only the sums need them, and those are in float32. A few of ROUNDING[dtype], dozens of the sums' format."""
    return _within(output, exact, 64 * ROUNDING[dtype] * np.abs(exact).max())


@mistake
def dtype_ignored(output, exact, dtype):
    """The tolerance grows with the numbers, good. But it is that of bfloat16 for all formats: a float32 result that is
    only as good as bfloat16 passes. Use ROUNDING[dtype]."""
    return agrees(output, exact, "bfloat16")


@mistake
def dtype_float32(output, exact, dtype):
    """The tolerance grows with the numbers, good. But it is that of float32 for all formats, and right results in half
    precision are rejected. Use ROUNDING[dtype]."""
    return agrees(output, exact, "float64" if dtype == "float64" else "float32")


@mistake
def one_rounding(output, exact, dtype):
    """A share of the largest number that depends on dtype: right. But one rounding is too little: the weights are
    rounded, the output again, and a sum rounds at each step. Allow some more."""
    return _within(output, exact, ROUNDING[dtype] * np.abs(exact).max())


mistake.function(
    "mean_error",
    """The tolerance fits. But you look at the mean error: a single wrong number among many disappears in it. Look at
    the largest.""",
    _of_one_shape(lambda output, exact, dtype: np.abs(output - exact).mean() <= 20 * _usual(exact, dtype)),
)

mistake.function(
    "length_of_error",
    """The tolerance fits. But you compare the length of the whole error: one wrong number among many disappears in it.
    Look at the largest.""",
    _of_one_shape(lambda output, exact, dtype: np.linalg.norm(output - exact) <= _share(dtype) * np.linalg.norm(exact)),
)

mistake.function(
    "beside_the_output",
    """The tolerance fits. But it is measured against the output, and an infinite number there allows everything:
    against the largest number of exact.""",
    _of_one_shape(lambda output, exact, dtype: np.abs(output - exact).max() <= _share(dtype) * np.abs(output).max()),
)


@mistake
def largest_without_sign(output, exact, dtype):
    """The tolerance fits. But exact.max() is below 0 where all numbers are: np.abs(exact).max()."""
    return _within(output, exact, _share(dtype) * np.max(exact))


@mistake
def numbers_in_any_shape(output, exact, dtype):
    """The tolerance fits, and NaN is found. But only the numbers are compared, one after the other: a result of another
    shape passes. Compare the shapes first."""
    return bool(np.size(output) == np.size(exact) and agrees(np.reshape(output, np.shape(exact)), exact, dtype))


@mistake
def sums_of_float64(output, exact, dtype):
    """For float32 and the half formats it is right. But sums in float64 are rounded to float64: with float32's
    roundings a float32 result passes for float64."""
    return _within(output, exact, (4 * ROUNDING[dtype] + 64 * ROUNDING["float32"]) * np.abs(exact).max())


mistake.function(
    "nan_passes",
    """The tolerance fits. But NaN passes: every comparison with it is False, also `error > tolerance`. Ask whether the
    error is small (<=), not whether it is large.""",
    _of_one_shape(lambda output, exact, dtype: not (np.abs(output - exact) > _usual(exact, dtype)).any()),
)


@mistake
def shape_ignored(output, exact, dtype):
    """The tolerance fits, and NaN is found. But a column is spread over three by broadcasting, and passes: compare the
    shapes too."""
    return agrees(np.broadcast_to(output, np.shape(exact)), exact, dtype)


@mistake
def signs_ignored(output, exact, dtype):
    """The tolerance fits. But you compare sizes: abs(output) with abs(exact). Every sign may be wrong. Take the
    difference first, then its size."""
    return agrees(np.abs(output), np.abs(exact), dtype)


mistake.function(
    "signed_error",
    """The tolerance fits. But the error has a sign: a result that is far too small passes. Take its size, np.abs(output
    - exact).""",
    _of_one_shape(lambda output, exact, dtype: (output - exact).max() <= _usual(exact, dtype)),
)


AGREES = Exercise(
    id="13.agrees",
    signature="agrees(output, exact, dtype)",
    solution=agrees,
    probes=_results,
    advice="Print the largest error, the largest number, and ROUNDING[dtype] for it.",
    mistakes=mistake.all,
    forms={
        "eight roundings and fifty": lambda output, exact, dtype: _within(output, exact, _usual(exact, dtype)),
        "np.allclose with atol": lambda output, exact, dtype: bool(
            output.shape == exact.shape
            and np.allclose(output, exact, rtol=0, atol=_usual(exact, dtype))
        ),
        "NumPy's bool": lambda output, exact, dtype: np.bool_(agrees(output, exact, dtype)),
    },
    hints=(
        "What is the largest error in the first example, and what is the largest number?",
        "The tolerance is a share of the largest number in exact: some 4 roundings of dtype, gpu.ROUNDING[dtype], and "
        "some 50 of the sums' format.",
        "Compare shapes first. And ask whether the error is small enough (<=): then NaN fails by itself.",
        'sums = gpu.ROUNDING["float64" if dtype == "float64" else "float32"]; share = 4 * gpu.ROUNDING[dtype] + 64 * '
        "sums; output.shape == exact.shape and np.abs(output - exact).max() <= share * np.abs(exact).max()",
    ),
    well_done="It depends on the format, on the size of the numbers, and on nothing else.",
)  # fmt: skip
