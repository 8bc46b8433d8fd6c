"""Exercise 06.split."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.heads import split_heads

mistake = Mistakes()


@mistake
def one_reshape(x, h):
    """The shape is right. But tokens got mixed: split the features first, (B, L, h, d), then swap axes 1 and 2."""
    return x.reshape(x.shape[0], h, x.shape[1], x.shape[2] // h)


@mistake
def every_hth_feature(x, h):
    """Tokens stay apart, and the shape is right. Consistent, but another layout: head 0 should hold the first d
    features, not every h-th."""
    return x.reshape(*x.shape[:2], x.shape[2] // h, h).transpose(0, 3, 1, 2)


mistake.edit(
    "no_swap",
    """The features are cut right. But the heads must stand before the tokens: swap axes 1 and 2, so that each head is a
    matrix (L, d).""",
    old="return x.swapaxes(-3, -2)",
    new="return x",
)

mistake.edit(
    "width_for_heads",
    """The two steps are right. But h is the number of heads, not their width: reshape to (B, L, h, d_model // h).""",
    old="num_heads, d_model // num_heads)",
    new="d_model // num_heads, num_heads)",
)

mistake.edit(
    "heads_first",
    """Each head holds the right numbers. But the heads stand before the batch; the order is (B, h, L, d).""",
    old="x.swapaxes(-3, -2)",
    new="np.moveaxis(x, -2, 0)",
)

mistake.edit(
    "heads_reversed",
    """The two steps are right. But the last head comes first: head 0 holds the first d features.""",
    old="x.swapaxes(-3, -2)",
    new="x[..., ::-1, :].swapaxes(-3, -2)",
)

mistake.edit(
    "token_feature_swapped",
    """Each head holds the right numbers. But each is turned on its side: (B, h, L, d), tokens before features.""",
    old="x.swapaxes(-3, -2)",
    new="np.moveaxis(x, -3, -1)",
)


@mistake
def tokens_split(x, h):
    """The shape fits, but you cut the tokens into groups. Heads share the features: every head sees every token."""
    return x.transpose(0, 2, 1).reshape(x.shape[0], h, x.shape[1], -1)


SPLIT = Exercise(
    id="06.split",
    signature="split(x, h)",
    solution=split_heads,
    probes=lambda: [
        Probe((np.arange(1.0, 13).reshape(1, 3, 4), 2), "x = 1..12 as (1, 3, 4), 2 heads"),
        Probe((wave(2, 5, 21), 3), "B 2, L 5, E 21, 3 heads"),
        Probe((wave(3, 7, 10, dtype=np.float32), 5), "B 3, L 7, E 10, 5 heads, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "split and stack": lambda x, h: np.stack(np.split(x, h, -1), 1),
        "slices": lambda x, h: (
            lambda d: np.stack([x[..., i * d : (i + 1) * d] for i in range(h)], 1)
        )(x.shape[-1] // h),
        "transpose": lambda x, h: x.reshape(*x.shape[:2], h, -1).transpose(0, 2, 1, 3),
        **usual_forms(split_heads),
    },
    hints=(
        "Two steps: cut the last axis into (h, d), then move the heads before the tokens.",
        "B, L, E = x.shape; x.reshape(B, L, h, E // h) cuts the features of each token.",
        "Swap axes 1 and 2: .transpose(0, 2, 1, 3) or .swapaxes(1, 2).",
    ),
    well_done="Head 0 holds the first d features of every token.",
)  # fmt: skip
