"""Answers that are called, read, judged or compared in a way of their own."""

import subprocess
import sys

import numpy as np

from mha_lesson.exercises.engine import Protocol
from mha_lesson.exercises.engine.compare import Difference, plain
from mha_lesson.exercises.engine.protocol import by_value_and_type
from mha_lesson.exercises.engine.sandbox import Outcome
from tests.exercises.engine.helpers import exercise


def said(exercise, answer):
    result = exercise.diagnose(answer)
    return result.status, result.message


def test_the_plain_protocol_leaves_everything_as_it_is():
    outcome = Outcome(value=[1, 2], printed="hello")
    assert Protocol().seen((3,), outcome) == outcome
    assert Protocol().arguments(["q", "k"]) == ["q", "k"] and Protocol().calls_plainly


def test_an_answer_can_be_called_many_times():
    def three_times(f, x, times):
        return [f(x) for _ in range(times)]

    e = exercise(lambda x: x + 1, (1, 3), protocol=Protocol(call=three_times))
    assert e.arguments == ["x", "times"]
    assert [o.value for o in e.expected] == [[2, 2, 2]]
    calls = []
    assert said(e, lambda x: calls.append(x) or x + 1)[0] == "correct" and calls == [1, 1, 1]
    assert "at [0] expected 2, got 1" in said(e, lambda x: x)[1]


def test_an_answer_can_be_read_and_what_cannot_be_is_told():
    def read(arguments, answer):
        if answer == "?":
            raise ValueError(f"expected a name for {arguments[0]}")
        return {"one": 1, "two": 2}.get(answer, answer)

    e = exercise(lambda x: "two", (7,), protocol=Protocol(read=read))
    assert said(e, lambda x: "two")[0] == said(e, lambda x: 2)[0] == "correct"
    assert "expected 2, got 1" in said(e, lambda x: "one")[1]
    assert "expected a name for 7" in said(e, lambda x: "?")[1]
    assert "expected a number, got a str" in said(e, lambda x: "three")[1]


def test_many_answers_can_be_right():
    e = exercise(
        lambda x: np.array([2.0, 0.0]), (3,), protocol=Protocol(judge=lambda given, answer: plain(answer).argmax())
    )
    assert said(e, lambda x: [17.0, 16.0])[0] == "correct"
    assert "expected 0, got 1" in said(e, lambda x: [0.0, 1.0])[1]
    assert "expected a number, got a str" in said(e, lambda x: "no array")[1]


def test_a_difference_can_have_words_of_its_own():
    def differ(arguments, expected, answer):
        return None if answer > arguments[0] else Difference("different", f"{answer} is not above {arguments[0]}")

    e = exercise(lambda x: x + 1, (3,), protocol=Protocol(differ=differ))
    assert said(e, lambda x: 17)[0] == "correct"
    assert "2 is not above 3." in said(e, lambda x: 2)[1]


def test_floats_can_be_asked_to_keep_their_type_wherever_they_stand():
    half = np.float32
    e = exercise(lambda x: (x, {"w": x}), (np.ones(2),), protocol=Protocol(differ=by_value_and_type))
    assert said(e, lambda x: (x, {"w": x}))[0] == "correct"
    assert "result 1 of 2: the numbers are right, but rounded" in said(e, lambda x: (x.astype(half), {"w": x}))[1]
    assert "result 2 of 2: w: the numbers are right" in said(e, lambda x: (x, {"w": x.astype(half)}))[1]


def test_changes_can_be_spared():
    def switches(x):
        x.append(1)
        return 2

    assert exercise(lambda x: 2, ([],)).diagnose(switches).mistake == "changes_input"
    assert exercise(lambda x: 2, ([],), protocol=Protocol(spared=("list",))).diagnose(switches).status == "correct"


def test_a_solution_that_is_named_is_imported_when_it_is_asked_for_and_once():
    code = (
        "import sys\n"
        "from tests.exercises.engine.helpers import exercise\n"
        "e = exercise('colorsys:rgb_to_hsv', (1,))\n"
        "print(repr(e), 'colorsys' in sys.modules)\n"
        "print(e.solution is e.solution, e.solution.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Exercise('99.f') False\nTrue rgb_to_hsv\n"
