"""The command `numpy`: causal attention in NumPy, in the forms that people write, beside torch's SDPA.

    q, k, v  (1, H, N, D)   ->   (1, H, N, D)      H heads, N tokens, D head width

Every form is checked against the textbook's in float64.
"""

from collections.abc import Callable

from mha_lesson.benchmark.comparison import Comparison, has_torch, report


def _inputs(n, heads, d_head, dtype):
    import numpy as np

    draw = np.random.default_rng(n).standard_normal
    return [draw((1, heads, n, d_head), dtype=dtype) for _ in range(3)]


def numpy_forms(n: int, heads: int = 8, d_head: int = 64, dtype: str = "float32") -> dict[str, Callable]:
    """Causal attention in NumPy, in the forms that people write, and torch's if torch is there."""
    from mha_lesson.attention import blocked_attention, scaled_dot_product_attention
    from mha_lesson.steps.masks import causal_mask

    q, k, v = _inputs(n, heads, d_head, dtype)
    forms = {
        "textbook loop over heads": lambda: textbook(q, k, v),
        "einsum": lambda: einsum(q, k, v),
        "scaled_dot_product_attention": lambda: scaled_dot_product_attention(q, k, v, causal_mask(n, n))[0],
        "blocked_attention": lambda: blocked_attention(q, k, v, causal=True),
    }
    return {"torch SDPA": lambda: torch_sdpa(q, k, v)} | forms if has_torch() else forms


def torch_sdpa(q, k, v):
    """What torch offers: one call, without the N×N array."""
    import torch  # here, so that the processes that weigh other forms do not load it

    return torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), is_causal=True)


def textbook(q, k, v):
    """As in most courses: head after head, with the N×N array, a new array at each step."""
    import numpy as np

    output = np.empty_like(v)
    future = np.triu(np.ones((q.shape[2], k.shape[2]), bool), 1)
    for b, h in np.ndindex(q.shape[:2]):
        scores = q[b, h] @ k[b, h].T / q.shape[-1] ** 0.5  # (N, N)
        scores = np.where(future, -np.inf, scores)
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        output[b, h] = e / e.sum(axis=-1, keepdims=True) @ v[b, h]
    return output


def einsum(q, k, v):
    """All heads at once, written with np.einsum."""
    import numpy as np

    scores = np.einsum("bhld,bhsd->bhls", q, k, optimize=True) / q.shape[-1] ** 0.5  # (B, H, N, N)
    scores = np.where(np.triu(np.ones(scores.shape[-2:], bool), 1), -np.inf, scores)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhls,bhsv->bhlv", e / e.sum(axis=-1, keepdims=True), v, optimize=True)


def numpy_reference(n, heads, d_head, dtype):
    """The textbook form on the same numbers in float64."""
    import numpy as np

    return textbook(*(x.astype(np.float64) for x in _inputs(n, heads, d_head, dtype)))


def _numpy_square_bytes(name, n, heads, itemsize):
    """The N×N arrays alive at the worst moment: four of floats, and the mask."""
    at_once = {"textbook loop over heads": 1, "einsum": heads, "scaled_dot_product_attention": heads}
    return at_once.get(name, 0) * 4 * n * n * itemsize + n * n * (name in at_once)


def run_numpy(options) -> int:
    bases = ("torch SDPA", "textbook loop over heads", "blocked_attention")
    comparison = Comparison("mha_lesson.benchmark:numpy_forms", numpy_reference, bases, _numpy_square_bytes)
    return report(comparison, "causal attention in NumPy", options)
