"""Exercise 01.rotary."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.embeddings import rotary


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


mistake = Mistakes()


mistake.function(
    "halves",
    """A true rotation, and lengths are kept. But you rotate channel i with i + d/2 (the 'half' layout). The text pairs
    neighbours; both work, but weights and code must agree.""",
    _halves,
)

mistake.function(
    "mixed_layout",
    """The angles are right for neighbouring pairs. But you rotate halves with them: that is no rotation, lengths
    change. Take one layout for both; here neighbours (0,1), (2,3).""",
    _mixed_layout,
)

mistake.edit(
    "backwards",
    """The pairs and the angles are right. But you turn the other way round: (a cos - b sin, a sin + b cos).""",
    old="np.outer(pos, base",
    new="-np.outer(pos, base",
)


@mistake
def base_10000(x, pos):
    """The rotation is right. But your pairs turn as with base 10000: either the base is 10000 (here it is 100, so that
    small vectors turn visibly), or the exponent counts the 2 twice."""
    return rotary(x, pos, base=10000.0)


mistake.edit(
    "ignores_pos",
    """The rotation is right. But you count the rows 0, 1, 2, ... yourself; use the positions that come in pos.""",
    old="np.outer(pos,",
    new="np.outer(np.arange(x.shape[-2]),",
)

mistake.edit(
    "exponent_half",
    """The rotation is right. But the exponent of pair i is 2i/d; yours is i/d, so the pairs turn too fast.""",
    old="np.arange(0, d_head, 2) / d_head",
    new="np.arange(0, d_head, 2) / 2 / d_head",
)

mistake.edit(
    "uses_turned",
    """The first channel of each pair is right. But the second uses the first one *after* its turn; keep the old value
    until both are computed.""",
    old="x[..., 0::2] * sin + x[..., 1::2] * cos",
    new="turned[..., 0::2] * sin + x[..., 1::2] * cos",
)

mistake.edit(
    "one_speed",
    """The turn is right for the first pair. But every pair turns at the same speed; pair i turns by pos /
    base^(2i/d).""",
    old="base ** (-np.arange(0, d_head, 2) / d_head)",
    new="np.ones(d_head // 2)",
)


ROTARY = Exercise(
    id="01.rotary",
    signature="rotary(x, pos)",
    solution=rotary,
    probes=lambda: [
        Probe((np.array([[1.0, 0, 0, 0]]), np.array([1])), "x = [1, 0, 0, 0] at position 1"),
        Probe((wave(3, 6), np.array([5, 0, 2])), "3 vectors of width 6 at positions 5, 0, 2"),
        Probe((wave(2, 5, 4, dtype=np.float32), np.arange(5)), "a batch of 2, float32"),
    ],
    mistakes=mistake.all,
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
        "New first = first * cos - second * sin. New second = first * sin + second * cos. Keep the old ones until "
        "then.",
    ),
    well_done="Lengths stay, and a score of two turned vectors depends on their distance alone.",
)  # fmt: skip


def _matrices(pos, d):
    """(L, d/2, 2, 2) rotation matrices."""
    angle = np.outer(pos, 100.0 ** (-np.arange(0, d, 2) / d))
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
