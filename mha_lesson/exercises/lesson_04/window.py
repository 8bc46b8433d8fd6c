"""Exercise 04.window."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.masks import window_mask

mistake = Mistakes()


mistake.edit(
    "one_too_wide",
    """The band has the right form. But it is one key too wide: the token itself counts, so it sees width - 1 before
    it.""",
    old="> query_place - width",
    new=">= query_place - width",
)

mistake.edit(
    "one_too_narrow",
    """The band has the right form. But it is one key too narrow: itself and width - 1 before it.""",
    old="> query_place - width",
    new="> query_place - width + 1",
)

mistake.edit(
    "both_sides",
    """Far keys are hidden on both sides. But the keys after a token must be hidden too, near or far: a window is causal
    here.""",
    old="(key_place <= query_place)",
    new="(key_place < query_place + width)",
)

mistake.edit(
    "no_upper_edge",
    """Nothing is too far back, good. But the keys after the query must be hidden as well: key_place <= query_place.""",
    old="(key_place <= query_place) & ",
    new="",
)

mistake.edit(
    "not_itself",
    """The band has the right width. But it stands one key too early: each token sees itself, so distances go from 0 to
    width - 1.""",
    old="(key_place <= query_place) & (key_place > query_place - width)",
    new="(key_place < query_place) & (key_place >= query_place - width)",
)

mistake.edit(
    "no_lower_edge",
    """The future is hidden. But nothing is too far back yet: keys more than width - 1 before the query must be
    hidden.""",
    old="(key_place > query_place - width)",
    new="(key_place > -1)",
)

mistake.edit(
    "top_left",
    """Right for square masks. With more keys than queries, the queries are the last tokens: shift by S - L.""",
    old=" + (S - L)",
    new="",
)

mistake.edit(
    "blocks",
    """Neighbours see each other and the future is hidden. But you cut the sequence into blocks; a window moves along
    with the query.""",
    old="(key_place > query_place - width)",
    new="(key_place >= query_place // width * width)",
)


@mistake
def inverted(L, S, width):
    """The band stands in the right place. But True should mean 'may attend'; you marked what is hidden."""
    return ~window_mask(L, S, width)


WINDOW = Exercise(
    id="04.window",
    signature="window(L, S, width)",
    solution=window_mask,
    probes=lambda: [
        Probe((5, 5, 2), "L = S = 5, width 2"),
        Probe((7, 7, 3), "L = S = 7, width 3"),
        Probe((2, 7, 3), "L 2, S 7, width 3"),
        Probe((3, 5, 11), "a window wider than the sequence"),
    ],
    mistakes=mistake.all,
    forms={
        "difference of two triangles": lambda L, S, width: np.tri(L, S, S - L, dtype=bool)
        & ~np.tri(L, S, S - L - width, dtype=bool),
        "distance": lambda L, S, width: (lambda d: (d >= 0) & (d < width))(
            np.arange(L)[:, None] + S - L - np.arange(S)
        ),
        "a loop": lambda L, S, width: [[0 <= i + S - L - j < width for j in range(S)] for i in range(L)],
        **usual_forms(window_mask),
    },
    hints=(
        "Begin with the causal mask, and hide what is too far back.",
        "Let distance = query_place - key_place. The causal mask asks for distance >= 0.",
        "The window asks for distance < width as well: itself has distance 0.",
    ),
    well_done="Code that skips what a window hides costs L times width in place of L times S: lesson 12.",
)  # fmt: skip
