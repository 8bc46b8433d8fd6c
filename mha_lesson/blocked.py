"""Exact attention without the N×N array.

A row of the output needs one row of the scores, and no other. So the queries go through in
blocks of rows, and each block is finished before the next one starts:

    S_rows = (Q_rows / sqrt(D)) K^T                 (n, S), the only large array, used again
    P_rows = exp(S_rows - max of each row)          in the same place
    [numerator, denominator] = P_rows [V, 1]        one product gives both
    O_rows = numerator / denominator                (n, V)

It is the softmax of lesson 05 with the division moved behind the product: exact, whatever the
size of the blocks. With `causal`, keys after a block's last row are never touched, which saves
about half of the work, and only the tile on the diagonal needs a mask.

The largest score is taken off so that exp does not overflow. Where no score can be large,
because |q · k| <= |q| |k| (Cauchy-Schwarz), that is not needed. Then the rows are cut into tiles
that fit the processor's cache, and the numerators and denominators of the tiles simply add up.
FlashAttention cuts every row so, and corrects its sums when a later tile holds a larger score.

Sources: Rabe & Staats 2021, "Self-attention Does Not Need O(n²) Memory"; Dao et al. 2022,
"FlashAttention", section 3.1.
"""

import math
from bisect import bisect_left

import numpy as np

from mha_lesson.steps.masks import causal_mask, check_keep
from mha_lesson.steps.typing import Array, Float

CALM = 30  # scores up to this size need no shift: exp(-30) to exp(30) is 1e-13 to 1e13
TILE = 1024  # keys at a time; 128 rows of 1024 float32 are half a megabyte


def blocked_attention(
    query: Float[Array, "*#any L D"],
    key: Float[Array, "*#any S D"],
    value: Float[Array, "*#any S V"],
    keep=None,
    causal: bool = False,
    block: int = 128,
) -> Float[Array, "*#any L V"]:
    """softmax(Q K^T / sqrt(D), keep) V, by blocks of rows: the output without the weights.

    keep: boolean, broadcastable to (..., L, S), True = may attend; None = all may.
    causal: as `causal_mask(L, S)`: the last query sees all S keys. With keep, both must allow.
    block: rows at a time. Scores in memory: block · S at most, instead of L · S.

    A query that may attend to nothing gets output 0. NaN and inf in a forbidden place count
    for nothing. The output has the inputs' dtype; float16 is computed in float32. The division
    comes last, so sums must stay finite before it: in float32, values up to 1e20.

    Raises
        ValueError  shapes do not fit, keep is not a boolean mask that fits, block is below 1.
    """
    batch = _check(query, key, value, block)
    L, S = query.shape[-2], key.shape[-2]
    if keep is not None:
        scored = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        keep = np.broadcast_to(check_keep(keep, (*scored, L, S)), (*batch, L, S))
    size = min(block, L)
    future = ~causal_mask(size, size) if causal else None  # (size, size)
    query, key, value = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (query, key, value))
    output = np.empty((*batch, L, value.shape[-1]), np.result_type(query, key, value, np.float16))
    with np.errstate(invalid="ignore"):  # inf or NaN in padding is on its way to the mask
        for one in np.ndindex(batch):  # one head of one sequence
            keep_one = None if keep is None else keep[one]
            _one_head(query[one], key[one], value[one], keep_one, future, block, output[one])
    return output


