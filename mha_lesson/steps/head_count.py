"""Lesson 10. How many heads? Count what they cost, measure what they bring, choose.

    layer_parameters    what one attention layer costs
    sweep_heads         what each number of heads brings: the mean over seeds, and the range
    cheapest_as_good    the cheapest option that the range does not tell from the best

One run with one seed shows luck as well as quality. Put a plain baseline among the options: it
wins more often than one would think.
"""

# Quoted word for word by exercises/lesson_10/choose.py, exercises/lesson_10/parameters.py, exercises/lesson_10/sweep.py
# and tests/faults/faults.py: change them together.

from collections.abc import Callable, Sequence

import numpy as np

from mha_lesson.steps.typing import Array, Float, Real


def layer_parameters(d_model: int, num_heads: int, num_kv_heads: int) -> int:
    """Parameters of one attention layer with biases.

        W_Q (E, E)   W_K, W_V (E, K·D)   W_O (E, E)     D = E / H, K = num_kv_heads

    With K = H the number of heads does not matter: more heads are narrower heads. With fewer
    key and value heads (K < H, grouped-query; K = 1, multi-query) W_K and W_V shrink.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023 (GQA).
    """
    d_head = d_model // num_heads
    kv_width = num_kv_heads * d_head
    queries = d_model * d_model + d_model  # weights and biases
    keys_values = 2 * (d_model * kv_width + kv_width)
    output = d_model * d_model + d_model
    return queries + keys_values + output


def sweep_heads(train: Callable, head_counts: Sequence[int], seeds: Sequence[int]) -> Float[Array, "n 4"]:
    """A table with one row for each number of heads: heads, mean, lowest and highest score.

    train(heads, seed) trains one model and returns its score. Every number of heads gets the same
    seeds. The range says how much of a difference may be luck; the best seed alone hides it.

    Source: the habit of reporting the best seed, and what it hides: Dodge et al. 2019.
    """
    rows = []
    for heads in head_counts:
        scores = [train(heads, seed) for seed in seeds]
        rows.append([heads, np.mean(scores), min(scores), max(scores)])
    return np.array(rows, dtype=float)


def cheapest_as_good(names: Sequence[str], scores: Real[Array, "n seeds"], costs: Real[Array, "n"]) -> str:
    """The name of the cheapest option that is not clearly worse than the one with the best mean.

    Clearly worse: its best seed is below the worst seed of the option with the best mean, so
    that their ranges do not overlap. Higher scores are better.
    """
    best = np.argmax(scores.mean(axis=1))
    bar = scores[best].min()
    as_good = scores.max(axis=1) >= bar  # (n,)
    return names[int(np.argmin(np.where(as_good, costs, np.inf)))]
