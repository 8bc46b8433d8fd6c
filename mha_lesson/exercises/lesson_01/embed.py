"""Exercise 01.embed."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.embeddings import embed, lookup

mistake = Mistakes()


mistake.edit(
    "not_scaled",
    """Your look-up is right. The paper also multiplies by sqrt(d_model), so that the word is not drowned by the
    position signal.""",
    old=" * math.sqrt(d_model)",
    new="",
)

mistake.edit(
    "divided",
    """Look-up right, and sqrt(d_model) is the right number. But you divided by it; that belongs to the scores. For
    embeddings the paper (section 3.4) multiplies.""",
    old="* math.sqrt(d_model)",
    new="/ math.sqrt(d_model)",
)

mistake.edit(
    "times_width",
    """Look-up right. But you multiplied by d_model itself; take its square root.""",
    old="math.sqrt(d_model)",
    new="d_model",
)

mistake.edit(
    "vocabulary_width",
    """Look-up and square root are right. But you took the number of tokens, table.shape[0]; the width is
    table.shape[1].""",
    old="table.shape[1]",
    new="table.shape[0]",
)

mistake.edit(
    "off_by_one",
    """The scaling is right. But the rows are one too early: ids count from 0, so use table[ids].""",
    old="lookup(ids, table)",
    new="table[ids - 1]",
)

mistake.edit(
    "columns",
    """The scaling is right. But you picked columns of the table; a token is a row: table[ids].""",
    old="lookup(ids, table)",
    new="table.T[ids]",
)

mistake.edit(
    "bag_of_words",
    """Look-up and scaling are right. But you averaged over the tokens; attention needs one vector for each.""",
    old="lookup(ids, table) * math.sqrt(d_model)",
    new="(lookup(ids, table) * math.sqrt(d_model)).mean(axis=-2)",
)


@mistake
def unit_length(ids, table):
    """You pick the right rows. But you brought each to one fixed length, and its size is information; multiply by
    sqrt(d_model) only."""
    return table[ids] / np.linalg.norm(table[ids], axis=-1, keepdims=True) * np.sqrt(table.shape[1])


EMBED = Exercise(
    id="01.embed",
    signature="embed(ids, table)",
    solution=embed,
    helpers=(lookup,),
    probes=lambda: [
        Probe((np.array([2, 0]), np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 2, 0]])),
              "3 tokens, d_model 4, ids [2, 0]"),
        Probe((np.array([1, 4, 1, 2, 3]), wave(7, 5)), "7 tokens, d_model 5, ids with a repeat"),
        Probe((np.array([[1, 2, 3], [3, 3, 0]]), wave(11, 7, dtype=np.float32)), "a batch of 2, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "one-hot product": lambda ids, table: np.eye(len(table))[ids] @ table * table.shape[1] ** 0.5,
        "np.take": lambda ids, table: np.take(table * np.sqrt(table.shape[1]), ids, axis=0),
        "a loop": lambda ids, table: np.stack([table[i] for i in ids]) * np.sqrt(table.shape[-1]),
        **usual_forms(embed),
    },
    hints=(
        "Two things: pick rows of the table, then make them larger.",
        "NumPy picks rows when you index with an array of numbers: table[ids].",
        "d_model is the number of columns, table.shape[1]. Multiply by its square root.",
    ),
    well_done="Rows picked, and large enough to stand beside the positions that come next.",
)  # fmt: skip
