"""Lesson 00. Attention as a soft look-up.

A dictionary compares a query with each key and returns the value of the one that matches:

    {"book": 1, "table": 2}["book"]  ->  1

A soft look-up compares the query with every key, turns the matches into shares that add up
to 1, and returns the values mixed in those shares:

    match_j = query · key_j
    share_j = exp(match_j) / (exp(match_1) + ... + exp(match_S))
    output  = share_1 value_1 + ... + share_S value_S

Shapes: query (D,), keys (S, D), values (S, V), output (V,).
"""

# Quoted word for word by exercises/lesson_00/double.py, exercises/lesson_00/lookup.py and tests/faults/faults.py:
# change them together.

import numpy as np

from mha_lesson.steps.typing import Array, Float


def double(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Twice x. The first exercise: it only shows how exercises work."""
    return x * 2


def soft_lookup(query: Float[Array, "D"], keys: Float[Array, "S D"], values: Float[Array, "S V"]) -> Float[Array, "V"]:
    """Mix the values in the shares that the query's matches with the keys give.

    Source: Bahdanau et al. 2015 ("soft alignment"); the dot-product match is Luong et al. 2015.
    """
    match = keys @ query  # (S,)
    share = np.exp(match - match.max())  # (S,); the largest is taken off so that exp cannot overflow
    share = share / share.sum()
    return share @ values  # (V,)
