"""What several exercises of lesson 11 use."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mha_lesson.exercises.engine import Mistake
from mha_lesson.exercises.engine.compare import NotPlain, plain
from mha_lesson.exercises.engine.probes import wave
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.serving import cache_chunk
from mha_lesson.steps.softmax import masked_softmax

NO_CACHE_YET = "at the first token cache is None: then the new key and value are all there is"


TWO_THINGS = "return two things, the output and the cache for the next step: return output, cache"


@dataclass(frozen=True)
class Unusable:
    """A step's answer with which one cannot go on, and why."""

    why: str


def read(arguments, answer):
    if isinstance(answer, Unusable):
        raise ValueError(answer.why)
    return answer


def fed(step, tokens, size, again):
    """The outputs of all tokens, below each other, whatever form the cache has.

    again: at the end the second call is made once more, with the cache of the first one. Its output
    alone comes back: it is another one if the cache was changed in between.
    """
    parts = [slice(start, start + size) for start in range(0, len(tokens[0]), size)]
    cache, rows, first = None, [], None
    for i, part in enumerate([*parts, parts[1]] if again else parts):
        # Where the second call is repeated, what was written into its arguments does not count.
        new = [x[part].copy() if again else x[part] for x in tokens]
        if i == 1:
            first = cache
        answer = call(step, first if i == len(parts) else cache, new)
        if answer is None:
            return None
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            return Unusable(f"the step has to {TWO_THINGS}.")
        row, cache = _rows(answer[0]), answer[1]
        if isinstance(row, Unusable):
            return row
        rows.append(row)
    if len({row.shape[1:] for row in rows}) > 1:
        shapes = ", ".join(str(row.shape) for row in rows)
        return Unusable(f"the outputs have the shapes {shapes}: one row for each new token, (n, V), is expected.")
    return rows[-1] if again else np.concatenate(rows)


def call(step, cache, new):
    """One step. An error carries the shapes of this call; one that comes from the first cache being None says so."""
    try:
        return step(cache, *new)
    except Exception as error:
        if cache is None and ("NoneType" in str(error) or "zero-dimensional" in str(error)):
            error = type(error)(f"{error} ({NO_CACHE_YET})").with_traceback(error.__traceback__)
        shapes = ", ".join(f"{name} {x.shape}" for name, x in zip("qkv", new, strict=True))
        error.add_note(f"The shapes that came in: {shapes}; the cache: {shapes_in(cache)}.")
        if cache is not None:
            error.add_note("New rows belong below the old ones: np.concatenate([old, new]), along axis 0.")
        raise error from None


def shapes_in(cache) -> str:
    """What the learner's own cache holds, if it is simple."""
    if isinstance(cache, (tuple, list)) and all(hasattr(x, "shape") for x in cache):
        return " and ".join(str(tuple(x.shape)) for x in cache)
    return "None" if cache is None else f"a {type(cache).__name__}"


def _rows(output):
    """The output as an array (n, V)."""
    try:
        output = plain(output)
    except NotPlain:
        output = None
    if not isinstance(output, np.ndarray):
        return Unusable(f"the first thing that comes back is no array of numbers; {TWO_THINGS}.")
    return np.atleast_2d(output)


def attend(query, key, value, keep=True):
    return masked_softmax(query @ key.T / np.sqrt(query.shape[1]), keep) @ value


def causal(query, key, value):
    """The newest tokens, each with all up to itself."""
    return attend(query, key, value, causal_mask(len(query), len(key)))


def _joined(cache, key, value):
    return (key, value) if cache is None else (np.concatenate([cache[0], key]), np.concatenate([cache[1], value]))


def masked_by(mask: Callable) -> Callable:
    """A step that appends, and then hides what mask(n, S) says."""

    def step(cache, query, key, value):
        keys, values = _joined(cache, key, value)
        return attend(query, keys, values, mask(len(query), len(keys))), (keys, values)

    return step


def weighed_by(weigh: Callable) -> Callable:
    """A step that appends, and then gets its weights from weigh(scaled scores, keep)."""

    def step(cache, query, key, value):
        keys, values = _joined(cache, key, value)
        scores = query @ keys.T / np.sqrt(query.shape[1])
        return weigh(scores, causal_mask(*scores.shape)) @ values, (keys, values)

    return step


def attends_first(cache, query, key, value):
    """Looks at the old tokens alone, then appends."""
    old = (np.zeros((0, key.shape[1])), np.zeros((0, value.shape[1]))) if cache is None else cache
    return attend(query, *old), _joined(cache, key, value)


def attends_first_but_once(cache, query, key, value):
    """The same, with a first call that knows no better than to look at itself."""
    return causal(query, key, value) if cache is None else attend(query, *cache), _joined(cache, key, value)


def forgets(cache, query, key, value):
    return causal(query, key, value), (key, value)


