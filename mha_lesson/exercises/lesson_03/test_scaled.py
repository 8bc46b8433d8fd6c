"""Exercise 03.test_scaled."""

import math

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.probes import given_versions, wave
from mha_lesson.exercises.lesson_03.scores import SCORES
from mha_lesson.steps.scores import attention_scores


def is_scaled(scores) -> bool:
    """Does this implementation of scores(q, k) divide by sqrt(d)? A test that can fail.

    q · k of two vectors of ones is d, so a scaled score is d / sqrt(d) = sqrt(d). One width cannot
    tell sqrt(d) from a constant, so there are two.
    """
    results = {d: np.asarray(scores(np.ones((3, 5, d)), np.ones((3, 7, d)))) for d in (9, 16)}
    return all(bool(np.allclose(r, np.sqrt(d))) for d, r in results.items())


def _implementations() -> list[Probe]:
    right = {
        "the right one": attention_scores,
        "a right one that scales q first": SCORES.forms["queries scaled first"],
        "a right one by einsum": lambda q, k: np.einsum("...ld,...sd->...ls", q, k) / np.sqrt(q.shape[-1]),
        "a right one with the fourth root on both": SCORES.forms["fourth root on both"],
    }
    wrong = {
        "a version without the scale": SCORES.variant(SCORES.mistakes[0]),
        "a version that divides by d": SCORES.variant(SCORES.mistakes[1]),
        "a version that multiplies by sqrt(d)": SCORES.variant(SCORES.mistakes[7]),
        "a version with the fourth root once": SCORES.variant(SCORES.mistakes[8]),
        "a version that divides by d / 2": lambda q, k: q @ k.swapaxes(-1, -2) / (q.shape[-1] / 2),
        **{f"a version that always divides by {c}": lambda q, k, c=c: q @ k.swapaxes(-1, -2) / c for c in (2, 3, 4, 8)},
        "a version that divides by the square root of the width of 4 heads": lambda q, k: (
            q @ k.swapaxes(-1, -2) / np.sqrt(4 * q.shape[-1])
        ),
    }
    return given_versions({**right, **wrong}, _patient)


def _patient(scores):
    """Takes lists and single vectors too: a learner's test should not fail on how it calls."""
    return lambda q, k: scores(np.atleast_2d(np.asarray(q, float)), np.atleast_2d(np.asarray(k, float)))


def _two(scores, q, k) -> float:
    return float(np.asarray(scores(q, k)).reshape(-1)[0])


mistake = Mistakes()


@mistake
def cannot_fail(scores):
    """It says True for every right version. But it says True for the wrong ones too, so it tests nothing: a shape, or
    the winner of softmax on large scores, is the same without the scale. Compare a number."""
    return True


@mistake
def always_false(scores):
    """It rejects every wrong version. But it rejects the right ones too. Work one score out by hand: for vectors of
    ones it is d / sqrt(d)."""
    return False


@mistake
def inverted(scores):
    """It tells right from wrong perfectly. But it answers the other way round: True must mean 'scaled'."""
    return not is_scaled(scores)


@mistake
def not_only_small(scores):
    """It finds a missing scale. But it lets a version pass that scales too much: compare with the right number, not
    with a bound."""
    return _two(scores, np.ones((1, 4)), np.ones((1, 4))) < 2.5


@mistake
def not_only_different(scores):
    """It finds a missing scale. But 'not equal to q @ k.T' is true of every other wrong scale too: compare with the
    right number."""
    return _two(scores, np.ones((1, 4)), np.ones((1, 4))) != 4.0


for d in (4, 9, 16, 64):
    mistake.function(
        f"one_width_{d}",
        f"You compare with the right number, and find nearly all. But one width cannot tell sqrt(d) from a constant: a "
        f"version that always divides by {math.isqrt(d)} passes your test. Use a second width.",
        lambda scores, d=d: bool(np.isclose(_two(scores, np.ones((1, d)), np.ones((1, d))), d**0.5)),
    )


@mistake
def exact_equality(scores):
    """You compare with the right numbers. But == asks for every last bit, and a right version may round differently:
    use np.isclose or np.allclose."""
    return all(_two(scores, np.ones((1, d)), np.ones((1, d))) == d**0.5 for d in (4, 9))


@mistake
def exact_and_one_width(scores):
    """You compare with the right number. But == asks for every last bit, and a right version may round differently: use
    np.isclose. And d = 4 alone cannot tell sqrt(d) from 2 or from d / 2: use a second width."""
    return _two(scores, np.ones((1, 4)), np.ones((1, 4))) == 2.0


TEST_SCALED = Exercise(
    id="03.test_scaled",
    protocol=Protocol(given=_patient),
    signature="is_scaled(scores)",
    solution=is_scaled,
    probes=_implementations,
    mistakes=mistake.all,
    forms={
        "pairs of vectors": lambda scores: all(
            abs(_two(scores, [1] * d, [1] * d) - d**0.5) < 1e-9 for d in (4, 9)
        ),
        "against the formula": lambda scores: np.allclose(
            scores(wave(3, 5), wave(7, 5, step=0.9)), wave(3, 5) @ wave(7, 5, step=0.9).T / np.sqrt(5)
        ),
        "by variance": lambda scores: all(
            0.8 < np.var(scores(*np.random.default_rng(0).standard_normal((2, 300, d)))) < 1.2 for d in (32, 64)
        ),
        "nested lists": lambda scores: [is_scaled(scores)][0],
    },
    hints=(
        "You get a function. Call it with q (H, L, d) and k (H, S, d) that you choose, and look at the result.",
        "Choose them so that you know the right score by heart: vectors of ones, for example with d = 9.",
        "The right score is then 9 / sqrt(9) = 3. Without scale it is 9, divided by d it is 1. Use np.isclose, not ==.",
        "One width cannot tell sqrt(d) from a constant. Check two, and return True only if both are right.",
    ),
    well_done="It accepts every right version and rejects every wrong one: that is what a test is for.",
)  # fmt: skip
