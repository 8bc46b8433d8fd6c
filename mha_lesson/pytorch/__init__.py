"""The layer in PyTorch: lessons 07 and on. One idea a file.

    module.py    MultiHeadAttention(nn.Module): self and cross, any mask, shared key/value heads
    border.py    to and from nn.MultiheadAttention: its padding mask, the weights of its heads
    trust.py     eight checks that tell a right attention layer from a wrong one

`keep`, the shapes and their letters are those of `mha_lesson.steps`. The package is not named
torch, so that no file of yours shadows the real one.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "mha_lesson.pytorch needs PyTorch, and this Python has none. Install it: pip install torch "
        "(Intel Macs and Windows on ARM have no build). Lessons 00-06 work without it.",
        name=missing.name,
    ) from None

from mha_lesson.pytorch.module import MultiHeadAttention as MultiHeadAttention
