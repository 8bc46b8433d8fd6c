"""The layer in PyTorch: lessons 07 and on. One idea a file.

    module.py    MultiHeadAttention(nn.Module): self and cross, any mask, shared key/value heads
    cache.py     KVCache: each token goes through once; unequal lengths, chunks, window, shared heads
    rotary.py    positions by turning queries and keys: they stay right when the text grows
    online.py    exact attention by tiles: no N×N array, forwards or backwards
    window.py    each query sees the last few keys, and only those are computed
    linear.py    attention without a softmax: a state in the place of a growing cache
    flash_triton.py   the same tiles as a kernel; first_kernel.py: the smallest one
    stand_in/    NumPy in the place of Triton, so that a kernel runs, and can be stepped through, anywhere
    parallel/    heads shared out over processes, or keys that travel round a ring
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
