"""Exercises of lessons 11 and 12: known wrong answers as learners write them, and what is said to odd ones."""

import itertools

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY, adopt, check
from mha_lesson.exercises.lesson_11 import cache, chunk, shared
from tests.reference import g, near

NEG = -np.inf


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q, k, v):
    return softmax(q @ k.T / np.sqrt(q.shape[-1])) @ v


def joined(cache, k, v):
    return (k, v) if cache is None else (np.concatenate([cache[0], k]), np.concatenate([cache[1], v]))


def mistake(id, function):
    result = check(id, function)
    return result.mistake if result.status == "incorrect" else result.status


# -- answers as they are written ------------------------------------------------------------


def mask_for_one_query(cache, q, k, v):
    keys, values = joined(cache, k, v)
    scores = np.where(np.tril(np.ones((len(q), len(keys)), bool)), q @ keys.T / np.sqrt(q.shape[-1]), NEG)
    return softmax(scores) @ values, (keys, values)


def attends_then_appends(cache, q, k, v):
    keys, values = cache if cache is not None else (np.zeros((0, k.shape[1])), np.zeros((0, v.shape[1])))
    output = attend(q, keys, values) if len(keys) else np.zeros_like(v)
    return output, (np.concatenate([keys, k]), np.concatenate([values, v]))


def looks_at_itself_first(cache, q, k, v):
    if cache is None:
        return v, (k, v)
    return attend(q, *cache), joined(cache, k, v)


def forgets(cache, q, k, v):
    return attend(q, k, v), (k, v)


def forgets_and_loses_the_cache(cache, q, k, v):
    return attend(q, k, v), None


def appends_in_place(cache, q, k, v):
    if cache is None:
        cache = [[], []]
    cache[0].append(k)
    cache[1].append(v)
    return attend(q, np.concatenate(cache[0]), np.concatenate(cache[1])), cache


def dictionary_in_place(cache, q, k, v):
    if cache is None:
        cache = {"k": k, "v": v}
    else:
        cache["k"], cache["v"] = np.concatenate([cache["k"], k]), np.concatenate([cache["v"], v])
    return attend(q, cache["k"], cache["v"]), cache


def no_mask(cache, q, k, v):
    keys, values = joined(cache, k, v)
    return attend(q, keys, values), (keys, values)


def nothing_shrunk(s, v, block):
    m, l, a = NEG, 0.0, 0.0
    for i in range(0, len(s), block):
        m = max(m, s[i : i + block].max())
        p = np.exp(s[i : i + block] - m)
        l += p.sum()
        a += p @ v[i : i + block]
    return a / l


def blocks_averaged(s, v, block):
    outputs = []
    for i in range(0, len(s), block):
        p = np.exp(s[i : i + block] - s[i : i + block].max())
        outputs.append(p @ v[i : i + block] / p.sum())
    return np.mean(outputs)


def online(s, v, block):
    m, l, a = NEG, 0.0, 0.0
    for i in range(0, len(s), block):
        x = s[i : i + block]
        new = max(m, x.max())
        if new == NEG:
            continue
        p = np.exp(x - new)
        l, a, m = l * np.exp(m - new) + p.sum(), a * np.exp(m - new) + p @ v[i : i + block], new
    return a / l if l else 0.0


def last_block_dropped(s, v, block):
    k = len(s) // block * block
    return online(s[:k], v[:k], block)


def split_first(s, v, block):
    """Takes the sequence apart before it begins, and cuts a block off what is left."""
    left, values, m, l, o = s, v, NEG, 0.0, 0.0
    while len(left):
        piece, left, x, values = left[:block], left[block:], values[:block], values[block:]
        new = max(m, max(piece))
        if new > NEG:
            p = np.exp(piece - new)
            l, o, m = l * np.exp(m - new) + p.sum(), o * np.exp(m - new) + p @ x, new
    return o / l if l else 0


def without_a_guard(s, v, block):
    """As in the paper: no word about -inf."""
    m, l, o = NEG, 0.0, 0.0
    for i in range(0, len(s), block):
        new = max(m, s[i : i + block].max())
        p = np.exp(s[i : i + block] - new)
        l, o, m = l * np.exp(m - new) + p.sum(), o * np.exp(m - new) + p @ v[i : i + block], new
    return o / l


