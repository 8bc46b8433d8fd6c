"""Ways through the middle of the layer, from q, k, v to the context. One idea a file.

    core.py          what a core is, and the table of what each one can do
    sdpa.py          the default: PyTorch's fused attention, made safe
    tiled.py         exact attention by tiles: no N×N array, forwards or backwards
    flash_triton.py  the same tiles as a kernel
    window.py        each query sees the last few keys, and only those are computed
    linear.py        without a softmax: a state in the place of a growing cache

The ring, whose keys travel over several processes, is at home in `mha_lesson.pytorch.parallel`.

    from mha_lesson.pytorch.cores import WindowCore
    layer = MultiHeadAttention(64, 8, core=WindowCore(128))
"""

from importlib import import_module

_HOME = {
    "Can": "cores.core",
    "Core": "cores.core",
    "FunctionCore": "cores.core",
    "SDPACore": "cores.sdpa",
    "TiledCore": "cores.tiled",
    "FlashCore": "cores.flash_triton",
    "WindowCore": "cores.window",
    "LinearCore": "cores.linear",
    "RingCore": "parallel.ring",
}
__all__ = list(_HOME)


def __getattr__(name: str):
    """Loaded when first asked for: a kernel's compiler takes its time."""
    if name not in _HOME:
        raise AttributeError(f"mha_lesson.pytorch.cores has no {name!r}. It has {', '.join(_HOME)}.")
    return getattr(import_module(f"mha_lesson.pytorch.{_HOME[name]}"), name)
