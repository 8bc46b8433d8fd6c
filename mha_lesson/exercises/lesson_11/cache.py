"""Exercise 11.cache."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.probes import wave
from mha_lesson.exercises.lesson_11.shared import (
    ADVICE,
    CHANGES,
    FORGETS,
    KEPT_ONCE,
    ONE_ONLY,
    QUERY_KEPT,
    SHARES,
    _joined,
    attend,
    attends_first,
    attends_first_but_once,
    buffer,
    causal,
    dictionary,
    fed,
    forgets,
    in_place,
    in_torch,
    keeps_first,
    list_of_pairs,
    masked_by,
    query_kept,
    read,
    remembers_one,
    sequence,
    weighed_by,
)
from mha_lesson.steps.serving import cache_chunk, cache_step
from mha_lesson.steps.softmax import softmax


def _one_by_one(step: Callable, q, k, v, again) -> Any:
    """Feeds a sequence to a step, one token at a time, and hands back to it the cache that it gave."""
    return fed(step, (q, k, v), 1, again)


def _keeps_twice(cache, query, key, value):
    output, joined = cache_chunk(cache, query, key, value)
    return output, _joined(joined, key, value)


def _in_front_unmasked(cache, query, key, value):
    """Right for one token: a sum does not ask for the order of its keys."""
    keys, values = (key, value) if cache is None else _joined((key, value), *cache)
    return attend(query, keys, values), (keys, values)


def _unscaled(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return causal(query * np.sqrt(query.shape[1]), keys, values), (keys, values)


def _scaled_by_length(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return causal(query * np.sqrt(query.shape[1] / len(keys)), keys, values), (keys, values)


def _scaled_in_cache(cache, query, key, value):
    """Keys are divided as they lie in the cache: old ones again at each step."""
    keys, values = _joined(cache, key, value)
    keys = keys / np.sqrt(query.shape[1])
    return causal(query * np.sqrt(query.shape[1]), keys, values), (keys, values)


def _keys_for_values(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return causal(query, keys, keys), (keys, values)


def _swapped_cache(cache, query, key, value):
    """Keys and values change places in the cache at each step."""
    keys, values = _joined(cache, key, value)
    return causal(query, keys, values), (values, keys)


def _all_rows(cache, query, key, value):
    """Keeps the queries too, and computes everything anew."""
    queries = query if cache is None else np.concatenate([cache[2], query])
    keys, values = _joined(cache, key, value)
    return causal(queries, keys, values), (keys, values, queries)


SUM_OF_VALUES = (
    "The first token is right. But each output is the plain sum of all values so far. Two slips do that: softmax over "
    "the queries, of which there is one (use axis -1), or old and new added up with + (np.concatenate([cache[0], k]) "
    "puts them below each other)."
)


mistake = Mistakes()


mistake.function(
    "upper_left_mask",
    """Old and new keys are joined. But every step returns the first value: a (1, S) lower triangle keeps only the first
    key. One query at the end needs no mask at all.""",
    masked_by(lambda n, S: np.tril(np.ones((n, S), bool))),
)

mistake.function(
    "attends_first",
    """The cache grows as it should. But you attend before the new token is in it: a token sees itself too. Append
    first.""",
    attends_first,
)

mistake.function(
    "attends_first_but_once",
    """The first token is right, and the cache grows as it should. But after that you attend before the new token is in
    it: a token sees itself too. Append first, then attend to all.""",
    attends_first_but_once,
)

mistake.function(
    "past_forgotten",
    FORGETS,
    forgets,
)

mistake.function(
    "remembers_one",
    ONE_ONLY,
    remembers_one,
)

mistake.function(
    "kept_once",
    KEPT_ONCE,
    keeps_first,
)

mistake.function(
    "kept_twice",
    """The first token is right. But each one goes into the cache twice, and so counts twice: join once.""",
    _keeps_twice,
)

mistake.function(
    "changes_cache",
    CHANGES,
    in_place,
)

mistake.function(
    "no_scale",
    """The cache is right. But the scores are not divided by the square root of the width (lesson 03).""",
    _unscaled,
)

mistake.function(
    "scaled_by_length",
    """The cache is right. But the scores are divided by the root of the number of keys: it is the width of the head,
    q.shape[-1].""",
    _scaled_by_length,
)

mistake.function(
    "scaled_in_cache",
    """The first token is right. But the keys in the cache are divided by the root of the width at every step, the old
    ones again and again: divide the scores, and keep the keys as they came.""",
    _scaled_in_cache,
)

mistake.function(
    "query_kept",
    QUERY_KEPT,
    query_kept,
)

mistake.function(
    "keys_for_values",
    """The weights are right. But they mix keys: multiply them with the joined values.""",
    _keys_for_values,
)

mistake.function(
    "cache_swapped",
    """The first token is right. But keys and values change places in the cache: you take out cache[0] as keys, so put
    the keys in first.""",
    _swapped_cache,
)

mistake.function(
    "all_rows",
    """The last row is right. But the old ones come with it: the outputs of old tokens are known, and their queries need
    not be kept. Return the new token's row, (1, V).""",
    _all_rows,
)

mistake.function(
    "no_softmax",
    """The cache is right. But the scores are used as they are: softmax makes shares of them.""",
    weighed_by(lambda scores, keep: scores),
)

mistake.function(
    "sum_of_values",
    SUM_OF_VALUES,
    weighed_by(lambda scores, keep: softmax(scores.T).T),
)

mistake.extend(SHARES)


CACHE = Exercise(
    id="11.cache",
    signature="cache_step(cache, q, k, v)",
    solution=cache_step,
    protocol=Protocol(call=_one_by_one, read=read),
    probes=lambda: [
        Probe((*sequence(4, 2, [1, 2, 4, 8]), False), "4 tokens one by one, width 2, values 1, 2, 4, 8"),
        Probe((*sequence(5, 3, wave(5, 7)), False), "5 tokens one by one, width 3, values of width 7"),
        Probe((*sequence(4, 3, wave(4, 3, step=1.3)), False), "4 tokens, values as wide as keys"),
        Probe((*sequence(1, 3, wave(1, 2)), False), "one token alone"),
        Probe((*sequence(4, 3, wave(4, 2), size=3000.0), False), "4 tokens, scores in the thousands"),
        Probe((*sequence(4, 2, [1, 2, 4, 8]), True),
              "4 tokens, then the second one again, with the cache that the first one gave"),
    ],
    mistakes=mistake.all,
    forms={
        "with a mask": cache_chunk,
        "a list of pairs": list_of_pairs,
        "a dictionary": dictionary,
        "a buffer": buffer,
        "new ones in front": _in_front_unmasked,
        "torch tensors": in_torch,
        "a list for the pair": lambda *args: list(cache_step(*args)),
        "a flat output": lambda *args: (cache_step(*args)[0][0], cache_step(*args)[1]),
    },
    hints=(
        "Two things to do: put the new key and value behind the old ones, then attend with the new query.",
        "At first cache is None: then the new key and value are all there is.",
        "np.concatenate([cache[0], k]) puts one below the other. Return the output and the pair (keys, values).",
        "A single query at the end may see everything, no mask: masked_softmax(q @ keys.T / np.sqrt(q.shape[1]), True) "
        "@ values. True hides nothing.",
    ),
    well_done="Each token goes through once, and the outputs are those of the whole text.",
    advice=ADVICE,
)  # fmt: skip
