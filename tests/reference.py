"""Slow, plain versions of the steps for the tests to compare with, and how they compare.

Loops over Python floats: nothing here shares an idea about axes with the package.
"""

import math
import re

import numpy as np
from hypothesis import Phase, settings

# The same examples in every run. The first failure is shown as it is: to shrink it takes minutes
# where the test loops in Python, and the sizes are small anyway.
stable = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)


def near(got, want, atol=1e-12):
    """Same shape, same numbers; `want` of six printed digits goes with atol=1e-6."""
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)


def says(*parts):
    """A pattern for pytest.raises: all parts in this order."""
    return "(?s)" + ".*".join(re.escape(part) for part in parts)


def g(shape, a=0.7, b=0.3, s=1.0):
    """Numbers that everyone can make again: s * sin(a * k + b), k = 0, 1, 2, ... in C order."""
    return s * np.sin(a * np.arange(int(np.prod(shape))) + b).reshape(shape)


def torch_layout_params(width):
    """The weights of the public reports, stored as PyTorch stores them, (out, in)."""
    return {
        "in_proj_weight": g((3 * width, width), 0.37, 0.1, 0.6),
        "in_proj_bias": g((3 * width,), 0.9, 0.2, 0.1),
        "out_proj.weight": g((width, width), 0.53, 0.4, 0.6),
        "out_proj.bias": g((width,), 1.1, 0.5, 0.1),
    }


def numpy_layout_params(width):
    """The same weights, (in, out), cut into query, key and value."""
    stored = torch_layout_params(width)
    w, b = stored["in_proj_weight"], stored["in_proj_bias"]
    return {
        "w_q": w[:width].T.copy(),
        "w_k": w[width : 2 * width].T.copy(),
        "w_v": w[2 * width :].T.copy(),
        "w_o": stored["out_proj.weight"].T.copy(),
        "b_q": b[:width],
        "b_k": b[width : 2 * width],
        "b_v": b[2 * width :],
        "b_o": stored["out_proj.bias"],
    }


def read_only(*arrays):
    """Copies that raise an error when somebody writes to them."""
    copies = tuple(np.array(array) for array in arrays)
    for copy in copies:
        copy.flags.writeable = False
    return copies if len(copies) > 1 else copies[0]


def loop_project(x, w, b):
    """x (L, A), w (A, E), b (E,) or None; all of them lists. Returns a list (L, E)."""
    return [
        [math.fsum(row[a] * w[a][e] for a in range(len(w))) + (0.0 if b is None else b[e]) for e in range(len(w[0]))]
        for row in x
    ]


def loop_softmax(row, keep):
    """Shares of the kept entries of one row; all 0 if none is kept."""
    kept = [z for z, k in zip(row, keep, strict=True) if k]
    if not kept:
        return [0.0] * len(row)
    top = max(kept)
    total = math.fsum(math.exp(z - top) for z in kept)
    return [math.exp(z - top) / total if k else 0.0 for z, k in zip(row, keep, strict=True)]


def loop_attention(query, key, value, keep):
    """query (L, D), key (S, D), value (S, V), keep (L, S), lists. Returns lists (L, V), (L, S)."""
    output, weights = [], []
    for i, q in enumerate(query):
        scores = [math.fsum(a * b for a, b in zip(q, k, strict=True)) / len(q) ** 0.5 for k in key]
        share = loop_softmax(scores, keep[i])
        weights.append(share)
        output.append(
            [math.fsum(share[j] * value[j][c] for j in range(len(value)) if keep[i][j]) for c in range(len(value[0]))]
        )
    return output, weights


def loop_multi_head(query, key, value, params, num_heads, keep):
    """Arrays in (B, ., .), keep (B, H, L, S); loops over samples and heads. Returns arrays."""
    p = {name: None if a is None else a.tolist() for name, a in params.items()}
    width = len(p["w_q"][0]) // num_heads
    outputs, all_weights = [], []
    for b in range(len(query)):
        q = loop_project(query[b].tolist(), p["w_q"], p["b_q"])
        k = loop_project(key[b].tolist(), p["w_k"], p["b_k"])
        v = loop_project(value[b].tolist(), p["w_v"], p["b_v"])
        heads = []
        for h in range(num_heads):
            mine = slice(h * width, (h + 1) * width)
            heads.append(
                loop_attention(
                    [r[mine] for r in q], [r[mine] for r in k], [r[mine] for r in v],
                    keep[b, h].tolist(),
                )
            )  # fmt: skip
        joined = [[c for o, _ in heads for c in o[i]] for i in range(len(q))]
        outputs.append(loop_project(joined, p["w_o"], p["b_o"]))
        all_weights.append([w for _, w in heads])
    return np.array(outputs), np.array(all_weights)
