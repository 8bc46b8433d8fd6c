"""Exercises of lesson 05: softmax, with and without a mask."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.softmax import masked_softmax, softmax


def _over_axis_one(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _masked_over_queries(z, keep):
    keep = np.broadcast_to(keep, z.shape).swapaxes(-1, -2)
    return masked_softmax(z.swapaxes(-1, -2), keep).swapaxes(-1, -2)


SOFTMAX = Exercise(
    id="05.softmax",
    signature="softmax(z)",
    solution=softmax,
    probes=lambda: [
        Probe((np.array([[1.0, 2, 3], [0, 0, 4]]),), "[[1, 2, 3], [0, 0, 4]]"),
        Probe((np.array([[0.0, 1], [3, 0]]),), "a square matrix"),
        Probe((np.array([[1000.0, 1001], [1, 2]]),), "one row of large scores"),
        Probe((np.array([[1000.0, 1001], [0, 1]]),), "a row of large and a row of small scores"),
        Probe((np.array([[0.0, 0, 3000], [3000, 0, 0], [0, 3000, 0]]),), "one score far above the others"),
        Probe((np.array([[-1000.0, -1001, -1002], [0, 900, 400]]),), "large negative and large positive scores"),
        Probe((np.array([20000.0, 0, 0]),), "a single row, one axis"),
        Probe((wave(2, 3, 5, size=3, dtype=np.float32),), "3 axes, float32"),
    ],
    mistakes=(
        Mistake(
            "over_queries",
            "Exponentials and shares are right. But columns sum to 1, rows do not. Each query (row) must "
            "share out its "
            "attention over the keys: the last axis.",
            function=lambda z: np.moveaxis(softmax(np.moveaxis(z, 0, -1)), -1, 0),
        ),
        Mistake(
            "over_queries_plain",
            "Exponentials and shares are right for small scores. But columns sum to 1, rows do not: each "
            "query (row) must share out its attention over the keys, the last axis. (And large scores "
            "overflow: take off the row maximum.)",
            function=lambda z: np.exp(z) / np.exp(z).sum(0, keepdims=True),
        ),
        Mistake(
            "over_everything_plain",
            "Exponentials are right for small scores. But the whole matrix sums to 1; every row should. "
            "(And large scores overflow: take off the row maximum.)",
            function=lambda z: np.exp(z) / np.exp(z).sum(),
        ),
        Mistake(
            "maximum_right_sum_wrong",
            "The maximum is taken over each row, good. But the sum runs over the queries: both belong to "
            "the last axis.",
            "e.sum(axis=-1, keepdims=True)", "e.sum(axis=0, keepdims=True)",
        ),
        Mistake(
            "axis_one",
            "Right for a matrix. But axis 1 is the last axis only there; with more axes, or with a single"
            " row, it is another one or none: write axis=-1.",
            function=_over_axis_one,
        ),
        Mistake(
            "second_last_axis",
            "Exponentials and shares are right. But you normalise over the queries (axis -2); the keys are "
            "the last axis.",
            function=lambda z: softmax(z.swapaxes(-1, -2)).swapaxes(-1, -2),
        ),
        Mistake(
            "over_everything",
            "Exponentials are right. But the whole matrix sums to 1; every row should.",
            function=lambda z: np.exp(z - z.max()) / np.exp(z - z.max()).sum(),
        ),
        Mistake(
            "no_max",
            "Right for small scores. But e^1000 overflows. Subtract the row maximum first; the result does "
            "not change.",
            "z - z.max(axis=-1, keepdims=True)", "z",
        ),
        Mistake(
            "no_keepdims",
            "The exponentials are right. But the row sums lost their axis and were matched to columns. Use "
            "keepdims=True; "
            "square inputs hide this.",
            "e.sum(axis=-1, keepdims=True)", "e.sum(axis=-1)",
        ),
        Mistake(
            "one_maximum",
            "Subtracting a maximum is the right idea. But with one maximum for the whole matrix, rows far "
            "below it become "
            "0/0: take each row's own, axis=-1 with keepdims=True.",
            "z.max(axis=-1, keepdims=True)", "z.max()",
        ),
        Mistake(
            "mean_taken_off",
            "Taking one number off each row leaves the result unchanged, right. But the mean is not "
            "enough: a score far above it still overflows. Take off the maximum.",
            "z.max(axis=-1, keepdims=True)", "z.mean(axis=-1, keepdims=True)",
        ),
        Mistake(
            "minimum_taken_off",
            "Taking one number off each row leaves the result unchanged, right. But with the minimum all "
            "exponents are positive and overflow; with the maximum none is.",
            "z.max(axis=-1, keepdims=True)", "z.min(axis=-1, keepdims=True)",
        ),
        Mistake(
            "first_taken_off",
            "Taking one number off each row leaves the result unchanged, right. But the first score need "
            "not be the largest: take off the maximum.",
            "z.max(axis=-1, keepdims=True)", "z[..., :1]",
        ),
        Mistake(
            "no_exp",
            "Dividing by the row sum is right. But the scores themselves can be negative or sum to 0: take "
            "np.exp first.",
            function=lambda z: z / z.sum(-1, keepdims=True),
        ),
        Mistake(
            "not_normalised",
            "The exponentials are right and cannot overflow. But the rows do not sum to 1: divide by the row "
            "sum.",
            " / e.sum(axis=-1, keepdims=True)", "",
        ),
        Mistake(
            "logarithm",
            "The shares are right. But you return their logarithm (log-softmax); attention needs the shares.",
            "return e / e.sum(axis=-1, keepdims=True)", "return np.log(e / e.sum(axis=-1, keepdims=True))",
        ),
        Mistake(
            "hard",
            "The largest score wins, as it should. But softmax is soft: the others get a share too.",
            function=lambda z: (z == z.max(-1, keepdims=True)).astype(z.dtype),
        ),
        Mistake(
            "base_two",
            "Everything has the right form. But the base is 2; softmax uses e: np.exp.",
            "np.exp(", "np.exp2(",
        ),
        Mistake(
            "sigmoid",
            "Every value lies between 0 and 1. But each was squashed alone (sigmoid); in a softmax the keys "
            "of a row compete.",
            function=lambda z: 1 / (1 + np.exp(-z)),
        ),
        Mistake(
            "sign",
            "The rows sum to 1. But the largest score gets the smallest share: it is exp(z), not exp(-z).",
            "np.exp(z - z.max(axis=-1, keepdims=True))", "np.exp(z.min(axis=-1, keepdims=True) - z)",
        ),
    ),
    forms={
        "log-sum-exp": lambda z: np.exp(
            z - (z.max(-1, keepdims=True) + np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True)))
        ),
        "np.apply_along_axis": lambda z: np.apply_along_axis(_plain, -1, z),
        "pairwise differences": lambda z: 1 / np.exp(z[..., None, :] - z[..., :, None]).sum(-1),
        **usual_forms(softmax),
    },
    hints=(
        "Exponentials first, then shares: each divided by the sum of its row.",
        "The row sum must keep its axis so that it meets its own row: keepdims=True.",
        "Subtract each row's maximum before np.exp. Why does the result stay the same?",
    ),
    well_done="Rows sum to 1, and no score is too large for it.",
)  # fmt: skip

_T, _F = True, False

MASKED = Exercise(
    id="05.masked",
    signature="masked(z, keep)",
    solution=masked_softmax,
    probes=lambda: [
        Probe((np.array([[1.0, 2, 3], [0, 0, 0], [4, 1, 1]]), np.array([[_T, _T, _F], [_T, _F, _T], [_T, _T, _T]])),
              "every row has a key"),
        Probe((np.array([[1.0, 2, 3], [0, 0, 0], [4, 1, 1]]), np.array([[_T, _F, _T], [_F, _F, _F], [_T, _T, _T]])),
              "row 1 allows no key"),
        Probe((np.array([[-30000.0, -29999, 5]]), np.array([[_T, _T, _F]])), "allowed scores near -30000"),
        Probe((np.array([[-200.0, -201, 3]]), np.array([[_T, _T, _F]])), "allowed scores near -200"),
        Probe((np.array([[1.0, 2000, 2]]), np.array([[_T, _F, _T]])), "a huge score that is masked"),
        Probe((np.array([[1.0, 900, 902]]), np.array([[_T, _T, _T]])), "huge scores that are allowed"),
        Probe((wave(2, 3, 5, 7, dtype=np.float32), (np.arange(7) < np.array([[4], [7]]))[:, None, None]),
              "scores (2, 3, 5, 7), a padding mask (2, 1, 1, 7), float32"),
    ],
    mistakes=(
        Mistake(
            "inverted",
            "The form is right. But True should mean 'may attend' here; you hid the allowed keys. "
            "nn.MultiheadAttention's "
            "masks use the opposite sense, which is why this is easy to mix up.",
            "np.where(keep, z, -np.inf)", "np.where(keep, -np.inf, z)",
        ),
        Mistake(
            "score_zero",
            "You mask before softmax, as it should be. But a score of 0 is not 'no attention': e^0 = 1. Use "
            "-inf so that "
            "the weight becomes 0.",
            "np.where(keep, z, -np.inf)", "z * keep",
        ),
        Mistake(
            "mask_after",
            "Zeros are placed well. But the row no longer sums to 1. Mask before softmax, or divide by the "
            "row sum again.",
            function=lambda z, keep: softmax(z) * keep,
        ),
        Mistake(
            "mask_after_plain",
            "Zeros are placed well. But the row no longer sums to 1: mask before softmax, or divide by "
            "the row sum again. (And large scores overflow: take off the row maximum.)",
            function=lambda z, keep: np.exp(z) / np.exp(z).sum(-1, keepdims=True) * keep,
        ),
        Mistake(
            "over_queries",
            "Mask and guard are right. But you normalise over the queries (axis -2); the keys are the "
            "last axis.",
            function=_masked_over_queries,
        ),
        Mistake(
            "added",
            "You mask before softmax, as it should be. But you added the 0/1 mask; an additive mask must be "
            "0 where "
            "allowed and -inf where not.",
            function=lambda z, keep: softmax(z + keep),
        ),
        Mistake(
            "empty_row_nan",
            "All rows with at least one key are right. A row with none is 0/0: decide what it should be "
            "(we return zeros, as PyTorch's fused attention does).",
            function=lambda z, keep: _plain(np.where(keep, z, -np.inf)),
        ),
        Mistake(
            "empty_row_uniform",
            "All rows with at least one key are right. But an empty row attends evenly to everything, "
            "padding included, as it does with a large finite number in place of -inf. Use -inf with a "
            "guard, or zero the row.",
            "np.where(keep, z, -np.inf)", "np.where(keep, z, -1e9)",
        ),
        Mistake(
            "small_fill",
            "Masking before softmax is right. But -1e4 is not low enough: where allowed scores are lower "
            "still, the "
            "MASKED key wins. Use -inf with a guard.",
            "np.where(keep, z, -np.inf)", "np.where(keep, z, -1e4)",
        ),
        Mistake(
            "tiny_fill",
            "Masking before softmax is right. But -100 is an ordinary score: scores of that size exist. Use "
            "-inf with a guard.",
            "np.where(keep, z, -np.inf)", "np.where(keep, z, -100.0)",
        ),
        Mistake(
            "max_before_mask",
            "Mask and guard are right. But you take the maximum before masking: a huge masked score pushes "
            "the allowed ones "
            "down to 0. Mask first.",
            function=lambda z, keep: _guarded(np.where(keep, np.exp(z - z.max(-1, keepdims=True)), 0)),
        ),
        Mistake(
            "no_max",
            "Mask and guard are right. But large allowed scores overflow: subtract the row maximum.",
            "np.exp(z - peak)", "np.exp(z)",
        ),
        Mistake(
            "not_normalised",
            "The masked places are 0. But the rows do not sum to 1: divide by the row sum.",
            "return np.divide(e, total, out=np.zeros_like(e), where=total != 0)", "return e",
        ),
        Mistake(
            "ignores_mask",
            "The softmax is right. But the mask has no effect: put -inf where keep is False.",
            "np.where(keep, z, -np.inf)", "np.where(True, z, -np.inf)",
        ),
    ),
    forms={
        "multiply and renormalise": lambda z, keep: _guarded(
            np.exp(z - np.where(keep, z, -np.inf).max(-1, keepdims=True, initial=-1e30)) * keep
            if np.abs(z).max() < 500 else masked_softmax(z, keep)
        ),
        "-inf, then nan_to_num": lambda z, keep: np.nan_to_num(_plain(np.where(keep, z, -np.inf))),
        "-1e9, then times keep": lambda z, keep: softmax(np.where(keep, z, -1e9)) * keep,
        "rows one by one": lambda z, keep: _by_rows(z, np.broadcast_to(keep, z.shape)),
        **usual_forms(masked_softmax),
    },
    hints=(
        "Put -inf into the forbidden places, then take the softmax: np.where(keep, z, -np.inf).",
        "A row of -inf alone has the maximum -inf, and -inf - (-inf) is NaN. Replace that maximum by 0.",
        "Then the sum of that row is 0. Divide only where the sum is not 0, and leave 0 elsewhere.",
    ),
    well_done="Zeros where forbidden, rows that sum to 1, and an empty row is all 0. If you cleaned up a NaN on the "
    "way, the next experiment shows what that costs.",
)  # fmt: skip


def _plain(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _guarded(e):
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def _by_rows(z, keep):
    out = np.zeros_like(z)
    for i in np.ndindex(z.shape[:-1]):
        if keep[i].any():
            out[i][keep[i]] = _plain(z[i][keep[i]])
    return out


EXERCISES = (SOFTMAX, MASKED)
