"""Lesson 11. Serving: keep the keys and values of old tokens, let heads share them, count the bytes.

    repeat_heads(key, n)                     (..., G, S, D) -> (..., G·n, S, D)    neighbours share
    cache_step(cache, query, key, value)     one new token
    cache_chunk(cache, query, key, value)    n new tokens
    kv_cache_bytes(...)                      what a cache takes
    PUBLISHED                                shapes of published models

    cache             None at first, then (K, V), (S, D) and (S, V): the S tokens so far, of one head
    query, key, value (n, D), (n, D), (n, V)  of the new tokens

Sources: Shazeer 2019, "Fast Transformer Decoding" (one key/value head); Ainslie et al. 2023, "GQA".
"""

from dataclasses import dataclass

import numpy as np

from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.scores import attention_scores
from mha_lesson.steps.softmax import masked_softmax, softmax
from mha_lesson.steps.typing import Array, Float


def repeat_heads(key: Float[Array, "*any G S D"], n: int) -> Float[Array, "*any H S D"]:
    """Each key (or value) head n times, for n query heads that are neighbours: 0 0 1 1, not 0 1 0 1.

    Tiled, the shape is the same and the query heads read other keys (onnx/onnx#7274).
    """
    if n < 1:
        raise ValueError(f"n: expected 1 or more query heads for each key head, got {n}.")
    return np.repeat(key, n, axis=-3)  # (..., G·n, S, D)


def cache_step(cache, query: Float[Array, "1 D"], key: Float[Array, "1 D"], value: Float[Array, "1 V"]):
    """One new token: (output (1, V), cache). Row t of causal attention, without the rows before it.

    The new token is the last one, so it may see everything: no mask.
    """
    if cache is not None:
        key = np.concatenate([cache[0], key])  # (S + 1, D)
        value = np.concatenate([cache[1], value])  # (S + 1, V)
    weights = softmax(attention_scores(query, key))  # (1, S + 1)
    return weights @ value, (key, value)


def cache_chunk(cache, query: Float[Array, "n D"], key: Float[Array, "n D"], value: Float[Array, "n V"]):
    """n new tokens at once: (output (n, V), cache). The last n rows of causal attention.

    The queries are the LAST tokens: the triangle sits in the lower right corner, shifted by what is
    in the cache (hyprstream/hyprstream#1521).
    """
    if cache is not None:
        key = np.concatenate([cache[0], key])  # (S, D)
        value = np.concatenate([cache[1], value])  # (S, V)
    keep = causal_mask(len(query), len(key))  # (n, S)
    weights = masked_softmax(attention_scores(query, key), keep)  # (n, S)
    return weights @ value, (key, value)


def kv_cache_bytes(layers, kv_heads, d_head, tokens, batch=1, bytes_per_number=2):
    """Bytes of a key/value cache: a key AND a value, for each layer, kv head, token and sequence.

    kv_heads: the heads that have keys of their own, not the query heads.
    """
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


PUBLISHED = (
    ModelShape("GPT-2 small", 12, 12, 12, 64, 1024, "Radford et al. 2019, table 2, and its configuration file"),
    ModelShape("GPT-3", 96, 96, 96, 128, 2048, "Brown et al. 2020, table 2.1"),
    ModelShape("Llama 2 7B", 32, 32, 32, 128, 4096, "Touvron et al. 2023, and its configuration file"),
    ModelShape("Llama 2 70B", 80, 64, 8, 128, 4096, "Touvron et al. 2023, and its configuration file"),
    ModelShape("Falcon 7B", 32, 71, 1, 64, 2048, "Almazrouei et al. 2023, and its configuration file"),
    ModelShape("Mistral 7B", 32, 32, 8, 128, 8192, "Jiang et al. 2023, table 1", window=4096),
    ModelShape("Gemma 2B", 18, 8, 1, 256, 8192, "Gemma Team 2024, table 1"),
    ModelShape("Llama 3 8B", 32, 32, 8, 128, 8192, "Grattafiori et al. 2024, table 3"),
    ModelShape("Llama 3 70B", 80, 64, 8, 128, 8192, "Grattafiori et al. 2024, table 3"),
    ModelShape("Qwen2.5 7B", 28, 28, 4, 128, 131072, "Qwen Team 2024, table 1"),
)
