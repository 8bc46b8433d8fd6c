"""Exercise 01.positions."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.embeddings import sinusoidal_positions


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


mistake = Mistakes()


mistake.edit(
    "exponent_twice",
    """Sine and cosine alternate as they should. But sine and cosine of one pair must share a frequency, and your
    exponent counts the 2 twice: with a loop index that steps by 2 the exponent is i/d, not 2i/d.""",
    old="pair = np.arange(d) // 2",
    new="pair = np.arange(d)",
)

mistake.edit(
    "exponent_twice_in_pairs",
    """Sine and cosine share a frequency, as they should. But the 2 is counted twice: if your loop steps by 2, its index
    already is 2i, and the exponent is i/d. Place 1, column 2 is 0.0464 for d = 6.""",
    old="(2 * pair / d)",
    new="(4 * pair / d)",
)

mistake.edit(
    "slow_fall",
    """Columns alternate, and pairs share a frequency, as they should. But the frequencies fall too slowly: either the
    exponent is i/d (it is 2i/d for pair i), or the base is 100 (it is 10000).""",
    old="(2 * pair / d)",
    new="(pair / d)",
)

mistake.edit(
    "own_frequency",
    """Columns alternate, and frequencies fall, as they should. But each column has a frequency of its own; columns 2i
    and 2i+1 must share one: use i = column // 2.""",
    old="np.arange(d) // 2",
    new="np.arange(d) / 2",
)

mistake.function(
    "blocks",
    """A valid encoding. But its columns are in another order, all sines, then all cosines. The text interleaves: even
    columns sine, odd columns cosine.""",
    _positions_by_blocks,
)


@mistake
def swapped(n, d):
    """The angles are right. But cosine stands in the even columns; sine belongs there, cosine in the odd ones."""
    return sinusoidal_positions(n, d).reshape(n, -1, 2)[..., ::-1].reshape(n, d)


mistake.edit(
    "only_sine",
    """The even columns are right. The odd ones need the cosine; with sine alone nearby places look alike.""",
    old="np.cos",
    new="np.sin",
)

mistake.edit(
    "from_one",
    """The waves are right. But the first place has number 0; you began at 1.""",
    old="np.arange(n)[:, None]",
    new="np.arange(1, n + 1)[:, None]",
)

mistake.edit(
    "multiplied",
    """The exponents are right. But the angle is the position divided by 10000^(2i/d), not times it.""",
    old="[:, None] / 10000.0",
    new="[:, None] * 10000.0",
)

mistake.edit(
    "no_width",
    """The pairs are right. But the exponent is 2i divided by d: without d the frequencies fall far too fast.""",
    old="(2 * pair / d)",
    new="(2 * pair)",
)

mistake.edit(
    "base_1000",
    """The form is right. But the base is 10000; you have 1000.""",
    old="10000.0",
    new="1000.0",
)

mistake.edit(
    "one_frequency",
    """Sine and cosine alternate as they should. But every column turns at the same speed; divide the position by
    10000^(2i/d).""",
    old="10000.0",
    new="1.0",
)


@mistake
def transposed(n, d):
    """The numbers are right. But rows and columns are swapped: one row for each place, (n, d)."""
    return sinusoidal_positions(n, d).T


POSITIONS = Exercise(
    id="01.positions",
    signature="positions(n, d)",
    solution=sinusoidal_positions,
    probes=lambda: [
        Probe((4, 6), "n = 4, d = 6"),
        Probe((7, 10), "n = 7, d = 10"),
        Probe((11, 2), "n = 11, d = 2"),
    ],
    mistakes=mistake.all,
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
