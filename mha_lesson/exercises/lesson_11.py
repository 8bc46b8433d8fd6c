"""Exercises of lesson 11: the cache, chunks of new tokens, shared heads, and bytes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mha_lesson.exercises.compare import NotPlain, plain
from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.serving import cache_chunk, cache_step, kv_cache_bytes, repeat_heads
from mha_lesson.steps.softmax import masked_softmax, softmax

# ------------------------------------------------------------------------------ whole sequences

NO_CACHE_YET = "at the first token cache is None: then the new key and value are all there is"
TWO_THINGS = "return two things, the output and the cache for the next step: return output, cache"


@dataclass(frozen=True)
class Unusable:
    """A step's answer with which one cannot go on, and why."""

    why: str


def _read(arguments, answer):
    if isinstance(answer, Unusable):
        raise ValueError(answer.why)
    return answer


def _one_by_one(step: Callable) -> Callable:
    """Feeds a sequence to a step, one token at a time, and hands back to it the cache that it gave."""

    def outputs(q, k, v, again):
        return _fed(step, (q, k, v), 1, again)

    return outputs


def _in_chunks(step: Callable) -> Callable:
    """The same, `size` tokens at a time; the last chunk may be shorter."""

    def outputs(q, k, v, size, again):
        return _fed(step, (q, k, v), size, again)

    return outputs


def _fed(step, tokens, size, again):
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
        answer = _call(step, first if i == len(parts) else cache, new)
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


def _call(step, cache, new):
    """One step. An error carries the shapes of this call; one that comes from the first cache being None says so."""
    try:
        return step(cache, *new)
    except Exception as error:
        if cache is None and ("NoneType" in str(error) or "zero-dimensional" in str(error)):
            error = type(error)(f"{error} ({NO_CACHE_YET})").with_traceback(error.__traceback__)
        shapes = ", ".join(f"{name} {x.shape}" for name, x in zip("qkv", new, strict=True))
        error.add_note(f"The shapes that came in: {shapes}; the cache: {_shapes_in(cache)}.")
        if cache is not None:
            error.add_note("New rows belong below the old ones: np.concatenate([old, new]), along axis 0.")
        raise error from None


def _shapes_in(cache) -> str:
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


# ------------------------------------------------------------------------------ steps, wrong and right


def _attend(query, key, value, keep=True):
    return masked_softmax(query @ key.T / np.sqrt(query.shape[1]), keep) @ value


def _causal(query, key, value):
    """The newest tokens, each with all up to itself."""
    return _attend(query, key, value, causal_mask(len(query), len(key)))


def _joined(cache, key, value):
    return (key, value) if cache is None else (np.concatenate([cache[0], key]), np.concatenate([cache[1], value]))


def _masked_by(mask: Callable) -> Callable:
    """A step that appends, and then hides what mask(n, S) says."""

    def step(cache, query, key, value):
        keys, values = _joined(cache, key, value)
        return _attend(query, keys, values, mask(len(query), len(keys))), (keys, values)

    return step


def _weighed_by(weigh: Callable) -> Callable:
    """A step that appends, and then gets its weights from weigh(scaled scores, keep)."""

    def step(cache, query, key, value):
        keys, values = _joined(cache, key, value)
        scores = query @ keys.T / np.sqrt(query.shape[1])
        return weigh(scores, causal_mask(*scores.shape)) @ values, (keys, values)

    return step


def _attends_first(cache, query, key, value):
    """Looks at the old tokens alone, then appends."""
    old = (np.zeros((0, key.shape[1])), np.zeros((0, value.shape[1]))) if cache is None else cache
    return _attend(query, *old), _joined(cache, key, value)


def _attends_first_but_once(cache, query, key, value):
    """The same, with a first call that knows no better than to look at itself."""
    return _causal(query, key, value) if cache is None else _attend(query, *cache), _joined(cache, key, value)


def _forgets(cache, query, key, value):
    return _causal(query, key, value), (key, value)


def _remembers_one(cache, query, key, value):
    return cache_chunk(cache, query, key, value)[0], (key, value)


def _keeps_first(cache, query, key, value):
    output, joined = cache_chunk(cache, query, key, value)
    return output, joined if cache is None else cache


def _keeps_twice(cache, query, key, value):
    output, joined = cache_chunk(cache, query, key, value)
    return output, _joined(joined, key, value)


