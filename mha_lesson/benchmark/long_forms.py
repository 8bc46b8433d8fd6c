"""The command `long`: what makes a long sequence affordable, beside exact causal attention.

    q, k, v (1, H, N, D)   ->   (1, H, N, D)      H heads, N tokens, D head width

    exact, N² work               SDPA; tiled_attention; the dense form with its N×N arrays
    something else, less work    window_attention: the last WIDTH keys, N · WIDTH
                                 linear_attention: no softmax, a state instead, N · D

The last two do not compute what the others do. Each is compared with its own definition, written
out with dense rows in float64, for some of the queries.

Sources: Beltagy et al. 2020, section 3.1 (window); Katharopoulos et al. 2020, equation 9 (linear);
Dao et al. 2022 (tiles).
"""

from collections.abc import Callable

from mha_lesson.benchmark.comparison import Comparison, needs_torch, report

WIDTH = 256  # keys of a window
ROWS = 64  # queries that are compared
BASE = "SDPA is_causal"
DENSE = "dense mask"
NOTE = (
    f"Answers are compared for {ROWS} of the queries. The window is {WIDTH} keys wide. "
    f"Goals at N = 8192, one thread: 0.30 for the window and for linear attention."
)


def long_forms(n: int, heads: int = 8, d_head: int = 64, dtype: str = "float32") -> dict[str, Callable]:
    """Causal attention: exact ones, a window, and linear attention."""
    from torch.nn.functional import scaled_dot_product_attention

    from mha_lesson.pytorch.cores.linear import linear_attention
    from mha_lesson.pytorch.cores.tiled import tiled_attention
    from mha_lesson.pytorch.cores.window import window_attention

    q, k, v = _inputs(n, heads, d_head, dtype)
    forms = {
        BASE: lambda: scaled_dot_product_attention(q, k, v, is_causal=True),
        DENSE: lambda: dense(q, k, v),
        "tiled_attention": lambda: tiled_attention(q, k, v, causal=True),
        "window_attention": lambda: window_attention(q, k, v, WIDTH),
        "linear_attention": lambda: linear_attention(q, k, v),
    }
    return {name: _without_gradients(run) for name, run in forms.items()}


def dense(q, k, v):
    """The textbook: all scores, a mask over them, the softmax, the product."""
    import torch

    scores = q @ k.mT / q.shape[-1] ** 0.5  # (1, H, N, N)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1) @ v


def _without_gradients(run):
    import torch

    return torch.no_grad()(run)


def _inputs(n, heads, d_head, dtype):
    import torch

    torch.manual_seed(n)
    return torch.randn(3, 1, heads, n, d_head, dtype=getattr(torch, dtype)).unbind()


def some_rows(n: int) -> list[int]:
    """Queries from the first to the last, evenly spread; all of them if they are few."""
    return sorted({round(i * (n - 1) / (ROWS - 1)) for i in range(ROWS)}) if n > 1 else [0]


def long_reference(n, heads, d_head, dtype):
    """For each form its definition, in float64, for `some_rows` of the queries."""
    import torch

    q, k, v = (x.double() for x in _inputs(n, heads, d_head, dtype))
    place = torch.tensor(some_rows(n))[:, None]  # (R, 1)
    key = torch.arange(n)
    q = q[:, :, place[:, 0]]  # (1, H, R, D)
    past = key <= place  # (R, N)
    scores = q @ k.mT / d_head**0.5  # (1, H, R, N)

    def softmax(keep):
        return (torch.softmax(scores.masked_fill(~keep, -torch.inf), dim=-1) @ v).numpy()

    phi = torch.nn.functional.elu
    likeness = ((phi(q) + 1) @ (phi(k) + 1).mT) * past  # (1, H, R, N), all above 0 where it is not hidden
    linear = (likeness @ v / likeness.sum(dim=-1, keepdim=True)).numpy()
    exact = softmax(past)
    window = softmax(past & (key > place - WIDTH))
    return {
        BASE: exact, DENSE: exact, "tiled_attention": exact, "window_attention": window, "linear_attention": linear,
    }  # fmt: skip


def _square_bytes(name, n, heads, itemsize):
    """Scores, masked scores and weights at once, and the mask; for all heads."""
    return (3 * heads * itemsize + 1) * n * n if name == DENSE else 0


def run_long(options) -> int:
    if needs_torch("long"):
        return 1
    comparison = Comparison(
        "mha_lesson.benchmark:long_forms", long_reference, (BASE,), _square_bytes, rows=some_rows, note=NOTE
    )
    return report(comparison, "causal attention over long sequences, in PyTorch", options)
