"""Exercises of lesson 01: look-up, positions, rotation."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.embeddings import (
    add_positions,
    embed,
    lookup,
    rotary,
    sinusoidal_positions,
)

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
    mistakes=(
        Mistake(
            "not_scaled",
            "Your look-up is right. The paper also multiplies by sqrt(d_model), so that the word is not "
            "drowned by the position signal.",
            " * math.sqrt(d_model)", "",
        ),
        Mistake(
            "divided",
            "Look-up right, and sqrt(d_model) is the right number. But you divided by it; that belongs to the "
            "scores. For embeddings the paper (section 3.4) multiplies.",
            "* math.sqrt(d_model)", "/ math.sqrt(d_model)",
        ),
        Mistake(
            "times_width",
            "Look-up right. But you multiplied by d_model itself; take its square root.",
            "math.sqrt(d_model)", "d_model",
        ),
        Mistake(
            "vocabulary_width",
            "Look-up and square root are right. But you took the number of tokens, table.shape[0]; the width "
            "is "
            "table.shape[1].",
            "table.shape[1]", "table.shape[0]",
        ),
        Mistake(
            "off_by_one",
            "The scaling is right. But the rows are one too early: ids count from 0, so use table[ids].",
            "lookup(ids, table)", "table[ids - 1]",
        ),
        Mistake(
            "columns",
            "The scaling is right. But you picked columns of the table; a token is a row: table[ids].",
            "lookup(ids, table)", "table.T[ids]",
        ),
        Mistake(
            "bag_of_words",
            "Look-up and scaling are right. But you averaged over the tokens; attention needs one vector for "
            "each.",
            "lookup(ids, table) * math.sqrt(d_model)", "(lookup(ids, table) * math.sqrt(d_model)).mean(axis=-2)",
        ),
        Mistake(
            "unit_length",
            "You pick the right rows. But you brought each to one fixed length, and its size is information; "
            "multiply by sqrt(d_model) only.",
            function=lambda ids, table: table[ids]
            / np.linalg.norm(table[ids], axis=-1, keepdims=True) * np.sqrt(table.shape[1]),
        ),
    ),
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


def _mixed_layout(x, pos):
    """Angles for neighbours (t0, t0, t1, t1) with the rotation for halves: no rotation at all."""
    d = x.shape[-1]
    angle = np.repeat(np.outer(pos, 100.0 ** (-np.arange(0, d, 2) / d)), 2, axis=-1)
    half = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], -1)
    return x * np.cos(angle) + half * np.sin(angle)


def _halves(x, pos):
    d = x.shape[-1]
    angle = np.outer(pos, 100.0 ** (-np.arange(0, d, 2) / d))
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)


def _complex_rotation(x, pos):
    d = x.shape[-1]
    angle = np.outer(pos, 100.0 ** (-np.arange(0, d, 2) / d))
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def _positions_by_loop(n, d):
    out = np.zeros((n, d))
    for p in range(n):
        for i in range(0, d, 2):
            out[p, i] = np.sin(p / 10000 ** (i / d))
            out[p, i + 1] = np.cos(p / 10000 ** (i / d))
    return out


def _positions_by_blocks(n, d):
    angle = np.arange(n)[:, None] / 1e4 ** (2 * np.arange(d // 2) / d)
    return np.concatenate([np.sin(angle), np.cos(angle)], -1)


POSITIONS = Exercise(
    id="01.positions",
    signature="positions(n, d)",
    solution=sinusoidal_positions,
    probes=lambda: [
        Probe((4, 6), "n = 4, d = 6"),
        Probe((7, 10), "n = 7, d = 10"),
        Probe((11, 2), "n = 11, d = 2"),
    ],
    mistakes=(
        Mistake(
            "exponent_twice",
            "Sine and cosine alternate as they should. But sine and cosine of one pair must share a "
            "frequency, and "
            "your exponent counts the 2 twice: with a loop index that steps by 2 the exponent is i/d, not "
            "2i/d.",
            "pair = np.arange(d) // 2", "pair = np.arange(d)",
        ),
        Mistake(
            "exponent_twice_in_pairs",
            "Sine and cosine share a frequency, as they should. But the 2 is counted twice: if your loop "
            "steps by 2, its index already is 2i, and the exponent is i/d. Place 1, column 2 is 0.0464 "
            "for d = 6.",
            "(2 * pair / d)", "(4 * pair / d)",
        ),
        Mistake(
            "slow_fall",
            "Columns alternate, and pairs share a frequency, as they should. But the frequencies fall too"
            " slowly: either the exponent is i/d (it is 2i/d for pair i), or the base is 100 (it is "
            "10000).",
            "(2 * pair / d)", "(pair / d)",
        ),
        Mistake(
            "own_frequency",
            "Columns alternate, and frequencies fall, as they should. But each column has a frequency of its "
            "own; "
            "columns 2i and 2i+1 must share one: use i = column // 2.",
            "np.arange(d) // 2", "np.arange(d) / 2",
        ),
        Mistake(
            "blocks",
            "A valid encoding. But its columns are in another order, all sines, then all cosines. The "
            "text interleaves: even columns sine, odd columns cosine.",
            function=_positions_by_blocks,
        ),
        Mistake(
            "swapped",
            "The angles are right. But cosine stands in the even columns; sine belongs there, cosine in the "
            "odd ones.",
            function=lambda n, d: sinusoidal_positions(n, d).reshape(n, -1, 2)[..., ::-1].reshape(n, d),
        ),
        Mistake(
            "only_sine",
            "The even columns are right. The odd ones need the cosine; with sine alone nearby places look "
            "alike.",
            "np.cos", "np.sin",
        ),
        Mistake(
            "from_one",
            "The waves are right. But the first place has number 0; you began at 1.",
            "np.arange(n)[:, None]", "np.arange(1, n + 1)[:, None]",
        ),
        Mistake(
            "multiplied",
            "The exponents are right. But the angle is the position divided by 10000^(2i/d), not times it.",
            "[:, None] / 10000.0", "[:, None] * 10000.0",
        ),
        Mistake(
            "no_width",
            "The pairs are right. But the exponent is 2i divided by d: without d the frequencies fall far "
            "too fast.",
            "(2 * pair / d)", "(2 * pair)",
        ),
        Mistake(
            "base_1000",
            "The form is right. But the base is 10000; you have 1000.",
            "10000.0", "1000.0",
        ),
        Mistake(
            "one_frequency",
            "Sine and cosine alternate as they should. But every column turns at the same speed; divide the "
            "position by 10000^(2i/d).",
            "10000.0", "1.0",
        ),
        Mistake(
            "transposed",
            "The numbers are right. But rows and columns are swapped: one row for each place, (n, d).",
            function=lambda n, d: sinusoidal_positions(n, d).T,
        ),
    ),
    forms={
        "two loops": _positions_by_loop,
        "exp and log": lambda n, d: np.stack(
            [f(np.arange(n)[:, None] * np.exp(-np.log(1e4) * np.arange(0, d, 2) / d)) for f in (np.sin, np.cos)], -1
        ).reshape(n, d),
        "cosine as shifted sine": lambda n, d: np.sin(
            np.arange(n)[:, None] / 1e4 ** (np.arange(d) // 2 * 2 / d) + np.arange(d) % 2 * np.pi / 2
        ),
        **usual_forms(sinusoidal_positions),
    },
    hints=(
        "First make the angles, an array (n, d); sine and cosine come last.",
        "Column c belongs to pair i = c // 2. Its angle at place p is p / 10000 ** (2 * i / d).",
        "np.arange(n)[:, None] is a column of places; divided by a row of d numbers it gives (n, d).",
        "Fill the even columns with out[:, 0::2] = np.sin(angle[:, 0::2]), the odd ones with the cosine.",
    ),
    well_done="Every pair has sin² + cos² = 1, and the product of two rows depends on their distance alone.",
)  # fmt: skip

ROTARY = Exercise(
    id="01.rotary",
    signature="rotary(x, pos)",
    solution=rotary,
    probes=lambda: [
        Probe((np.array([[1.0, 0, 0, 0]]), np.array([1])), "x = [1, 0, 0, 0] at position 1"),
        Probe((wave(3, 6), np.array([5, 0, 2])), "3 vectors of width 6 at positions 5, 0, 2"),
        Probe((wave(2, 5, 4, dtype=np.float32), np.arange(5)), "a batch of 2, float32"),
    ],
    mistakes=(
        Mistake(
            "halves",
            "A true rotation, and lengths are kept. But you rotate channel i with i + d/2 (the 'half' "
            "layout). The text "
            "pairs neighbours; both work, but weights and code must agree.",
            function=_halves,
        ),
        Mistake(
            "mixed_layout",
            "The angles are right for neighbouring pairs. But you rotate halves with them: that is no "
            "rotation, "
            "lengths change. Take one layout for both; here neighbours (0,1), (2,3).",
            function=_mixed_layout,
        ),
        Mistake(
            "backwards",
            "The pairs and the angles are right. But you turn the other way round: (a cos - b sin, a sin + b "
            "cos).",
            "np.outer(pos, base", "-np.outer(pos, base",
        ),
        Mistake(
            "base_10000",
            "The rotation is right. But your pairs turn as with base 10000: either the base is 10000 "
            "(here it is 100, so that small vectors turn visibly), or the exponent counts the 2 twice.",
            function=lambda x, pos: rotary(x, pos, base=10000.0),
        ),
        Mistake(
            "ignores_pos",
            "The rotation is right. But you count the rows 0, 1, 2, ... yourself; use the positions that "
            "come in pos.",
            "np.outer(pos,", "np.outer(np.arange(x.shape[-2]),",
        ),
        Mistake(
            "exponent_half",
            "The rotation is right. But the exponent of pair i is 2i/d; yours is i/d, so the pairs turn too "
            "fast.",
            "np.arange(0, d_head, 2) / d_head", "np.arange(0, d_head, 2) / 2 / d_head",
        ),
        Mistake(
            "uses_turned",
            "The first channel of each pair is right. But the second uses the first one *after* its turn; "
            "keep the old "
            "value until both are computed.",
            "x[..., 0::2] * sin + x[..., 1::2] * cos", "turned[..., 0::2] * sin + x[..., 1::2] * cos",
        ),
        Mistake(
            "one_speed",
            "The turn is right for the first pair. But every pair turns at the same speed; pair i turns by "
            "pos / base^(2i/d).",
            "base ** (-np.arange(0, d_head, 2) / d_head)", "np.ones(d_head // 2)",
        ),
    ),
    forms={
        "complex numbers": _complex_rotation,
        "rotation matrices": lambda x, pos: np.einsum(
            "lpij,...lpj->...lpi", _matrices(pos, x.shape[-1]), x.reshape(*x.shape[:-1], -1, 2)
        ).reshape(x.shape),
        **usual_forms(rotary),
    },
    hints=(
        "The angles are an array (L, d/2): np.outer(pos, 100.0 ** (-np.arange(0, d, 2) / d)).",
        "x[..., 0::2] are the first channels of all pairs, x[..., 1::2] the second ones.",
        "New first = first * cos - second * sin. New second = first * sin + second * cos. Keep the old ones "
        "until then.",
    ),
    well_done="Lengths stay, and a score of two turned vectors depends on their distance alone.",
)  # fmt: skip


def _matrices(pos, d):
    """(L, d/2, 2, 2) rotation matrices."""
    angle = np.outer(pos, 100.0 ** (-np.arange(0, d, 2) / d))
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)


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
    mistakes=(
        Mistake(
            "batch_axis",
            "Adding is right, and the shape does not show the fault. But the rows run along the batch: each "
            "*sequence* "
            "got a vector, and all its words the same one. Take positions[:L], with L = x.shape[1].",
            "x + positions[:L]", "x + positions[: x.shape[0]][:, None]",
        ),
        Mistake(
            "whole_table",
            "Adding is right. But the table has more rows than the sentence has words: take its first L "
            "rows, positions[:L], with L = x.shape[1].",
            "x + positions[:L]", "x + positions",
        ),
        Mistake(
            "length_of_batch",
            "Adding the first rows is right. But len(x) is B, the number of sequences; the number of "
            "words is L = x.shape[1].",
            "x.shape[1]", "x.shape[0]",
        ),
        Mistake(
            "multiplied",
            "The right rows go to the right words. But positions are added, not multiplied.",
            "x + positions[:L]", "x * positions[:L]",
        ),
        Mistake(
            "last_rows",
            "One row for each word, good. But you took the last rows of the table; the first word has place 0: "
            "positions[:L].",
            "positions[:L]", "positions[-L:]",
        ),
        Mistake(
            "first_row_only",
            "Adding is right. But every word got row 0; word p gets row p: positions[:L].",
            "positions[:L]", "positions[0]",
        ),
        Mistake(
            "side_by_side",
            "The right rows go to the right words. But you laid them beside the words; add them, and the "
            "width stays E.",
            function=lambda x, positions: np.concatenate(
                [x, np.broadcast_to(positions[: x.shape[1]], x.shape)], axis=-1
            ),
        ),
        Mistake(
            "from_one",
            "One row for each word, good. But you began with row 1; the first word has place 0.",
            "positions[:L]", "positions[1 : L + 1]",
        ),
    ),
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

EXERCISES = (EMBED, POSITIONS, ADD_POSITIONS, ROTARY)
