"""Exercises of lesson 13: a clock that waits, a tolerance that fits, a kernel, and a ring.

Importing this needs no torch: the kernel's solution and the stand-in are looked up when first needed.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.gpu import ROUNDING, Device, agrees, ring_step, timed
from mha_lesson.steps.masks import causal_mask

# ------------------------------------------------------------------------------ a clock


@dataclass
class Job:
    """Hands over a job whose time goes round: the first run takes the first number of seconds, and so on."""

    device: Device
    seconds: tuple[float, ...]

    def __call__(self) -> None:
        self.device.launch(self.seconds[self.device.runs % len(self.seconds)])


def _job(*seconds: float, repeats: int, queued: float = 0.0) -> tuple:
    device = Device(queued)
    return Job(device, seconds), device, repeats


def _to_a_tenth_of_a_millisecond(probe: Probe, value) -> np.ndarray:
    """Waiting inside the loop costs the handing over, 0.01 milliseconds: just as right.

    What is as short as the handing over stays apart from what is shorter: no time of the device's at all.
    """
    value = np.asarray(value, float)
    return np.where(value > 0.0002, np.round(value, 4), np.where(value < 0.000008, np.minimum(value, 0), value))


MEAN = (
    "Warm-up and waits are right, and each run has its own time. But the mean is asked for, all runs together divided "
    "by repeats."
)


def _of_single_runs(run, device, repeats, choice):
    """Each run timed by itself, and one number made of all."""
    run()
    device.wait()
    seconds = []
    for _ in range(repeats):
        start = device.now()
        run()
        device.wait()
        seconds.append(device.now() - start)
    return choice(seconds)


TIMED = Exercise(
    id="13.timed",
    signature="timed(run, device, repeats)",
    solution=timed,
    probes=lambda: [
        Probe(_job(0.02, repeats=10), "a job of 0.02 s, 10 repeats"),
        Probe(_job(0.3, repeats=1), "a job of 0.3 s, 1 repeat"),
        Probe(_job(0.004, repeats=5, queued=3.0), "a job of 0.004 s, and 3 s of other work still in the queue"),
        Probe(_job(0.01, 0.02, 0.03, 0.06, repeats=8), "a job that takes 0.01, 0.02, 0.03, 0.06 s in turn, 8 repeats"),
    ],
    judge=_to_a_tenth_of_a_millisecond,
    mistakes=(
        Mistake(
            "no_last_wait",
            "The runs stand between start and stop. But run() returns at once, long before the job is done: the clock "
            "stops while the device still works, and you measured how fast jobs are handed over. device.wait() after "
            "the loop, and before you start the clock, too.",
            "run()\n    device.wait()\n    return", "run()\n    return",
        ),
        Mistake(
            "no_first_wait",
            "The end is waited for, and there is a run that does not count. But it is still in the queue when the "
            "clock starts, and so is what others put there: device.wait() before start.",
            "run()\n    device.wait()\n    start", "run()\n    start",
        ),
        Mistake(
            "no_warm_up",
            "Both waits are there. But the first run is slower, it compiles and fetches memory: do one run, and wait, "
            "before the clock starts.",
            "    run()\n    device.wait()\n    start", "    device.wait()\n    start",
        ),
        Mistake(
            "only_last_wait",
            "You wait at the end, good. But the first run, which is slower, counts too, and so does what was in the "
            "queue: run() once, then device.wait(), then start the clock.",
            function=lambda run, device, repeats: _clocked(run, device, repeats, "runs wait"),
        ),
        Mistake(
            "total",
            "Warm-up and both waits are right. But this is the time of all runs together: divide by repeats.",
            " / repeats", "",
        ),
        Mistake(
            "milliseconds",
            "Everything is waited for. But the result is in milliseconds, and seconds are asked for: no 1000.",
            "(device.now() - start)", "1000 * (device.now() - start)",
        ),
        Mistake(
            "backwards",
            "Everything is waited for. But a time below 0? End minus start, not start minus end.",
            "device.now() - start", "start - device.now()",
        ),
        Mistake(
            "warm_up_counted",
            "You do one run more. But its time is inside: it must be over, device.wait(), before the clock starts.",
            function=lambda run, device, repeats: _clocked(run, device, repeats, "wait clock run wait runs wait"),
        ),
        Mistake(
            "another_clock",
            "A number comes back. But the device's time is not in it, 0 seconds: it is a pretend one with a clock of "
            "its own, device.now() and not time.perf_counter(). Or run() was never called.",
            function=lambda run, device, repeats: 0.0,
        ),
        *[
            Mistake(name, MEAN, function=partial(_of_single_runs, choice=choice))
            for name, choice in (("median", np.median), ("minimum", np.min))
        ],
        Mistake(
            "one_run_alone",
            "Everything is waited for, and one run is measured well. But only one: run it `repeats` times, and take "
            "the mean.",
            function=lambda run, device, repeats: _clocked(run, device, 1, "run wait clock run wait"),
        ),
        Mistake(
            "one_run",
            "Everything is waited for. But the loop runs once, whatever `repeats` says, and you divide by repeats.",
            "range(repeats)", "range(1)",
        ),
    ),
    forms={
        **usual_forms(timed),
        "waits after each run": lambda run, device, repeats: _clocked(
            run, device, repeats, "run wait clock runs-waiting wait"
        ),
        "more warm-up": lambda run, device, repeats: _clocked(run, device, repeats, "run run run wait clock runs wait"),
    },
    hints=(
        "run() returns at once. What does the clock say when the job is done?",
        "Before you start the clock the queue must be empty, and before you stop it again.",
        "The first run is slower. Do it before the clock starts, and wait for it.",
        "run(); device.wait(); start = device.now(); the loop; device.wait(); then (device.now() - start) / repeats",
    ),
    well_done="Warmed up, and waited for at both ends. With torch.cuda.synchronize() this is how one times a GPU.",
)  # fmt: skip


def _clocked(run: Callable, device: Device, repeats: int, what: str) -> float:
    """The mean of `repeats` after doing `what`, word by word. The clock starts at the word "clock", or first of all."""
    start = device.now()
    for word in what.split():
        if word == "clock":
            start = device.now()
        elif word == "wait":
            device.wait()
        elif word == "run":
            run()
        else:
            for _ in range(repeats):
                run()
                if word == "runs-waiting":
                    device.wait()
    return (device.now() - start) / repeats


# ------------------------------------------------------------------------------ a tolerance


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

AGREES = Exercise(
    id="13.agrees",
    signature="agrees(output, exact, dtype)",
    solution=agrees,
    probes=_results,
    advice="Print the largest error, the largest number, and ROUNDING[dtype] for it.",
    mistakes=(
        Mistake(
            "always_true",
            "Every right result is accepted. But so is every wrong one: compare output with exact.",
            function=lambda output, exact, dtype: True,
        ),
        Mistake(
            "always_false",
            "Every wrong result is rejected. But so is every right one: numbers in float16 are never equal to those in "
            "float64, they are close. Allow a few roundings.",
            function=lambda output, exact, dtype: False,
        ),
        Mistake(
            "inverted",
            "It tells right from wrong perfectly. But it answers the other way round: True must mean 'right'.",
            function=lambda output, exact, dtype: not agrees(output, exact, dtype),
        ),
        Mistake(
            "one_bound_strict",
            "A bound of 1e-5 is about right for float32. But it is the same for all: bfloat16 cannot be that good, and "
            "right results are rejected. Let it depend on dtype.",
            function=lambda output, exact, dtype: _within(output, exact, 1e-5),
        ),
        Mistake(
            "one_bound_loose",
            "A bound of 0.01 lets right results in bfloat16 pass. But it is the same for all, and then broken results "
            "in float32 pass too. Let it depend on dtype, and on the size of the numbers.",
            function=lambda output, exact, dtype: _within(output, exact, 1e-2),
        ),
        Mistake(
            "allclose",
            "np.allclose compares, good. But its own tolerances are made for float64 and float32: half precision "
            "is rejected. Give it atol and rtol that depend on dtype.",
            function=_of_one_shape(
                lambda output, exact, dtype: np.allclose(output, exact)
            ),
        ),
        Mistake(
            "each_number",
            "The tolerance depends on dtype, good. But it is a share of each number: one near 0 is a sum of larger "
            "ones, and as uncertain as they are. Take a share of the largest: np.abs(exact).max().",
            function=lambda output, exact, dtype: _within(output, exact, _share(dtype) * np.abs(exact)),
        ),
        Mistake(
            "no_scale",
            "The tolerance depends on dtype, good. But not on the size of the numbers: results of 4000 are off by "
            "more, results of 0.002 by less. Multiply it by np.abs(exact).max().",
            function=lambda output, exact, dtype: _within(output, exact, _share(dtype)),
        ),
        Mistake(
            "sums_forgotten",
            SUMS,
            function=lambda output, exact, dtype: _within(output, exact, 8 * ROUNDING[dtype] * np.abs(exact).max()),
        ),
        Mistake(
            "sums_and_shape_forgotten",
            SUMS + " (And compare the shapes: one column for three passes, spread by broadcasting.)",
            function=lambda output, exact, dtype: bool(
                (np.abs(output - exact) <= 8 * ROUNDING[dtype] * np.abs(exact).max()).all()
            ),
        ),
        Mistake(
            "many_roundings_of_all",
            "Right results pass, and the tolerance depends on dtype. But dozens of roundings of bfloat16 are a quarter "
            "of the number: only the sums need them, and those are in float32. A few of ROUNDING[dtype], dozens of "
            "the sums' format.",
            function=lambda output, exact, dtype: _within(output, exact, 64 * ROUNDING[dtype] * np.abs(exact).max()),
        ),
        Mistake(
            "dtype_ignored",
            "The tolerance grows with the numbers, good. But it is that of bfloat16 for all formats: a float32 result "
            "that is only as good as bfloat16 passes. Use ROUNDING[dtype].",
            function=lambda output, exact, dtype: agrees(output, exact, "bfloat16"),
        ),
        Mistake(
            "dtype_float32",
            "The tolerance grows with the numbers, good. But it is that of float32 for all formats, and right results "
            "in half precision are rejected. Use ROUNDING[dtype].",
            function=lambda output, exact, dtype: agrees(output, exact, "float64" if dtype == "float64" else "float32"),
        ),
        Mistake(
            "one_rounding",
            "A share of the largest number that depends on dtype: right. But one rounding is too little: the weights "
            "are rounded, the output again, and a sum rounds at each step. Allow some more.",
            function=lambda output, exact, dtype: _within(output, exact, ROUNDING[dtype] * np.abs(exact).max()),
        ),
        Mistake(
            "mean_error",
            "The tolerance fits. But you look at the mean error: a single wrong number among many disappears in it. "
            "Look at the largest.",
            function=_of_one_shape(
                lambda output, exact, dtype: np.abs(output - exact).mean() <= 20 * _usual(exact, dtype)
            ),
        ),
        Mistake(
            "length_of_error",
            "The tolerance fits. But you compare the length of the whole error: one wrong number among many disappears "
            "in it. Look at the largest.",
            function=_of_one_shape(
                lambda output, exact, dtype: np.linalg.norm(output - exact) <= _share(dtype) * np.linalg.norm(exact)
            ),
        ),
        Mistake(
            "beside_the_output",
            "The tolerance fits. But it is measured against the output, and an infinite number there allows "
            "everything: against the largest number of exact.",
            function=_of_one_shape(
                lambda output, exact, dtype: np.abs(output - exact).max() <= _share(dtype) * np.abs(output).max()
            ),
        ),
        Mistake(
            "largest_without_sign",
            "The tolerance fits. But exact.max() is below 0 where all numbers are: np.abs(exact).max().",
            function=lambda output, exact, dtype: _within(output, exact, _share(dtype) * np.max(exact)),
        ),
        Mistake(
            "numbers_in_any_shape",
            "The tolerance fits, and NaN is found. But only the numbers are compared, one after the other: a result of "
            "another shape passes. Compare the shapes first.",
            function=lambda output, exact, dtype: bool(
                np.size(output) == np.size(exact) and agrees(np.reshape(output, np.shape(exact)), exact, dtype)
            ),
        ),
        Mistake(
            "sums_of_float64",
            "For float32 and the half formats it is right. But sums in float64 are rounded to float64: with float32's "
            "roundings a float32 result passes for float64.",
            function=lambda output, exact, dtype: _within(
                output, exact, (4 * ROUNDING[dtype] + 64 * ROUNDING["float32"]) * np.abs(exact).max()
            ),
        ),
        Mistake(
            "nan_passes",
            "The tolerance fits. But NaN passes: every comparison with it is False, also `error > tolerance`. Ask "
            "whether the error is small (<=), not whether it is large.",
            function=_of_one_shape(
                lambda output, exact, dtype: not (np.abs(output - exact) > _usual(exact, dtype)).any()
            ),
        ),
        Mistake(
            "shape_ignored",
            "The tolerance fits, and NaN is found. But a column is spread over three by broadcasting, and passes: "
            "compare the shapes too.",
            function=lambda output, exact, dtype: agrees(np.broadcast_to(output, np.shape(exact)), exact, dtype),
        ),
        Mistake(
            "signs_ignored",
            "The tolerance fits. But you compare sizes: abs(output) with abs(exact). Every sign may be wrong. Take the "
            "difference first, then its size.",
            function=lambda output, exact, dtype: agrees(np.abs(output), np.abs(exact), dtype),
        ),
        Mistake(
            "signed_error",
            "The tolerance fits. But the error has a sign: a result that is far too small passes. Take its size, "
            "np.abs(output - exact).",
            function=_of_one_shape(
                lambda output, exact, dtype: (output - exact).max() <= _usual(exact, dtype)
            ),
        ),
    ),
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


# ------------------------------------------------------------------------------ a kernel


def _launch(kernel: Callable) -> Callable:
    """Runs the kernel in all its programs, on one head, into an output full of NaN."""

    def attention(query, key, value, block):
        triton_numpy = importlib.import_module("mha_lesson.pytorch.triton_numpy")
        torch = importlib.import_module("torch")
        tensors = [torch.from_numpy(x.copy()) for x in (query, key, value)]
        n, d_head = query.shape
        out = torch.full((n, d_head), float("nan"))
        try:
            triton_numpy.run(kernel, (-(-n // block),), *tensors, out, n, d_head**-0.5, d_head, block)
        except (TypeError, AttributeError, ValueError) as error:
            if "tl." not in str(error):
                error.add_note(
                    "In a kernel there are numbers, tiles and the words of tl: tl.exp, tl.where, tl.maximum, tl.max, "
                    "tl.sum, tl.dot, tl.trans. Nothing of NumPy, torch or math fits, and no single place of a tile can "
                    "be read or written."
                )
            raise
        return out.numpy()

    return attention


def _tokens(n: int, rising: float = 0.0, loud: float = 0.0) -> tuple:
    """query, key, value (n, 16), float32. `rising`: later keys fit better, by so much a token.

    loud: every third query looks at one feature of the keys alone, multiplied by this. The best key is far ahead of
    the next and gets all, so that the last digits of large scores, which depend on the way they come, do not show.
    """
    query = wave(n, 16, step=0.7, dtype=np.float32)
    key = wave(n, 16, step=0.9, start=0.1, dtype=np.float32)
    if loud:
        places = np.arange(n)
        query[::3], query[::3, 0], key[:, 0] = 0, loud, 7 * places % n / n - places // 16  # falling, tile by tile
    if rising:
        query[:, 0], key[:, 0] = 1.0, rising * np.arange(n)
    return query, key, wave(n, 16, step=1.3, start=0.4, dtype=np.float32)


def _with_edits(*texts: str) -> Callable:
    """The solution with one text after another replaced: old, new, old, new, ... Made when first run."""
    pairs = zip(texts[::2], texts[1::2], strict=True)
    edits = [Mistake("an edit", "", old, new) for old, new in pairs]

    def kernel(Q, K, V, O, N, scale, D, BLOCK):
        triton_numpy = importlib.import_module("mha_lesson.pytorch.triton_numpy")  # also where tl is real Triton's
        triton_numpy._bound(KERNEL.variant(*edits))(Q, K, V, O, N, scale, D, BLOCK)

    return kernel


KERNEL = Exercise(
    id="13.kernel",
    needs_torch=True,
    signature="kernel(Q, K, V, O, N, scale, D, BLOCK)",
    solution="mha_lesson.pytorch.first_kernel:attention_kernel",
    drive=_launch,
    probes=lambda: [
        Probe((*_tokens(32), 32), "32 tokens of width 16, one tile of 32"),
        Probe((*_tokens(37), 16), "37 tokens in tiles of 16: the last tile has 5"),
        Probe((*_tokens(32, rising=20.0), 16), "32 tokens, later keys fit better: the maximum grows"),
        Probe((*_tokens(32, rising=-3.0), 16), "32 tokens, later keys fit worse"),
        Probe((*_tokens(37, loud=4000.0), 16), "37 tokens, scores of every third query up to 1000"),
    ],
    mistakes=(
        Mistake(
            "no_mask",
            "Full tiles are right. But in the last one the keys beyond N get weight: they are zeros, so their score is "
            "0, which is no small score. Keys are columns, and they need -inf: "
            's = tl.where(keys[None, :] < N, s, float("-inf")).',
            's = tl.where(keys[None, :] < N, s, float("-inf"))', "",
        ),
        Mistake(
            "no_scale",
            "Dot products, online softmax: right. But the scores are not multiplied by scale.",
            " * scale", "",
        ),
        Mistake(
            "divided_by_scale",
            "Scores are scaled. But scale is already 1 / sqrt(D): multiply by it.",
            " * scale", " / scale",
        ),
        Mistake(
            "l_not_shrunk",
            "acc shrinks when the maximum grows. But l must shrink with it: l = l * shrink + tl.sum(p, 1).",
            "l = l * shrink +", "l = l +",
        ),
        Mistake(
            "acc_not_shrunk",
            "l shrinks when the maximum grows. But acc must shrink with it: acc = acc * shrink[:, None] + ...",
            "acc = acc * shrink[:, None] +", "acc = acc +",
        ),
        Mistake(
            "nothing_shrunk",
            "Each tile is right. But when a later tile has a larger maximum, what was summed so far must shrink: "
            "l and acc times tl.exp(m - m_new).",
            "shrink = tl.exp(m - m_new)", "shrink = tl.full([BLOCK], 1.0, tl.float32)",
        ),
        Mistake(
            "shrink_upside_down",
            "The kernel runs. But all of its output is NaN. Several slips do that. Nothing was stored: a kernel "
            "returns nothing, its last line writes. Nothing was summed up: l is still 0, and 0 / 0 is NaN. p takes "
            "off m, which is -inf at first: take off m_new. Or the correction is upside down: tl.exp(m - m_new), old "
            "minus new, is at most 1.",
            "tl.exp(m - m_new)", "tl.exp(m_new - m)",
        ),
        Mistake(
            "old_maximum_forgotten",
            "Each tile has its maximum. But the running maximum must not fall: tl.maximum(m, tl.max(s, 1)). Otherwise "
            "exp(m - m_new) overflows as soon as later scores are much smaller.",
            "tl.maximum(m, tl.max(s, 1))", "tl.max(s, 1)",
        ),
        Mistake(
            "maximum_of_columns",
            "A maximum is taken off. But that of each column: the softmax of a query runs along its row, axis 1.",
            "tl.max(s, 1)", "tl.max(s, 0)",
        ),
        Mistake(
            "sum_of_columns",
            "The maximum is right. But tl.sum(p, 0) adds up columns: the shares of a query stand in its row, axis 1.",
            "tl.sum(p, 1)", "tl.sum(p, 0)",
        ),
        Mistake(
            "maximum_of_all",
            "A maximum is taken off. But one for the whole tile: a quiet query beside a loud one underflows, 0 / 0. "
            "Each row has its own, tl.max(s, 1).",
            "tl.max(s, 1)", "tl.max(s)",
        ),
        Mistake(
            "sum_of_all",
            "The maximum is right. But tl.sum(p) adds up the whole tile: each query has its own sum, tl.sum(p, 1).",
            "tl.sum(p, 1)", "tl.sum(p)",
        ),
        Mistake(
            "one_key_too_many",
            "Full tiles are right. But the keys are 0 to N - 1: key N does not exist, so < and not <=.",
            "keys[None, :] < N", "keys[None, :] <= N",
        ),
        Mistake(
            "mask_of_rows",
            "Full tiles are right. But in s keys are columns: keys[None, :] < N. With keys[:, None] you hide queries.",
            "tl.where(keys[None, :] < N", "tl.where(keys[:, None] < N",
        ),
        Mistake(
            "maximum_as_row",
            "Each query has its maximum. But it is taken off the columns: a query is a row of s, m_new[:, None].",
            "m_new[:, None]", "m_new[None, :]",
        ),
        Mistake(
            "divided_each_time",
            "One tile is right. But acc is divided in each of them: keep the plain sum, the last line divides.",
            "+ tl.dot(p, v)", "+ tl.dot(p / l[:, None], v)",
        ),
        Mistake(
            "no_maximum",
            "Small scores come out right. But without taking off a maximum exp overflows: scores in the hundreds give "
            "inf / inf.",
            "m_new = tl.maximum(m, tl.max(s, 1))", "m_new = tl.zeros([BLOCK], tl.float32)",
        ),
        Mistake(
            "m_not_kept",
            "The first tile is right. But m stays -inf: at the end of the loop, m = m_new.",
            "        m = m_new\n", "",
        ),
        Mistake(
            "sum_not_kept",
            "Each tile is right. But l holds the last tile alone: l = l * shrink + tl.sum(p, 1).",
            "l * shrink + tl.sum", "tl.sum",
        ),
        Mistake(
            "acc_not_kept",
            "Each tile is right. But acc holds the last tile alone: acc = acc * shrink[:, None] + tl.dot(p, v).",
            "acc * shrink[:, None] + tl.dot", "tl.dot",
        ),
        Mistake(
            "scores_transposed",
            "Queries meet keys. But in s rows must be queries and columns keys: tl.dot(q, tl.trans(k)).",
            "tl.dot(q, tl.trans(k))", "tl.dot(k, tl.trans(q))",
        ),
        Mistake(
            "keys_for_values",
            "The weights are right. But they mix the keys: tl.dot(p, v).",
            "tl.dot(p, v)", "tl.dot(p, k)",
        ),
    ),
    forms={
        "shares of missing keys set to 0": _with_edits(
            's = tl.where(keys[None, :] < N, s, float("-inf"))', "exists = keys[None, :] < N",
            "p = tl.exp(s - m_new[:, None])", "p = tl.where(exists, tl.exp(s - m_new[:, None]), 0.0)",
        ),
        "powers of two": _with_edits(
            "tl.exp(s - m_new[:, None])", "tl.exp2((s - m_new[:, None]) * 1.4426950408889634)",
            "tl.exp(m - m_new)", "tl.exp2((m - m_new) * 1.4426950408889634)",
        ),
        "dot with an accumulator": _with_edits(
            "acc = acc * shrink[:, None] + tl.dot(p, v)", "acc = tl.dot(p, v, acc * shrink[:, None])"
        ),
        "scaled queries": _with_edits("tl.dot(q, tl.trans(k)) * scale", "tl.dot(q * scale, tl.trans(k))"),
    },
    hints=(
        "Scores first: s = tl.dot(q, tl.trans(k)) * scale, (BLOCK, BLOCK). Rows are queries, columns are keys.",
        "Keys beyond N: s = tl.where(keys[None, :] < N, s, float(\"-inf\")).",
        "Then lesson 12: m_new = tl.maximum(m, tl.max(s, 1)); p = tl.exp(s - m_new[:, None]); "
        "shrink = tl.exp(m - m_new).",
        "l = l * shrink + tl.sum(p, 1); acc = acc * shrink[:, None] + tl.dot(p, v); and m = m_new at the end.",
    ),
    well_done="That is FlashAttention's forward pass. On a GPU these same lines run compiled.",
)  # fmt: skip


# ------------------------------------------------------------------------------ a ring


def _step_for_source(rank, step, world, n):
    source = (rank - step) % world
    return source, causal_mask(n, n) if step == rank else np.full((n, n), step < rank)


RING = Exercise(
    id="13.ring",
    signature="ring(rank, step, world, n)",
    solution=ring_step,
    probes=lambda: [
        Probe((1, 0, 3, 2), "rank 1 of 3, step 0: its own keys"),
        Probe((2, 1, 3, 2), "rank 2 of 3, step 1"),
        Probe((0, 1, 3, 2), "rank 0 of 3, step 1"),
        Probe((1, 2, 5, 3), "rank 1 of 5, step 2"),
        Probe((3, 2, 5, 3), "rank 3 of 5, step 2"),
        Probe((2, 2, 5, 3), "rank 2 of 5, step 2"),
    ],
    mistakes=(
        Mistake(
            "other_direction",
            "Counting round the ring is right. But keys move on to the NEXT rank, so what arrives comes from the rank "
            "before: rank - step, not rank + step.",
            "(rank - step)", "(rank + step)",
        ),
        Mistake(
            "no_modulo",
            "Going back one rank a step is right. But it is a ring: before rank 0 comes the last one, % world.",
            "(rank - step) % world", "rank - step",
        ),
        Mistake(
            "one_step_too_far",
            "The direction is right. But at step 0 nothing has been sent yet: a rank holds its own keys.",
            "(rank - step)", "(rank - step - 1)",
        ),
        Mistake(
            "past_hidden",
            "The sources are right. But the pieces are the wrong way round: an earlier piece is the past, all of it "
            "may be seen; a later one is the future.",
            "source < rank", "source > rank",
        ),
        Mistake(
            "everything_seen",
            "The sources are right. But a later piece is the future: causal attention sees none of it.",
            "source < rank)", "True)",
        ),
        Mistake(
            "own_piece_full",
            "The other pieces are right. But within its own piece a query sees what came before it, not what comes "
            "after: a triangle.",
            "causal_mask(n, n)", "np.ones((n, n), bool)",
        ),
        Mistake(
            "own_piece_empty",
            "The other pieces are right. But its own piece is not skipped: there a query sees itself and what came "
            "before.",
            "causal_mask(n, n)", "np.zeros((n, n), bool)",
        ),
        Mistake(
            "not_itself",
            "The triangle stands in the right corner. But a token sees itself too: <= and not <.",
            "causal_mask(n, n)", "np.tril(np.ones((n, n), bool), -1)",
        ),
        Mistake(
            "triangle_turned",
            "The other pieces are right. But the triangle is turned: rows are queries, and they see the past.",
            "causal_mask(n, n)", "causal_mask(n, n).T",
        ),
        Mistake(
            "triangle_everywhere",
            "The sources are right. But the triangle belongs to its own piece alone: of an earlier piece all may be "
            "seen, of a later one nothing.",
            "np.full((n, n), source < rank)", "causal_mask(n, n)",
        ),
        Mistake(
            "inverted",
            "The right places are marked. But keep is True where a query MAY look, and yours is True where it may not.",
            function=lambda *args: (ring_step(*args)[0], ~ring_step(*args)[1]),
        ),
        Mistake(
            "step_for_source",
            "The sources are right. But what may be seen depends on whose keys they are, not on the step: compare "
            "source with rank.",
            function=_step_for_source,
        ),
        Mistake(
            "past_hidden_too",
            "Its own piece is right, and so is the future. But of an earlier piece all may be seen: source < rank.",
            "source < rank)", "False)",
        ),
        Mistake(
            "swapped",
            "Both are right. But in the other order: return source, keep.",
            function=lambda *args: ring_step(*args)[::-1],
        ),
        Mistake(
            "added",
            "The right places are open. But this is a mask to add, 0 and -inf: return the boolean one, True where a "
            "query may look.",
            function=lambda *args: (ring_step(*args)[0], np.where(ring_step(*args)[1], 0.0, -np.inf)),
        ),
        Mistake(
            "numbers",
            "The right places are open. But a mask is boolean: make it with a comparison, or dtype bool.",
            function=lambda rank, step, world, n: (
                ring_step(rank, step, world, n)[0], ring_step(rank, step, world, n)[1].astype(int),
            ),
        ),
    ),
    forms={
        **usual_forms(ring_step),
        "by positions": lambda rank, step, world, n: (
            (rank - step) % world,
            ((rank - step) % world * n + np.arange(n))[None, :] <= (rank * n + np.arange(n))[:, None],
        ),
    },
    hints=(
        "Write it down for 3 ranks: at step 1 rank 1 has what rank 0 had. And rank 0?",
        "source = (rank - step) % world.",
        "An earlier piece (source < rank): all True. A later one: all False. Its own: causal, (n, n).",
    ),
    well_done="Compare positions and nothing else: that is all a mask ever was.",
)  # fmt: skip

EXERCISES = (TIMED, KERNEL, AGREES, RING)