def merge_as_in_the_paper(m1, l1, o1, m2, l2, o2):
    m = np.maximum(m1, m2)
    a, b = np.exp(m1 - m), np.exp(m2 - m)
    return m, l1 * a + l2 * b, o1 * a[:, None] + o2 * b[:, None]


def merge_only_o(m1, l1, o1, m2, l2, o2):
    m = np.maximum(m1, m2)
    a, b = np.exp(m1 - m), np.exp(m2 - m)
    return m, l1 + l2, o1 * a[:, None] + o2 * b[:, None]


def phi(x):
    return np.where(x > 0, x + 1, np.exp(x))


def linear_reads_too_early(q, k, v):
    state, total, rows = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1]), []
    for t in range(len(q)):
        rows.append(phi(q[t]) @ state / (phi(q[t]) @ total))
        state, total = state + np.outer(phi(k[t]), v[t]), total + phi(k[t])
    return np.array(rows)


def linear_not_causal(q, k, v):
    return phi(q) @ (phi(k).T @ v) / (phi(q) @ phi(k).sum(0))[:, None]


def linear_transposed(q, k, v):
    state, total, rows = np.zeros((v.shape[1], k.shape[1])), np.zeros(k.shape[1]), []
    for t in range(len(q)):
        state, total = state + np.outer(v[t], phi(k[t])), total + phi(k[t])
        rows.append(phi(q[t]) @ state / (phi(q[t]) @ total))
    return np.array(rows)


WRITTEN = {
    "11.cache": {
        "upper_left_mask": mask_for_one_query,
        "attends_first": attends_then_appends,
        "attends_first_but_once": looks_at_itself_first,
        "past_forgotten": forgets,
        "changes_cache": appends_in_place,
        "correct": no_mask,
    },
    "11.chunk": {
        "upper_left_mask": mask_for_one_query,
        "attends_first": attends_then_appends,
        "no_mask": no_mask,
        "correct": chunk._by_loop,
    },
    "11.gqa": {
        "tiled": lambda k, n: np.concatenate([k] * n, axis=1),
        "tokens_repeated": lambda k, n: k.repeat(n, axis=2),
        "correct": lambda k, n: np.concatenate([k[:, i : i + 1] for i in range(k.shape[1]) for _ in range(n)], axis=1),
    },
    "12.online": {
        "nothing_shrunk+minus_infinity": nothing_shrunk,
        "averaged": blocks_averaged,
        "rest_dropped": last_block_dropped,
        "minus_infinity": without_a_guard,
        "nothing_allowed_nan": lambda s, v, block: softmax(s) @ v,
        "correct": online,
    },
    "12.merge": {
        "nan_when_empty": merge_as_in_the_paper,
        "only_o+nan_when_empty": merge_only_o,
    },
    "12.linear": {
        "not_itself": linear_reads_too_early,
        "not_causal": linear_not_causal,
        "state_transposed": linear_transposed,
        "no_features": lambda q, k, v: np.tril(q @ k.T) @ v / np.tril(q @ k.T).sum(1, keepdims=True),
        "exponential": lambda q, k, v: (w := np.tril(np.exp(q) @ np.exp(k).T)) @ v / w.sum(1, keepdims=True),
        "correct": lambda q, k, v: (w := np.tril(phi(q) @ phi(k).T)) @ v / w.sum(1, keepdims=True),
    },
}
CASES = [(id, name, function) for id, cases in WRITTEN.items() for name, function in cases.items()]


def whole_row(s, v, block):
    e = np.exp(s - s.max()) if s.max() > NEG else np.zeros(len(s))
    return e @ v / max(e.sum(), 1e-300)


def sees_all(s, v, block):
    s = np.asarray(s)
    return online(s, v, block)


def sorts(s, v, block):
    return online(np.sort(s), v[np.argsort(s)], block)


def by_numpys_pieces(s, v, block):
    pieces = np.array_split(s.astype(float), range(block, len(s), block))
    m, l, o, i = NEG, 0.0, 0.0, 0
    for piece in pieces:
        new = max(m, piece.max())
        if new > NEG:
            p = np.exp(piece - new)
            l, o, m = l * np.exp(m - new) + p.sum(), o * np.exp(m - new) + p @ v[i : i + len(piece)], new
        i += len(piece)
    return o / l if l else 0


