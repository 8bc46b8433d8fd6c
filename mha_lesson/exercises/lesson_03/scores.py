"""Exercise 03.scores."""

import math

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.scores import attention_scores

mistake = Mistakes()


mistake.edit(
    "no_scale",
    """Dot products are right. But the dot products are not divided by sqrt(d): their spread grows with d and softmax
    saturates.""",
    old=" / math.sqrt(d_head)",
    new="",
)

mistake.edit(
    "by_d",
    """Dot products are right, and they are made smaller. But you divided by d. The standard deviation of the dot
    product is sqrt(d), so divide by sqrt(d).""",
    old="math.sqrt(d_head)",
    new="d_head",
)


@mistake
def by_d_model(q, k):
    """The form is right. But you scaled with the whole model width. Each head has only d = d_model / H features: use
    sqrt(d), with d = q.shape[-1]."""
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[0] * q.shape[-1])


mistake.edit(
    "transposed",
    """Products and scale are right. But rows must belong to queries and columns to keys: q @ k^T. You have the
    transpose.""",
    old="query @ key.swapaxes(-1, -2)",
    new="key @ query.swapaxes(-1, -2)",
)

mistake.edit(
    "by_heads",
    """Dot products are right. But you scaled by sqrt(number of heads); it should be the head width, q.shape[-1].""",
    old="math.sqrt(d_head)",
    new="math.sqrt(query.shape[0])",
)

mistake.edit(
    "by_keys",
    """Dot products are right. But you scaled by sqrt(number of keys); it should be the width, q.shape[-1].""",
    old="math.sqrt(d_head)",
    new="math.sqrt(key.shape[-2])",
)

mistake.edit(
    "by_queries",
    """Dot products are right. But you scaled by sqrt(number of queries); it should be the width, q.shape[-1].""",
    old="math.sqrt(d_head)",
    new="math.sqrt(query.shape[-2])",
)

mistake.edit(
    "multiplied",
    """sqrt(d) is the right number. But you multiplied by it, which makes the spread larger still: divide.""",
    old="/ math.sqrt(d_head)",
    new="* math.sqrt(d_head)",
)

mistake.edit(
    "fourth_root",
    """The fourth root of d is right if it goes into q and into k. But one division by the fourth root is too little:
    divide by sqrt(d) in all.""",
    old="math.sqrt(d_head)",
    new="d_head**0.25",
)


@mistake
def softmax_too(q, k):
    """These are attention weights: the scores are right, and you went one step further. Leave softmax to lesson 05, so
    that a mask can come in between."""
    return _softmax(attention_scores(q, k))


@mistake
def cosine(q, k):
    """Every query meets every key, good. But you took the angle between them (cosine); attention keeps the lengths: q @
    k^T / sqrt(d)."""
    return _unit(q) @ _unit(k).swapaxes(-1, -2)


@mistake
def distance(q, k):
    """Every query meets every key, good. But you took their distance; attention takes the dot product."""
    return np.linalg.norm(q[..., :, None, :] - k[..., None, :, :], axis=-1)


mistake.edit(
    "queries_with_queries",
    """Product and scale are right. But the queries meet themselves: the second factor must be k.""",
    old="key.swapaxes(-1, -2)",
    new="query.swapaxes(-1, -2)",
)


SCORES = Exercise(
    id="03.scores",
    signature="scores(q, k)",
    solution=attention_scores,
    probes=lambda: [
        Probe((np.ones((3, 5, 4)), np.ones((3, 7, 4))), "all ones: 3 heads, 5 queries, 7 keys, width 4"),
        Probe((wave(2, 3, 5), wave(2, 7, 5, step=0.9, start=0.1)), "2 heads, 3 queries, 7 keys, width 5"),
        Probe((wave(5, 3, 2), wave(5, 3, 2, step=0.9, start=0.1)), "as many keys as queries, 5 heads, width 2"),
        Probe((wave(3, 2, 7, dtype=np.float32), wave(3, 5, 7, step=1.3, dtype=np.float32)), "float32, width 7"),
    ],
    mistakes=mistake.all,
    forms={
        "queries scaled first": lambda q, k: (q / math.sqrt(q.shape[-1])) @ k.swapaxes(-1, -2),
        "fourth root on both": lambda q, k: (q / q.shape[-1] ** 0.25) @ (k / q.shape[-1] ** 0.25).swapaxes(-1, -2),
        "einsum": lambda q, k: np.einsum("hld,hsd->hls", q, k) / np.sqrt(q.shape[-1]),
        "broadcast and sum": lambda q, k: (q[:, :, None] * k[:, None]).sum(-1) * q.shape[-1] ** -0.5,
        "a loop over heads": lambda q, k: [a @ b.T / np.sqrt(a.shape[1]) for a, b in zip(q, k, strict=True)],
        **usual_forms(attention_scores),
    },
    hints=(
        "Every query with every key: a matrix product in which one of the two is transposed.",
        "k.T would turn all axes round, the heads too. Swap the last two alone: k.swapaxes(-1, -2).",
        "Divide by the square root of the width of one head, q.shape[-1].",
    ),
    well_done="Rows are queries, columns are keys, and the spread is the same at every width.",
)  # fmt: skip


def _softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
