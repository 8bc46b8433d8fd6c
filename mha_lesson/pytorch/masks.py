"""Masks in PyTorch: `keep` and `causal` joined, checked, and made safe for a softmax.

    keep     (L, S) or (B, 1 or H, L, S)     boolean, True = may attend
    scores   (B, H, L, S)                    B batch, H heads, L queries, S keys

The lesson's own masks, in NumPy, are those of `mha_lesson.steps.masks`.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def causal_mask(L: int, S: int, device=None) -> Bool[Tensor, "L S"]:
    """Each query sees itself and what came before; the LAST query sees all S keys.

    SDPA's own `is_causal` lets the FIRST query see one key instead (pytorch/pytorch#103082).
    The two agree where L = S, and only there.
    """
    query_place = torch.arange(L, device=device)[:, None] + (S - L)  # (L, 1)
    key_place = torch.arange(S, device=device)[None, :]  # (1, S)
    return key_place <= query_place  # (L, S)


def joint_mask(keep, causal: bool, L: int, S: int, device=None) -> Bool[Tensor, "..."] | None:
    """What both `keep` and `causal` allow; None if everything is allowed.

    Booleans joined by `and`: two additive masks of finfo.min would overflow (NVIDIA/apex#1105).
    A single query is the last one, and `causal` hides nothing from it.
    """
    if causal and L > 1:
        triangle = causal_mask(L, S, device)  # (L, S)
        return triangle if keep is None else keep & triangle  # (L, S) or (B, 1 or H, L, S)
    return keep


def open_empty_rows(mask: Bool[Tensor, "..."]) -> tuple[Bool[Tensor, "..."], Bool[Tensor, "..."]]:
    """(mask, empty): rows that allow nothing are opened, and named, to be set to 0 afterwards.

    Softmax over no key at all is 0 / 0. A NaN that is replaced later comes back in the gradient
    (pytorch/pytorch#41508), so it must never arise: not in any of SDPA's many kernels.
    """
    empty = ~mask.any(dim=-1, keepdim=True)  # (..., L, 1)
    return mask | empty, empty


def clear_padding(x: Float[Tensor, "B S K"], keep: Bool[Tensor, "..."]) -> Float[Tensor, "B S K"]:
    """x with zeros at each key that no query of its sequence may attend to.

    A weight of 0 does not erase a NaN (pytorch/pytorch#101967). Cleared before the projection,
    it reaches neither the output nor the gradients of the projection.
    """
    keep = keep[(None,) * (4 - keep.dim())]  # (B or 1, H or 1, L or 1, S)
    seen = keep.any(dim=(1, 2))  # (B or 1, S)
    return x.masked_fill(~seen[..., None], 0)  # (B, S, K)


def check_keep(keep, shape: tuple[int, ...], device=None) -> Bool[Tensor, "..."] | None:
    """`keep`, checked against the shape (..., H, L, S) of the scores; None stays None.

    A mask (B, L, S) would land on the heads (pytorch/pytorch#177482). It is refused also where
    the sizes happen to fit.
    """
    if keep is None:
        return None
    if not isinstance(keep, Tensor):
        raise TypeError(
            f"keep: expected a boolean torch.Tensor (True = may attend), got {type(keep).__name__}. "
            f"Pass torch.as_tensor(keep)."
        )
    if keep.dtype != torch.bool:
        raise ValueError(f"keep: expected a boolean mask (True = may attend), got {_looks_like(keep)}")
    if len(shape) == 4 and keep.dim() == 3:
        raise ValueError(
            f"keep: expected 2 axes (L, S) or 4 axes (B, 1 or H, L, S) for scores of shape {shape}, "
            f"got 3 axes {tuple(keep.shape)}. One mask for each sequence: keep[:, None]. "
            f"One for each head: keep[None]."
        )
    fits = keep.dim() <= len(shape) and all(
        have in (1, want) for have, want in zip(keep.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"keep: expected a shape that broadcasts to the scores {shape}, got {tuple(keep.shape)}. "
            f"A padding mask (B, S) needs two more axes: keep[:, None, None, :]."
        )
    if device is not None and keep.device != device:
        raise ValueError(
            f"keep: expected it on the query's device {device}, got {keep.device}. Pass keep.to(query.device)."
        )
    return keep.expand(torch.broadcast_shapes(keep.shape, (1, shape[-1])))  # (..., S): a size of 1 stands for all


def _looks_like(mask: Tensor) -> str:
    """What a mask that is not boolean seems to mean, and how to say it.

    PyTorch adds a mask of 0 and 1 to the scores, which hides nothing (pytorch/pytorch#136816).
    """
    if not mask.is_meta and ((mask == 0) | (mask == 1)).all():
        return f"{mask.dtype} holding only 0 and 1. If 1 means 'may attend', pass keep.bool()." + (
            "" if mask.any() else " If it is added to scores, pass keep == 0."
        )
    if not mask.is_meta and mask.is_floating_point() and ((mask == 0) | (mask <= -1e3)).all():
        return f"an additive {mask.dtype} mask of 0 and {mask.min():g}. Pass keep == 0."
    return f"{mask.dtype} of shape {tuple(mask.shape)}."
