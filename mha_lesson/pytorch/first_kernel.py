"""The smallest attention kernel: one head, no mask. Lesson 13 lets you write its heart.

    Q, K, V, O   addresses of (N, D) arrays, row after row        N tokens, D head width
    one program for each block of BLOCK queries; it goes through the keys in tiles of BLOCK

    m, l, acc    (BLOCK,), (BLOCK,), (BLOCK, D)   largest score, sum, sum of values so far

`flash_triton.py` is the same idea with everything that real use asks for: a batch and heads,
masks, shared key heads, half precision, gradients.

Source: Dao 2023, "FlashAttention-2", algorithm 1.
"""

# Quoted word for word by exercises/lesson_13/kernel.py and tests/faults/faults.py: change them together.

from mha_lesson.pytorch.cores.flash_triton import tl


def attention_kernel(Q, K, V, O, N, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    """softmax(Q K^T · scale) V for the rows of this program, tile by tile with an online softmax."""
    rows, width = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, D)
    q = tl.load(Q + rows[:, None] * D + width[None, :], mask=rows[:, None] < N, other=0.0)
    m = tl.full([BLOCK], float("-inf"), tl.float32)
    l, acc = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK, D], tl.float32)
    for start in range(0, N, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        tile = keys[:, None] * D + width[None, :]
        k = tl.load(K + tile, mask=keys[:, None] < N, other=0.0)
        v = tl.load(V + tile, mask=keys[:, None] < N, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale  # (BLOCK, BLOCK)
        s = tl.where(keys[None, :] < N, s, float("-inf"))  # keys that do not exist get no weight
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        shrink = tl.exp(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p, v)
        m = m_new
    tl.store(O + rows[:, None] * D + width[None, :], acc / l[:, None], mask=rows[:, None] < N)
