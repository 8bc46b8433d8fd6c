"""Exercise 01.add_positions."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.embeddings import add_positions

mistake = Mistakes()


mistake.edit(
    "batch_axis",
    """Adding is right, and the shape does not show the fault. But the rows run along the batch: each *sequence* got a
    vector, and all its words the same one. Take positions[:L], with L = x.shape[1].""",
    old="x + positions[:L]",
    new="x + positions[: x.shape[0]][:, None]",
)

mistake.edit(
    "whole_table",
    """Adding is right. But the table has more rows than the sentence has words: take its first L rows, positions[:L],
    with L = x.shape[1].""",
    old="x + positions[:L]",
    new="x + positions",
)

mistake.edit(
    "length_of_batch",
    """Adding the first rows is right. But len(x) is B, the number of sequences; the number of words is L =
    x.shape[1].""",
    old="x.shape[1]",
    new="x.shape[0]",
)

mistake.edit(
    "multiplied",
    """The right rows go to the right words. But positions are added, not multiplied.""",
    old="x + positions[:L]",
    new="x * positions[:L]",
)

mistake.edit(
    "last_rows",
    """One row for each word, good. But you took the last rows of the table; the first word has place 0:
    positions[:L].""",
    old="positions[:L]",
    new="positions[-L:]",
)

mistake.edit(
    "first_row_only",
    """Adding is right. But every word got row 0; word p gets row p: positions[:L].""",
    old="positions[:L]",
    new="positions[0]",
)


@mistake
def side_by_side(x, positions):
    """The right rows go to the right words. But you laid them beside the words; add them, and the width stays E."""
    return np.concatenate([x, np.broadcast_to(positions[: x.shape[1]], x.shape)], axis=-1)


mistake.edit(
    "from_one",
    """One row for each word, good. But you began with row 1; the first word has place 0.""",
    old="positions[:L]",
    new="positions[1 : L + 1]",
)


ADD_POSITIONS = Exercise(
    id="01.add_positions",
    signature="add_positions(x, positions)",
    solution=add_positions,
    probes=lambda: [
        Probe((wave(2, 3, 5), wave(7, 5, step=0.9)), "B 2, L 3, E 5, a table of 7 places"),
        Probe((wave(3, 3, 2), wave(5, 2, step=0.9)), "B = L = 3"),
        Probe((wave(2, 7, 3), wave(7, 3, step=0.9)), "B 2, L 7, a table of just 7 places"),
        Probe((wave(5, 2, 7, dtype=np.float32), wave(11, 7, step=0.9, dtype=np.float32)), "B 5, L 2, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "explicit axis": lambda x, positions: x + positions[None, : x.shape[1], :],
        "a loop": lambda x, positions: np.stack([s + positions[: len(s)] for s in x]),
        "ids of places": lambda x, positions: x + positions[np.arange(x.shape[1])],
        **usual_forms(add_positions),
    },
    hints=(
        "x has shape (B, L, E). Which axis counts the words?",
        "positions[:B] has one row for each sequence. You want one row for each word.",
        "positions[:L] has shape (L, E). NumPy lines up the last axes, so it fits (B, L, E) as it is.",
    ),
    well_done="Row p for word p, in every sequence. The shape never shows this bug, whatever B and L are.",
)  # fmt: skip
