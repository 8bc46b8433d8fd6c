"""07.decode: lists of ids, and the loops that newcomers write."""

import numpy as np
import pytest

from mha_lesson.exercises import adopt, check
from mha_lesson.steps.encoder_decoder import greedy_decode
from tests.steps.helpers import writes

# ---------------------------------------------------------------------------- answers in many shapes


def test_decoded_ids_are_read_as_whole_numbers():
    def decode(step, start, stop, longest):
        return np.array(greedy_decode(step, start, stop, longest), dtype=float)

    def half(step, start, stop, longest):
        return decode(step, start, stop, longest) + 0.5

    def word(step, start, stop, longest):
        return "abc"

    assert check("07.decode", decode).status == "correct"
    assert check("07.decode", half).mistake == "different"
    assert "a list of token ids, got a value of type str" in check("07.decode", word).message
    assert adopt("07.decode", decode)(writes(2), 0, 2, 5).dtype.kind == "i"


# ---------------------------------------------------------------------------- 07, what a newcomer wrote


def best_of(scores):
    return int(np.argmax(scores[-1]))


def filtering(step, start, stop, longest):
    tokens = [start]
    while len(tokens) <= longest and tokens[-1] != stop:
        tokens.append(best_of(step(tokens)))
    return [t for t in tokens if t not in (start, stop)]


def filtering_all(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        tokens.append(best_of(step(tokens)))
    return [t for t in tokens if t != start and t != stop]


def never_growing(step, start, stop, longest):
    prefix, out = [start], []
    while len(out) < longest:
        best = best_of(step(prefix))
        if best == stop:
            break
        out.append(best)
    return out


def first_row(step, start, stop, longest):
    tokens = [start]
    while len(tokens) <= longest and (best := best_of(step(tokens)[:1])) != stop:
        tokens.append(best)
    return tokens[1:]


def keeping_nothing(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        best = best_of(step(tokens))
        if best == stop:
            break
    return tokens[1:]


def returning_inside(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        best = best_of(step(tokens))
        if best == stop:
            break
        tokens.append(best)
        return tokens[1:]


def returning_twice_inside(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        best = best_of(step(tokens))
        if best != stop:
            tokens.append(best)
        return tokens[1:]


def returning_at_stop(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        best = best_of(step(tokens))
        if best == stop:
            return tokens[1:]
        tokens.append(best)


@pytest.mark.parametrize(
    "answer, name",
    [
        (filtering, "filters_start"),
        (filtering_all, "filters_both"),
        (never_growing, "prefix_never_grows"),
        (first_row, "first_row"),
        (keeping_nothing, "nothing_appended"),
        (returning_inside, "return_in_loop"),
        (returning_twice_inside, "first_token_alone"),
        (returning_at_stop, "returns_at_stop_only"),
    ],
)
def test_the_loops_of_a_newcomer_are_named(answer, name, capsys):
    def decode(step, start, stop, longest):
        print("a turn")
        return answer(step, start, stop, longest)

    result = check("07.decode", decode)
    assert result.mistake == name, result
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("nothing", [lambda start: [], lambda start: [start]])
def test_an_answer_that_never_asks_the_model_is_no_known_mistake(nothing):
    assert check("07.decode", lambda step, start, stop, longest: nothing(start)).mistake in ("wrong_shape", "different")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda ids: [str(i) for i in ids], "one that holds text: item 0 is '3'"),
        (lambda ids: np.array([str(i) for i in ids]), "one that holds text: item 0 is '3'"),
        (lambda ids: [*ids, None], "item 3 is a value of type NoneType"),
        (lambda ids: [[1, 2], [3]], "item 0 is a value of type list"),
    ],
)
def test_what_is_in_a_list_that_is_none_of_ids_is_said(change, said):
    result = check("07.decode", lambda step, start, stop, longest: change(greedy_decode(step, start, stop, longest)))
    assert result.mistake == "wrong_type" and said in result.message
