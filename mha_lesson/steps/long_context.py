"""Lesson 12. Long inputs: softmax in one pass, answers that merge, attention without a softmax.

    m = max_j s_j,   l = sum_j exp(s_j - m),   o = sum_j exp(s_j - m) v_j,   answer = o / l

    online_softmax(scores, values, block)     one query, block after block
    partial(scores, values)                   (m, l, o) of some of the keys
    merge(m1, l1, o1, m2, l2, o2)             (m, l, o) of both parts together
    tiled_attention(query, key, value, ...)   the whole of it: tiles of queries × keys
    linear_attention(query, key, value)       causal, with a state in place of the N × N table

    scores (S,) or (L, S), values (S,) or (S, V);  m, l (L,);  o (L, V)
    query (L, D), key (S, D), value (S, V): one head

Sources: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022,
section 3.1; Katharopoulos et al. 2020, "Transformers are RNNs", equations 7 to 12.
"""

# Quoted word for word by exercises/lesson_12/linear.py, exercises/lesson_12/merge.py, exercises/lesson_12/online.py and
# tests/faults/faults.py: change them together.

import math
from numbers import Integral

import numpy as np

from mha_lesson.steps.typing import Array, Float

TINY = np.finfo(float).tiny  # the smallest ordinary number, 2e-308: x / TINY is 0 for x = 0

# ------------------------------------------------------------------------------ one pass


def online_softmax(scores: Float[Array, " S"], values: Float[Array, "S *V"], block: int):
    """softmax(scores) @ values in one pass, `block` scores at a time. 0 if every score is -inf.

    When a block brings a larger maximum, what was summed so far shrinks by exp(old - new).
    """
    check_block("block", block)
    check_values(scores, values)
    m, l, o = -np.inf, 0.0, 0.0
    for start in range(0, len(scores), block):
        s, v = scores[start : start + block], values[start : start + block]
        m_new = np.maximum(m, s.max())
        if m_new == -np.inf:  # nothing allowed so far: exp(-inf + inf) would be NaN
            continue
        shrink = np.exp(m - m_new)  # 1 or less; exp(-inf) = 0 the first time
        p = np.exp(s - m_new)  # (block,)
        l = l * shrink + p.sum()
        o = o * shrink + p @ v  # () or (V,)
        m = m_new
    if l == 0:  # not one allowed
        return np.zeros(values.shape[1:], np.result_type(scores, values))
    return o / l


# ------------------------------------------------------------------------------ parts that merge


def partial(scores: Float[Array, "*any S"], values: Float[Array, "S V"]):
    """(m, l, o) of these keys alone: what `merge` takes. Without a key, m = -inf, l = 0, o = 0."""
    if values.ndim != 2:
        raise ValueError(f"values: expected (S, V), got {values.shape}. For one number a key pass values[:, None].")
    check_values(scores, values)
    m = scores.max(axis=-1, initial=-np.inf)  # (...)
    p = np.exp(scores - finite(m)[..., None])  # (..., S)
    return m, p.sum(axis=-1), p @ values


def merge(m1, l1, o1, m2, l2, o2):
    """(m, l, o) of two sets of keys together, from those of each. In any order, as often as you like.

        m = max(m1, m2),   l = l1 exp(m1 - m) + l2 exp(m2 - m),   o likewise;   the answer is o / l

    m, l (L,) and o (L, V), or numbers and o (V,). A part that holds nothing (m = -inf, l = 0) adds nothing.
    """
    check_part(m1, l1, o1)
    check_part(m2, l2, o2)
    m = np.maximum(m1, m2)
    highest = finite(m)
    shrink1, shrink2 = np.exp(m1 - highest), np.exp(m2 - highest)  # (L,), one of them is 1
    l = l1 * shrink1 + l2 * shrink2
    o = o1 * shrink1[..., None] + o2 * shrink2[..., None]  # (L, V)
    return m, l, o


def finite(m):
    """m, with 0 where it is -inf: -inf - (-inf) would be NaN."""
    return np.where(np.isneginf(m), 0, m)


# ------------------------------------------------------------------------------ tiles


def tiled_attention(query, key, value, causal: bool = False, block_q: int = 4, block_k: int = 4):
    """softmax(Q K^T / sqrt(D)) V, a tile of block_q × block_k scores at a time; none is kept.

    causal: the last query sees all keys. Tiles that lie wholly in the future are skipped, and a query
    that may see nothing (causal, more queries than keys) gets 0. Sums are made in float64.
    `blocked.py` is the fast one; this one is to be read.
    """
    check_block("block_q", block_q)
    check_block("block_k", block_k)
    check_one_head(query, key, value)
    L, S = len(query), len(key)
    output = np.zeros((L, value.shape[1]), np.result_type(query, key, value, np.float16))
    for top in range(0, L, block_q):
        rows = np.arange(top, min(top + block_q, L))  # (n,)
        places = rows + (S - L)  # where these queries stand among the keys
        m, l, o = np.full(len(rows), -np.inf), np.zeros(len(rows)), np.zeros((len(rows), value.shape[1]))
        for left in range(0, S, block_k):
            if causal and left > places[-1]:  # this tile and all to its right are in the future
                break
            keys = np.arange(left, min(left + block_k, S))  # (s,)
            scores = query[rows] @ key[keys].T / math.sqrt(query.shape[1])  # (n, s)
            if causal:
                scores = np.where(keys <= places[:, None], scores, -np.inf)
            m, l, o = merge(m, l, o, *partial(scores, value[keys]))
        output[rows] = o / np.where(l == 0, 1, l)[:, None]  # (n, V)
    return output


