"""Exercises of lesson 11: the cache, chunks of new tokens, shared heads, and bytes."""

from collections.abc import Callable

import numpy as np

from mha_lesson.exercises.compare import plain
from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.serving import cache_chunk, cache_step, kv_cache_bytes, repeat_heads
from mha_lesson.steps.softmax import masked_softmax

# ------------------------------------------------------------------------------ the cache


def _one_by_one(step: Callable) -> Callable:
    """Feeds a sequence to a step, one token at a time, and hands back to it the cache that it gave."""

    def outputs(query, key, value):
        return _fed(step, query, key, value, 1)

    return outputs


def _in_chunks(step: Callable) -> Callable:
    """The same, `size` tokens at a time; the last chunk may be shorter."""

    def outputs(query, key, value, size):
        return _fed(step, query, key, value, size)

    return outputs


def _fed(step, query, key, value, size):
    cache, rows = None, []
    for start in range(0, len(query), size):
        new = slice(start, start + size)
        answer = step(cache, query[new].copy(), key[new].copy(), value[new].copy())
        if not (isinstance(answer, (tuple, list)) and len(answer) == 2):
            raise TypeError("the step has to return two things: return output, cache")
        output, cache = answer
        rows.append(np.asarray(plain(output)))
    return np.concatenate([np.atleast_2d(row) for row in rows])


def _attend(query, key, value, keep=True):
    return masked_softmax(query @ key.T / np.sqrt(query.shape[1]), keep) @ value


def _joined(cache, key, value):
    return (key, value) if cache is None else (np.concatenate([cache[0], key]), np.concatenate([cache[1], value]))


def _masked_by(mask: Callable) -> Callable:
    """A step that appends, and then hides what mask(n, S) says."""

    def step(cache, query, key, value):
        keys, values = _joined(cache, key, value)
        return _attend(query, keys, values, mask(len(query), len(keys))), (keys, values)

    return step


def _attends_first(cache, query, key, value):
    """Looks at the old tokens alone, then appends."""
    old = (np.zeros((0, key.shape[1])), np.zeros((0, value.shape[1]))) if cache is None else cache
    return _attend(query, *old), _joined(cache, key, value)


def _forgets(cache, query, key, value):
    return _attend(query, key, value, causal_mask(len(query), len(query))), (key, value)


