"""Exercises of lesson 03: scores and their scale."""

import math

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import given_versions, usual_forms, wave
from mha_lesson.steps.scores import attention_scores, dot_product_variance

SCORES = Exercise(
    id="03.scores",
    signature="scores(q, k)",
    solution=attention_scores,
    probes=lambda: [
        Probe((np.ones((3, 5, 4)), np.ones((3, 7, 4))), "all ones: 3 heads, 5 queries, 7 keys, width 4"),
        Probe((wave(2, 3, 5), wave(2, 7, 5, step=0.9, start=0.1)), "2 heads, 3 queries, 7 keys, width 5"),
        Probe((wave(5, 3, 2), wave(5, 3, 2, step=0.9, start=0.1)), "as many keys as queries, 5 heads, width 2"),
        Probe((wave(3, 2, 7, dtype=np.float32), wave(3, 5, 7, step=1.3, dtype=np.float32)), "float32, width 7"),
    ],
    mistakes=(
        Mistake(
            "no_scale",
            "Dot products are right. But the dot products are not divided by sqrt(d): their spread grows "
            "with d and softmax saturates.",
            " / math.sqrt(d_head)", "",
        ),
        Mistake(
            "by_d",
            "Dot products are right, and they are made smaller. But you divided by d. The standard deviation "
            "of the dot "
            "product is sqrt(d), so divide by sqrt(d).",
            "math.sqrt(d_head)", "d_head",
        ),
        Mistake(
            "by_d_model",
            "The form is right. But you scaled with the whole model width. Each head has only d = d_model / "
            "H features: "
            "use sqrt(d), with d = q.shape[-1].",
            function=lambda q, k: q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[0] * q.shape[-1]),
        ),
        Mistake(
            "transposed",
            "Products and scale are right. But rows must belong to queries and columns to keys: q @ k^T. You "
            "have the "
            "transpose.",
            "query @ key.swapaxes(-1, -2)", "key @ query.swapaxes(-1, -2)",
        ),
        Mistake(
            "by_heads",
            "Dot products are right. But you scaled by sqrt(number of heads); it should be the head width, "
            "q.shape[-1].",
            "math.sqrt(d_head)", "math.sqrt(query.shape[0])",
        ),
        Mistake(
            "by_keys",
            "Dot products are right. But you scaled by sqrt(number of keys); it should be the width, "
            "q.shape[-1].",
            "math.sqrt(d_head)", "math.sqrt(key.shape[-2])",
        ),
        Mistake(
            "by_queries",
            "Dot products are right. But you scaled by sqrt(number of queries); it should be the width, "
            "q.shape[-1].",
            "math.sqrt(d_head)", "math.sqrt(query.shape[-2])",
        ),
        Mistake(
            "multiplied",
            "sqrt(d) is the right number. But you multiplied by it, which makes the spread larger still: "
            "divide.",
            "/ math.sqrt(d_head)", "* math.sqrt(d_head)",
        ),
        Mistake(
            "fourth_root",
            "The fourth root of d is right if it goes into q and into k. But one division by the fourth "
            "root is too little: divide by sqrt(d) in all.",
            "math.sqrt(d_head)", "d_head**0.25",
        ),
        Mistake(
            "softmax_too",
            "These are attention weights: the scores are right, and you went one step further. Leave softmax "
            "to lesson 05, "
            "so that a mask can come in between.",
            function=lambda q, k: _softmax(attention_scores(q, k)),
        ),
        Mistake(
            "cosine",
            "Every query meets every key, good. But you took the angle between them (cosine); attention "
            "keeps the lengths: "
            "q @ k^T / sqrt(d).",
            function=lambda q, k: _unit(q) @ _unit(k).swapaxes(-1, -2),
        ),
        Mistake(
            "distance",
            "Every query meets every key, good. But you took their distance; attention takes the dot product.",
            function=lambda q, k: np.linalg.norm(q[..., :, None, :] - k[..., None, :, :], axis=-1),
        ),
        Mistake(
            "queries_with_queries",
            "Product and scale are right. But the queries meet themselves: the second factor must be k.",
            "key.swapaxes(-1, -2)", "query.swapaxes(-1, -2)",
        ),
    ),
    forms={
        "queries scaled first": lambda q, k: (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2),
        "fourth root on both": lambda q, k: (q / q.shape[-1] ** 0.25) @ (k / q.shape[-1] ** 0.25).swapaxes(-1, -2),
        "einsum": lambda q, k: np.einsum("hld,hsd->hls", q, k) / np.sqrt(q.shape[-1]),
        "broadcast and sum": lambda q, k: (q[:, :, None] * k[:, None]).sum(-1) * q.shape[-1] ** -0.5,
        "a loop over heads": lambda q, k: [a @ b.T / np.sqrt(a.shape[1]) for a, b in zip(q, k, strict=True)],
        **usual_forms(attention_scores),
    },
    hints=(
        "Every query with every key: a matrix product in which one of the two is transposed.",
        "k.T would turn all axes round, the heads too. Swap the last two alone: k.swapaxes(-1, -2).",
        "Divide by the square root of the width of one head, q.shape[-1].",
    ),
    well_done="Rows are queries, columns are keys, and the spread is the same at every width.",
)  # fmt: skip


def _softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