def writes_into_its_copy(s, v, block):
    s = s.copy()
    m, l, o = NEG, 0.0, 0.0
    for i in range(0, len(s), block):
        piece = s[i : i + block]
        new = max(m, piece.max())
        if new > NEG:
            piece -= new
            np.exp(piece, out=piece)
            l, o, m = l * np.exp(m - new) + piece.sum(), o * np.exp(m - new) + piece @ v[i : i + block], new
    return o / l if l else 0


@pytest.mark.parametrize("function", [split_first, by_numpys_pieces, writes_into_its_copy])
def test_the_sequence_may_be_cut_and_copied(function):
    assert mistake("12.online", function) == "correct"


def test_the_maximum_of_all_first_is_another_pass():
    def two_passes(s, v, block):
        m = max(s[i : i + block].max() for i in range(0, len(s), block))
        pieces = [(np.exp(s[i : i + block] - m), v[i : i + block]) for i in range(0, len(s), block)] if m > NEG else []
        return sum(p @ x for p, x in pieces) / max(sum(p.sum() for p, _ in pieces), 1e-300)

    assert mistake("12.online", two_passes) == "two_passes"


@pytest.mark.parametrize("function", [whole_row, sees_all, sorts])
def test_the_whole_row_at_once_is_not_softmax_in_one_pass(function):
    result = check("12.online", function)
    assert result.status == "incorrect" and "11 of 12 probes are right" in result.message
    assert "at most block = 2 scores at a time" in result.message and "s[start : start + block]" in result.message


@pytest.mark.parametrize("id, name, function", CASES, ids=[f"{id}-{name}" for id, name, _ in CASES])
def test_answers_as_learners_write_them_get_their_name(id, name, function):
    assert mistake(id, function) == name


def test_other_ways_to_write_the_same_mistakes():
    assert mistake("11.cache", forgets_and_loses_the_cache) == "past_forgotten"
    assert mistake("11.cache", dictionary_in_place) == "changes_cache"


# -- the values in the list of misconceptions and in the public reports ---------------------


def fed(step, q, k, v, sizes):
    cache, rows, start = None, [], 0
    for size in sizes:
        new = slice(start, start + size)
        output, cache = step(cache, q[new], k[new], v[new])
        rows.append(output)
        start += size
    return np.concatenate(rows)[:, 0]


def variant(id, name):
    e = REGISTRY[id]
    return e.variant(next(m for m in e.mistakes if m.name == name))


@pytest.mark.parametrize(
    "name, last_two",
    [
        (None, [4.688096, 6.239676]),
        ("upper_left_mask", [1, 1.416938]),
        ("no_mask", [5.325303, 6.239676]),
        ("not_itself", [3.316661, 3.940555]),
    ],
)
def test_a_chunk_of_two_behind_three_tokens(name, last_two):
    """The right numbers, and those of three wrong masks (hyprstream/hyprstream#1521)."""
    q, k, v = g((5, 2)), g((5, 2), 0.9, 0.1), np.array([[1.0], [2], [4], [8], [16]])
    step = variant("11.chunk", name) if name else REGISTRY["11.chunk"].solution
    near(fed(step, q, k, v, (3, 2))[3:], last_two, 1e-6)


@pytest.mark.parametrize(
    "name, rows",
    [
        (None, [1, 1.550505, 1.928882, 4.016303]),
        ("upper_left_mask", [1, 1, 1, 1]),
        ("past_forgotten", [1, 2, 4, 8]),
    ],
)
def test_four_steps(name, rows):
    q, k, v = g((4, 2), 0.5, 0.2), g((4, 2), 0.9, 0.1), np.array([[1.0], [2], [4], [8]])
    step = variant("11.cache", name) if name else REGISTRY["11.cache"].solution
    near(fed(step, q, k, v, (1, 1, 1, 1)), rows, 1e-6)


def test_attending_before_appending_returns_the_only_old_value():
    step = variant("11.cache", "attends_first")
    q, k, v = g((4, 2), 0.5, 0.2), g((4, 2), 0.9, 0.1), np.array([[1.0], [2], [4], [8]])
    near(fed(step, q, k, v, (1, 1)), [0, 1])


@pytest.mark.parametrize(
    "name, rising, falling",
    [
        (None, 129.019610, 16.243832),
        ("nothing_shrunk", 80.590508, 16.243832),
        ("averaged", 72.143403, 64.081542),
        ("rest_dropped", 129.019610, 16.243832),
    ],
)
def test_four_scores_in_two_blocks(name, rising, falling):
    function = variant("12.online", name) if name else REGISTRY["12.online"].solution
    v = np.array([1.0, 2, 100, 200])
    near(function(np.array([0, 1, 3, 2.7]), v, 2), rising, 1e-6)
    near(function(np.array([3.0, 2, 1, 0]), v, 2), falling, 1e-6)


