"""Exercise 05.masked."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.exercises.lesson_05.shared import plain
from mha_lesson.steps.softmax import masked_softmax, softmax


def _masked_over_queries(z, keep):
    keep = np.broadcast_to(keep, z.shape).swapaxes(-1, -2)
    return masked_softmax(z.swapaxes(-1, -2), keep).swapaxes(-1, -2)


_T, _F = True, False


mistake = Mistakes()


mistake.edit(
    "inverted",
    """The form is right. But True should mean 'may attend' here; you hid the allowed keys. nn.MultiheadAttention's
    masks use the opposite sense, which is why this is easy to mix up.""",
    old="np.where(keep, z, -np.inf)",
    new="np.where(keep, -np.inf, z)",
)

mistake.edit(
    "score_zero",
    """You mask before softmax, as it should be. But a score of 0 is not 'no attention': e^0 = 1. Use -inf so that the
    weight becomes 0.""",
    old="np.where(keep, z, -np.inf)",
    new="z * keep",
)


@mistake
def mask_after(z, keep):
    """Zeros are placed well. But the row no longer sums to 1. Mask before softmax, or divide by the row sum again."""
    return softmax(z) * keep


@mistake
def mask_after_plain(z, keep):
    """Zeros are placed well. But the row no longer sums to 1: mask before softmax, or divide by the row sum again. (And
    large scores overflow: take off the row maximum.)"""
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True) * keep


mistake.function(
    "over_queries",
    """Mask and guard are right. But you normalise over the queries (axis -2); the keys are the last axis.""",
    _masked_over_queries,
)


@mistake
def added(z, keep):
    """You mask before softmax, as it should be. But you added the 0/1 mask; an additive mask must be 0 where allowed
    and -inf where not."""
    return softmax(z + keep)


@mistake
def empty_row_nan(z, keep):
    """All rows with at least one key are right. A row with none is 0/0: decide what it should be (we return zeros, as
    PyTorch's fused attention does)."""
    return plain(np.where(keep, z, -np.inf))


mistake.edit(
    "empty_row_uniform",
    """All rows with at least one key are right. But an empty row attends evenly to everything, padding included, as it
    does with a large finite number in place of -inf. Use -inf with a guard, or zero the row.""",
    old="np.where(keep, z, -np.inf)",
    new="np.where(keep, z, -1e9)",
)

mistake.edit(
    "small_fill",
    """Masking before softmax is right. But -1e4 is not low enough: where allowed scores are lower still, the MASKED key
    wins. Use -inf with a guard.""",
    old="np.where(keep, z, -np.inf)",
    new="np.where(keep, z, -1e4)",
)

mistake.edit(
    "tiny_fill",
    """Masking before softmax is right. But -100 is an ordinary score: scores of that size exist. Use -inf with a
    guard.""",
    old="np.where(keep, z, -np.inf)",
    new="np.where(keep, z, -100.0)",
)


@mistake
def max_before_mask(z, keep):
    """Mask and guard are right. But you take the maximum before masking: a huge masked score pushes the allowed ones
    down to 0. Mask first."""
    return _guarded(np.where(keep, np.exp(z - z.max(-1, keepdims=True)), 0))


mistake.edit(
    "no_max",
    """Mask and guard are right. But large allowed scores overflow: subtract the row maximum.""",
    old="np.exp(z - peak)",
    new="np.exp(z)",
)

mistake.edit(
    "not_normalised",
    """The masked places are 0. But the rows do not sum to 1: divide by the row sum.""",
    old="return np.divide(e, total, out=np.zeros_like(e), where=total != 0)",
    new="return e",
)

mistake.edit(
    "ignores_mask",
    """The softmax is right. But the mask has no effect: put -inf where keep is False.""",
    old="np.where(keep, z, -np.inf)",
    new="np.where(True, z, -np.inf)",
)


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
    mistakes=mistake.all,
    forms={
        "multiply and renormalise": lambda z, keep: _guarded(
            np.exp(z - np.where(keep, z, -np.inf).max(-1, keepdims=True, initial=-1e30)) * keep
            if np.abs(z).max() < 500 else masked_softmax(z, keep)
        ),
        "-inf, then nan_to_num": lambda z, keep: np.nan_to_num(plain(np.where(keep, z, -np.inf))),
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


def _guarded(e):
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def _by_rows(z, keep):
    out = np.zeros_like(z)
    for i in np.ndindex(z.shape[:-1]):
        if keep[i].any():
            out[i][keep[i]] = plain(z[i][keep[i]])
    return out
