"""Exercises of lesson 02: query, key, value."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.projections import previous_word_weights, project, qkv

QKV = Exercise(
    id="02.qkv",
    signature="qkv(x, w_q, w_k, w_v)",
    solution=qkv,
    helpers=(project,),
    probes=lambda: [
        Probe((np.eye(2), np.array([[1.0, 2], [3, 4]]), np.array([[5.0, 6], [7, 8]]), np.array([[9.0, 10], [11, 12]])),
              "x = the identity, so each result shows its matrix"),
        Probe((wave(5, 3), wave(3, 3, step=0.4), wave(3, 3, step=0.9), wave(3, 3, step=1.3)), "5 words, 3 features"),
        Probe((wave(2, 3, 5, dtype=np.float32), *(wave(5, 7, step=s, dtype=np.float32) for s in (0.4, 0.9, 1.3))),
              "a batch of 2, matrices (5, 7), float32"),
    ],
    mistakes=(
        Mistake(
            "weights_transposed",
            "Each role has its own matrix, good. But you multiplied by W.T. nn.Linear stores (out, in) and "
            "uses x @ W.T; "
            "here W is (in, out), so x @ W.",
            function=lambda x, w_q, w_k, w_v: (x @ w_q.T, x @ w_k.T, x @ w_v.T),
        ),
        Mistake(
            "tied_query_key",
            "The query and the value are right. But query and key use the same weights, so the score matrix "
            "is forced to "
            "be symmetric: 'i looks at j' = 'j looks at i'. The key needs w_k.",
            "project(x, w_k)", "project(x, w_q)",
        ),
        Mistake(
            "values_not_projected",
            "Query and key are right. But V is still the raw input. The values need their own projection w_v.",
            "project(x, w_v)", "x",
        ),
        Mistake(
            "keys_not_projected",
            "Query and value are right. But K is still the raw input. The keys need their own projection w_k.",
            "project(x, w_k)", "x",
        ),
        Mistake(
            "queries_not_projected",
            "Key and value are right. But Q is still the raw input. The queries need their own projection w_q.",
            "project(x, w_q)", "x",
        ),
        Mistake(
            "order",
            "All three products are right. But they come back as query, value, key; the order is query, key, "
            "value.",
            "project(x, w_k), project(x, w_v)", "project(x, w_v), project(x, w_k)",
        ),
        Mistake(
            "key_first",
            "All three products are right. But they come back as key, query, value; the order is query, "
            "key, value.",
            function=lambda x, w_q, w_k, w_v: (x @ w_k, x @ w_q, x @ w_v),
        ),
        Mistake(
            "value_first",
            "All three products are right. But they come back as value, key, query; the order is query, "
            "key, value.",
            function=lambda x, w_q, w_k, w_v: (x @ w_v, x @ w_k, x @ w_q),
        ),
        Mistake(
            "value_in_front",
            "All three products are right. But they come back as value, query, key; the order is query, "
            "key, value.",
            function=lambda x, w_q, w_k, w_v: (x @ w_v, x @ w_q, x @ w_k),
        ),
        Mistake(
            "query_last",
            "All three products are right. But they come back as key, value, query; the order is query, "
            "key, value.",
            function=lambda x, w_q, w_k, w_v: (x @ w_k, x @ w_v, x @ w_q),
        ),
        Mistake(
            "value_from_key",
            "Query and key are right. But the value uses w_k as well; what a word offers and what it hands "
            "over "
            "are two things: x @ w_v.",
            "project(x, w_v)", "project(x, w_k)",
        ),
        Mistake(
            "value_from_query",
            "Query and key are right. But the value uses w_q; it has a matrix of its own: x @ w_v.",
            "project(x, w_v)", "project(x, w_q)",
        ),
        Mistake(
            "all_the_same",
            "x @ w is the right product. But all three roles use w_q; then nothing tells looking from being "
            "found.",
            function=lambda x, w_q, w_k, w_v: (x @ w_q, x @ w_q, x @ w_q),
        ),
        Mistake(
            "already_scaled",
            "The projections are right. But the query is already divided by sqrt(d); that comes with the "
            "scores, in "
            "lesson 03.",
            "project(x, w_q)", "project(x, w_q) / w_q.shape[1] ** 0.5",
        ),
        Mistake(
            "weights_first",
            "With x = the identity it comes out right. But on other shapes the product does not fit: it "
            "is x @ w, neither w @ x nor x.T @ w.",
            function=lambda x, w_q, w_k, w_v: (w_q @ x, w_k @ x, w_v @ x),
        ),
    ),
    forms={
        "one fused matrix": lambda x, w_q, w_k, w_v: np.split(x @ np.concatenate([w_q, w_k, w_v], 1), 3, axis=-1),
        "einsum": lambda x, w_q, w_k, w_v: tuple(np.einsum("...i,io->...o", x, w) for w in (w_q, w_k, w_v)),
        "one stacked array": lambda x, w_q, w_k, w_v: np.stack([x @ w for w in (w_q, w_k, w_v)]),
        **usual_forms(qkv),
    },
    hints=(
        "Three products with the same x on the left.",
        "x @ w_q takes each word's vector to its query. Key and value are made in the same way.",
        "return x @ w_q, x @ w_k, x @ w_v",
    ),
    well_done="One vector, three roles. Nothing is compared yet: that is the next step.",
)  # fmt: skip


def _found_word(probe: Probe, weights) -> np.ndarray:
    """For each word after the first: which word has the one highest score (-1: there is a tie)."""
    n = probe.args[0]
    if not isinstance(weights, tuple) and len(weights) == 2:
        weights = tuple(weights)
    if not isinstance(weights, tuple) or len(weights) != 2:
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


PREVIOUS = Exercise(
    id="02.previous",
    signature="previous(n)",
    solution=previous_word_weights,
    judge=_found_word,
    probes=lambda: [
        Probe((n,), f"{n} words: best keys of words 1 to {n - 1}, in order; -1 is a tie") for n in (3, 5, 11)
    ],
    mistakes=(
        Mistake(
            "next_word",
            "Each word finds a neighbour, so query and key fit together. But it is the next word: shift "
            "the queries back, w_q = np.eye(n, k=-1), or the keys forward, w_k = np.eye(n, k=1), not both"
            " and not the other way round.",
            "k=-1", "k=1",
        ),
        Mistake(
            "itself",
            "Each word finds exactly one word. But it finds itself: shift one of the two matrices by one "
            "place.",
            "np.eye(n, k=-1)", "np.eye(n)",
        ),
        Mistake(
            "tie",
            "The shapes are right. But the best score is shared by several words, so none is found: "
            "give word i - 1 alone a high score.",
            "np.eye(n, k=-1)", "np.zeros((n, n))",
        ),
        Mistake(
            "first_word",
            "Each word finds exactly one word. But all find word 0; what row i asks for must depend on i.",
            function=lambda n: (np.eye(n)[[0] * n], np.eye(n)),
        ),
        Mistake(
            "two_back",
            "Looking back is right. But it goes back two words: shift by one place, np.eye(n, k=-1). (If "
            "you shifted both matrices, shift only one.)",
            "k=-1", "k=-2",
        ),
    ),
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


EXERCISES = (QKV, PREVIOUS)
