"""Lesson 02. Queries, keys and values.

One vector for each token plays three roles. Three learned matrices make them:

    Q = X W_Q      what this token looks for           (L, E) @ (E, E) -> (L, E)
    K = X W_K      what this token offers to be found by
    V = X W_V      what this token hands over when it is found

Source: Vaswani et al. 2017, section 3.2.
"""

# Quoted word for word by exercises/lesson_02/previous.py, exercises/lesson_02/qkv.py and tests/faults/faults.py: change
# them together.

import numpy as np

from mha_lesson.steps.typing import Array, Float


def project(
    x: Float[Array, "*any L A"], w: Float[Array, "A E"], b: Float[Array, "E"] | None = None
) -> Float[Array, "*any L E"]:
    """x @ w + b, with w stored (in, out).

    `torch.nn.Linear` stores its weight (out, in) and computes `x @ weight.T`. A square matrix
    hides the difference from every shape check (skyzh/tiny-llm#41).
    """
    if x.shape[-1] != w.shape[0]:
        raise ValueError(
            f"w: expected (in, out) with in = {x.shape[-1]}, the last axis of x {x.shape}; "
            f"got {w.shape}. A weight of torch.nn.Linear is (out, in): pass weight.T."
        )
    if b is not None and b.shape != w.shape[1:]:
        raise ValueError(f"b: expected one number for each column of w {w.shape}, got shape {b.shape}.")
    projected = x @ w  # (..., L, E)
    return projected if b is None else projected + b


def qkv(
    x: Float[Array, "*any L A"],
    w_q: Float[Array, "A E"],
    w_k: Float[Array, "A E"],
    w_v: Float[Array, "A F"],
) -> tuple[Float[Array, "*any L E"], Float[Array, "*any L E"], Float[Array, "*any L F"]]:
    """The three roles of each token: (query, key, value)."""
    return project(x, w_q), project(x, w_k), project(x, w_v)


def previous_word_weights(n: int) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """(w_q, w_k) with which each word's query matches the key of the word before it.

    For words that are known by their place alone: x is the identity, word i a 1 in place i.
    """
    w_q = np.eye(n, k=-1)  # word i asks for place i - 1
    w_k = np.eye(n)  # word j answers to place j
    return w_q, w_k
