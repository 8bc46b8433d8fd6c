"""Exercise 13.kernel."""

import importlib
from collections.abc import Callable

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.probes import wave


def _launch(kernel: Callable, query, key, value, block) -> np.ndarray:
    """Runs the kernel in all its programs, on one head, into an output full of NaN."""
    triton_numpy = importlib.import_module("mha_lesson.pytorch.triton_numpy")
    torch = importlib.import_module("torch")
    tensors = [torch.from_numpy(x.copy()) for x in (query, key, value)]
    n, d_head = query.shape
    out = torch.full((n, d_head), float("nan"))
    try:
        triton_numpy.run(kernel, (-(-n // block),), *tensors, out, n, d_head**-0.5, d_head, block)
    except (TypeError, AttributeError, ValueError) as error:
        if "tl." not in str(error):
            error.add_note(
                "In a kernel there are numbers, tiles and the words of tl: tl.exp, tl.where, tl.maximum, tl.max, "
                "tl.sum, tl.dot, tl.trans. Nothing of NumPy, torch or math fits, and no single place of a tile can be "
                "read or written."
            )
        raise
    return out.numpy()


def _tokens(n: int, rising: float = 0.0, loud: float = 0.0) -> tuple:
    """query, key, value (n, 16), float32. `rising`: later keys fit better, by so much a token.

    loud: every third query looks at one feature of the keys alone, multiplied by this. The best key is far ahead of
    the next and gets all, so that the last digits of large scores, which depend on the way they come, do not show.
    """
    query = wave(n, 16, step=0.7, dtype=np.float32)
    key = wave(n, 16, step=0.9, start=0.1, dtype=np.float32)
    if loud:
        places = np.arange(n)
        query[::3], query[::3, 0], key[:, 0] = 0, loud, 7 * places % n / n - places // 16  # falling, tile by tile
    if rising:
        query[:, 0], key[:, 0] = 1.0, rising * np.arange(n)
    return query, key, wave(n, 16, step=1.3, start=0.4, dtype=np.float32)


def _with_edits(*texts: str) -> Callable:
    """The solution with one text after another replaced: old, new, old, new, ... Made when first run."""
    pairs = zip(texts[::2], texts[1::2], strict=True)
    edits = [Mistake("an edit", "", old, new) for old, new in pairs]

    def kernel(Q, K, V, O, N, scale, D, BLOCK):
        triton_numpy = importlib.import_module("mha_lesson.pytorch.triton_numpy")  # also where tl is real Triton's
        triton_numpy.bind(KERNEL.variant(*edits))(Q, K, V, O, N, scale, D, BLOCK)

    return kernel


mistake = Mistakes()


mistake.edit(
    "no_mask",
    """Full tiles are right. But in the last one the keys beyond N get weight: they are zeros, so their score is 0,
    which is no small score. Keys are columns, and they need -inf: s = tl.where(keys[None, :] < N, s,
    float("-inf")).""",
    old='s = tl.where(keys[None, :] < N, s, float("-inf"))',
    new="",
)

mistake.edit(
    "no_scale",
    """Dot products, online softmax: right. But the scores are not multiplied by scale.""",
    old=" * scale",
    new="",
)

mistake.edit(
    "divided_by_scale",
    """Scores are scaled. But scale is already 1 / sqrt(D): multiply by it.""",
    old=" * scale",
    new=" / scale",
)

mistake.edit(
    "l_not_shrunk",
    """acc shrinks when the maximum grows. But l must shrink with it: l = l * shrink + tl.sum(p, 1).""",
    old="l = l * shrink +",
    new="l = l +",
)

mistake.edit(
    "acc_not_shrunk",
    """l shrinks when the maximum grows. But acc must shrink with it: acc = acc * shrink[:, None] + ...""",
    old="acc = acc * shrink[:, None] +",
    new="acc = acc +",
)

mistake.edit(
    "nothing_shrunk",
    """Each tile is right. But when a later tile has a larger maximum, what was summed so far must shrink: l and acc
    times tl.exp(m - m_new).""",
    old="shrink = tl.exp(m - m_new)",
    new="shrink = tl.full([BLOCK], 1.0, tl.float32)",
)

mistake.edit(
    "shrink_upside_down",
    """The kernel runs. But all of its output is NaN. Several slips do that. Nothing was stored: a kernel returns
    nothing, its last line writes. Nothing was summed up: l is still 0, and 0 / 0 is NaN. p takes off m, which is -inf
    at first: take off m_new. Or the correction is upside down: tl.exp(m - m_new), old minus new, is at most 1.""",
    old="tl.exp(m - m_new)",
    new="tl.exp(m_new - m)",
)

mistake.edit(
    "old_maximum_forgotten",
    """Each tile has its maximum. But the running maximum must not fall: tl.maximum(m, tl.max(s, 1)). Otherwise exp(m -
    m_new) overflows as soon as later scores are much smaller.""",
    old="tl.maximum(m, tl.max(s, 1))",
    new="tl.max(s, 1)",
)

mistake.edit(
    "maximum_of_columns",
    """A maximum is taken off. But that of each column: the softmax of a query runs along its row, axis 1.""",
    old="tl.max(s, 1)",
    new="tl.max(s, 0)",
)

mistake.edit(
    "sum_of_columns",
    """The maximum is right. But tl.sum(p, 0) adds up columns: the shares of a query stand in its row, axis 1.""",
    old="tl.sum(p, 1)",
    new="tl.sum(p, 0)",
)

mistake.edit(
    "maximum_of_all",
    """A maximum is taken off. But one for the whole tile: a quiet query beside a loud one underflows, 0 / 0. Each row
    has its own, tl.max(s, 1).""",
    old="tl.max(s, 1)",
    new="tl.max(s)",
)

mistake.edit(
    "sum_of_all",
    """The maximum is right. But tl.sum(p) adds up the whole tile: each query has its own sum, tl.sum(p, 1).""",
    old="tl.sum(p, 1)",
    new="tl.sum(p)",
)

mistake.edit(
    "one_key_too_many",
    """Full tiles are right. But the keys are 0 to N - 1: key N does not exist, so < and not <=.""",
    old="keys[None, :] < N",
    new="keys[None, :] <= N",
)

mistake.edit(
    "mask_of_rows",
    """Full tiles are right. But in s keys are columns: keys[None, :] < N. With keys[:, None] you hide queries.""",
    old="tl.where(keys[None, :] < N",
    new="tl.where(keys[:, None] < N",
)

mistake.edit(
    "maximum_as_row",
    """Each query has its maximum. But it is taken off the columns: a query is a row of s, m_new[:, None].""",
    old="m_new[:, None]",
    new="m_new[None, :]",
)

mistake.edit(
    "divided_each_time",
    """One tile is right. But acc is divided in each of them: keep the plain sum, the last line divides.""",
    old="+ tl.dot(p, v)",
    new="+ tl.dot(p / l[:, None], v)",
)

mistake.edit(
    "no_maximum",
    """Small scores come out right. But without taking off a maximum exp overflows: scores in the hundreds give inf /
    inf.""",
    old="m_new = tl.maximum(m, tl.max(s, 1))",
    new="m_new = tl.zeros([BLOCK], tl.float32)",
)

mistake.edit(
    "m_not_kept",
    """The first tile is right. But m stays -inf: at the end of the loop, m = m_new.""",
    old="        m = m_new\n",
    new="",
)

mistake.edit(
    "sum_not_kept",
    """Each tile is right. But l holds the last tile alone: l = l * shrink + tl.sum(p, 1).""",
    old="l * shrink + tl.sum",
    new="tl.sum",
)

mistake.edit(
    "acc_not_kept",
    """Each tile is right. But acc holds the last tile alone: acc = acc * shrink[:, None] + tl.dot(p, v).""",
    old="acc * shrink[:, None] + tl.dot",
    new="tl.dot",
)

mistake.edit(
    "scores_transposed",
    """Queries meet keys. But in s rows must be queries and columns keys: tl.dot(q, tl.trans(k)).""",
    old="tl.dot(q, tl.trans(k))",
    new="tl.dot(k, tl.trans(q))",
)

mistake.edit(
    "keys_for_values",
    """The weights are right. But they mix the keys: tl.dot(p, v).""",
    old="tl.dot(p, v)",
    new="tl.dot(p, k)",
)


KERNEL = Exercise(
    id="13.kernel",
    needs_torch=True,
    signature="kernel(Q, K, V, O, N, scale, D, BLOCK)",
    solution="mha_lesson.pytorch.first_kernel:attention_kernel",
    protocol=Protocol(call=_launch),
    probes=lambda: [
        Probe((*_tokens(32), 32), "32 tokens of width 16, one tile of 32"),
        Probe((*_tokens(37), 16), "37 tokens in tiles of 16: the last tile has 5"),
        Probe((*_tokens(32, rising=20.0), 16), "32 tokens, later keys fit better: the maximum grows"),
        Probe((*_tokens(32, rising=-3.0), 16), "32 tokens, later keys fit worse"),
        Probe((*_tokens(37, loud=4000.0), 16), "37 tokens, scores of every third query up to 1000"),
    ],
    mistakes=mistake.all,
    forms={
        "shares of missing keys set to 0": _with_edits(
            's = tl.where(keys[None, :] < N, s, float("-inf"))', "exists = keys[None, :] < N",
            "p = tl.exp(s - m_new[:, None])", "p = tl.where(exists, tl.exp(s - m_new[:, None]), 0.0)",
        ),
        "powers of two": _with_edits(
            "tl.exp(s - m_new[:, None])", "tl.exp2((s - m_new[:, None]) * 1.4426950408889634)",
            "tl.exp(m - m_new)", "tl.exp2((m - m_new) * 1.4426950408889634)",
        ),
        "dot with an accumulator": _with_edits(
            "acc = acc * shrink[:, None] + tl.dot(p, v)", "acc = tl.dot(p, v, acc * shrink[:, None])"
        ),
        "scaled queries": _with_edits("tl.dot(q, tl.trans(k)) * scale", "tl.dot(q * scale, tl.trans(k))"),
    },
    hints=(
        "Scores first: s = tl.dot(q, tl.trans(k)) * scale, (BLOCK, BLOCK). Rows are queries, columns are keys.",
        "Keys beyond N: s = tl.where(keys[None, :] < N, s, float(\"-inf\")).",
        "Then lesson 12: m_new = tl.maximum(m, tl.max(s, 1)); p = tl.exp(s - m_new[:, None]); shrink = tl.exp(m - "
        "m_new).",
        "l = l * shrink + tl.sum(p, 1); acc = acc * shrink[:, None] + tl.dot(p, v); and m = m_new at the end.",
    ),
    well_done="That is FlashAttention's forward pass. On a GPU these same lines run compiled.",
)  # fmt: skip
