"""What tests of several cores share."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

# Half types are computed in float32 and rounded at the end: half a unit of their last digit.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


class Recorder(TorchDispatchMode):
    """How large the largest array was, and how many numbers all operations wrote together."""

    largest = total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                held = x.untyped_storage().nbytes() // x.element_size()  # a view holds what it looks at
                self.largest = max(self.largest, held)
                self.total += x.numel()
        return out


def draw(seed, B, H, G, L, S, D, V, dtype=torch.float64, loud=1.0):
    """q, k, v that want gradients, and a gradient for the output."""
    rng = torch.Generator().manual_seed(seed)
    shapes = (B, H, L, D), (B, G, S, D), (B, G, S, V), (B, H, L, V)
    q, k, v, probe = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
    q, k, v, probe = ((x * scale).to(dtype) for x, scale in ((q, loud), (k, 1), (v, 1), (probe, 1)))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), probe


def near(got, want, tolerance):
    assert got.shape == want.shape
    assert got.isfinite().all()
    error = (got.double() - want.double()).abs().max().item() if got.numel() else 0.0
    assert error <= tolerance * max(1.0, want.abs().max().item() if want.numel() else 0.0), error


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