def _one_head(query, key, value, keep, future, block, output):
    """Fill `output` (L, V) from query (L, D), key (S, D), value (S, V).

    keep is (L, S) or None; future is the triangle of a full block, or None if not causal.
    """
    L, S = len(query), len(key)
    dtype = np.promote_types(output.dtype, np.float32)
    # The scale goes to the L·D numbers of the query: the scores have L·S.
    query = np.multiply(query, 1 / math.sqrt(query.shape[1]), dtype=dtype)  # (L, D)
    key = np.ascontiguousarray(key, dtype)  # (S, D)
    values, wild = _with_ones(value, dtype)  # (S, V + 1)
    calm = _longest(query) * _longest(key) < CALM  # False for NaN
    size = min(block, L)
    width = max(TILE, size) if calm else max(S, 1)
    scratch = np.empty((size, min(width, S)), dtype)

    for start in range(0, L, block):
        rows = slice(start, min(start + block, L))
        n = rows.stop - start
        # Query i stands at key i + S - L, so the block's last row sees the keys below `seen`.
        seen = S if future is None else max(rows.stop + S - L, 0)
        mix = np.zeros((n, value.shape[1] + 1), dtype)  # (n, V + 1)
        for stop in range(seen, 0, -width):  # from the right: the first tile has the diagonal
            keys = slice(max(stop - width, 0), stop)
            scores = scratch[:n, : stop - keys.start]  # (n, s), s keys of this tile
            np.matmul(query[rows], key[keys].T, out=scores)
            if future is not None and stop == seen:
                _hide_future(scores, future)
            if keep is not None:
                np.copyto(scores, -np.inf, where=~keep[rows, keys])
            if not calm:
                _subtract_peak(scores)
            shares = np.exp(scores, out=scores)  # (n, s), not yet divided by their sum
            mix += shares @ values[keys]
            for j in wild[bisect_left(wild, keys.start) : bisect_left(wild, stop)]:
                see = _rows_that_see(j, rows, keep, future is not None, S - L)  # (n,)
                mix[see, :-1] += shares[see, j - keys.start, None] * value[j]
        total = mix[:, -1:]  # (n, 1)
        total[total == 0] = 1  # a row that sees nothing: 0 / 1
        np.divide(mix[:, :-1], total, out=output[rows], casting="same_kind")  # (n, V)


def _longest(x):
    """The length of the longest row."""
    return math.sqrt(np.einsum("nd,nd->n", x, x).max(initial=0))


def _hide_future(scores, future):
    """-inf where a row may not look. The last row of `scores` sees every key, the one before it
    all but one, and so on; `future`, the triangle of a full block, is lined up the same way.
    """
    n, width = scores.shape
    width = min(n, width)
    tile = scores[:, scores.shape[1] - width :]  # (n, width), on the diagonal
    size = len(future)
    np.copyto(tile, -np.inf, where=future[size - n :, size - width :])


def _subtract_peak(scores):
    """Take the largest score off each row, in place. A row that is all -inf stays so."""
    peak = scores.max(axis=1, keepdims=True)  # (n, 1)
    peak[np.isneginf(peak)] = 0
    scores -= peak


def _with_ones(value, dtype):
    """[V, 1], whose product with the shares holds their sum too, and the wild keys.

    A wild key has NaN or inf in its value. It is 0 here, because 0 * NaN would reach every row,
    and is added to the rows that see it.
    """
    values = np.empty((value.shape[0], value.shape[1] + 1), dtype)  # (S, V + 1)
    values[:, :-1] = value
    values[:, -1] = 1
    finite = np.isfinite(value)
    if finite.all():
        return values, []
    wild = np.flatnonzero(~finite.all(axis=1))
    values[wild, :-1] = 0
    return values, wild.tolist()


def _rows_that_see(j, rows, keep, causal, shift):
    """Which of the rows may attend to key j, (n,)."""
    see = np.ones(rows.stop - rows.start, bool) if keep is None else keep[rows, j]
    return see & (np.arange(rows.start, rows.stop) + shift >= j) if causal else see


def _check(query, key, value, block):
    """The batch axes of the result, or an error that names what does not fit."""
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"key: expected the query's width {query.shape[-1]} in its last axis, got {key.shape} "
            f"(query {query.shape}). Both must come out of projections to the same width."
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value: expected one row for each of the {key.shape[-2]} keys {key.shape}, got {value.shape}."
        )
    if block < 1:
        raise ValueError(f"block: expected 1 row or more at a time, got {block}.")
    try:
        return np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except ValueError:
        raise ValueError(
            f"query, key, value: expected leading axes that broadcast, got {query.shape}, "
            f"{key.shape}, {value.shape}. Heads and samples must agree or be 1."
        ) from None
