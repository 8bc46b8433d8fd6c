"""Exercise 06.merge."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.heads import merge_heads

mistake = Mistakes()


mistake.edit(
    "one_reshape",
    """The shape is right. But token 0 got head 0 of two tokens. Swap heads and tokens back before flattening.""",
    old="o = o.swapaxes(-3, -2)",
    new="o = o",
)


@mistake
def averaged(o):
    """Tokens stay apart. But heads are laid side by side, not averaged; averaging throws away what the heads found."""
    return o.mean(1)


@mistake
def summed(o):
    """Tokens stay apart. But heads are laid side by side, not added; W_O will mix them."""
    return o.sum(1)


@mistake
def interleaved(o):
    """Each token has all its numbers. But the heads are shuffled into each other: head 0 must keep its d features side
    by side."""
    return o.transpose(0, 2, 3, 1).reshape(o.shape[0], o.shape[2], -1)


@mistake
def first_head(o):
    """Tokens stay apart. But only head 0 is there: lay all heads side by side."""
    return o[:, 0]


mistake.edit(
    "not_flattened",
    """The axes stand in the right order. But heads and features are still two axes: flatten them, (B, L, h * d).""",
    old="return o.reshape(*batch, L, num_heads * d_head)",
    new="return o",
)


@mistake
def heads_reversed(o):
    """Everything lies side by side. But the last head comes first; keep their order."""
    return merge_heads(o[:, ::-1])


MERGE = Exercise(
    id="06.merge",
    signature="merge(o)",
    solution=merge_heads,
    probes=lambda: [
        Probe((np.array([[[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]]]),), "2 heads, 2 tokens, width 2"),
        Probe((wave(2, 3, 5, 7),), "B 2, h 3, L 5, d 7"),
        Probe((wave(3, 5, 2, 2, dtype=np.float32),), "B 3, h 5, L 2, d 2, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "concatenate": lambda o: np.concatenate([o[:, i] for i in range(o.shape[1])], -1),
        "transpose": lambda o: o.transpose(0, 2, 1, 3).reshape(o.shape[0], o.shape[2], -1),
        "hstack per sample": lambda o: np.stack([np.hstack(list(sample)) for sample in o]),
        **usual_forms(merge_heads),
    },
    hints=(
        "The way back from split: the same two steps in the opposite order.",
        "First swap heads and tokens, (B, L, h, d).",
        "Then flatten the last two axes: .reshape(B, L, h * d).",
    ),
    well_done="merge(split(x, h)) is x again.",
)  # fmt: skip
