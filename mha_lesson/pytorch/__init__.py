"""The layer in PyTorch: lessons 07 and on. One idea a file, to be read in this order:

    layer.py     MultiHeadAttention(nn.Module): self and cross, any mask, shared key/value heads
    heads.py     cut into heads, laid side by side again, shared among neighbours
    masks.py     `keep` and `causal`: joined, checked, safe where a query may see nothing
    cores/       ways through the middle of the layer, from q, k, v to the context:
                 sdpa (the default), window, linear, tiled, flash_triton, ring
    rotary.py    positions by turning queries and keys: they stay right when the text grows
    cache.py     KVCache: each token goes through once; unequal lengths, chunks, window, shared heads
    interop.py   to and from nn.MultiheadAttention: its padding mask, the weights of its heads
    layer_checks.py   eight checks that tell a right attention layer from a wrong one
    first_kernel.py   attention as the smallest kernel
    triton_numpy/     NumPy in the place of Triton, so that a kernel runs, and can be stepped through, anywhere
    parallel/    heads shared out over processes, or keys that travel round a ring

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

from mha_lesson.pytorch.layer import MultiHeadAttention as MultiHeadAttention
