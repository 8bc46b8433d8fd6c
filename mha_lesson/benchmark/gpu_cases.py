"""Is our kernel right on this device? Asked before anything is timed.

    error of a case = largest |got - exact| / largest |exact|       output, dQ, dK and dV alike
    allowed         = 4 roundings of the number format + 64 of the float32 sums; twice that for gradients

`exact` is attention in float64 from the same rounded inputs, written out with the (L, S) array.

    q (B, H, L, D)   k, v (B, G, S, D)   B batch, H query and G key heads, L queries, S keys, D head width

Each case has awkward shapes, so that blocks end in the middle. Padding holds large numbers: who
reads it is found out. And all memory that is not yet written holds NaN (`poisoned_memory`): a
kernel that forgets a part of its output, or reads before it writes, cannot be right by luck.

Not every combination is tried, because each takes a second to compile. But each number format
meets each width, each mask, and each shape.
"""

from contextlib import contextmanager
from itertools import product
from typing import NamedTuple

FORMATS = ("bfloat16", "float16", "float32")  # first what will be timed
PADDING = 1e4  # what stands where nobody should look


class Shape(NamedTuple):
    what: str
    B: int
    H: int
    G: int
    L: int
    S: int
    lengths: tuple[int, ...] | None = None

    def tiny(self):
        """The same in a quarter of the length, for a dry run. Odd, so that blocks still end in the middle."""
        lengths = self.lengths and tuple(n // 4 for n in self.lengths)
        return self._replace(L=self.L // 4 | 1, S=self.S // 4 | 1, lengths=lengths)


SHAPES = (
    Shape("shared key heads, ragged ends", 2, 6, 2, 131, 197),
    Shape("padding of unequal length", 3, 4, 4, 150, 150, (150, 0, 67)),
    Shape("more queries than keys", 2, 3, 1, 211, 83),
    Shape("one query", 3, 8, 2, 1, 333, (333, 18, 129)),
)
SQUARE = Shape("square", 2, 4, 4, 256, 256)


class Case(NamedTuple):
    dtype: str
    d: int
    causal: bool
    shape: Shape

    def __str__(self):
        return f"{self.dtype}, D {self.d}, {'causal' if self.causal else 'no mask'}, {self.shape.what}"


def cases(widths: list[int], tiny: bool = False) -> list[Case]:
    """The square cases in the format that will be timed; then the shapes in turn, moved on with each format."""
    found = [Case(FORMATS[0], d, causal, SQUARE) for d, causal in product(widths, (True, False))]
    for i, dtype in enumerate(FORMATS):
        for j, (d, causal) in enumerate(product(widths, (True, False))):
            found.append(Case(dtype, d, causal, SHAPES[(i + j) % len(SHAPES)]))
    return [case._replace(shape=case.shape.tiny()) for case in found] if tiny else found


def tolerance(dtype: str) -> float:
    """What rounding may do to an output, as a share of its largest number."""
    from mha_lesson.steps.gpu import ROUNDING

    return 4 * ROUNDING[dtype] + 64 * ROUNDING["float32"]


def check_case(case: Case, attend, device: str) -> dict:
    """One entry of the record. attend(q, k, v, causal=, lengths=) is the kernel."""
    import torch

    q, k, v, probe, lengths = _inputs(case, device)
    wanted = _with_gradients(exact, *(x.double() for x in (q, k, v, probe)), case.causal, lengths)
    allowed = tolerance(case.dtype)
    found = {**case._asdict(), "shape": case.shape.what, "case": str(case), "tolerance": allowed, "errors": {}}
    try:
        with poisoned_memory():
            got = _with_gradients(attend, q, k, v, probe, case.causal, lengths)
            if device == "cuda":
                torch.cuda.synchronize()  # errors of a kernel come late
    except Exception as problem:  # whatever a compiler or driver throws: it is recorded
        return {**found, "status": "failed", "why": first_line(problem)}
    why = None
    for name, mine, right in zip(("output", "d_q", "d_k", "d_v"), got, wanted, strict=True):
        if mine.shape != right.shape or mine.dtype != getattr(torch, case.dtype):
            why = why or f"{name}: expected {tuple(right.shape)} in {case.dtype}, got {tuple(mine.shape)}, {mine.dtype}"
            continue
        error, limit = relative_error(mine, right), allowed if name == "output" else 2 * allowed
        found["errors"][name] = error if error < float("inf") else None  # JSON has no NaN
        if not error <= limit:
            why = why or f"{name}: off by {error:.2g} of the largest number, allowed is {limit:.2g}"
    return {**found, "status": "right" if why is None else "wrong", "why": why}


def relative_error(got, right) -> float:
    """The largest difference as a share of the largest number; NaN counts as infinitely far."""
    error = (got.double() - right.double()).abs().max() / right.double().abs().max().clamp(min=1e-30)
    return error.nan_to_num(nan=float("inf")).item()


def first_line(problem: BaseException) -> str:
    """Kind and first line of an error, not too long for a table."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {lines[0] if lines else 'no message'}"[:300]


def exact(q, k, v, causal, lengths):
    """Attention in float64 with the (L, S) array; a query that may see nothing gets 0."""
    import torch

    (_, H, L, D), (G, S) = q.shape, k.shape[1:3]
    k, v = (x.repeat_interleave(H // G, dim=1) for x in (k, v))  # (B, H, S, D)
    key = torch.arange(S, device=q.device)
    keep = key < (S if lengths is None else lengths[:, None, None, None])  # (S,) or (B, 1, 1, S)
    if causal:
        keep = keep & (key <= torch.arange(S - L, S, device=q.device)[:, None])  # (L, S) or (B, 1, L, S)
    # A large number instead of infinity, and 0 after the softmax: no NaN in empty rows, gradients included.
    scores = (q @ k.mT / D**0.5).masked_fill(~keep, -1e30)  # (B, H, L, S)
    return (torch.softmax(scores, dim=-1) * keep) @ v


def _with_gradients(attend, q, k, v, probe, causal, lengths):
    """(output, dQ, dK, dV)"""
    import torch

    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    output = attend(*leaves, causal=causal, lengths=lengths)
    return output.detach(), *torch.autograd.grad(output, leaves, probe)


def _inputs(case, device):
    import torch

    _, B, H, G, L, S, lengths = case.shape
    draw = torch.Generator().manual_seed(case.d + L)
    shapes = ((B, H, L), (B, G, S), (B, G, S), (B, H, L))
    q, k, v, probe = (torch.randn(*s, case.d, generator=draw).to(getattr(torch, case.dtype)) for s in shapes)
    if lengths is not None:
        lengths = torch.tensor(lengths)
        padding = (torch.arange(S) >= lengths[:, None])[:, None, :, None]  # (B, 1, S, 1)
        k, v = k.masked_fill(padding, PADDING), v.masked_fill(padding, PADDING)
    return [None if x is None else x.to(device) for x in (q, k, v, probe, lengths)]


@contextmanager
def poisoned_memory():
    """Memory from torch.empty holds NaN, as torch's deterministic mode fills it."""
    import warnings

    import torch

    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some operation has no deterministic form is no news here
            yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)
        torch.utils.deterministic.fill_uninitialized_memory = filled
