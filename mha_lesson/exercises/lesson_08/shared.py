"""What several exercises of lesson 08 use."""

import importlib

from mha_lesson.exercises.engine.probes import wave


class Late:
    """A module that is imported when its first name is asked for."""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, name: str):
        return getattr(importlib.import_module(self.name), name)


torch = Late("torch")


layers = Late("mha_lesson.pytorch.layer")


def _module(E: int, H: int, dtype: str = "float64", dropout: float = 0.0):
    """An nn.MultiheadAttention in evaluation mode. Its biases are not 0, as they are when it is new."""
    with torch.random.fork_rng(devices=[]):  # making it draws numbers: the notebook's stay as they were
        module = torch.nn.MultiheadAttention(E, H, dropout=dropout, batch_first=True, dtype=getattr(torch, dtype))
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.as_tensor(wave(*parameter.shape, step=0.37 + i / 7, start=0.1 + i, size=0.6)))
    return module.eval()
