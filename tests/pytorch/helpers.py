"""What several tests of the PyTorch layer share."""

import subprocess
import sys

import numpy as np
import pytest

from mha_lesson.attention import MultiHeadAttention as NumpyLayer
from mha_lesson.course.paths import ROOT
from tests.reference import numpy_layout_params

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


DTYPES = [pytest.param(dtype, id=str(dtype)[6:]) for dtype in TOLERANCE]


def lower_right(L, S):
    """With loops: query i of L is token i + S - L of S."""
    return np.array([[j <= i + S - L for j in range(S)] for i in range(L)], dtype=bool).reshape(L, S)


def allowed(keep, causal, B, H, L, S):
    """(B, H, L, S) in full."""
    full = np.broadcast_to(np.True_ if keep is None else keep.numpy(), (B, H, L, S))
    return torch.from_numpy(full & lower_right(L, S) if causal else full.copy())


def randomise(module, seed):
    """Weights of variance 1 / width and biases that are not 0, as those of a new layer are."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=draw, dtype=torch.float64) * tensor.shape[-1] ** -0.5)
    return module


def numbers(rng, *shape, dtype=torch.float64):
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def leaf(x):
    return x.detach().clone().requires_grad_()


def gradients(loss, module, inputs):
    wanted = [*inputs, *module.parameters()]
    return torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)


def same(got, want, atol):
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=atol, atol=atol)


def all_finite(*tensors):
    return all(bool(t.isfinite().all()) for t in tensors)


def report_layer(dtype=torch.float64, **changes):
    """The weights that all tests of public reports use, two heads."""
    layer = MultiHeadAttention.from_numpy(NumpyLayer.from_params(numpy_layout_params(4), 2), dtype=dtype)
    for name, value in changes.items():
        setattr(layer, name, value)
    return layer


def t(array):
    return torch.as_tensor(array, dtype=torch.float64)


def o(*shape, dtype=torch.bool):
    return torch.ones(shape, dtype=dtype)


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