def _in_front(cache, query, key, value):
    """New tokens in front of the old ones, and the causal mask that belongs behind them."""
    if cache is not None:
        key, value = np.concatenate([key, cache[0]]), np.concatenate([value, cache[1]])
    return _causal(query, key, value), (key, value)


def _in_front_unmasked(cache, query, key, value):
    """Right for one token: a sum does not ask for the order of its keys."""
    keys, values = (key, value) if cache is None else _joined((key, value), *cache)
    return _attend(query, keys, values), (keys, values)


def _unscaled(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return _causal(query * np.sqrt(query.shape[1]), keys, values), (keys, values)


def _scaled_by_length(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return _causal(query * np.sqrt(query.shape[1] / len(keys)), keys, values), (keys, values)


def _scaled_in_cache(cache, query, key, value):
    """Keys are divided as they lie in the cache: old ones again at each step."""
    keys, values = _joined(cache, key, value)
    keys = keys / np.sqrt(query.shape[1])
    return _causal(query * np.sqrt(query.shape[1]), keys, values), (keys, values)


def _scaled_by_width(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return _causal(query / np.sqrt(query.shape[1]), keys, values), (keys, values)


def _scaled_by_value_width(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return _causal(query * np.sqrt(query.shape[1] / value.shape[1]), keys, values), (keys, values)


def _no_mask(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return _attend(query, keys, values), (keys, values)


def _no_maximum(scores, keep):
    e = np.where(keep, np.exp(scores), 0)
    return e / e.sum(axis=-1, keepdims=True)


def _not_shares(scores, keep):
    return np.where(keep, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)


def _softmax_of_the_table(scores, keep):
    return softmax(np.where(keep, scores, -np.inf).ravel()).reshape(scores.shape)


def _not_itself(cache, query, key, value):
    """A triangle one too narrow, with a softmax that gives NaN where nothing may be seen."""
    keys, values = _joined(cache, key, value)
    scores = query @ keys.T / np.sqrt(query.shape[1])
    keep = np.tri(len(query), len(keys), len(keys) - len(query) - 1, dtype=bool)
    return softmax(np.where(keep, scores, -np.inf)) @ values, (keys, values)


def _keys_for_values(cache, query, key, value):
    keys, values = _joined(cache, key, value)
    return _causal(query, keys, keys), (keys, values)


def _swapped_cache(cache, query, key, value):
    """Keys and values change places in the cache at each step."""
    keys, values = _joined(cache, key, value)
    return _causal(query, keys, values), (values, keys)


def _query_kept(cache, query, key, value):
    """The query stands in the cache in the place of the key."""
    keys, values = _joined(cache, query, value)
    return _causal(query, keys, values), (keys, values)


def _all_rows(cache, query, key, value):
    """Keeps the queries too, and computes everything anew."""
    queries = query if cache is None else np.concatenate([cache[2], query])
    keys, values = _joined(cache, key, value)
    return _causal(queries, keys, values), (keys, values, queries)


def _in_place(cache, query, key, value):
    """Appends to the list that it was given."""
    cache = [] if cache is None else cache
    cache.append((key, value))
    return _list_of_pairs(cache[:-1], query, key, value)[0], cache


def _list_of_pairs(cache, query, key, value):
    cache = [*(cache or []), (key, value)]
    keys, values = (np.concatenate(part) for part in zip(*cache, strict=True))
    return _causal(query, keys, values), cache


def _dictionary(cache, query, key, value):
    keys, values = _joined(None if cache is None else (cache["k"], cache["v"]), key, value)
    return _causal(query, keys, values), {"k": keys, "v": values}


def _buffer(cache, query, key, value):
    """Room for 16 tokens, made once, and how much of it is filled."""
    keys, values, n = (np.zeros((16, key.shape[1])), np.zeros((16, value.shape[1])), 0) if cache is None else cache
    keys[n : n + len(key)], values[n : n + len(key)] = key, value
    n += len(key)
    return _causal(query, keys[:n], values[:n]), (keys, values, n)


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
    rows = [_attend(query[i : i + 1], keys[: old + i + 1], values[: old + i + 1]) for i in range(len(query))]
    return np.concatenate(rows), (keys, values)


def _in_torch(cache, query, key, value):
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
SOFTMAX_AXIS = (
    "The cache is right. But softmax runs over the queries: the shares of a query stand in its row, one for each key, "
    "axis -1."
)
SUM_OF_VALUES = (
    "The first token is right. But each output is the plain sum of all values so far. Two slips do that: softmax over "
    "the queries, of which there is one (use axis -1), or old and new added up with + (np.concatenate([cache[0], k]) "
    "puts them below each other)."
)
BY_WIDTH = "Mask and cache are right. But the scores are divided by the width: its square root is meant (lesson 03)."
BY_VALUE_WIDTH = (
    "Mask and cache are right. But the scores are divided by the root of the values' width: it is that of the keys, "
    "q.shape[-1]. Here the two differ."
)
FIXED_SHIFT = (
    "Where the shift fits, the rows are right. But a shift of the triangle that fits one example does not fit all: it "
    "is the number of tokens in the cache, S - n."
)
OVERFLOWS = (
    "Small scores come out right. But exp overflows for large ones: subtract the largest score of each row first "
    "(lesson 05)."
)
NOT_SHARES = (
    "The exponentials are right. But they are not yet shares: divide them by their sum, so that a row adds up to 1."
)
ADVICE = "Call your step in a cell of its own, first with the cache None, then with what it gave back, and print both."


def _sequence(n: int, d: int, values, size: float = 1.0) -> tuple:
    """Queries and keys (n, d), and these values."""
    values = np.asarray(values, float)
    return wave(n, d, step=0.5, start=0.2, size=size), wave(n, d, step=0.9, start=0.1), values.reshape(n, -1)


SHARES = (  # slips on the way from scores to shares, with one new token or several
    Mistake("scaled_by_width", BY_WIDTH, function=_scaled_by_width),
    Mistake("scaled_by_value_width", BY_VALUE_WIDTH, function=_scaled_by_value_width),
    Mistake("no_maximum", OVERFLOWS, function=_weighed_by(_no_maximum)),
    Mistake("not_shares", NOT_SHARES, function=_weighed_by(_not_shares)),
    Mistake("not_shares_raw", NOT_SHARES, function=_weighed_by(lambda scores, keep: np.exp(scores) * keep)),
)

CACHE = Exercise(
    id="11.cache",
    signature="cache_step(cache, q, k, v)",
    solution=cache_step,
    drive=_one_by_one,
    read=_read,
    probes=lambda: [
        Probe((*_sequence(4, 2, [1, 2, 4, 8]), False), "4 tokens one by one, width 2, values 1, 2, 4, 8"),
        Probe((*_sequence(5, 3, wave(5, 7)), False), "5 tokens one by one, width 3, values of width 7"),
        Probe((*_sequence(4, 3, wave(4, 3, step=1.3)), False), "4 tokens, values as wide as keys"),
        Probe((*_sequence(1, 3, wave(1, 2)), False), "one token alone"),
        Probe((*_sequence(4, 3, wave(4, 2), size=3000.0), False), "4 tokens, scores in the thousands"),
        Probe((*_sequence(4, 2, [1, 2, 4, 8]), True),
              "4 tokens, then the second one again, with the cache that the first one gave"),
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
        Mistake(
            "attends_first_but_once",
            "The first token is right, and the cache grows as it should. But after that you attend before the new "
            "token is in it: a token sees itself too. Append first, then attend to all.",
            function=_attends_first_but_once,
        ),
        Mistake("past_forgotten", FORGETS, function=_forgets),
        Mistake("remembers_one", ONE_ONLY, function=_remembers_one),
        Mistake("kept_once", KEPT_ONCE, function=_keeps_first),
        Mistake(
            "kept_twice",
            "The first token is right. But each one goes into the cache twice, and so counts twice: join once.",
            function=_keeps_twice,
        ),
        Mistake("changes_cache", CHANGES, function=_in_place),
        Mistake(
            "no_scale",
            "The cache is right. But the scores are not divided by the square root of the width (lesson 03).",
            function=_unscaled,
        ),
        Mistake(
            "scaled_by_length",
            "The cache is right. But the scores are divided by the root of the number of keys: it is the width of the "
            "head, q.shape[-1].",
            function=_scaled_by_length,
        ),
        Mistake(
            "scaled_in_cache",
            "The first token is right. But the keys in the cache are divided by the root of the width at every step, "
            "the old ones again and again: divide the scores, and keep the keys as they came.",
            function=_scaled_in_cache,
        ),
        Mistake("query_kept", QUERY_KEPT, function=_query_kept),
        Mistake(
            "keys_for_values",
            "The weights are right. But they mix keys: multiply them with the joined values.",
            function=_keys_for_values,
        ),
        Mistake(
            "cache_swapped",
            "The first token is right. But keys and values change places in the cache: you take out cache[0] as keys, "
            "so put the keys in first.",
            function=_swapped_cache,
        ),
        Mistake(
            "all_rows",
            "The last row is right. But the old ones come with it: the outputs of old tokens are known, and their "
            "queries need not be kept. Return the new token's row, (1, V).",
            function=_all_rows,
        ),
        Mistake(
            "no_softmax",
            "The cache is right. But the scores are used as they are: softmax makes shares of them.",
            function=_weighed_by(lambda scores, keep: scores),
        ),
        Mistake("sum_of_values", SUM_OF_VALUES, function=_weighed_by(lambda scores, keep: softmax(scores.T).T)),
        *SHARES,
    ),
    forms={
        "with a mask": cache_chunk,
        "a list of pairs": _list_of_pairs,
        "a dictionary": _dictionary,
        "a buffer": _buffer,
        "new ones in front": _in_front_unmasked,
        "torch tensors": _in_torch,
        "a list for the pair": lambda *args: list(cache_step(*args)),
        "a flat output": lambda *args: (cache_step(*args)[0][0], cache_step(*args)[1]),
    },
    hints=(
        "Two things to do: put the new key and value behind the old ones, then attend with the new query.",
        "At first cache is None: then the new key and value are all there is.",
        "np.concatenate([cache[0], k]) puts one below the other. Return the output and the pair (keys, values).",
        "A single query at the end may see everything, no mask: "
        "masked_softmax(q @ keys.T / np.sqrt(q.shape[1]), True) @ values. True hides nothing.",
    ),
    well_done="Each token goes through once, and the outputs are those of the whole text.",
    advice=ADVICE,
)  # fmt: skip


MASK = "causal_mask(len(query), len(key))"
WEIGHTS = "masked_softmax(attention_scores(query, key), keep)"

CHUNK = Exercise(
    id="11.chunk",
    signature="cache_chunk(cache, q, k, v)",
    solution=cache_chunk,
    drive=_in_chunks,
    read=_read,
    probes=lambda: [
        Probe((*_sequence(5, 2, [1, 2, 4, 8, 16]), 3, False), "5 tokens, chunks of 3 and 2"),
        Probe((*_sequence(7, 3, wave(7, 5, step=1.3)), 2, False), "7 tokens, chunks of 2, the last one shorter"),
        Probe((*_sequence(5, 3, wave(5, 2, step=1.3)), 1, False), "5 tokens, one by one"),
        Probe((*_sequence(6, 2, wave(6, 3, step=1.3)), 6, False), "6 tokens at once, no cache before them"),
        Probe((*_sequence(5, 3, wave(5, 2), size=3000.0), 2, False), "5 tokens, scores in the thousands"),
        Probe((*_sequence(7, 2, wave(7, 3, step=1.3)), 2, True),
              "7 tokens in chunks of 2, then the second chunk again, with the cache that the first one gave"),
    ],
    mistakes=(
        Mistake(
            "upper_left_mask",
            "The first chunk is right. But behind a cache the triangle sits in the wrong corner: the queries are the "
            "LAST tokens. Shift it: key j <= query i + (S - n).",
            MASK, "np.tri(len(query), len(key), dtype=bool)",
        ),
        Mistake(
            "no_mask",
            "One by one it is right, and so is the last row of each chunk. But within a chunk the first tokens see "
            "those behind them: a mask is needed, with its triangle in the lower right corner.",
            MASK, "True",
        ),
        Mistake(
            "not_itself",
            "The triangle is in the right corner. But it is one too narrow: a token sees itself too, j <= i + (S - n).",
            MASK, "np.tri(len(query), len(key), len(key) - len(query) - 1, dtype=bool)",
        ),
        Mistake(
            "one_ahead",
            "The triangle is in the right corner. But it is one too wide: each token sees the next one.",
            MASK, "np.tri(len(query), len(key), len(key) - len(query) + 1, dtype=bool)",
        ),
        *[
            Mistake(name, FIXED_SHIFT, function=_masked_by(lambda n, S, by=by: np.tri(n, S, by(n, S), dtype=bool)))
            for name, by in {
                "shifted_by_3": lambda n, S: 3,
                "shifted_by_2": lambda n, S: 2,
                "shifted_by_n": lambda n, S: n,
                "shifted_by_n_and_1": lambda n, S: n + 1,
                "shifted_by_all_but_2": lambda n, S: S - 2,
            }.items()
        ],
        Mistake(
            "first_chunk_unmasked",
            "Behind a cache it is right. But where the cache is None there is no mask: the first chunk has tokens that "
            "must not see each other, too.",
            function=lambda cache, q, k, v: cache_chunk(cache, q, k, v) if cache else (_attend(q, k, v), (k, v)),
        ),
        Mistake(
            "only_first_chunk_masked",
            "The first chunk is right. But behind a cache there is no mask: the new tokens must not see each other's "
            "future there, too.",
            function=lambda cache, q, k, v: cache_chunk(cache, q, k, v) if cache is None else _no_mask(cache, q, k, v),
        ),
        Mistake(
            "shifted_back",
            "The first chunk is right. But behind a cache the triangle is shifted the wrong way, to the left: it is "
            "S - n, not n - S.",
            MASK, "np.tri(len(query), len(key), len(query) - len(key), dtype=bool)",
        ),
        Mistake(
            "mask_reversed",
            "The diagonal is in the right place. But the mask shows the future and hides the past: keep is True for "
            "j <= i + (S - n), the lower triangle.",
            MASK, "np.triu(np.ones((len(query), len(key)), bool), len(key) - len(query))",
        ),
        Mistake(
            "upper_triangle",
            "One by one it is right. But in a chunk the mask is the upper triangle: each token sees the future, and "
            "loses the past. keep is True for j <= i + (S - n).",
            MASK, "np.triu(np.ones((len(query), len(key)), bool))",
        ),
        Mistake(
            "polarity",
            "The triangle is in the right place. But its meaning is turned round: keep is True where a token MAY look, "
            "and yours hides just those keys.",
            MASK, "~causal_mask(len(query), len(key))",
        ),
        Mistake(
            "polarity_nan",
            "The triangle is in the right place. But its meaning is turned round: -inf belongs where a token may NOT "
            "look. (The last token is left with nothing, and 0 / 0 is NaN.)",
            function=_weighed_by(lambda scores, keep: softmax(np.where(keep, -np.inf, scores))),
        ),
        Mistake(
            "mask_added",
            "The mask is right. But it is added to the scores as 0 and 1, which hides nothing: -inf where it is False.",
            WEIGHTS, "softmax(attention_scores(query, key) + keep)",
        ),
        Mistake(
            "masked_to_zero",
            "The mask is right. But a score of 0 is not 'no attention': e^0 is 1. Use -inf where it is False.",
            WEIGHTS, "softmax(attention_scores(query, key) * keep)",
        ),
        Mistake(
            "masked_after_softmax",
            "Zeros stand in the right places. But the weights no longer add up to 1: mask before softmax.",
            WEIGHTS, "softmax(attention_scores(query, key)) * keep",
        ),
        Mistake("softmax_axis", SOFTMAX_AXIS, WEIGHTS, "masked_softmax(attention_scores(query, key).T, keep.T).T"),
        *SHARES,
        Mistake(
            "softmax_of_the_table",
            "One by one it is right. But in a chunk all scores share one softmax: the shares of each query add up to 1 "
            "by themselves, axis -1.",
            function=_weighed_by(_softmax_of_the_table),
        ),
        Mistake(
            "not_itself_nan",
            "The triangle is in the right corner. But it is one too narrow: a token sees itself too, j <= i + (S - n). "
            "(The first token is left with nothing, and 0 / 0 is NaN.)",
            function=_not_itself,
        ),
        Mistake(
            "attends_first",
            "The old tokens may be seen. But the new ones see nothing of their own chunk, not even themselves: append "
            "first, then mask those that come later.",
            function=_attends_first,
        ),
        Mistake(
            "attends_first_but_once",
            "The first chunk is right. But after that the new tokens see nothing of their own chunk, not even "
            "themselves: append first, then mask those that come later.",
            function=_attends_first_but_once,
        ),
        Mistake("past_forgotten", FORGETS, function=_forgets),
        Mistake("remembers_one", ONE_ONLY, function=_remembers_one),
        Mistake("kept_once", KEPT_ONCE, function=_keeps_first),
        Mistake("changes_cache", CHANGES, function=_in_place),
        Mistake("query_kept", QUERY_KEPT, function=_query_kept),
        Mistake(
            "new_in_front",
            "Old and new are joined. But the new ones stand in front, and the mask takes the last keys for the newest: "
            "the old ones come first in np.concatenate.",
            function=_in_front,
        ),
        Mistake(
            "no_scale",
            "Mask and cache are right. But the scores are not divided by the square root of the width.",
            "attention_scores(query, key)", "query @ key.T",
        ),
    ),
    forms={
        "np.tril with a shift": _masked_by(lambda n, S: np.tril(np.ones((n, S), bool), S - n)),
        "ones beside a triangle": _masked_by(lambda n, S: np.hstack([np.ones((n, S - n), bool), np.tri(n) > 0])),
        "cut out of the whole": _masked_by(lambda n, S: np.tri(S, dtype=bool)[-n:]),
        "-inf added": _weighed_by(lambda scores, keep: softmax(scores + np.where(keep, 0.0, -np.inf))),
        "a list of pairs": _list_of_pairs,
        "a dictionary": _dictionary,
        "a buffer": _buffer,
        "torch tensors": _in_torch,
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


# ------------------------------------------------------------------------------ shared heads


def _tokens_mixed(k, n):
    """Repeats the tokens, then cuts them into G·n heads: the right shape, and every head holds pieces."""
    B, G, S, D = k.shape
    return np.repeat(k, n, 2).reshape(B, G * n, S, D)


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
            "0 1 0 1, as np.tile makes them. np.repeat along the head axis.",
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
            "batch_tiled",
            "Everything comes n times. But the batch was repeated, one copy behind the other: the head axis is 1.",
            function=lambda k, n: np.tile(k, (n, 1, 1, 1)),
        ),
        Mistake(
            "tokens_mixed",
            "The shape is right. But a reshape cut the repeated tokens into heads, so that a head holds pieces of "
            "tokens: repeat along axis 1, and no reshape is needed.",
            function=_tokens_mixed,
        ),
        Mistake(
            "n_in_all",
            "Heads are repeated in the right order. But n is how often EACH key head comes, not how many heads there "
            "are in the end.",
            function=lambda k, n: np.repeat(k, n // k.shape[1], 1),
        ),
        Mistake(
            "n_more",
            "Heads are repeated in the right order. But once too often: n times in all, the head itself included.",
            function=lambda k, n: np.repeat(k, n + 1, 1),
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
            "numbers_repeated",
            "The shape is right. But the numbers of a row were repeated, not the heads: pass the axis of the heads, "
            "np.repeat(k, n, axis=1), and no reshape is needed.",
            function=lambda k, n: np.repeat(k, n).reshape(k.shape[0], k.shape[1] * n, *k.shape[2:]),
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
        "einsum": lambda k, n: np.einsum("bgsd,gh->bhsd", k, np.repeat(np.eye(k.shape[1]), n, 1)).astype(k.dtype),
        "a product with ones": lambda k, n: (k[:, :, None] * np.ones((n, 1, 1), k.dtype)).reshape(
            len(k), -1, *k.shape[2:]
        ),
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
            "decimal_gigabytes",
            "All factors are in. But the result is in GB, and bytes are asked for: do not divide.",
            "bytes_per_number\n", "bytes_per_number / 1e9\n",
        ),
        Mistake(
            "always_two",
            "Right for float16. But numbers may be longer or shorter: times bytes_per_number, not 2.",
            "batch * bytes_per_number\n", "batch * 2\n",
        ),
        Mistake(
            "always_four",
            "Right for float32. But numbers may be shorter: times bytes_per_number, not 4.",
            "batch * bytes_per_number\n", "batch * 4\n",
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

EXERCISES = (CACHE, CHUNK, BYTES, GQA)
