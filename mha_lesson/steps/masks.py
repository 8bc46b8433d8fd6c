"""Lesson 04. Masks: which query may attend to which key.

One meaning everywhere in this course: `keep` is boolean, True = this query may attend to
this key, and it must broadcast to the scores (B, H, L, S).

    causal_mask(L, S)          (L, S)         no look into the future
    window_mask(L, S, width)   (L, S)         causal, and not further back than `width`
    padding_mask(lengths, S)   (B, S)         no look at padding
    combine_masks(a, b)        (B, 1, L, S)   both at once

PyTorch has two meanings: in `nn.MultiheadAttention` True = blocked, in
`scaled_dot_product_attention` True = may attend. Converters stand at that border only.
"""

# Quoted word for word by exercises/lesson_04/causal.py, exercises/lesson_04/combine.py, exercises/lesson_04/padding.py,
# exercises/lesson_04/window.py and tests/faults/faults.py: change them together.

import numpy as np

from mha_lesson.steps.typing import Array, Bool


def causal_mask(L: int, S: int) -> Bool[Array, "L S"]:
    """Each query sees itself and what came before; the LAST query sees all S keys.

    With a cache there are more keys than queries, and the queries are the last tokens: the
    triangle sits in the lower right corner. PyTorch's `is_causal=True` puts it in the upper
    left one (pytorch/pytorch#103082), where a single new query sees one key.
    """
    query_place = np.arange(L)[:, None] + (S - L)  # (L, 1): the query's place among the keys
    key_place = np.arange(S)[None, :]  # (1, S)
    return key_place <= query_place  # (L, S)


def window_mask(L: int, S: int, width: int) -> Bool[Array, "L S"]:
    """Causal, and each query sees `width` keys at most: itself and the width - 1 before it.

    Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """
    if width < 1:
        raise ValueError(f"width: expected 1 or more (a token must see itself), got {width}.")
    query_place = np.arange(L)[:, None] + (S - L)  # (L, 1)
    key_place = np.arange(S)[None, :]  # (1, S)
    return (key_place <= query_place) & (key_place > query_place - width)  # (L, S)


def padding_mask(lengths, S: int) -> Bool[Array, "B S"]:
    """True for the first `lengths[b]` keys of sequence b, False for the padding after them."""
    lengths = np.asarray(lengths)
    if lengths.ndim != 1 or (lengths.size and not np.issubdtype(lengths.dtype, np.integer)):
        raise ValueError(
            f"lengths: expected one whole number for each sequence, for example [3, 5], got "
            f"{lengths.dtype} of shape {lengths.shape}."
        )
    if lengths.size and (lengths.min() < 0 or lengths.max() > S):
        raise ValueError(f"lengths: expected 0 to S = {S}, got {lengths.tolist()}.")
    return np.arange(S) < lengths[:, None]  # (B, S)


def combine_masks(causal: Bool[Array, "L S"], padding: Bool[Array, "B S"]) -> Bool[Array, "B 1 L S"]:
    """A key is seen only if both masks allow it.

    padding (B, S) gets an axis for the heads and one for the queries: (B, 1, 1, S). Without
    them B would land on the wrong axis, silently whenever the sizes agree
    (pytorch/pytorch#177482).
    """
    causal, padding = as_keep(causal, "causal"), as_keep(padding, "padding")
    if padding.ndim != 2 or causal.ndim != 2 or padding.shape[1] != causal.shape[1]:
        raise ValueError(f"padding: expected (B, S) beside causal (L, S), got {padding.shape} and {causal.shape}.")
    return causal & padding[:, None, None, :]


def as_keep(mask, name: str = "keep") -> Bool[Array, "*any"]:
    """The mask as a boolean array, or an error that says what it looks like instead.

    A float mask of 0 and 1 is refused: PyTorch adds it to the scores, which only favours the
    ones by +1 and hides nothing (pytorch/pytorch#136816).
    """
    mask = np.asarray(mask)
    if mask.dtype == bool:
        return mask
    if np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"{name}: expected a boolean mask (True = may attend), got {mask.dtype} holding only "
            f"0 and 1. If 1 means 'may attend', pass {name}.astype(bool)."
            + (f" If it is added to scores, pass {name} == 0." if not mask.any() else "")
        )
    if np.issubdtype(mask.dtype, np.floating) and ((mask == 0) | (mask <= -1e3)).all():
        raise ValueError(
            f"{name}: expected a boolean mask (True = may attend), got an additive {mask.dtype} "
            f"mask of 0 and {mask.min():g}. Pass {name} == 0."
        )
    raise ValueError(f"{name}: expected a boolean mask (True = may attend), got {mask.dtype} of shape {mask.shape}.")


