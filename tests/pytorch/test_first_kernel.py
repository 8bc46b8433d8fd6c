"""The smallest kernel of lesson 13 is attention."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import triton_numpy  # noqa: E402
from tests.pytorch.cores.helpers import exact  # noqa: E402

# ------------------------------------------------------------------------------ Triton without a GPU


def test_the_smallest_kernel_is_attention():
    from mha_lesson.pytorch.first_kernel import attention_kernel

    for n in (1, 16, 37):
        q, k, v = (torch.randn(n, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
        out = torch.full((n, 16), float("nan"))
        triton_numpy.run(attention_kernel, (triton_numpy.cdiv(n, 16),), q, k, v, out, n, 0.25, D=16, BLOCK=16)
        want = exact(*(x[None, None] for x in (q, k, v)))[0, 0]
        assert np.allclose(out.double(), want, atol=1e-6)
