"""Exercise 02.previous."""

from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.compare import plain
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.projections import previous_word_weights


def _found_word(arguments: tuple, weights: Any) -> np.ndarray:
    """For each word after the first: which word has the one highest score (-1: there is a tie)."""
    (n,) = arguments
    weights = plain(weights)
    if isinstance(weights, dict) or np.ndim(weights) == 0 or len(weights) != 2:
        raise ValueError("expected two matrices, w_q and w_k, in this order")
    w_q, w_k = weights
    if w_q.ndim != 2 or w_q.shape[0] != n or w_q.shape != w_k.shape:
        raise ValueError(f"expected two matrices with {n} rows and equal shapes, got {w_q.shape} and {w_k.shape}")
    if not (np.isfinite(w_q).all() and np.isfinite(w_k).all()):
        raise ValueError("expected finite numbers in w_q and w_k, got NaN or infinity")
    scores = (np.eye(n) @ w_q) @ (np.eye(n) @ w_k).T
    best = scores.argmax(axis=1)
    close = 1e-9 * np.abs(scores).max()
    ties = (scores >= scores.max(axis=1, keepdims=True) - close).sum(axis=1) > 1
    return np.where(ties, -1, best)[1:]


mistake = Mistakes()


mistake.edit(
    "next_word",
    """Each word finds a neighbour, so query and key fit together. But it is the next word: shift the queries back, w_q
    = np.eye(n, k=-1), or the keys forward, w_k = np.eye(n, k=1), not both and not the other way round.""",
    old="k=-1",
    new="k=1",
)

mistake.edit(
    "itself",
    """Each word finds exactly one word. But it finds itself: shift one of the two matrices by one place.""",
    old="np.eye(n, k=-1)",
    new="np.eye(n)",
)

mistake.edit(
    "tie",
    """The shapes are right. But the best score is shared by several words, so none is found: give word i - 1 alone a
    high score.""",
    old="np.eye(n, k=-1)",
    new="np.zeros((n, n))",
)


@mistake
def first_word(n):
    """Each word finds exactly one word. But all find word 0; what row i asks for must depend on i."""
    return (np.eye(n)[[0] * n], np.eye(n))


mistake.edit(
    "two_back",
    """Looking back is right. But it goes back two words: shift by one place, np.eye(n, k=-1). (If you shifted both
    matrices, shift only one.)""",
    old="k=-1",
    new="k=-2",
)


PREVIOUS = Exercise(
    id="02.previous",
    signature="previous(n)",
    solution=previous_word_weights,
    protocol=Protocol(judge=_found_word),
    probes=lambda: [
        Probe((n,), f"{n} words: best keys of words 1 to {n - 1}, in order; -1 is a tie") for n in (3, 5, 11)
    ],
    mistakes=mistake.all,
    forms={
        "the keys shifted": lambda n: (np.eye(n), np.eye(n, k=1)),
        "with wrap-around": lambda n: (np.roll(np.eye(n), -1, axis=1), np.eye(n)),
        "other units": lambda n: (10.0 * np.eye(n, k=-1), 0.5 * np.eye(n)),
        "distance as a score": lambda n: _by_distance(n),
        **usual_forms(previous_word_weights),
    },
    hints=(
        "x is the identity: word i is a 1 in place i. So row i of w_q is the query of word i.",
        "Let the key of word j be a 1 in place j: w_k = np.eye(n). What must the query of word i be?",
        "The query of word i is a 1 in place i - 1. np.eye(n, k=-1) has its ones just below the diagonal.",
    ),
    well_done="A previous-word head, built by hand. The pretrained model has one too: head 2 of layer 0.",
)  # fmt: skip


def _by_distance(n):
    """score(i, j) = -(j - (i - 1))² up to a term that all j share: 2 (i - 1) j - j²."""
    i = np.arange(n)
    return np.stack([2.0 * (i - 1), np.ones(n)], 1), np.stack([i, -(i**2.0)], 1)
