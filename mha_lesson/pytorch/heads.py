"""Cut into heads, laid side by side again, and shared among neighbours: moves, no arithmetic.

x        (B, L, E)       E = H·D
context  (B, H, L, D)    H heads of width D
k, v     (B, G, S, D)    G key/value heads, each for H / G query heads
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from jaxtyping import Float, Shaped
from torch import Tensor


def split_heads(x: Float[Tensor, "B L E"], num_heads: int) -> Float[Tensor, "B H L D"]:
    """Cut the features of each token into heads, then swap: head h owns features h·D to (h + 1)·D."""
    return x.unflatten(-1, (num_heads, x.shape[-1] // num_heads)).transpose(1, 2)  # (B, L, H, D), (B, H, L, D)


def merge_heads(context: Float[Tensor, "B H L D"]) -> Float[Tensor, "B L E"]:
    """Swap back, then lay the heads of each token side by side (jsbaan/transformer-from-scratch#6)."""
    return context.transpose(1, 2).flatten(-2)  # (B, L, H, D), (B, L, E)


def share_heads(x: Shaped[Tensor, "B G S D"], num_heads: int) -> Shaped[Tensor, "B H S D"]:
    """Each key/value head for H / G query heads that are neighbours: 0 0 1 1, not 0 1 0 1 (onnx/onnx#7274)."""
    return x.repeat_interleave(num_heads // x.shape[1], dim=1) if x.shape[1] != num_heads else x
