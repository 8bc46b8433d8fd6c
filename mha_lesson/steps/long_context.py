"""Lesson 12. Long inputs: softmax in one pass, answers that merge, attention without a softmax.

    m = max_j s_j,   l = sum_j exp(s_j - m),   o = sum_j exp(s_j - m) v_j,   answer = o / l

    online_softmax(scores, values, block)     one query, block after block
    partial(scores, values)                   (m, l, o) of some of the keys
    merge(m1, l1, o1, m2, l2, o2)             (m, l, o) of both parts together
    tiled_attention(query, key, value, ...)   the whole of it: tiles of queries × keys
    linear_attention(query, key, value)       causal, with a state in place of the N × N table

    scores (S,) or (L, S), values (S,) or (S, V);  m, l (L,);  o (L, V)
    query, key (L, D), value (L, V): one head

Sources: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022,
section 3.1; Katharopoulos et al. 2020, "Transformers are RNNs", equations 8 to 12.
"""

import math

import numpy as np

from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.typing import Array, Float


def online_softmax(scores, values, block):
    """softmax(scores) @ values in one pass, `block` scores at a time. 0 if every score is -inf.

    When a block brings a larger maximum, what was summed so far shrinks by exp(old - new).
    """
    m, l, o = -np.inf, 0.0, 0.0
    for start in range(0, len(scores), block):
        s, v = scores[start : start + block], values[start : start + block]
        m_new = max(m, s.max())
        if m_new == -np.inf:  # nothing allowed so far: exp(-inf + inf) would be NaN
            continue
        shrink = np.exp(m - m_new)
        p = np.exp(s - m_new)  # (block,)
        l = l * shrink + p.sum()
        o = o * shrink + p @ v
        m = m_new
    return o / l if l > 0 else np.zeros(np.shape(values)[1:])


def partial(scores: Float[Array, "*any S"], values: Float[Array, "S V"]):
    """(m, l, o) of these keys alone: what `merge` takes. Without a key, m = -inf, l = 0, o = 0."""
    m = scores.max(axis=-1, initial=-np.inf)  # (...)
    p = np.exp(scores - _finite(m)[..., None])  # (..., S)
    return m, p.sum(axis=-1), p @ values


def merge(m1, l1, o1, m2, l2, o2):
    """(m, l, o) of two sets of keys together, from those of each. In any order, as often as you like.

        m = max(m1, m2),   l = l1 exp(m1 - m) + l2 exp(m2 - m),   o likewise;   the answer is o / l

    m, l (L,) and o (L, V), or numbers and o (V,). A part that holds nothing (m = -inf, l = 0) adds nothing.
    """
    m = np.maximum(m1, m2)
    highest = _finite(m)  # both empty: -inf - (-inf) would be NaN
    shrink1, shrink2 = np.exp(m1 - highest), np.exp(m2 - highest)  # (L,)
    l = l1 * shrink1 + l2 * shrink2
    o = o1 * shrink1[..., None] + o2 * shrink2[..., None]  # (L, V)
    return m, l, o


def _finite(m):
    """m, with 0 where it is -inf."""
    return np.where(np.isneginf(m), 0, m)


def tiled_attention(query, key, value, causal: bool = False, block_q: int = 4, block_k: int = 4):
    """softmax(Q K^T / sqrt(D)) V, a tile of block_q × block_k scores at a time; none is kept.

    causal: the last query sees all keys. Tiles that lie wholly in the future are skipped.
    `blocked.py` is the fast one; this one is to be read.
    """
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        if block < 1:
            raise ValueError(f"{name}: expected 1 or more, got {block}.")
    L, S = len(query), len(key)
    keep = causal_mask(L, S) if causal else np.ones((L, S), bool)
    output = np.zeros((L, value.shape[1]), np.result_type(query, key, value))
    for top in range(0, L, block_q):
        rows = slice(top, min(top + block_q, L))
        n = rows.stop - top
        m, l, o = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))
        for left in range(0, S, block_k):
            keys = slice(left, left + block_k)
            if not keep[rows, keys].any():
                continue
            scores = query[rows] @ key[keys].T / math.sqrt(query.shape[1])  # (block_q, block_k)
            scores = np.where(keep[rows, keys], scores, -np.inf)
            m, l, o = merge(m, l, o, *partial(scores, value[keys]))
        output[rows] = o / np.where(l == 0, 1, l)[:, None]
    return output


def features(x):
    """elu(x) + 1: positive, so that their products can serve as weights. (Katharopoulos et al. 2020, equation 7.)"""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def linear_attention(query, key, value):
    """Causal attention with weights φ(q_t) · φ(k_j) in place of exp(q_t · k_j), in O(L).

        o_t = φ(q_t)^T S_t / φ(q_t)^T z_t,   S_t = sum_{j<=t} φ(k_j) v_j^T,   z_t = sum_{j<=t} φ(k_j)

    The state S (D, V) and z (D,) is all that it remembers of the past, however long that is.
    """
    if len(query) != len(key):
        raise ValueError(
            f"query: expected as many rows as key {key.shape}, got {query.shape}: token t asks after key t is in."
        )
    query, key = features(query), features(key)  # (L, D)
    state, total = np.zeros((key.shape[1], value.shape[1])), np.zeros(key.shape[1])
    output = np.empty((len(query), value.shape[1]))
    for t in range(len(query)):
        state += np.outer(key[t], value[t])  # (D, V)
        total += key[t]  # (D,)
        output[t] = query[t] @ state / (query[t] @ total)
    return output


def linear_attention_chunked(query, key, value, chunk: int = 64):
    """The same numbers, `chunk` tokens at a time: the state for what came before, a small table within."""
    if chunk < 1:
        raise ValueError(f"chunk: expected 1 or more, got {chunk}.")
    query, key = features(query), features(key)  # (L, D)
    values = np.concatenate([value, np.ones((len(value), 1))], axis=1)  # (L, V + 1): the last column counts
    state = np.zeros((key.shape[1], values.shape[1]))  # (D, V + 1)
    pieces = []
    for start in range(0, len(query), chunk):
        piece = slice(start, start + chunk)
        within = np.tril(query[piece] @ key[piece].T)  # (chunk, chunk)
        mix = query[piece] @ state + within @ values[piece]  # (chunk, V + 1)
        pieces.append(mix[:, :-1] / mix[:, -1:])
        state = state + key[piece].T @ values[piece]
    return np.concatenate(pieces)