def check_keep(keep, shape: tuple[int, ...]) -> Bool[Array, "*any"]:
    """`keep`, checked against the shape (..., L, S) of the scores that it will mask.

    A mask with one axis less than 4-D scores is ambiguous: (B, L, S) would land on the heads.
    It is refused also where the sizes happen to fit.
    """
    keep = as_keep(keep)
    if len(shape) == 4 and keep.ndim == 3:
        raise ValueError(
            f"keep: expected 2 axes (L, S) or 4 axes (B, 1 or H, L, S) for scores of shape {shape}, "
            f"got 3 axes {keep.shape}. One mask for each sequence: keep[:, None]. "
            f"One for each head: keep[None]."
        )
    fits = keep.ndim <= len(shape) and all(
        have in (1, want) for have, want in zip(keep.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        mend = "A padding mask (B, S) needs two more axes: keep[:, None, None, :]."
        if len(shape) == 2:
            mend = f"It has a row for each of the {shape[0]} queries and a column for each of the {shape[1]} keys."
        raise ValueError(f"keep: expected a shape that broadcasts to the scores {shape}, got {keep.shape}. {mend}")
    return keep


def to_torch_sdpa(keep) -> Bool[Array, "*any"]:
    """For `scaled_dot_product_attention(attn_mask=...)`: the same meaning, True = may attend."""
    return as_keep(keep)


def to_torch_mha(
    keep, batch: int | None = None, num_heads: int | None = None, L: int | None = None
) -> Bool[Array, "*any"]:
    """For `nn.MultiheadAttention(attn_mask=...)`: the opposite meaning, True = blocked.

    A mask (L, S) stays so. A padding mask (B, 1, 1, S) does not know how many queries there are:
    then say L. A mask (B, 1 or H, L, S) becomes (B * H, L, S) in the order that
    PyTorch wants, all heads of sample 0 first; `mask.repeat(H, 1, 1)` has the same shape and
    mixes the samples (line/lighthouse#77).
    """
    keep = as_keep(keep)
    blocked = ~keep
    if blocked.ndim == 2:
        return blocked
    if blocked.ndim != 4 or batch is None or num_heads is None:
        raise ValueError(
            f"keep: expected (L, S), or (B, 1 or H, L, S) together with batch and num_heads; got "
            f"shape {blocked.shape}, batch {batch}, num_heads {num_heads}."
        )
    if L is None and blocked.shape[-2] == 1:
        raise ValueError(
            f"keep: expected an axis for the queries, got {keep.shape}, the same row for all of them. "
            f"Say how many there are: to_torch_mha(keep, batch, num_heads, L=...)."
        )
    wanted = (batch, num_heads, L or blocked.shape[-2], blocked.shape[-1])
    if any(have not in (1, want) for have, want in zip(blocked.shape, wanted, strict=True)):
        raise ValueError(f"keep: expected a shape that broadcasts to {wanted}, got {blocked.shape}.")
    return np.broadcast_to(blocked, wanted).reshape(batch * num_heads, *wanted[2:])


def from_torch_sdpa(mask) -> Bool[Array, "*any"]:
    """A mask made for `scaled_dot_product_attention` as `keep`: boolean, or 0 and -inf."""
    return _from_additive(mask) if np.asarray(mask).dtype != bool else np.asarray(mask)


def from_torch_mha(mask) -> Bool[Array, "*any"]:
    """A mask made for `nn.MultiheadAttention` as `keep`: boolean (True = blocked), or 0 and -inf."""
    return _from_additive(mask) if np.asarray(mask).dtype != bool else ~np.asarray(mask)


def _from_additive(mask) -> Bool[Array, "*any"]:
    mask = np.asarray(mask)
    if mask.dtype.kind != "f" or not np.isin(mask, (0, -np.inf)).all():
        raise ValueError(
            "mask: expected booleans, or floats that are 0 (may attend) and -inf (blocked); got "
            f"{mask.dtype} with other values. A mask of 0 and 1 must become boolean first."
        )
    return mask == 0
