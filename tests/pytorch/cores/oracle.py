"""Numbers, layers and closeness for the tests of the cores."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from mha_lesson.pytorch.cores.core import as_core  # noqa: E402

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def exactest(core) -> torch.dtype:
    """float64, or the best that the core knows."""
    return core.can.dtypes[0]


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(got, want, dtype=None, factor=1.0):
    tolerance = factor * TOLERANCE[dtype or got.dtype]
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)


# ------------------------------------------------------------------------------ in the layer


def layer_with(core, dtype=None, **options):
    layer = MultiHeadAttention(33, 3, core=core, **options).to(exactest(as_core(core)) if dtype is None else dtype)
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws) / 6)
    return layer
