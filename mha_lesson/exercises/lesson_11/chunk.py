"""Exercise 11.chunk."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Mistakes, Probe, Protocol
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


def _in_chunks(step: Callable, q, k, v, size, again) -> Any:
    """The same, `size` tokens at a time; the last chunk may be shorter."""
    return fed(step, (q, k, v), size, again)


def _in_front(cache, query, key, value):
    """New tokens in front of the old ones, and the causal mask that belongs behind them."""
    if cache is not None:
        key, value = np.concatenate([key, cache[0]]), np.concatenate([value, cache[1]])
    return causal(query, key, value), (key, value)


def _no_mask(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return attend(query, keys, values), (keys, values)


def _softmax_of_the_table(scores, keep):
    return softmax(np.where(keep, scores, -np.inf).ravel()).reshape(scores.shape)


def _not_itself(cache, query, key, value):
    """A triangle one too narrow, with a softmax that gives NaN where nothing may be seen."""
    keys, values = _joined(cache, key, value)
    scores = query @ keys.T / np.sqrt(query.shape[1])
    keep = np.tri(len(query), len(keys), len(keys) - len(query) - 1, dtype=bool)
    return softmax(np.where(keep, scores, -np.inf)) @ values, (keys, values)


def _token_by_token(cache, query, key, value):
    rows = []
    for t in range(len(query)):
        output, cache = cache_step(cache, query[t : t + 1], key[t : t + 1], value[t : t + 1])
        rows.append(output)
    return np.concatenate(rows), cache


def _by_loop(cache, query, key, value):
    """Row by row, each with the keys that it may see."""
    keys, values = _joined(cache, key, value)
    old = len(keys) - len(query)
    rows = [attend(query[i : i + 1], keys[: old + i + 1], values[: old + i + 1]) for i in range(len(query))]
    return np.concatenate(rows), (keys, values)


SOFTMAX_AXIS = (
    "The cache is right. But softmax runs over the queries: the shares of a query stand in its row, one for each key, "
    "axis -1."
)


FIXED_SHIFT = (
    "Where the shift fits, the rows are right. But a shift of the triangle that fits one example does not fit all: it "
    "is the number of tokens in the cache, S - n."
)


MASK = "causal_mask(len(query), len(key))"


WEIGHTS = "masked_softmax(attention_scores(query, key), keep)"


mistake = Mistakes()


mistake.edit(
    "upper_left_mask",
    """The first chunk is right. But behind a cache the triangle sits in the wrong corner: the queries are the LAST
    tokens. Shift it: key j <= query i + (S - n).""",
    old=MASK,
    new="np.tri(len(query), len(key), dtype=bool)",
)

mistake.edit(
    "no_mask",
    """One by one it is right, and so is the last row of each chunk. But within a chunk the first tokens see those
    behind them: a mask is needed, with its triangle in the lower right corner.""",
    old=MASK,
    new="True",
)

mistake.edit(
    "not_itself",
    """The triangle is in the right corner. But it is one too narrow: a token sees itself too, j <= i + (S - n).""",
    old=MASK,
    new="np.tri(len(query), len(key), len(key) - len(query) - 1, dtype=bool)",
)

mistake.edit(
    "one_ahead",
    """The triangle is in the right corner. But it is one too wide: each token sees the next one.""",
    old=MASK,
    new="np.tri(len(query), len(key), len(key) - len(query) + 1, dtype=bool)",
)

mistake.extend(
    [
        Mistake(name, FIXED_SHIFT, function=masked_by(lambda n, S, by=by: np.tri(n, S, by(n, S), dtype=bool)))
        for name, by in {
            "shifted_by_3": lambda n, S: 3,
            "shifted_by_2": lambda n, S: 2,
            "shifted_by_n": lambda n, S: n,
            "shifted_by_n_and_1": lambda n, S: n + 1,
            "shifted_by_all_but_2": lambda n, S: S - 2,
        }.items()
    ]
)


@mistake
def first_chunk_unmasked(cache, q, k, v):
    """Behind a cache it is right. But where the cache is None there is no mask: the first chunk has tokens that must
    not see each other, too."""
    return cache_chunk(cache, q, k, v) if cache else (attend(q, k, v), (k, v))


@mistake
def only_first_chunk_masked(cache, q, k, v):
    """The first chunk is right. But behind a cache there is no mask: the new tokens must not see each other's future
    there, too."""
    return cache_chunk(cache, q, k, v) if cache is None else _no_mask(cache, q, k, v)


mistake.edit(
    "shifted_back",
    """The first chunk is right. But behind a cache the triangle is shifted the wrong way, to the left: it is S - n, not
    n - S.""",
    old=MASK,
    new="np.tri(len(query), len(key), len(query) - len(key), dtype=bool)",
)

mistake.edit(
    "mask_reversed",
    """The diagonal is in the right place. But the mask shows the future and hides the past: keep is True for j <= i +
    (S - n), the lower triangle.""",
    old=MASK,
    new="np.triu(np.ones((len(query), len(key)), bool), len(key) - len(query))",
)

mistake.edit(
    "upper_triangle",
    """One by one it is right. But in a chunk the mask is the upper triangle: each token sees the future, and loses the
    past. keep is True for j <= i + (S - n).""",
    old=MASK,
    new="np.triu(np.ones((len(query), len(key)), bool))",
)

mistake.edit(
    "polarity",
    """The triangle is in the right place. But its meaning is turned round: keep is True where a token MAY look, and
    yours hides just those keys.""",
    old=MASK,
    new="~causal_mask(len(query), len(key))",
)

mistake.function(
    "polarity_nan",
    """The triangle is in the right place. But its meaning is turned round: -inf belongs where a token may NOT look.
    (The last token is left with nothing, and 0 / 0 is NaN.)""",
    weighed_by(lambda scores, keep: softmax(np.where(keep, -np.inf, scores))),
)

mistake.edit(
    "mask_added",
    """The mask is right. But it is added to the scores as 0 and 1, which hides nothing: -inf where it is False.""",
    old=WEIGHTS,
    new="softmax(attention_scores(query, key) + keep)",
)

mistake.edit(
    "masked_to_zero",
    """The mask is right. But a score of 0 is not 'no attention': e^0 is 1. Use -inf where it is False.""",
    old=WEIGHTS,
    new="softmax(attention_scores(query, key) * keep)",
)

mistake.edit(
    "masked_after_softmax",
    """Zeros stand in the right places. But the weights no longer add up to 1: mask before softmax.""",
    old=WEIGHTS,
    new="softmax(attention_scores(query, key)) * keep",
)

mistake.edit(
    "softmax_axis",
    SOFTMAX_AXIS,
    old=WEIGHTS,
    new="masked_softmax(attention_scores(query, key).T, keep.T).T",
)

mistake.extend(SHARES)

mistake.function(
    "softmax_of_the_table",
    """One by one it is right. But in a chunk all scores share one softmax: the shares of each query add up to 1 by
    themselves, axis -1.""",
    weighed_by(_softmax_of_the_table),
)

mistake.function(
    "not_itself_nan",
    """The triangle is in the right corner. But it is one too narrow: a token sees itself too, j <= i + (S - n). (The
    first token is left with nothing, and 0 / 0 is NaN.)""",
    _not_itself,
)

mistake.function(
    "attends_first",
    """The old tokens may be seen. But the new ones see nothing of their own chunk, not even themselves: append first,
    then mask those that come later.""",
    attends_first,
)

mistake.function(
    "attends_first_but_once",
    """The first chunk is right. But after that the new tokens see nothing of their own chunk, not even themselves:
    append first, then mask those that come later.""",
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
    "changes_cache",
    CHANGES,
    in_place,
)

mistake.function(
    "query_kept",
    QUERY_KEPT,
    query_kept,
)

mistake.function(
    "new_in_front",
    """Old and new are joined. But the new ones stand in front, and the mask takes the last keys for the newest: the old
    ones come first in np.concatenate.""",
    _in_front,
)

mistake.edit(
    "no_scale",
    """Mask and cache are right. But the scores are not divided by the square root of the width.""",
    old="attention_scores(query, key)",
    new="query @ key.T",
)


CHUNK = Exercise(
    id="11.chunk",
    signature="cache_chunk(cache, q, k, v)",
    solution=cache_chunk,
    protocol=Protocol(call=_in_chunks, read=read),
    probes=lambda: [
        Probe((*sequence(5, 2, [1, 2, 4, 8, 16]), 3, False), "5 tokens, chunks of 3 and 2"),
        Probe((*sequence(7, 3, wave(7, 5, step=1.3)), 2, False), "7 tokens, chunks of 2, the last one shorter"),
        Probe((*sequence(5, 3, wave(5, 2, step=1.3)), 1, False), "5 tokens, one by one"),
        Probe((*sequence(6, 2, wave(6, 3, step=1.3)), 6, False), "6 tokens at once, no cache before them"),
        Probe((*sequence(5, 3, wave(5, 2), size=3000.0), 2, False), "5 tokens, scores in the thousands"),
        Probe((*sequence(7, 2, wave(7, 3, step=1.3)), 2, True),
              "7 tokens in chunks of 2, then the second chunk again, with the cache that the first one gave"),
    ],
    mistakes=mistake.all,
    forms={
        "np.tril with a shift": masked_by(lambda n, S: np.tril(np.ones((n, S), bool), S - n)),
        "ones beside a triangle": masked_by(lambda n, S: np.hstack([np.ones((n, S - n), bool), np.tri(n) > 0])),
        "cut out of the whole": masked_by(lambda n, S: np.tri(S, dtype=bool)[-n:]),
        "-inf added": weighed_by(lambda scores, keep: softmax(scores + np.where(keep, 0.0, -np.inf))),
        "a list of pairs": list_of_pairs,
        "a dictionary": dictionary,
        "a buffer": buffer,
        "torch tensors": in_torch,
        "token by token": _token_by_token,
        "row by row": _by_loop,
    },
    hints=(
        "What may the first of the new tokens see? And the last one?",
        "With S keys in all and n new queries, query i stands at place i + (S - n) among the keys.",
        "keep = np.arange(S)[None, :] <= np.arange(n)[:, None] + S - n, that is lesson 04's causal mask.",
    ),
    well_done="In chunks as in one go. Keep that test: it finds wrong masks and wrong positions.",
    advice=ADVICE,
)  # fmt: skip
