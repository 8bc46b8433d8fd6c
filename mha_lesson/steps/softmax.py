"""Lesson 05. Softmax: scores become shares that add up to 1.

    softmax(z)_j = exp(z_j) / (exp(z_1) + ... + exp(z_S))

over the last axis, the keys. The largest score of each row is taken off first: the result is
the same, and exp never overflows.

A query that may attend to nothing gets the weights 0, not NaN. The row is made 0 before the
division, because a NaN that is replaced afterwards can come back in the gradient
(pytorch/pytorch#41508).
"""

# Quoted word for word by exercises/lesson_05/masked.py, exercises/lesson_05/softmax.py and tests/faults/faults.py:
# change them together.

import numpy as np

from mha_lesson.steps.masks import check_keep
from mha_lesson.steps.typing import Array, Float


def softmax(z: Float[Array, "*any S"]) -> Float[Array, "*any S"]:
    """Shares over the last axis. For rows that may be empty use `masked_softmax`."""
    e = np.exp(z - z.max(axis=-1, keepdims=True))  # (..., S), the largest entry is 1
    return e / e.sum(axis=-1, keepdims=True)


def masked_softmax(z: Float[Array, "*any S"], keep) -> Float[Array, "*any S"]:
    """Shares over the allowed keys; 0 for the others; all 0 in a row that allows none.

    Whatever stands in a forbidden place of z, NaN included, does not count. keep=None allows all.
    """
    keep = True if keep is None else check_keep(keep, z.shape)
    z = np.where(keep, z, -np.inf)  # (..., S)
    peak = z.max(axis=-1, keepdims=True, initial=-np.inf)  # (..., 1)
    peak = np.where(np.isneginf(peak), 0, peak)  # an empty row has no largest score
    e = np.exp(z - peak)
    total = e.sum(axis=-1, keepdims=True)  # (..., 1), 0 in an empty row
    return np.divide(e, total, out=np.zeros_like(e), where=total != 0)