def _keeps_first(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return cache_chunk(cache, query, key, value)[0], (keys, values) if cache is None else cache


def _in_front(cache, query, key, value):
    """New tokens in front of the old ones, and the causal mask that belongs behind them."""
    if cache is not None:
        key, value = np.concatenate([key, cache[0]]), np.concatenate([value, cache[1]])
    return _attend(query, key, value, causal_mask(len(query), len(key))), (key, value)


def _unscaled(cache, query, key, value):
    return cache_chunk(cache, query * np.sqrt(query.shape[1]), key, value)[0], _joined(cache, key, value)


def _scores_of_whole(cache, query, key, value):
    """Divides by the number of keys' root, not by that of the width."""
    keys, values = _joined(cache, key, value)
    scores = query @ keys.T / np.sqrt(len(keys))
    return masked_softmax(scores, causal_mask(*scores.shape)) @ values, (keys, values)


def _keys_for_values(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    wide = np.resize(keys, values.shape) if keys.shape != values.shape else keys
    return _attend(query, keys, wide, causal_mask(len(query), len(keys))), (keys, values)


def _swapped_cache(cache, query, key, value):
    """Keys and values change places in the cache at each step."""
    out, (keys, values) = cache_chunk(cache, query, key, value)
    return out, (values, keys)


def _query_kept(cache, query, key, value):
    """The query stands in the cache in the place of the key."""
    keys, values = _joined(cache, query, value)
    return _attend(query, keys, values, causal_mask(len(query), len(keys))), (keys, values)


def _list_of_pairs(cache, query, key, value):
    cache = [*(cache or []), (key, value)]
    keys, values = (np.concatenate(part) for part in zip(*cache, strict=True))
    return _attend(query, keys, values, causal_mask(len(query), len(keys))), cache


def _dictionary(cache, query, key, value):
    keys, values = _joined(None if cache is None else (cache["k"], cache["v"]), key, value)
    return _attend(query, keys, values, causal_mask(len(query), len(keys))), {"k": keys, "v": values}


def _in_torch(cache, query, key, value):
    import torch

    query, key, value = (torch.as_tensor(x) for x in (query, key, value))
    if cache is not None:
        key, value = torch.cat([cache[0], key]), torch.cat([cache[1], value])
    keep = torch.from_numpy(causal_mask(len(query), len(key)))
    out = torch.nn.functional.scaled_dot_product_attention(*(x[None] for x in (query, key, value)), attn_mask=keep)
    return out[0], (key, value)


def _sequence(n: int, d: int, values) -> tuple:
    values = np.asarray(values, float)
    return wave(n, d, step=0.5, start=0.2), wave(n, d, step=0.9, start=0.1), values.reshape(n, -1)


FORGETS = (
    "The new tokens are used. But the past is forgotten: join what is in the cache with the new key and value, attend "
    "to all of it, and return all of it, np.concatenate([cache[0], k])."
)

CACHE = Exercise(
    id="11.cache",
    signature="cache_step(cache, q, k, v)",
    solution=cache_step,
    drive=_one_by_one,
    probes=lambda: [
        Probe(_sequence(4, 2, [1, 2, 4, 8]), "4 steps, width 2, values 1, 2, 4, 8"),
        Probe((wave(5, 3), wave(5, 3, step=0.9, start=0.1), wave(5, 7)), "5 steps, width 3, values of width 7"),
        Probe((wave(1, 3), wave(1, 3, step=0.9), wave(1, 2)), "one step alone"),
    ],
    mistakes=(
        Mistake(
            "upper_left_mask",
            "Old and new keys are joined. But every step returns the first value: a (1, S) lower triangle keeps only "
            "the first key. One query at the end needs no mask at all.",
            function=_masked_by(lambda n, S: np.tril(np.ones((n, S), bool))),
        ),
        Mistake(
            "attends_first",
            "The cache grows as it should. But you attend before the new token is in it: a token sees itself too. "
            "Append first.",
            function=_attends_first,
        ),
        Mistake("past_forgotten", FORGETS, function=_forgets),
        Mistake(
            "kept_once",
            "The first token goes into the cache. But later ones do not: return the joined keys and values each time.",
            function=_keeps_first,
        ),
        Mistake(
            "no_scale",
            "The cache is right. But the scores are not divided by the square root of the width (lesson 03).",
            function=_unscaled,
        ),
        Mistake(
            "scaled_by_length",
            "The cache is right. But the scores are divided by the root of the number of keys: it is the width of the "
            "head, q.shape[-1].",
            function=_scores_of_whole,
        ),
        Mistake(
            "query_kept",
            "The cache grows as it should. But the query went into it in the place of the key: queries are used once, "
            "keys are kept.",
            function=_query_kept,
        ),
        Mistake(
            "no_softmax",
            "The cache is right. But the scores are used as they are: softmax makes shares of them.",
            function=lambda cache, q, k, v: (
                q @ _joined(cache, k, v)[0].T / np.sqrt(q.shape[1]) @ _joined(cache, k, v)[1], _joined(cache, k, v),
            ),
        ),
    ),
    forms={
        "with a mask": cache_chunk,
        "a list of pairs": _list_of_pairs,
        "a dictionary": _dictionary,
        "torch tensors": _in_torch,
        "a list for the pair": lambda *args: list(cache_step(*args)),
        "a flat output": lambda *args: (cache_step(*args)[0][0], cache_step(*args)[1]),
    },
    hints=(
        "Two things to do: put the new key and value behind the old ones, then attend with the new query.",
        "At first cache is None: then the new key and value are all there is.",
        "np.concatenate([cache[0], k]) puts one below the other. Return the output and the pair (keys, values).",
        "A single query at the end may see everything: softmax(q @ K.T / np.sqrt(q.shape[1])) @ V, no mask.",
    ),
    well_done="Each token goes through once, and the outputs are those of the whole text.",
)  # fmt: skip

CHUNK = Exercise(
    id="11.chunk",
    signature="cache_chunk(cache, q, k, v)",
    solution=cache_chunk,
    drive=_in_chunks,
    probes=lambda: [
        Probe((wave(5, 2), wave(5, 2, step=0.9, start=0.1), np.array([[1.0], [2], [4], [8], [16]]), 3),
              "5 tokens, chunks of 3 and 2"),
        Probe((wave(7, 3), wave(7, 3, step=0.9, start=0.1), wave(7, 5, step=1.3), 2), "7 tokens, chunks of 2"),
        Probe((wave(5, 3), wave(5, 3, step=0.9, start=0.1), wave(5, 2, step=1.3), 1), "5 tokens, one by one"),
        Probe((wave(6, 3), wave(6, 3, step=0.9, start=0.1), wave(6, 2, step=1.3), 6), "6 tokens at once"),
    ],
    mistakes=(
        Mistake(
            "upper_left_mask",
            "The first chunk is right. But behind a cache the triangle sits in the wrong corner: the queries are the "
            "LAST tokens. Shift it: key j <= query i + (S - n).",
            "causal_mask(len(query), len(key))", "np.tril(np.ones((len(query), len(key)), bool))",
        ),
        Mistake(
            "no_mask",
            "One by one it is right, and so is the last row of each chunk. But within a chunk the first tokens see "
            "those behind them: a mask is needed, with its triangle in the lower right corner.",
            "causal_mask(len(query), len(key))", "True",
        ),
        Mistake(
            "not_itself",
            "The triangle is in the right corner. But it is one too narrow: a token sees itself too, j <= i + (S - n).",
            "causal_mask(len(query), len(key))", "np.tri(len(query), len(key), len(key) - len(query) - 1, dtype=bool)",
        ),
        Mistake(
            "one_ahead",
            "The triangle is in the right corner. But it is one too wide: each token sees the next one.",
            "causal_mask(len(query), len(key))", "np.tri(len(query), len(key), len(key) - len(query) + 1, dtype=bool)",
        ),
        Mistake(
            "attends_first",
            "The old tokens may be seen. But the new ones see nothing of their own chunk, not even themselves: append "
            "first, then mask those that come later.",
            function=_attends_first,
        ),
        Mistake("past_forgotten", FORGETS, function=_forgets),
        Mistake(
            "new_in_front",
            "Old and new are joined. But the new ones stand in front, and the mask takes the last keys for the newest: "
            "the old ones come first in np.concatenate.",
            function=_in_front,
        ),
        Mistake(
            "mask_reversed",
            "The triangle has the right size. But it shows the future and hides the past: keep is True for j <= i + "
            "(S - n).",
            "causal_mask(len(query), len(key))", "causal_mask(len(query), len(key))[::-1, ::-1]",
        ),
        Mistake(
            "no_scale",
            "Mask and cache are right. But the scores are not divided by the square root of the width.",
            "attention_scores(query, key)", "query @ key.T",
        ),
    ),
    forms={
        "np.tril with a shift": _masked_by(lambda n, S: np.tril(np.ones((n, S), bool), S - n)),
        "a list of pairs": _list_of_pairs,
        "a dictionary": _dictionary,
        "torch tensors": _in_torch,
        "token by token": lambda cache, q, k, v: _token_by_token(cache, q, k, v),
    },
    hints=(
        "What may the first of the new tokens see? And the last one?",
        "With S keys in all and n new queries, query i stands at place i + (S - n) among the keys.",
        "keep = np.arange(S)[None, :] <= np.arange(n)[:, None] + S - n, that is lesson 04's causal mask.",
    ),
    well_done="In chunks as in one go. Keep that test: it finds wrong masks and wrong positions.",
)  # fmt: skip


def _token_by_token(cache, query, key, value):
    rows = []
    for t in range(len(query)):
        out, cache = cache_step(cache, query[t : t + 1], key[t : t + 1], value[t : t + 1])
        rows.append(out)
    return np.concatenate(rows), cache


# ------------------------------------------------------------------------------ shared heads

GQA = Exercise(
    id="11.gqa",
    signature="gqa(k, n)",
    solution=repeat_heads,
    probes=lambda: [
        Probe((np.array([10.0, 20]).reshape(1, 2, 1, 1), 3), "two heads that hold 10 and 20, n = 3"),
        Probe((wave(2, 3, 5, 7), 2), "B 2, G 3, S 5, D 7, n = 2"),
        Probe((wave(3, 1, 2, 5), 4), "one key head for four (MQA)"),
        Probe((wave(2, 2, 2, 2, dtype=np.float32), 2), "all axes 2, n = 2, float32"),
        Probe((wave(1, 3, 2, 2), 1), "n = 1: nothing to share"),
    ],
    mistakes=(
        Mistake(
            "tiled",
            "Each head comes n times. But in the wrong order: neighbours share a key head, 0 0 1 1, and yours are "
            "0 1 0 1. np.repeat along the head axis, not np.tile.",
            function=lambda k, n: np.tile(k, (1, n, 1, 1)),
        ),
        Mistake(
            "tokens_repeated",
            "Repeating is right. But along axis 2, the tokens: the head axis is 1.",
            function=lambda k, n: np.repeat(k, n, 2),
        ),
        Mistake(
            "batch_repeated",
            "Repeating is right. But along axis 0, the batch: the head axis is 1.",
            function=lambda k, n: np.repeat(k, n, 0),
        ),
        Mistake(
            "width_repeated",
            "Repeating is right. But along the last axis, the width of a head: the head axis is 1.",
            function=lambda k, n: np.repeat(k, n, -1),
        ),
        Mistake(
            "tokens_tiled",
            "Everything comes n times. But the tokens were repeated, one copy behind the other: the head axis is 1.",
            function=lambda k, n: np.tile(k, (1, 1, n, 1)),
        ),
        Mistake(
            "first_head_only",
            "The shape is right. But every query head got the first key head: each group has its own.",
            function=lambda k, n: np.repeat(k[:, :1], n * k.shape[1], 1),
        ),
        Mistake(
            "extra_axis",
            "Each head comes n times. But in an axis of its own, (B, G, n, S, D): join the two, "
            ".reshape(B, G * n, S, D).",
            function=lambda k, n: np.repeat(k[:, :, None], n, 2),
        ),
        Mistake(
            "averaged",
            "The number of heads is right. But their mean was taken: each key head is repeated as it is.",
            function=lambda k, n: np.repeat(k.mean(1, keepdims=True), n * k.shape[1], 1),
        ),
        Mistake(
            "not_repeated",
            "The heads stay what they are. But there are still G of them: G * n are needed, one for each query head.",
            function=lambda k, n: k.copy(),
        ),
        Mistake(
            "flattened",
            "Each number comes n times. But all in one row: pass the axis of the heads, axis=1.",
            function=lambda k, n: np.repeat(k, n),
        ),
    ),
    forms={
        **usual_forms(repeat_heads),
        "broadcast and reshape": lambda k, n: np.broadcast_to(
            k[:, :, None], (k.shape[0], k.shape[1], n, *k.shape[2:])
        ).reshape(k.shape[0], -1, *k.shape[2:]),
        "by index": lambda k, n: k[:, np.arange(k.shape[1] * n) // n],
        "a loop": lambda k, n: np.stack([k[:, h // n] for h in range(k.shape[1] * n)], axis=1),
    },
    hints=(
        "Write down which key head query head 0, 1, 2, 3 reads, with G = 2 and n = 2.",
        "Query head h reads key head h // n.",
        "np.repeat(k, n, axis=1).",
    ),
    well_done="0 0 1 1: neighbours share. PyTorch calls it repeat_interleave.",
)  # fmt: skip


# ------------------------------------------------------------------------------ bytes

BYTES = Exercise(
    id="11.bytes",
    signature="cache_bytes(layers, kv_heads, d_head, tokens, batch, bytes_per_number)",
    solution=kv_cache_bytes,
    probes=lambda: [
        Probe((32, 32, 128, 4096, 1, 2), "Llama 2 7B, one text of 4096 tokens, float16"),
        Probe((80, 8, 128, 8192, 3, 2), "80 layers, 8 kv heads, three texts of 8192 tokens"),
        Probe((3, 5, 7, 11, 13, 4), "all numbers different primes, 4 bytes"),
        Probe((1, 1, 1, 1, 1, 1), "one of everything"),
    ],
    mistakes=(
        Mistake(
            "keys_only",
            "Layers, heads, width, tokens: all are in. But a value is kept beside each key: times 2.",
            "2 * ", "",
        ),
        Mistake(
            "queries_too",
            "All factors are in. But it is 2 and not 3: queries are not kept.",
            "2 * ", "3 * ",
        ),
        Mistake(
            "one_layer",
            "Right for one layer. But each layer has a cache of its own: times layers.",
            " * layers", "",
        ),
        Mistake("one_head", "Right for one head. But each kv head keeps its own: times kv_heads.", " * kv_heads", ""),
        Mistake(
            "width_forgotten",
            "All but one factor are in. But a key is a vector of d_head numbers: times d_head.",
            " * d_head", "",
        ),
        Mistake("one_token", "This is what one token takes. But all of them are kept: times tokens.", " * tokens", ""),
        Mistake("one_text", "Right for one text. But each text of the batch has its own: times batch.", " * batch", ""),
        Mistake(
            "numbers",
            "These are the numbers that are kept. But bytes are asked for: times bytes_per_number.",
            " * bytes_per_number", "",
        ),
        Mistake(
            "bits",
            "All factors are in. But these are bits: bytes_per_number is in bytes already, no 8.",
            "2 * ", "16 * ",
        ),
        Mistake(
            "gigabytes",
            "All factors are in. But the result is in GiB, and bytes are asked for: do not divide.",
            "bytes_per_number\n", "bytes_per_number / 2**30\n",
        ),
        Mistake(
            "megabytes",
            "All factors are in. But the result is in MiB, and bytes are asked for: do not divide.",
            "bytes_per_number\n", "bytes_per_number / 2**20\n",
        ),
        Mistake(
            "tokens_squared",
            "All factors are in. But tokens count once: the cache holds keys and values, not the table of scores.",
            " * tokens", " * tokens * tokens",
        ),
        Mistake(
            "scores",
            "This counts scores, tokens × tokens in each head. But those are not kept: a key and a value of each "
            "token are, of width d_head.",
            function=lambda layers, kv_heads, d_head, tokens, batch, bytes_per_number: (
                layers * kv_heads * tokens * tokens * batch * bytes_per_number
            ),
        ),
    ),
    forms={
        "a float": lambda *args: float(kv_cache_bytes(*args)),
        "NumPy's product": lambda *args: 2 * np.prod(args, dtype=np.int64),
        "an array": lambda *args: np.array(kv_cache_bytes(*args)),
    },
    hints=(
        "Begin with one token in one head of one layer: what is kept, and how many numbers is that?",
        "A key and a value, d_head numbers each. Then: how many heads, layers, tokens, texts?",
        "2 * layers * kv_heads * d_head * tokens * batch * bytes_per_number",
    ),
    well_done="Half a megabyte a token, for a model of 7 billion with full heads.",
)  # fmt: skip

EXERCISES = (CACHE, CHUNK, GQA, BYTES)
