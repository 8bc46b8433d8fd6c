"""Exercise 04.padding."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.masks import padding_mask

mistake = Mistakes()


mistake.edit(
    "inverted",
    """The edge is in the right place. But True should mean 'a real token'; yours marks the padding, as key_padding_mask
    in nn.MultiheadAttention does.""",
    old="np.arange(S) < ",
    new="np.arange(S) >= ",
)

mistake.edit(
    "one_too_many",
    """The form is right. But one padding place is let in: places count from 0, so < and not <=.""",
    old="np.arange(S) < ",
    new="np.arange(S) <= ",
)

mistake.edit(
    "one_too_few",
    """The form is right. But the last real token is cut off: place length - 1 still belongs to the sequence.""",
    old="np.arange(S) < lengths",
    new="np.arange(S) < -1 + lengths",
)

mistake.edit(
    "padding_first",
    """As many places are kept as there are tokens. But you keep the last ones; here the padding comes after the
    tokens.""",
    old="np.arange(S) < lengths",
    new="np.arange(S)[::-1] < lengths",
)

mistake.edit(
    "first_length_for_all",
    """The first row is right. But every sequence got the length of the first: lengths[:, None] gives each its own.""",
    old="lengths[:, None]",
    new="lengths[:1, None] + 0 * lengths[:, None]",
)

mistake.edit(
    "swapped_axes",
    """The comparison is right. But the shape is (B, S), one row for each sequence; yours is its transpose.""",
    old="np.arange(S) < lengths[:, None]",
    new="(np.arange(S) < lengths[:, None]).T",
)

mistake.edit(
    "axes_too_early",
    """The values are right, and these axes will be needed. But (B, S) is asked for here; the axes for heads and queries
    come when masks are combined.""",
    old="np.arange(S) < lengths[:, None]",
    new="(np.arange(S) < lengths[:, None])[:, None, None, :]",
)

mistake.edit(
    "all_real",
    """The shape is right. But no place is marked as padding: compare each place with the length of its sequence.""",
    old="np.arange(S) < lengths[:, None]",
    new="np.arange(S) < S + 0 * lengths[:, None]",
)


PADDING = Exercise(
    id="04.padding",
    signature="padding(lengths, S)",
    solution=padding_mask,
    probes=lambda: [
        Probe((np.array([3, 1]), 5), "lengths 3 and 1, S = 5"),
        Probe((np.array([2, 7, 5]), 7), "lengths 2, 7 and 5, S = 7"),
        Probe((np.array([0, 2]), 2), "an empty and a full sequence, S = 2"),
    ],
    mistakes=mistake.all,
    forms={
        "a loop": lambda lengths, S: [[j < n for j in range(S)] for n in lengths],
        "rows one by one": lambda lengths, S: np.stack([np.arange(S) < n for n in lengths]),
        "rows of tri": lambda lengths, S: np.tri(S + 1, S, -1, dtype=bool)[lengths],
        **usual_forms(padding_mask),
    },
    hints=(
        "Compare each place 0, 1, ..., S - 1 with the length of its sequence.",
        "np.arange(S) has shape (S,). To meet every length, the lengths must be a column.",
        "lengths[:, None] is that column; the result has shape (B, S).",
    ),
    well_done="One row for each sequence, True for its real tokens.",
)  # fmt: skip
