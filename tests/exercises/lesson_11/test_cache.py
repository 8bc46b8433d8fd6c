"""11.cache and 11.chunk: steps as learners write them, and what is said to odd ones."""

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY
from mha_lesson.exercises.lesson_11 import cache, chunk, shared
from tests.exercises.helpers import mistake, softmax, variant
from tests.exercises.lesson_11.helpers import (
    attend,
    attends_then_appends,
    fed,
    joined,
    mask_for_one_query,
    message,
    no_mask,
)
from tests.reference import g, near

# -- answers as they are written ------------------------------------------------------------


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


CACHE = {
    "upper_left_mask": mask_for_one_query,
    "attends_first": attends_then_appends,
    "attends_first_but_once": looks_at_itself_first,
    "past_forgotten": forgets,
    "changes_cache": appends_in_place,
    "correct": no_mask,
}


@pytest.mark.parametrize("name", CACHE)
def test_cache_as_learners_write_it(name):
    assert mistake("11.cache", CACHE[name]) == name


def test_other_ways_to_write_the_same_mistakes():
    assert mistake("11.cache", forgets_and_loses_the_cache) == "past_forgotten"
    assert mistake("11.cache", dictionary_in_place) == "changes_cache"


# -- worked values, and those that wrong answers give ----------------------------------------


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


# -- odd answers to the steps ---------------------------------------------------------------


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
