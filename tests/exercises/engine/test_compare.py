"""Two values compared: what is equal, and the first place where they differ."""

import numpy as np
import pytest

from mha_lesson.exercises.engine.compare import as_many_as, difference, in_parts, plain, same
from mha_lesson.exercises.engine.probes import wave
from tests.exercises.engine.helpers import exercise

# ---------------------------------------------------------------------------- answers in many shapes


def test_whole_numbers_pass_where_the_answer_is_made_of_them():
    zeros, halves = np.zeros(3), np.array([0.5, 1, 2])
    assert difference(zeros, [0, 0, 0]) is None and difference(np.array([2.0, 5]), (2, 5)) is None
    assert difference(zeros, [0, 1, 0]).kind == "wrong_dtype"
    assert difference(halves, [0, 1, 2]).kind == "wrong_dtype"
    assert difference(np.array([np.nan, 1]), [0, 1]).kind == "wrong_dtype"


# -- comparing ------------------------------------------------------------------------------


def test_plain_reads_tensors_lists_and_numbers():
    assert plain([[1, 2], [3, 4]]).shape == (2, 2)
    assert plain(2.0).shape == ()
    assert plain([np.ones(2), np.zeros(2)]).shape == (2, 2)
    assert [a.shape for a in plain((np.ones(2), [1.0]))] == [(2,), (1,)]


def test_difference_finds_nothing_in_equal_values_and_the_first_place_in_others():
    x = wave(3, 5)
    assert difference(x, x.tolist()) is None
    y = x.copy()
    y[1, 2] += 0.1
    assert difference(x, y).text.startswith("at [1, 2] expected")
    assert difference(x, x[:, :4]).kind == "wrong_shape"
    assert difference(np.tri(2, dtype=bool), np.tri(2)).kind == "wrong_dtype"
    assert difference(np.asarray(2.0), 2) is None


A, B, C = np.arange(3.0), np.arange(4.0).reshape(2, 2), np.array(5.0)


NESTED = ((A, B), C, [A, B])


def solution(x):
    return NESTED


@pytest.mark.parametrize(
    "answer",
    [
        ((A, B), C, (A, B)),
        [[A, B], C, [A, B]],
        ([A.tolist(), B.tolist()], 5.0, (A, B)),
    ],
    ids=["tuples", "lists", "numbers"],
)
def test_nested_answers_are_right_in_any_form(answer):
    assert exercise(solution, (0,)).diagnose(lambda x: answer).status == "correct"


@pytest.mark.parametrize(
    "answer, text",
    [
        (((A, B + 1), C, (A, B)), "result 1 of 3, part 2: at [0, 0] expected 0.000000, got 1.000000"),
        ((A, C, B), "result 1 of 3: expected 2 arrays, got one of shape (3,)"),
        (((A, B, C), C, (A, B)), "result 1 of 3: expected 2 arrays, got 3"),
        ((((A,), B), C, (A, B)), "result 1 of 3, part 1: expected shape (3,), got (1, 3)"),
        (((A, {"b": B}), C, (A, B)), "result 1 of 3, part 2: expected an array, got a dict"),
        (({"a": A}, C, (A, B)), "result 1 of 3: expected 2 arrays, got a dictionary"),
        ([[A, B], C, [A, B[:1]]], "result 3 of 3, part 2: expected shape (2, 2), got (1, 2)"),
        (((A, B), C), "expected 3 results, got 2"),
        (7.0, "expected 3 results, got a single number"),
    ],
)
def test_nested_answers_are_told_which_part_differs(answer, text):
    result = exercise(solution, (0,)).diagnose(lambda x: answer)
    assert result.status == "incorrect" and text in result.message, result


def test_parts_in_a_dictionary():
    e = exercise(lambda x: {"pair": (A, B), "one": C}, (0,))
    assert e.diagnose(lambda x: {"pair": [A, B], "one": 5}).status == "correct"
    assert "pair: result 2 of 2: at [0, 0]" in e.diagnose(lambda x: {"pair": (A, B + 1), "one": 5}).message


def test_known_mistakes_of_several_parts_are_told_apart():
    assert same(plain(((A, B), C)), plain(((A, B), C)))
    assert not same(plain(((A, B), C)), plain(((A, B + 1), C)))
    assert not same(plain((A, B)), plain(A))


def test_what_is_one_array_stays_one():
    assert in_parts([[1, 2], [3, 4]]) == [[1, 2], [3, 4]]
    assert as_many_as(A, [1, 2]) == [1, 2]
    assert [type(part) for part in in_parts([A, [A, B]])] == [np.ndarray, tuple]


@pytest.mark.torch
def test_an_expected_tensor_that_requires_grad():
    import torch

    weight = torch.ones(2, 2, requires_grad=True)
    for given in (weight, (weight, weight * 2), {"w": weight}):
        e = exercise(lambda x, given=given: given, (0,))
        assert e.diagnose(lambda x, given=given: given).status == "correct"
        assert e.diagnose(lambda x, given=given: plain(given)).status == "correct"
        wrong = e.diagnose(lambda x: torch.zeros(2, 2, dtype=torch.int64))
        assert wrong.status == "incorrect", wrong
    mixed = exercise(lambda x: (weight, weight > 0), (0,))
    result = mixed.diagnose(lambda x: (weight, weight))
    assert result.mistake == "wrong_dtype" and "result 2 of 2" in result.message and "A mask is" in result.message


class Tricky:
    def __getattr__(self, name):
        raise RuntimeError(name)


def test_an_answer_with_tricks_of_its_own_is_a_wrong_answer():
    for answer in (Tricky(), (Tricky(), A), [Tricky()]):
        result = exercise(lambda x: A, (0,)).diagnose(lambda x, answer=answer: answer)
        assert result.status == "incorrect", result
    found = difference(A, Tricky())
    assert found.kind == "unreadable" and "RuntimeError" in found.text


@pytest.mark.torch
def test_a_tensor_that_numpy_cannot_hold_is_said_so():
    import torch

    result = exercise(lambda x: A, (0,)).diagnose(lambda x: torch.ones(3, device="meta"))
    assert result.mistake == "unreadable" and "could not be read" in result.message
