"""Lesson 13. What a fast device asks of whoever uses it: patience, tolerance, arithmetic, neighbours.

    timed(run, device, repeats)       seconds of one run, on a device that answers before it is done
    agrees(output, exact, dtype)      is a result right, as far as its number format can say?
    attention_flops(...)              how many multiplications and additions attention takes
    attention_bytes(...)              how many bytes go to the slow memory and back
    ring_step(rank, step, world, n)   whose keys a device holds in ring attention, and which it may see

Shapes: B batch, H heads, L queries, S keys, D head width.

Sources: Williams, Waterman & Patterson 2009 (roofline); Dao et al. 2022, section 3.2 (bytes moved);
Liu, Zaharia & Abbeel 2023 (ring attention).
"""

# Quoted word for word by exercises/lesson_13/ring.py, exercises/lesson_13/timed.py and tests/faults/faults.py: change
# them together.

import numpy as np

from mha_lesson.steps.masks import causal_mask

# Half the distance from 1 to the next number: the largest relative error of one rounding.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


class Device:
    """A device that works off a queue, as a GPU does: `launch` answers at once, `wait` waits.

    Its clock is its own and moves only when something happens, so that every machine measures the
    same seconds. The first run of a job takes longer: it is compiled, and memory is fetched.
    """

    LAUNCH = 0.00001  # seconds that handing over one job takes
    FIRST = 0.5  # seconds more for the first run

    def __init__(self, queued: float = 0.0):
        """queued: seconds of somebody else's work that are still in the queue."""
        self.clock = 0.0
        self.busy_until = queued
        self.runs = 0

    def launch(self, seconds: float) -> None:
        """Hand over a job. It begins when those before it are done; nobody waits for it."""
        self.clock += self.LAUNCH
        first = self.FIRST if self.runs == 0 else 0.0
        self.busy_until = max(self.busy_until, self.clock) + seconds + first
        self.runs += 1

    def wait(self) -> None:
        """Until all that was handed over is done. (`torch.cuda.synchronize()` on a real one.)"""
        self.clock = max(self.clock, self.busy_until)

    def now(self) -> float:
        """Seconds. (`time.perf_counter()` on a real one.)"""
        return self.clock


def timed(run, device, repeats):
    """Seconds that one run takes, as a mean of `repeats`: warmed up, and waited for at both ends.

    run() hands a job to the device and returns at once. Without the first wait, work that is
    still in the queue counts too; without the last one, only the handing over is measured.
    """
    run()
    device.wait()
    start = device.now()
    for _ in range(repeats):
        run()
    device.wait()
    return (device.now() - start) / repeats


def agrees(output, exact, dtype):
    """Is `output` what `exact` is, as far as its number format can say?

    output   any shape, computed in `dtype`, summed up in float32 (float64: in float64)
    exact    the same in float64, from the same rounded inputs
    dtype    "float64", "float32", "float16" or "bfloat16"

    An error is small or large beside the size of what was added up, so the tolerance is a share of
    the largest number, and not of each: a sum near 0 is as uncertain as its terms. Allowed are 4
    roundings of the format and 64 of the sums. NaN and inf agree with nothing but themselves, and
    a wrong shape with nothing.
    """
    output, exact = np.asarray(output, float), np.asarray(exact, float)
    finite = np.isfinite(exact)
    if output.shape != exact.shape or not np.array_equal(output[~finite], exact[~finite], equal_nan=True):
        return False
    sums = ROUNDING["float64" if dtype == "float64" else "float32"]
    tolerance = 4 * ROUNDING[dtype] + 64 * sums
    error = np.abs(output[finite] - exact[finite]).max(initial=0)
    return bool(error <= tolerance * np.abs(exact[finite]).max(initial=0))  # False for NaN, too


def attention_flops(B: int, H: int, L: int, S: int, D: int, causal: bool = False) -> int:
    """Multiplications and additions of Q K^T and of P V: 2·L·S·D each, in every head. Half if causal.

    The exponentials are left out, as everybody does.
    """
    flops = 4 * B * H * L * S * D
    return flops // 2 if causal else flops


def attention_bytes(B: int, H: int, L: int, S: int, D: int, bytes_per_number: int = 2, fused: bool = True) -> int:
    """Bytes between the chip and its large memory.

    fused: query, key, value are read once and the output is written. Otherwise the scores are
    written and read, and so are the weights: four times L·S numbers a head on top.
    """
    numbers = B * H * D * (2 * L + 2 * S)
    if not fused:
        numbers += 4 * B * H * L * S
    return numbers * bytes_per_number


def ring_step(rank: int, step: int, world: int, n: int):
    """(source, keep): whose keys `rank` holds at this step, and which of them its queries may see.

    Rank r holds piece r of the tokens, n of them. Its queries stay; keys and values move on to the
    next rank after each step, so those that it holds come from further back each time. keep (n, n)
    is causal: all keys of an earlier piece, none of a later one, a triangle in its own.
    """
    source = (rank - step) % world
    if source == rank:
        return source, causal_mask(n, n)
    return source, np.full((n, n), source < rank)