def test_the_last_partial_block_counts():
    s, v = np.array([0, 1, 3, 2.7, 2]), np.array([1.0, 2, 100, 200, 1000])
    want = sum(np.exp(a) * b for a, b in zip(s, v, strict=True)) / np.exp(s).sum()
    near(REGISTRY["12.online"].solution(s, v, 2), want, 1e-9)
    near(variant("12.online", "rest_dropped")(s, v, 2), 129.019610, 1e-6)


@pytest.mark.parametrize("name, heads", [(None, [10, 10, 10, 20, 20, 20]), ("tiled", [10, 20, 10, 20, 10, 20])])
def test_two_heads_for_six(name, heads):
    function = variant("11.gqa", name) if name else REGISTRY["11.gqa"].solution
    near(function(np.array([10.0, 20]).reshape(1, 2, 1, 1), 3).ravel(), heads)


# -- odd answers to the steps ---------------------------------------------------------------


def message(function, id="11.cache"):
    result = check(id, function)
    assert result.status == "incorrect"
    assert repr(result) == repr(check(id, function)), "the same words each time"
    return result.mistake, result.message


@pytest.mark.parametrize("id", ["11.cache", "11.chunk"])
@pytest.mark.parametrize(
    "function",
    [
        lambda cache, q, k, v: no_mask(cache, q, k, v)[0],
        lambda cache, q, k, v: (no_mask(cache, q, k, v)[0], k, v),
        lambda cache, q, k, v: {"output": q, "cache": (k, v)},
        lambda cache, q, k, v: "output, cache",
    ],
    ids=["output alone", "three things", "a dictionary", "a word"],
)
def test_a_step_that_returns_no_pair_is_told_so(id, function):
    kind, said = message(function, id)
    assert kind == "wrong_type" and "return two things, the output and the cache for the next step" in said


def test_output_and_cache_in_the_wrong_order():
    kind, said = message(lambda cache, q, k, v: no_mask(cache, q, k, v)[::-1])
    assert kind == "wrong_type" and "return output, cache" in said


def unpacks(cache, q, k, v):
    keys, values = cache
    return attend(q, keys, values), (np.concatenate([keys, k]), np.concatenate([values, v]))


def takes_apart(cache, q, k, v):
    return attend(q, np.concatenate([cache[0], k]), np.concatenate([cache[1], v])), cache


def appends_to_none(cache, q, k, v):
    cache.append((k, v))
    return v, cache


def joins_none(cache, q, k, v):
    keys = np.concatenate([cache, k])
    return v, keys


@pytest.mark.parametrize("function", [unpacks, takes_apart, appends_to_none, joins_none])
def test_a_step_that_does_not_expect_none_is_told_so(function):
    kind, said = message(function)
    assert kind == "raises" and shared.NO_CACHE_YET in said
    assert "It happens in this line: `" in said, "the learner's own line is still shown"


def test_an_error_at_a_later_step_is_left_as_it_is():
    def fails_later(cache, q, k, v):
        if cache is not None:
            raise ValueError("NoneType, but not at the first token")
        return v, (k, v)

    _, said = message(fails_later)
    assert "not at the first token" in said and shared.NO_CACHE_YET not in said


def test_a_step_that_returns_or_prints_nothing():
    assert message(lambda cache, q, k, v: None)[0] == "returns_none"
    assert message(lambda cache, q, k, v: print(v))[0] == "prints"


def test_an_error_comes_with_the_shapes_of_the_call_that_failed():
    def step(cache, q, k, v):
        keys = k if cache is None else np.concatenate([cache[0], k], axis=1)  # side by side, not below each other
        return softmax(q @ keys.T) @ v, (keys, v)

    kind, said = message(step)
    assert kind == "raises" and "q (1, 2), k (1, 2), v (1, 1); the cache: (1, 2) and (1, 1)." in said


def test_a_list_is_as_good_as_a_pair():
    merge = REGISTRY["12.merge"].solution
    assert mistake("12.merge", lambda *parts: list(merge(*parts))) == "correct"
    parts = REGISTRY["12.merge"].probe_list[0].args
    adopted = adopt("12.merge", lambda *parts: list(merge(*parts)))(*parts)
    assert isinstance(adopted, tuple) and all(map(np.array_equal, adopted, merge(*parts)))


