"""Times that may be compared: forms take turns, and ratios are taken within a round.

    round 1   a b c        seconds a1 b1 c1
    round 2   c b a        seconds a2 b2 c2        ratio of b to a: the median of b1/a1, b2/a2, ...

A machine that gets slower for a while slows down both, so their ratio stays. A median is not moved
by the one round in which something else ran. And a wrong answer is never timed: `check_answers`.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles


class WrongAnswer(Exception):
    """A form does not compute what the others do: its time would mean nothing."""


# ------------------------------------------------------------------------------ the harness


@dataclass(frozen=True)
class Spread:
    median: float
    low: float  # first quartile
    high: float  # third quartile


def spread(samples) -> Spread:
    """Median and quartiles of a list of numbers."""
    samples = list(samples)
    low, _, high = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    return Spread(median(samples), low, high)


def interleave(
    alternatives: dict[str, Callable],
    repeats: int = 50,
    budget: float = 20.0,
    least: int = 3,
    seconds: Callable[[Callable], float] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each alternative in each round; in a round every alternative runs once.

    Rounds end after `repeats`, or once `budget` seconds are used up and `least` are done. Every
    second round runs backwards, so that no alternative always follows the same other one. One
    round before the first is not counted: it loads caches and lazy imports.

    seconds(run) runs it and says how long that took; None = by this machine's clock. A device that
    works off a queue needs a clock of its own.
    """
    seconds = seconds or by_the_clock
    for run in alternatives.values():
        run()
    times = {name: [] for name in alternatives}
    order = list(alternatives)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        end = time.perf_counter() + budget
        for done in range(repeats):
            if done >= least and time.perf_counter() >= end:
                break
            for name in order if done % 2 == 0 else reversed(order):
                times[name].append(seconds(alternatives[name]))
    finally:
        if was_enabled:
            gc.enable()
    return times


def by_the_clock(run: Callable) -> float:
    """Seconds that run() takes, if it is done when it returns."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def ratios(times: dict[str, list[float]], base: str) -> dict[str, Spread]:
    """Each alternative's time over the base's time in the same round.

    A machine that gets slower for a while slows down both: their ratio stays.
    """
    return {
        name: spread(mine / other for mine, other in zip(taken, times[base], strict=True))
        for name, taken in times.items()
    }


def check_answers(results: dict, expected, tolerance: float, what: str = "") -> dict[str, float]:
    """The largest error of each result; WrongAnswer if one is above the tolerance, or not a number."""
    import numpy as np

    errors = {}
    for name, result in results.items():
        result = np.asarray(result)
        if result.shape != expected.shape:
            raise WrongAnswer(f"{name} {what}: expected shape {expected.shape}, got {result.shape}.")
        errors[name] = float(np.max(np.abs(result - expected), initial=0))
        if not errors[name] <= tolerance:  # NaN, too
            raise WrongAnswer(f"{name} {what}: off by {errors[name]:.3g}, allowed is {tolerance:.0e}.")
    return errors