# ------------------------------------------------------------------------------ without a softmax


def features(x):
    """elu(x) + 1: positive, so that their products can serve as weights. (Katharopoulos et al. 2020, equation 7.)"""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def linear_attention(query: Float[Array, "L D"], key: Float[Array, "L D"], value: Float[Array, "L V"]):
    """Causal attention with weights φ(q_t) · φ(k_j) in place of exp(q_t · k_j), in O(L).

        o_t = φ(q_t)^T S_t / φ(q_t)^T z_t,   S_t = sum_{j<=t} φ(k_j) v_j^T,   z_t = sum_{j<=t} φ(k_j)

    The state S (D, V) and z (D,) is all that it remembers of the past, however long that is.
    """
    check_one_head(query, key, value, same_tokens=True)
    query, key = features(query), features(key)  # (L, D)
    state, total = np.zeros((key.shape[1], value.shape[1])), np.zeros(key.shape[1])
    output = np.empty(value.shape, np.result_type(query, key, value))  # (L, V)
    for t in range(len(query)):
        state += np.outer(key[t], value[t])  # (D, V)
        total += key[t]  # (D,)
        output[t] = query[t] @ state / max(query[t] @ total, TINY)  # where all features vanish: 0, not 0/0
    return output


def linear_attention_chunked(query, key, value, chunk: int = 64):
    """The same numbers, `chunk` tokens at a time: the state for what came before, a small table within.

    Source: Hua et al. 2022, "Transformer Quality in Linear Time", section 3.
    """
    check_block("chunk", chunk)
    check_one_head(query, key, value, same_tokens=True)
    query, key = features(query), features(key)  # (L, D)
    values = np.concatenate([value, np.ones((len(value), 1))], axis=1)  # (L, V + 1): the last column counts
    state = np.zeros((key.shape[1], values.shape[1]))  # (D, V + 1)
    output = np.empty(value.shape, np.result_type(query, key, value))  # (L, V)
    for start in range(0, len(query), chunk):
        piece = slice(start, start + chunk)
        within = np.tril(query[piece] @ key[piece].T)  # (chunk, chunk)
        mix = query[piece] @ state + within @ values[piece]  # (chunk, V + 1)
        output[piece] = mix[:, :-1] / np.maximum(mix[:, -1:], TINY)  # (chunk, V)
        state = state + key[piece].T @ values[piece]
    return output


# ------------------------------------------------------------------------------ what is refused


def check_block(name: str, block) -> None:
    if not isinstance(block, Integral) or block < 1:
        raise ValueError(f"{name}: expected a whole number from 1 on, got {block!r}.")


def check_values(scores, values) -> None:
    if scores.ndim < 1 or values.ndim < 1 or scores.shape[-1] != len(values):
        raise ValueError(
            f"values: expected a row for each of the scores {scores.shape}, along their last axis, got {values.shape}."
        )


def check_part(m, l, o) -> None:
    """An error for parts that would broadcast to something else, such as m with an axis of 1 behind it."""
    if np.shape(l) != np.shape(m) or np.shape(o)[:-1] != np.shape(m) or np.ndim(o) != np.ndim(m) + 1:
        raise ValueError(
            f"m, l, o: expected (L,), (L,) and (L, V), got {np.shape(m)}, {np.shape(l)} and {np.shape(o)}. "
            f"`partial` gives them so; an axis too many goes with m[:, 0]."
        )


def check_one_head(query, key, value, same_tokens: bool = False) -> None:
    """An error where these are not (L, D), (S, D) and (S, V), or with same_tokens L is not S."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 2:
            raise ValueError(f"{name}: expected one head, (tokens, width), got {x.shape}. Loop over batch and heads.")
    if key.shape[1] != query.shape[1]:
        raise ValueError(f"key: expected the query's width {query.shape[1]}, got {key.shape}.")
    if len(value) != len(key):
        raise ValueError(f"value: expected a row for each of the {len(key)} keys, got {value.shape}.")
    if same_tokens and len(query) != len(key):
        raise ValueError(
            f"query: expected as many rows as key {key.shape}, got {query.shape}: token t asks when key t is in."
        )
