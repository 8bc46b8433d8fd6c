"""The smallest kernel of lesson 13 is attention."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import triton_numpy  # noqa: E402


def exact(q, k, v, causal=False, lengths=None):
    """In float64, with the table; rows that may see nothing give 0."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    L, S = q.shape[2], k.shape[2]
    keep = torch.ones(1, 1, L, S, dtype=torch.bool, device=q.device)
    if causal:
        keep = keep.tril(S - L)
    if lengths is not None:
        keep = keep & (torch.arange(S, device=q.device) < lengths[:, None])[:, None, None]
    empty = ~keep.any(-1, keepdim=True)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~(keep | empty), -torch.inf)
    return (scores.softmax(-1) @ v).masked_fill(empty, 0)


# ------------------------------------------------------------------------------ Triton without a GPU


def test_the_smallest_kernel_is_attention():
    from mha_lesson.pytorch.first_kernel import attention_kernel

    for n in (1, 16, 37):
        q, k, v = (torch.randn(n, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
        out = torch.full((n, 16), float("nan"))
        triton_numpy.run(attention_kernel, (triton_numpy.cdiv(n, 16),), q, k, v, out, n, 0.25, D=16, BLOCK=16)
        want = exact(*(x[None, None] for x in (q, k, v)))[0, 0]
        assert np.allclose(out.double(), want, atol=1e-6)