VARIANCE = Exercise(
    id="03.variance",
    signature="variance(d)",
    solution=dot_product_variance,
    probes=lambda: [Probe((d,), f"d = {d}") for d in (2, 7, 64, 1024)],
    mistakes=(
        Mistake(
            "standard_deviation",
            "sqrt(d) is the standard deviation, and the scaled value is right. But the variance is asked "
            "for: its square, d.",
            function=lambda d: (math.sqrt(d), 1.0),
        ),
        Mistake(
            "spreads",
            "sqrt(d) is the standard deviation before scaling, good. But the variance is asked for, d; and after "
            "the division by sqrt(d) it is d / sqrt(d)² = 1.",
            function=lambda d: (math.sqrt(d), 1 / math.sqrt(d)),
        ),
        Mistake(
            "one_over_root",
            "The first number is right. But dividing by sqrt(d) divides the variance by d: d / d = 1, not"
            " 1/sqrt(d).",
            function=lambda d: (float(d), 1 / math.sqrt(d)),
        ),
        Mistake(
            "square_forgotten",
            "The first number is right. But dividing numbers by c divides their variance by c², and sqrt(d)² "
            "= d.",
            "math.sqrt(d) ** 2", "math.sqrt(d)",
        ),
        Mistake(
            "divided_by_d",
            "The first number is right. But the scores are divided by sqrt(d), not by d; then the variance "
            "is divided by d.",
            "math.sqrt(d) ** 2", "d**2",
        ),
        Mistake(
            "d_squared",
            "The variance grows with d, yes. But variances of independent terms add up: d times 1, not d².",
            function=lambda d: (float(d**2), 1.0),
        ),
        Mistake(
            "d_squared_over_d",
            "Dividing by sqrt(d) divides the variance by d, good. But variances of independent terms add up: it is d "
            "before, not d², and so 1 after.",
            function=lambda d: (float(d**2), float(d)),
        ),
        Mistake(
            "constant",
            "The scaled variance is right. But without scaling each of the d terms adds its own variance of 1.",
            function=lambda d: (1.0, 1.0),
        ),
        Mistake(
            "swapped",
            "Both numbers are right. But the order is: before scaling first, after scaling second.",
            "return raw, scaled", "return scaled, raw",
        ),
    ),
    forms={
        "whole numbers": lambda d: (d, 1),
        "a list": lambda d: [float(d), d / d],
        "an array": lambda d: np.array([d, 1.0]),
        **usual_forms(dot_product_variance),
    },
    hints=(
        "q · k is a sum of d products. What is the variance of one product of two independent numbers of mean 0 and "
        "variance 1?",
        "Each product has variance 1. Variances of independent terms add up.",
        "Var(x / c) = Var(x) / c², here with c = sqrt(d).",
    ),
    well_done="d before, 1 after: now measure it in the next cell.",
)  # fmt: skip


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


TEST_SCALED = Exercise(
    id="03.test_scaled",
    patient=_patient,
    signature="is_scaled(scores)",
    solution=is_scaled,
    probes=_implementations,
    mistakes=(
        Mistake(
            "cannot_fail",
            "It says True for every right version. But it says True for the wrong ones too, so it tests "
            "nothing: a shape, "
            "or the winner of softmax on large scores, is the same without the scale. Compare a number.",
            function=lambda scores: True,
        ),
        Mistake(
            "always_false",
            "It rejects every wrong version. But it rejects the right ones too. Work one score out by hand: "
            "for vectors "
            "of ones it is d / sqrt(d).",
            function=lambda scores: False,
        ),
        Mistake(
            "inverted",
            "It tells right from wrong perfectly. But it answers the other way round: True must mean 'scaled'.",
            function=lambda scores: not is_scaled(scores),
        ),
        Mistake(
            "not_only_small",
            "It finds a missing scale. But it lets a version pass that scales too much: compare with the "
            "right number, "
            "not with a bound.",
            function=lambda scores: _two(scores, np.ones((1, 4)), np.ones((1, 4))) < 2.5,
        ),
        Mistake(
            "not_only_different",
            "It finds a missing scale. But 'not equal to q @ k.T' is true of every other wrong scale too: "
            "compare with "
            "the right number.",
            function=lambda scores: _two(scores, np.ones((1, 4)), np.ones((1, 4))) != 4.0,
        ),
        *(
            Mistake(
                f"one_width_{d}",
                f"You compare with the right number, and find nearly all. But one width cannot tell sqrt(d) from a "
                f"constant: a version that always divides by {math.isqrt(d)} passes your test. Use a second width.",
                function=lambda scores, d=d: bool(np.isclose(_two(scores, np.ones((1, d)), np.ones((1, d))), d**0.5)),
            )
            for d in (4, 9, 16, 64)
        ),
        Mistake(
            "exact_equality",
            "You compare with the right numbers. But == asks for every last bit, and a right version may round "
            "differently: use np.isclose or np.allclose.",
            function=lambda scores: all(_two(scores, np.ones((1, d)), np.ones((1, d))) == d**0.5 for d in (4, 9)),
        ),
        Mistake(
            "exact_and_one_width",
            "You compare with the right number. But == asks for every last bit, and a right version may "
            "round differently: use np.isclose. And d = 4 alone cannot tell sqrt(d) from 2 or from d / 2:"
            " use a second width.",
            function=lambda scores: _two(scores, np.ones((1, 4)), np.ones((1, 4))) == 2.0,
        ),
    ),
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

EXERCISES = (VARIANCE, SCORES, TEST_SCALED)
