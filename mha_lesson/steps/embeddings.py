"""Lesson 01. From tokens to vectors, and from places in the sentence to vectors.

ids        (L,) or (B, L)   token numbers
table      (V, E)           one row a token of the vocabulary
positions  (L, E)           one row a place in the sentence

x = table[ids] * sqrt(E) + positions          (Vaswani et al. 2017, sections 3.4 and 3.5)
"""

# Quoted word for word by exercises/lesson_01/add_positions.py, exercises/lesson_01/embed.py,
# exercises/lesson_01/positions.py, exercises/lesson_01/rotary.py and tests/faults/faults.py: change them together.

import math

import numpy as np

from mha_lesson.steps.typing import Array, Float, Integer, Real


def lookup(ids: Integer[Array, "*any"], table: Float[Array, "V E"]) -> Float[Array, "*any E"]:
    """The rows of the table that the ids name.

    Raises
        ValueError  an id has no row (a negative one would silently count from the end), or the
                    ids are no whole numbers (booleans would silently select rows).
    """
    ids = np.asarray(ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise ValueError(f"ids: expected whole numbers, got {ids.dtype}. Use ids.astype(int) if they mean rows.")
    if ids.size and (ids.min() < 0 or ids.max() >= len(table)):
        bad = int(ids[(ids < 0) | (ids >= len(table))][0])
        raise ValueError(
            f"ids: expected numbers from 0 to {len(table) - 1} (the table has {len(table)} rows), "
            f"got {bad}. Look the token up in the vocabulary that belongs to this table."
        )
    return table[ids]  # (..., E)


def embed(ids: Integer[Array, "*any"], table: Float[Array, "V E"]) -> Float[Array, "*any E"]:
    """Token vectors as in the first transformer: rows of the table times sqrt(d_model).

    The factor keeps the word from being drowned by the position that is added next.
    Models differ here: BERT and its kin leave the factor out (see `lookup`).

    Source: Vaswani et al. 2017, section 3.4.
    """
    d_model = table.shape[1]
    return lookup(ids, table) * math.sqrt(d_model)  # (..., E)


def sinusoidal_positions(n: int, d: int) -> Float[Array, "n d"]:
    """Sine in the even columns, cosine in the odd ones; one frequency for each pair.

        P[p, 2i]     = sin(p / 10000^(2i/d))
        P[p, 2i + 1] = cos(p / 10000^(2i/d))

    So each pair has sin² + cos² = 1, and P[p] · P[q] depends on p - q alone.

    Source: Vaswani et al. 2017, section 3.5. A known slip counts the factor 2 twice
    (SamLynnEvans/Transformer#25): then a pair no longer shares its frequency.
    """
    if d % 2:
        raise ValueError(f"d: expected an even width (sine and cosine come in pairs), got {d}.")
    pair = np.arange(d) // 2  # (d,): 0 0 1 1 2 2 ...
    angle = np.arange(n)[:, None] / 10000.0 ** (2 * pair / d)  # (n, d)
    positions = np.empty((n, d))
    positions[:, 0::2] = np.sin(angle[:, 0::2])
    positions[:, 1::2] = np.cos(angle[:, 1::2])
    return positions


def rotary(x: Float[Array, "*any L D"], pos: Real[Array, "L"], base: float = 100.0) -> Float[Array, "*any L D"]:
    """Turn each pair of neighbouring channels (0,1), (2,3), ... by an angle that grows with pos.

        angle_i = pos / base^(2i/D)
        (a, b) -> (a cos - b sin,  a sin + b cos)

    Lengths stay the same, and the score of a turned query with a turned key depends on the
    distance of their positions alone. Models use base 10000; 100 shows the turn in small vectors.
    Another valid layout pairs channel i with i + D/2; weights and code must agree on one
    (karpathy/nanochat#264).

    Source: Su et al. 2021 (RoFormer), equation 34.
    """
    d_head = x.shape[-1]
    if d_head % 2:
        raise ValueError(f"x: expected an even last axis (pairs are turned), got shape {x.shape}.")
    if np.shape(pos) != x.shape[-2:-1]:
        raise ValueError(f"pos: expected one position for each row of x {x.shape}, got shape {np.shape(pos)}.")
    angle = np.outer(pos, base ** (-np.arange(0, d_head, 2) / d_head))  # (L, D/2)
    cos, sin = np.cos(angle), np.sin(angle)
    turned = np.empty(x.shape, x.dtype if x.dtype.kind == "f" else float)
    turned[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    turned[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return turned  # (..., L, D)


def add_positions(x: Float[Array, "B L E"], positions: Float[Array, "n E"]) -> Float[Array, "B L E"]:
    """Row p of the positions goes to token p, in every sequence of the batch.

    A table laid along the first axis gives each *sequence* a vector instead; no shape
    shows it.
    """
    L = x.shape[1]
    if len(positions) < L:
        raise ValueError(f"positions: expected at least L = {L} rows, got {len(positions)}.")
    return x + positions[:L]  # (B, L, E) + (L, E)
