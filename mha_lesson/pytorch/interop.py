"""At the border to `torch.nn.MultiheadAttention`: its padding mask, and the weights of its heads.

Its boolean masks say True = blocked where this course's `keep` says True = may attend. It gives
the mean over the heads unless told not to (pytorch/pytorch#34537). Its own weights are read by
`MultiHeadAttention.from_torch`, or into NumPy by `mha_lesson.attention.params_from_torch`.
"""

# Quoted word for word by exercises/lesson_08/blocked.py and exercises/lesson_08/per_head.py: change them together.

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


def key_padding_mask(lengths, S: int) -> Bool[Tensor, "B S"]:
    """For `nn.MultiheadAttention(key_padding_mask=...)`: True at padding, from place `length` on."""
    return torch.arange(S) >= torch.as_tensor(lengths)[:, None]  # (S,) and (B, 1)


def head_weights(
    layer: nn.MultiheadAttention, x: Float[Tensor, "B L E"], keep: Bool[Tensor, "L L"]
) -> Float[Tensor, "B H L L"]:
    """The weights of each head in self-attention. keep: True = may attend."""
    _, weights = layer(x, x, x, attn_mask=~keep, need_weights=True, average_attn_weights=False)
    return weights  # without the last option their mean, (B, L, L)
