"""Lesson 11. Serving: keep the keys and values of old tokens, let heads share them, count the bytes.

    repeat_heads(key, n)                     (..., G, S, D) -> (..., G·n, S, D)    neighbours share
    cache_step(cache, query, key, value)     one new token
    cache_chunk(cache, query, key, value)    n new tokens
    kv_cache_bytes(...)                      what a cache takes
    PUBLISHED                                shapes of published models

    cache               None at first, then (K, V), (S, D) and (S, V): the S tokens so far, of one head
    query, key, value   (n, D), (n, D), (n, V), of the new tokens

Under a causal mask old keys and values never change, whatever comes behind them. So they are kept,
and a new token costs one row of the scores, not the whole table.

Sources: Shazeer 2019, "Fast Transformer Decoding" (one key/value head for all); Ainslie et al. 2023,
"GQA" (one for each group).
"""

# Quoted word for word by exercises/lesson_11/bytes.py, exercises/lesson_11/chunk.py and tests/faults/faults.py: change
# them together.

from dataclasses import dataclass
from numbers import Integral

import numpy as np

from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.scores import attention_scores
from mha_lesson.steps.softmax import masked_softmax, softmax
from mha_lesson.steps.typing import Array, Float

# ------------------------------------------------------------------------------ shared heads


def repeat_heads(key: Float[Array, "*any G S D"], n: int) -> Float[Array, "*any H S D"]:
    """Each key (or value) head n times, for n query heads that are neighbours: 0 0 1 1, not 0 1 0 1.

    Tiled, the shape is the same and the query heads read other keys (onnx/onnx#7274).
    """
    if not isinstance(n, Integral) or n < 1:
        raise ValueError(f"n: expected a whole number of query heads for each key head, from 1 on, got {n!r}.")
    if key.ndim < 3:
        raise ValueError(f"key: expected (..., heads, tokens, width), got {key.shape}. For one head pass key[None].")
    return np.repeat(key, n, axis=-3)  # (..., G·n, S, D)


# ------------------------------------------------------------------------------ the cache


def cache_step(cache, query: Float[Array, "1 D"], key: Float[Array, "1 D"], value: Float[Array, "1 V"]):
    """One new token: (output (1, V), cache). Row t of causal attention, without the rows before it.

    The new token is the last one, so it may see everything: no mask. The old cache stays as it was.
    """
    if len(query) != 1:
        raise ValueError(f"query: expected one token (1, D), got {query.shape}. Several need a mask: cache_chunk.")
    check_new_tokens(cache, query, key, value)
    if cache is not None:
        key = np.concatenate([cache[0], key])  # (S, D), the new token included
        value = np.concatenate([cache[1], value])  # (S, V)
    weights = softmax(attention_scores(query, key))  # (1, S)
    return weights @ value, (key, value)


def cache_chunk(cache, query: Float[Array, "n D"], key: Float[Array, "n D"], value: Float[Array, "n V"]):
    """n new tokens at once: (output (n, V), cache). The last n rows of causal attention.

    The queries are the LAST tokens: the triangle sits in the lower right corner, shifted by what is
    in the cache (hyprstream/hyprstream#1521).
    """
    check_new_tokens(cache, query, key, value)
    if cache is not None:
        key = np.concatenate([cache[0], key])  # (S, D), the new tokens included
        value = np.concatenate([cache[1], value])  # (S, V)
    keep = causal_mask(len(query), len(key))  # (n, S)
    weights = masked_softmax(attention_scores(query, key), keep)  # (n, S)
    return weights @ value, (key, value)


def check_new_tokens(cache, query, key, value) -> None:
    """An error where the new tokens do not fit together, or not behind the cache."""
    if query.ndim != 2 or query.shape != key.shape:
        raise ValueError(
            f"query, key: expected the same shape (n, D), got {query.shape} and {key.shape}. "
            f"Pass the new tokens alone: the old keys are in the cache."
        )
    if value.ndim != 2 or len(value) != len(key):
        raise ValueError(f"value: expected (n, V) with a row for each of the {len(key)} keys, got {value.shape}.")
    if cache is None:
        return
    if not isinstance(cache, (tuple, list)) or len(cache) != 2:
        raise TypeError(
            f"cache: expected None or the pair (keys, values), got {type(cache).__name__}. "
            f"Pass what the call before returned as its second result."
        )
    for name, old, new in (("cache[0]", cache[0], key), ("cache[1]", cache[1], value)):
        if old.ndim != 2 or old.shape[1] != new.shape[1] or len(old) != len(cache[0]):
            raise ValueError(
                f"{name}: expected ({len(cache[0])}, {new.shape[1]}), a row for each old token, as wide as the "
                f"new ones, got {old.shape}. Keys come first in the pair, then values."
            )


# ------------------------------------------------------------------------------ bytes


def kv_cache_bytes(layers, kv_heads, d_head, tokens, batch=1, bytes_per_number=2):
    """Bytes of a key/value cache: a key AND a value, for each layer, kv head, token and sequence.

    kv_heads: the heads that have keys of their own, not the query heads.
    """
    if min(layers, kv_heads, d_head, tokens, batch, bytes_per_number) < 0:
        numbers = (layers, kv_heads, d_head, tokens, batch, bytes_per_number)
        raise ValueError(f"layers, kv_heads, ..., bytes_per_number: expected no number below 0, got {numbers}.")
    return 2 * layers * kv_heads * d_head * tokens * batch * bytes_per_number


@dataclass(frozen=True)
class ModelShape:
    """What a published model's cache depends on. context: the longest text that it was made for."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    d_head: int
    context: int
    source: str
    window: int | None = None  # tokens that a layer looks back at most; None: all

    def cache_bytes(self, tokens: int, batch: int = 1, bytes_per_number: float = 2):
        """What the cache of a text takes. Of a layer with a window, only the last `window` tokens stay."""
        kept = tokens if self.window is None else min(tokens, self.window)
        return kv_cache_bytes(self.layers, self.kv_heads, self.d_head, kept, batch, bytes_per_number)


# heads, and kv_heads: 1 is multi-query attention, `heads` is the layer of lesson 06, between them GQA.
PUBLISHED = (
    ModelShape("GPT-2 small", 12, 12, 12, 64, 1024, "Radford et al. 2019, table 2, and its configuration file"),
    ModelShape("GPT-3", 96, 96, 96, 128, 2048, "Brown et al. 2020, table 2.1"),
    ModelShape("Llama 2 7B", 32, 32, 32, 128, 4096, "Touvron et al. 2023, and its configuration file"),
    ModelShape("Llama 2 70B", 80, 64, 8, 128, 4096, "Touvron et al. 2023, and its configuration file"),
    ModelShape("Falcon 7B", 32, 71, 1, 64, 2048, "Almazrouei et al. 2023, and its configuration file"),
    ModelShape("Mistral 7B", 32, 32, 8, 128, 8192, "Jiang et al. 2023, table 1", window=4096),
    ModelShape("Gemma 2B", 18, 8, 1, 256, 8192, "Gemma Team 2024, table 1"),
    ModelShape("Llama 3 8B", 32, 32, 8, 128, 8192, "Grattafiori et al. 2024, table 3, and its configuration file"),
    ModelShape("Llama 3 70B", 80, 64, 8, 128, 8192, "Grattafiori et al. 2024, table 3, and its configuration file"),
    ModelShape("Qwen2.5 7B", 28, 28, 4, 128, 131072, "Qwen Team 2024, table 1, and its configuration file"),
)