@pytest.mark.parametrize("id", ["11.cache", "11.chunk"])
def test_large_scores_need_the_maximum(id):
    def step(cache, q, k, v):
        keys, values = joined(cache, k, v)
        e = np.exp(q @ keys.T / np.sqrt(q.shape[-1])) * np.tri(len(q), len(keys), len(keys) - len(q))
        return e / e.sum(1, keepdims=True) @ values, (keys, values)

    assert mistake(id, step) == "no_maximum"


def test_outputs_of_unequal_width():
    kind, said = message(lambda cache, q, k, v: (q @ joined(cache, k, v)[0].T, joined(cache, k, v)))
    assert kind == "wrong_type" and "(1, 1), (1, 2), (1, 3), (1, 4)" in said and "one row for each new token" in said


def test_a_step_that_writes_into_its_query():
    def step(cache, q, k, v):
        q /= np.sqrt(q.shape[-1])
        keys, values = joined(cache, k, v)
        return softmax(q @ keys.T) @ values, (keys, values)

    kind, said = message(step)
    assert kind == "changes_input" and "writes into its argument q," in said


def test_a_step_that_counts_on_a_global_cache_is_not_right():
    kept = []

    def step(cache, q, k, v):
        kept.append((k, v))
        return attend(q, *map(np.concatenate, zip(*kept, strict=True))), kept

    assert mistake("11.cache", step) != "correct"


def test_the_sequence_is_fed_as_it_should_be():
    """The driver: sizes, the cache that came back, None at first; and the second call once more."""
    calls = []

    def step(cache, q, k, v):
        calls.append((cache, q[:, 0].tolist()))
        return v, len(calls)

    tokens = np.arange(7.0)[:, None], np.zeros((7, 1)), np.arange(7.0)[:, None]
    near(chunk._in_chunks(step, *tokens, 3, False), tokens[2])
    assert calls == [(None, [0, 1, 2]), (1, [3, 4, 5]), (2, [6])]
    calls.clear()
    near(chunk._in_chunks(step, *tokens, 3, True), tokens[2][3:6])
    assert calls == [(None, [0, 1, 2]), (1, [3, 4, 5]), (2, [6]), (1, [3, 4, 5])]
    calls.clear()
    near(cache._one_by_one(step, *(x[:2] for x in tokens), False), tokens[2][:2])
    assert calls == [(None, [0]), (1, [1])]


# -- other exercises ------------------------------------------------------------------------


def test_bytes_as_an_array_are_right():
    def product(layers, kv_heads, d_head, tokens, batch, bytes_per_number):
        return np.array([2, layers, kv_heads, d_head, tokens, batch, bytes_per_number], np.int64).prod()

    assert mistake("11.bytes", product) == "correct"


def test_every_mistake_of_these_lessons_has_a_message_of_two_parts():
    """First what is right, then the one thing to change."""
    for e in REGISTRY.values():
        if e.id.startswith(("11.", "12.")):
            for m in e.mistakes:
                assert ". But " in m.say or ": but " in m.say or m.say.startswith("This "), f"{e.id}: {m.name}"


def test_no_two_mistakes_of_an_exercise_look_alike():
    for e in REGISTRY.values():
        if not e.id.startswith(("11.", "12.")):
            continue
        for (a, x), (b, y) in itertools.combinations(e.mistake_outcomes.items(), 2):
            assert not all(_equal(i, j) for i, j in zip(x, y, strict=True)), f"{e.id}: {a} and {b}"


def _equal(a, b):
    if a.error or b.error or a.value is None or b.value is None:
        return type(a.error) is type(b.error) and (a.value is None) == (b.value is None)
    if isinstance(a.value, tuple) or isinstance(b.value, tuple):
        pairs = isinstance(a.value, tuple) and isinstance(b.value, tuple) and len(a.value) == len(b.value)
        return pairs and all(np.array_equal(i, j, equal_nan=True) for i, j in zip(a.value, b.value, strict=True))
    return np.array_equal(np.asarray(a.value, float), np.asarray(b.value, float), equal_nan=True)


def test_nothing_here_needs_torch():
    for id in ("11.cache", "11.chunk", "11.gqa", "11.bytes", "12.online", "12.merge", "12.linear"):
        assert not REGISTRY[id].needs_torch
