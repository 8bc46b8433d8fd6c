"""Rotary positions: a query and a key are turned by their places, and their score knows the distance.

    angle_i = position / base^(2i/D)                          i = 0 ... D/2 - 1, one for each pair
    (a, b) -> (a cos angle - b sin angle,  a sin angle + b cos angle)

    x           (B, H, L, D)          queries or keys           B batch, H heads, L tokens, D head width
    positions   (L,) or (B, L)        the place of each token   (B, L) where sequences differ
    cos, sin    (L, D/2) or (B, 1, L, D/2)

The pairs are neighbours: channels (0, 1), (2, 3), ..., as in `mha_lesson.steps.embeddings.rotary`.
Another valid layout pairs channel i with i + D/2; weights and code must agree on one
(karpathy/nanochat#264).

A cache needs positions that do not change when the text grows. A turned key keeps its angle for
ever, and only differences count: so old keys may be dropped, and the rest stays right.

Source: Su et al. 2021 (RoFormer), equation 34.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def rotary(
    x: Float[Tensor, "B H L D"], positions: Shaped[Tensor, "*any L"], base: float = 10000.0
) -> Float[Tensor, "B H L D"]:
    """x with each pair of neighbouring channels turned by an angle that grows with the position.

    The result has the dtype of x. Half types are turned in float32.

    Raises
        ValueError  D is odd, or the positions fit neither (L,) nor (B, L).
    """
    positions = _check(x, positions)
    return apply_rotary(x, *rotary_tables(positions, x.shape[-1], base, torch.promote_types(x.dtype, torch.float32)))


def rotary_tables(
    positions: Shaped[Tensor, "*any L"], width: int, base: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Of all angles: (L, D/2), or (B, 1, L, D/2), the same for each head. For q and k together, once.

    The angles are made in float64: near position 100 000 those of float32 are off by up to 0.005.
    """
    exact = torch.float32 if positions.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    pair = torch.arange(0, width, 2, device=positions.device, dtype=exact)  # (D/2,): 0 2 4 ...
    angle = positions.to(exact)[..., None] * base ** (-pair / width)  # (L, D/2) or (B, L, D/2)
    if angle.dim() == 3:
        angle = angle[:, None]  # (B, 1, L, D/2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def apply_rotary(x: Float[Tensor, "B H L D"], cos: Tensor, sin: Tensor) -> Float[Tensor, "B H L D"]:
    """Each pair (a, b) of x turned, in the dtype of cos and sin; the result in that of x."""
    a, b = x[..., 0::2].to(cos.dtype), x[..., 1::2].to(cos.dtype)  # (B, H, L, D/2) each
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)  # (B, H, L, D/2, 2)
    return turned.flatten(-2).to(x.dtype)  # (B, H, L, D)


def check_width(d_head: int, name: str = "x") -> None:
    """Pairs need an even number of channels."""
    if d_head % 2:
        raise ValueError(f"{name}: expected an even width for each head (pairs are turned), got {d_head}.")


def _check(x, positions) -> Tensor:
    """The positions on the device of x."""
    if x.dim() != 4 or not x.is_floating_point():
        raise ValueError(f"x: expected floats (B, H, L, D), got {x.dtype} of shape {tuple(x.shape)}.")
    check_width(x.shape[-1])
    positions = torch.as_tensor(positions, device=x.device)
    B, L = x.shape[0], x.shape[2]
    if positions.shape not in ((L,), (B, L)) or positions.dtype == torch.bool:
        raise ValueError(
            f"positions: expected one number for each token, ({L},), or ({B}, {L}) for each sequence, "
            f"got {positions.dtype} of shape {tuple(positions.shape)}."
        )
    return positions