def remembers_one(cache, query, key, value):
    return cache_chunk(cache, query, key, value)[0], (key, value)


def keeps_first(cache, query, key, value):
    output, joined = cache_chunk(cache, query, key, value)
    return output, joined if cache is None else cache


def scaled_by_width(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return causal(query / np.sqrt(query.shape[1]), keys, values), (keys, values)


def scaled_by_value_width(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return causal(query * np.sqrt(query.shape[1] / value.shape[1]), keys, values), (keys, values)


def no_maximum(scores, keep):
    e = np.where(keep, np.exp(scores), 0)
    return e / e.sum(axis=-1, keepdims=True)


def not_shares(scores, keep):
    return np.where(keep, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)


def query_kept(cache, query, key, value):
    """The query stands in the cache in the place of the key."""
    keys, values = _joined(cache, query, value)
    return causal(query, keys, values), (keys, values)


def in_place(cache, query, key, value):
    """Appends to the list that it was given."""
    cache = [] if cache is None else cache
    cache.append((key, value))
    return list_of_pairs(cache[:-1], query, key, value)[0], cache


def list_of_pairs(cache, query, key, value):
    cache = [*(cache or []), (key, value)]
    keys, values = (np.concatenate(part) for part in zip(*cache, strict=True))
    return causal(query, keys, values), cache


def dictionary(cache, query, key, value):
    keys, values = _joined(None if cache is None else (cache["k"], cache["v"]), key, value)
    return causal(query, keys, values), {"k": keys, "v": values}


def buffer(cache, query, key, value):
    """Room for 16 tokens, made once, and how much of it is filled."""
    keys, values, n = (np.zeros((16, key.shape[1])), np.zeros((16, value.shape[1])), 0) if cache is None else cache
    keys[n : n + len(key)], values[n : n + len(key)] = key, value
    n += len(key)
    return causal(query, keys[:n], values[:n]), (keys, values, n)


def in_torch(cache, query, key, value):
    import torch

    query, key, value = (torch.as_tensor(x) for x in (query, key, value))
    if cache is not None:
        key, value = torch.cat([cache[0], key]), torch.cat([cache[1], value])
    keep = torch.from_numpy(causal_mask(len(query), len(key)))
    out = torch.nn.functional.scaled_dot_product_attention(*(x[None] for x in (query, key, value)), attn_mask=keep)
    return out[0], (key, value)


FORGETS = (
    "The new tokens are used. But the past is forgotten: join what is in the cache with the new key and value, attend "
    "to all of it, and return all of it, np.concatenate([cache[0], k])."
)


ONE_ONLY = (
    "Old and new are joined, and attended to. But what you hand back is the new key and value alone: return all of it "
    "as the cache, or the step after the next has forgotten."
)


CHANGES = (
    "One call after the other, the outputs are right. But the step changes the cache that it was given (or keeps one "
    "outside of itself): whoever goes on from there a second time, with another word, finds the first one's tokens in "
    "it. Make a new one: np.concatenate([cache[0], k]), or [*cache, (k, v)] for a list."
)


QUERY_KEPT = (
    "The cache grows as it should. But the query went into it in the place of the key: a query is used once, keys are "
    "kept."
)


KEPT_ONCE = (
    "What comes first goes into the cache. But nothing after it does: return the joined keys and values each time."
)


BY_WIDTH = "Mask and cache are right. But the scores are divided by the width: its square root is meant (lesson 03)."


BY_VALUE_WIDTH = (
    "Mask and cache are right. But the scores are divided by the root of the values' width: it is that of the keys, "
    "q.shape[-1]. Here the two differ."
)


OVERFLOWS = (
    "Small scores come out right. But exp overflows for large ones: subtract the largest score of each row first "
    "(lesson 05)."
)


NOT_SHARES = (
    "The exponentials are right. But they are not yet shares: divide them by their sum, so that a row adds up to 1."
)


ADVICE = "Call your step in a cell of its own, first with the cache None, then with what it gave back, and print both."


def sequence(n: int, d: int, values, size: float = 1.0) -> tuple:
    """Queries and keys (n, d), and these values."""
    values = np.asarray(values, float)
    return wave(n, d, step=0.5, start=0.2, size=size), wave(n, d, step=0.9, start=0.1), values.reshape(n, -1)


SHARES = (  # slips on the way from scores to shares, with one new token or several
    Mistake("scaled_by_width", BY_WIDTH, function=scaled_by_width),
    Mistake("scaled_by_value_width", BY_VALUE_WIDTH, function=scaled_by_value_width),
    Mistake("no_maximum", OVERFLOWS, function=weighed_by(no_maximum)),
    Mistake("not_shares", NOT_SHARES, function=weighed_by(not_shares)),
    Mistake("not_shares_raw", NOT_SHARES, function=weighed_by(lambda scores, keep: np.exp(scores) * keep)),
)
