"""Exercise 04.combine."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.masks import causal_mask, combine_masks, padding_mask

mistake = Mistakes()


mistake.edit(
    "or",
    """The axes are right. But with | (or +) one permission is enough; a key must be allowed by both masks: &.""",
    old="causal & padding",
    new="causal | padding",
)

mistake.edit(
    "queries_padded",
    """& is right. But the padding lies on the query axis; it is keys that must not be seen: padding[:, None, None,
    :].""",
    old="[:, None, None, :]",
    new="[:, None, :, None]",
)


@mistake
def both_axes(causal, padding):
    """The keys are masked right. But padded queries need no mask (and where L and S differ it does not even fit): leave
    the second factor out."""
    return causal & padding[:, None, None, :] & padding[:, None, :, None]


mistake.edit(
    "batch_on_heads",
    """& is right. But the sequences lie on the axis of the heads: with as many heads as sequences nothing would warn
    you. padding[:, None, None, :].""",
    old="[:, None, None, :]",
    new="[None, :, None, :]",
)

mistake.edit(
    "no_head_axis",
    """& is right, and each sequence meets its padding. But the scores have an axis for the heads: the result must be
    (B, 1, L, S), or sequence 1 would land on head 1.""",
    old="[:, None, None, :]",
    new="[:, None, :]",
)


@mistake
def only_causal(causal, padding):
    """The axes are right. But the padding has no effect: combine the two with &."""
    return np.broadcast_to(causal, (len(padding), 1, *causal.shape)).copy()


@mistake
def only_padding(causal, padding):
    """The padding lies on the right axis. But the causal mask has no effect: combine the two with &."""
    return np.broadcast_to(padding[:, None, None, :], (len(padding), 1, *causal.shape)).copy()


@mistake
def inverted(causal, padding):
    """The axes are right and both masks count. But the result says where NOT to look; here True means 'may attend'."""
    return ~combine_masks(causal, padding)


mistake.edit(
    "xor",
    """The axes are right. But ^ is True where exactly one mask allows; both must: &.""",
    old="causal & padding",
    new="causal ^ padding",
)


COMBINE = Exercise(
    id="04.combine",
    signature="combine(causal, padding)",
    solution=combine_masks,
    probes=lambda: [
        Probe((causal_mask(3, 5), padding_mask([5, 2], 5)), "B 2, L 3, S 5"),
        Probe((causal_mask(5, 5), padding_mask([4, 1, 5], 5)), "B 3, L = S = 5"),
        Probe((causal_mask(4, 4), padding_mask([3, 4], 4)[:, ::-1]), "B 2, L = S = 4, padding on the left"),
        Probe((causal_mask(3, 3), padding_mask([1, 3, 2], 3)), "B = L = S = 3"),
    ],
    mistakes=mistake.all,
    forms={
        "logical_and": lambda causal, padding: np.logical_and(causal[None, None], padding[:, None, None]),
        "product of booleans": lambda causal, padding: causal * padding[:, None, None, :],
        "a loop": lambda causal, padding: np.stack([(causal & row)[None] for row in padding]),
        **usual_forms(combine_masks),
    },
    hints=(
        "Both must allow: &. The rest is a matter of axes.",
        "The result has axes (B, 1, L, S). Where do B and S of the padding go?",
        "padding[:, None, None, :] is (B, 1, 1, S). causal is (L, S), and NumPy lines up the last axes.",
    ),
    well_done="(B, 1, L, S): one mask for each sequence, the same for all heads.",
)  # fmt: skip
