"""Lesson 06. Heads: split the features, attend in parallel, join, project.

    split_heads    (..., L, E)    -> (..., H, L, D)     D = E / H
    merge_heads    (..., H, L, D) -> (..., L, E)
    output_projection              C W_O + b_O          (..., L, E) -> (..., L, E)

Head h owns the features h·D to (h + 1)·D. Splitting must first cut the features and then swap
two axes; one reshape has the right shape and mixes tokens.
"""

# Quoted word for word by exercises/lesson_06/merge.py, exercises/lesson_06/output.py, exercises/lesson_06/split.py and
# tests/faults/faults.py: change them together.

import numpy as np

from mha_lesson.steps.projections import project
from mha_lesson.steps.typing import Array, Float


def split_heads(x: Float[Array, "*any L E"], num_heads: int) -> Float[Array, "*any H L D"]:
    """Cut the features of each token into `num_heads` equal parts."""
    *batch, L, d_model = x.shape
    if not isinstance(num_heads, (int, np.integer)) or num_heads < 1:
        raise ValueError(f"num_heads: expected a whole number from 1 on, got {num_heads!r}.")
    if d_model % num_heads:
        raise ValueError(
            f"num_heads: expected a divisor of d_model = {d_model}, got {num_heads}: "
            f"{d_model} / {num_heads} features for each head is not a whole number."
        )
    x = x.reshape(*batch, L, num_heads, d_model // num_heads)  # (..., L, H, D)
    return x.swapaxes(-3, -2)  # (..., H, L, D)


def merge_heads(o: Float[Array, "*any H L D"]) -> Float[Array, "*any L E"]:
    """Lay the heads of each token side by side again.

    Without the swap the shape is the same, and a token gets one head of several tokens
    (jsbaan/transformer-from-scratch#6, whose training ran all the same).
    """
    *batch, num_heads, L, d_head = o.shape
    o = o.swapaxes(-3, -2)  # (..., L, H, D)
    return o.reshape(*batch, L, num_heads * d_head)  # (..., L, E)


def output_projection(
    c: Float[Array, "*any L E"], w_o: Float[Array, "E F"], b_o: Float[Array, "F"] | None = None
) -> Float[Array, "*any L F"]:
    """C W_O + b_O: the map that lets the heads mix. The same as a sum over heads of O_h W_O[h]."""
    return project(c, w_o, b_o)
