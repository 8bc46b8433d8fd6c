"""Lesson 03. Scores: how well each query matches each key.

    scores[i, j] = q_i · k_j / sqrt(D)

    query (..., L, D), key (..., S, D)  ->  scores (..., L, S): rows are queries, columns keys.

With entries of mean 0 and variance 1 the dot product of D of them has variance D. Divided by
sqrt(D) its variance is 1 at every width, and softmax keeps a gradient.
"""

# Quoted word for word by exercises/lesson_03/scores.py, exercises/lesson_03/variance.py and tests/faults/faults.py:
# change them together.

import math

from mha_lesson.steps.typing import Array, Float


def attention_scores(query: Float[Array, "*any L D"], key: Float[Array, "*any S D"]) -> Float[Array, "*any L S"]:
    """Scaled dot products of every query with every key.

    D is the width of one head, not of the whole model (Graylab/DL4Proteins-notebooks#12).

    Source: Vaswani et al. 2017, equation 1 and footnote 4.
    """
    d_head = query.shape[-1]
    if key.shape[-1] != d_head:
        raise ValueError(
            f"key: expected the query's width {d_head} in its last axis, got {key.shape} "
            f"(query {query.shape}). Both must come out of projections to the same width."
        )
    return query @ key.swapaxes(-1, -2) / math.sqrt(d_head)  # (..., L, S)


def dot_product_variance(d: int) -> tuple[float, float]:
    """Variance of q · k, and of q · k / sqrt(d), for d entries of mean 0 and variance 1.

    Each product q_i k_i has variance 1, and variances of independent terms add up: d.
    Dividing by sqrt(d) divides the variance by d.

    Source: Vaswani et al. 2017, footnote 4.
    """
    raw = float(d)
    scaled = raw / math.sqrt(d) ** 2
    return raw, scaled
