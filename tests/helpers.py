"""What several tests share: a layer with random weights, PyTorch's beside it, a fresh interpreter."""

import os
import subprocess
import sys
import tempfile
import textwrap

import numpy as np

from mha_lesson.attention import MultiHeadAttention
from mha_lesson.course.paths import ROOT
from tests.reference import read_only

try:
    import torch
except ImportError:
    torch = None


def make_layer(rng, E, H, kdim=None, vdim=None, bias=True, dtype=float):
    """Random weights of the layer; w_q is read-only, like all the rest."""

    def draw(*shape):
        return read_only((rng.standard_normal(shape) / shape[0] ** 0.5).astype(dtype))

    biases = [draw(E) for _ in range(4)] if bias else [None] * 4
    return MultiHeadAttention(draw(E, E), draw(kdim or E, E), draw(vdim or E, E), draw(E, E), H, *biases)


def to_tensor(array):
    return None if array is None else torch.from_numpy(np.array(array))


def run_torch(module, query, key, value, **masks):
    masks = {name: to_tensor(mask) for name, mask in masks.items()}
    output, weights = module(*map(to_tensor, (query, key, value)), average_attn_weights=False, **masks)
    return output.detach().numpy(), weights.detach().numpy()


def run_python(code):
    """A fresh interpreter, in which nothing is imported yet, and no bytecode of a checked module is kept."""
    with tempfile.TemporaryDirectory() as cache:
        return _run_python(code, cache)


def _run_python(code, cache):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPYCACHEPREFIX": str(cache)},
    )  # fmt: skip
