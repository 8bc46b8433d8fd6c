"""Exercise 11.gqa."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.serving import repeat_heads


def _tokens_mixed(k, n):
    """Repeats the tokens, then cuts them into G·n heads: the right shape, and every head holds pieces."""
    B, G, S, D = k.shape
    return np.repeat(k, n, 2).reshape(B, G * n, S, D)


mistake = Mistakes()


@mistake
def tiled(k, n):
    """Each head comes n times. But in the wrong order: neighbours share a key head, 0 0 1 1, and yours are 0 1 0 1, as
    np.tile makes them. np.repeat along the head axis."""
    return np.tile(k, (1, n, 1, 1))


@mistake
def tokens_repeated(k, n):
    """Repeating is right. But along axis 2, the tokens: the head axis is 1."""
    return np.repeat(k, n, 2)


@mistake
def batch_repeated(k, n):
    """Repeating is right. But along axis 0, the batch: the head axis is 1."""
    return np.repeat(k, n, 0)


@mistake
def width_repeated(k, n):
    """Repeating is right. But along the last axis, the width of a head: the head axis is 1."""
    return np.repeat(k, n, -1)


@mistake
def tokens_tiled(k, n):
    """Everything comes n times. But the tokens were repeated, one copy behind the other: the head axis is 1."""
    return np.tile(k, (1, 1, n, 1))


@mistake
def batch_tiled(k, n):
    """Everything comes n times. But the batch was repeated, one copy behind the other: the head axis is 1."""
    return np.tile(k, (n, 1, 1, 1))


mistake.function(
    "tokens_mixed",
    """The shape is right. But a reshape cut the repeated tokens into heads, so that a head holds pieces of tokens:
    repeat along axis 1, and no reshape is needed.""",
    _tokens_mixed,
)


@mistake
def n_in_all(k, n):
    """Heads are repeated in the right order. But n is how often EACH key head comes, not how many heads there are in
    the end."""
    return np.repeat(k, n // k.shape[1], 1)


@mistake
def n_more(k, n):
    """Heads are repeated in the right order. But once too often: n times in all, the head itself included."""
    return np.repeat(k, n + 1, 1)


@mistake
def first_head_only(k, n):
    """The shape is right. But every query head got the first key head: each group has its own."""
    return np.repeat(k[:, :1], n * k.shape[1], 1)


@mistake
def extra_axis(k, n):
    """Each head comes n times. But in an axis of its own, (B, G, n, S, D): join the two, .reshape(B, G * n, S, D)."""
    return np.repeat(k[:, :, None], n, 2)


@mistake
def averaged(k, n):
    """The number of heads is right. But their mean was taken: each key head is repeated as it is."""
    return np.repeat(k.mean(1, keepdims=True), n * k.shape[1], 1)


@mistake
def not_repeated(k, n):
    """The heads stay what they are. But there are still G of them: G * n are needed, one for each query head."""
    return k.copy()


@mistake
def numbers_repeated(k, n):
    """The shape is right. But the numbers of a row were repeated, not the heads: pass the axis of the heads,
    np.repeat(k, n, axis=1), and no reshape is needed."""
    return np.repeat(k, n).reshape(k.shape[0], k.shape[1] * n, *k.shape[2:])


@mistake
def flattened(k, n):
    """Each number comes n times. But all in one row: pass the axis of the heads, axis=1."""
    return np.repeat(k, n)


GQA = Exercise(
    id="11.gqa",
    signature="gqa(k, n)",
    solution=repeat_heads,
    probes=lambda: [
        Probe((np.array([10.0, 20]).reshape(1, 2, 1, 1), 3), "two heads that hold 10 and 20, n = 3"),
        Probe((wave(2, 3, 5, 7), 2), "B 2, G 3, S 5, D 7, n = 2"),
        Probe((wave(3, 1, 2, 5), 4), "one key head for four (MQA)"),
        Probe((wave(2, 2, 2, 2, dtype=np.float32), 2), "all axes 2, n = 2, float32"),
        Probe((wave(1, 3, 2, 2), 1), "n = 1: nothing to share"),
    ],
    mistakes=mistake.all,
    forms={
        **usual_forms(repeat_heads),
        "broadcast and reshape": lambda k, n: np.broadcast_to(
            k[:, :, None], (k.shape[0], k.shape[1], n, *k.shape[2:])
        ).reshape(k.shape[0], -1, *k.shape[2:]),
        "by index": lambda k, n: k[:, np.arange(k.shape[1] * n) // n],
        "a loop": lambda k, n: np.stack([k[:, h // n] for h in range(k.shape[1] * n)], axis=1),
        "einsum": lambda k, n: np.einsum("bgsd,gh->bhsd", k, np.repeat(np.eye(k.shape[1]), n, 1)).astype(k.dtype),
        "a product with ones": lambda k, n: (k[:, :, None] * np.ones((n, 1, 1), k.dtype)).reshape(
            len(k), -1, *k.shape[2:]
        ),
    },
    hints=(
        "Write down which key head query head 0, 1, 2, 3 reads, with G = 2 and n = 2.",
        "Query head h reads key head h // n.",
        "np.repeat(k, n, axis=1).",
    ),
    well_done="0 0 1 1: neighbours share. PyTorch calls it repeat_interleave.",
)  # fmt: skip
