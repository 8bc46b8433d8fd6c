"""Exercise 05.softmax."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.exercises.lesson_05.shared import plain
from mha_lesson.steps.softmax import softmax


def _over_axis_one(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


mistake = Mistakes()


@mistake
def over_queries(z):
    """Exponentials and shares are right. But columns sum to 1, rows do not. Each query (row) must share out its
    attention over the keys: the last axis."""
    return np.moveaxis(softmax(np.moveaxis(z, 0, -1)), -1, 0)


@mistake
def over_queries_plain(z):
    """Exponentials and shares are right for small scores. But columns sum to 1, rows do not: each query (row) must
    share out its attention over the keys, the last axis. (And large scores overflow: take off the row maximum.)"""
    return np.exp(z) / np.exp(z).sum(0, keepdims=True)


@mistake
def over_everything_plain(z):
    """Exponentials are right for small scores. But the whole matrix sums to 1; every row should. (And large scores
    overflow: take off the row maximum.)"""
    return np.exp(z) / np.exp(z).sum()


mistake.edit(
    "maximum_right_sum_wrong",
    """The maximum is taken over each row, good. But the sum runs over the queries: both belong to the last axis.""",
    old="e.sum(axis=-1, keepdims=True)",
    new="e.sum(axis=0, keepdims=True)",
)

mistake.function(
    "axis_one",
    """Right for a matrix. But axis 1 is the last axis only there; with more axes, or with a single row, it is another
    one or none: write axis=-1.""",
    _over_axis_one,
)


@mistake
def second_last_axis(z):
    """Exponentials and shares are right. But you normalise over the queries (axis -2); the keys are the last axis."""
    return softmax(z.swapaxes(-1, -2)).swapaxes(-1, -2)


@mistake
def over_everything(z):
    """Exponentials are right. But the whole matrix sums to 1; every row should."""
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


mistake.edit(
    "no_max",
    """Right for small scores. But e^1000 overflows. Subtract the row maximum first; the result does not change.""",
    old="z - z.max(axis=-1, keepdims=True)",
    new="z",
)

mistake.edit(
    "no_keepdims",
    """The exponentials are right. But the row sums lost their axis and were matched to columns. Use keepdims=True;
    square inputs hide this.""",
    old="e.sum(axis=-1, keepdims=True)",
    new="e.sum(axis=-1)",
)

mistake.edit(
    "one_maximum",
    """Subtracting a maximum is the right idea. But with one maximum for the whole matrix, rows far below it become 0/0:
    take each row's own, axis=-1 with keepdims=True.""",
    old="z.max(axis=-1, keepdims=True)",
    new="z.max()",
)

mistake.edit(
    "mean_taken_off",
    """Taking one number off each row leaves the result unchanged, right. But the mean is not enough: a score far above
    it still overflows. Take off the maximum.""",
    old="z.max(axis=-1, keepdims=True)",
    new="z.mean(axis=-1, keepdims=True)",
)

mistake.edit(
    "minimum_taken_off",
    """Taking one number off each row leaves the result unchanged, right. But with the minimum all exponents are
    positive and overflow; with the maximum none is.""",
    old="z.max(axis=-1, keepdims=True)",
    new="z.min(axis=-1, keepdims=True)",
)

mistake.edit(
    "first_taken_off",
    """Taking one number off each row leaves the result unchanged, right. But the first score need not be the largest:
    take off the maximum.""",
    old="z.max(axis=-1, keepdims=True)",
    new="z[..., :1]",
)


@mistake
def no_exp(z):
    """Dividing by the row sum is right. But the scores themselves can be negative or sum to 0: take np.exp first."""
    return z / z.sum(-1, keepdims=True)


mistake.edit(
    "not_normalised",
    """The exponentials are right and cannot overflow. But the rows do not sum to 1: divide by the row sum.""",
    old=" / e.sum(axis=-1, keepdims=True)",
    new="",
)

mistake.edit(
    "logarithm",
    """The shares are right. But you return their logarithm (log-softmax); attention needs the shares.""",
    old="return e / e.sum(axis=-1, keepdims=True)",
    new="return np.log(e / e.sum(axis=-1, keepdims=True))",
)


@mistake
def hard(z):
    """The largest score wins, as it should. But softmax is soft: the others get a share too."""
    return (z == z.max(-1, keepdims=True)).astype(z.dtype)


mistake.edit(
    "base_two",
    """Everything has the right form. But the base is 2; softmax uses e: np.exp.""",
    old="np.exp(",
    new="np.exp2(",
)


@mistake
def sigmoid(z):
    """Every value lies between 0 and 1. But each was squashed alone (sigmoid); in a softmax the keys of a row
    compete."""
    return 1 / (1 + np.exp(-z))


mistake.edit(
    "sign",
    """The rows sum to 1. But the largest score gets the smallest share: it is exp(z), not exp(-z).""",
    old="np.exp(z - z.max(axis=-1, keepdims=True))",
    new="np.exp(z.min(axis=-1, keepdims=True) - z)",
)


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
    mistakes=mistake.all,
    forms={
        "log-sum-exp": lambda z: np.exp(
            z - (z.max(-1, keepdims=True) + np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True)))
        ),
        "np.apply_along_axis": lambda z: np.apply_along_axis(plain, -1, z),
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
