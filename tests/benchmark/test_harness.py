"""The harness: rounds, ratios, wrong answers. No test looks at how long something took."""

import numpy as np
import pytest

from mha_lesson import benchmark
from tests.reference import says


def test_alternatives_take_turns_forwards_and_backwards():
    calls = []
    names = ["a", "b", "c"]
    times = benchmark.interleave({name: lambda name=name: calls.append(name) for name in names}, repeats=3)
    assert "".join(calls) == "abc" + "abc" + "cba" + "abc"  # the first round does not count
    assert {name: len(taken) for name, taken in times.items()} == dict.fromkeys(names, 3)
    assert all(seconds >= 0 for taken in times.values() for seconds in taken)


def test_rounds_end_with_the_budget_but_not_before_the_least():
    assert len(benchmark.interleave({"a": lambda: None}, repeats=50, budget=0, least=4)["a"]) == 4
    assert len(benchmark.interleave({"a": lambda: None}, repeats=2, budget=60, least=4)["a"]) == 2


def test_a_device_may_bring_a_clock_of_its_own():
    """A clock that says two seconds, whatever it ran, and did run it."""
    ran = []

    def clock(run):
        run()
        return 2.0

    times = benchmark.interleave({"a": lambda: ran.append("a")}, repeats=3, seconds=clock)
    assert times == {"a": [2.0, 2.0, 2.0]}
    assert ran == ["a"] * 4


def test_ratios_compare_within_a_round():
    """The machine was ten times slower in the second half; the ratio does not notice."""
    times = {"base": [1.0, 1.0, 10.0, 10.0], "other": [2.0, 2.0, 20.0, 20.0]}
    found = benchmark.ratios(times, "base")
    assert found["other"] == benchmark.Spread(2.0, 2.0, 2.0)
    assert found["base"] == benchmark.Spread(1.0, 1.0, 1.0)
    assert benchmark.spread([1, 2, 3, 4, 5]) == benchmark.Spread(3, 2, 4)
    assert benchmark.spread([7.0]) == benchmark.Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (np.full((2, 3), 1e-3), ["off by 0.001", "1e-05"]),
        (np.full((2, 3), np.nan), ["off by nan"]),
        (np.zeros((3, 2)), ["expected shape (2, 3)", "got (3, 2)"]),
    ],
)
def test_wrong_answers_are_named(wrong, parts):
    right = np.zeros((2, 3))
    assert benchmark.check_answers({"right": right + 1e-7}, right, 1e-5) == {"right": pytest.approx(1e-7)}
    with pytest.raises(benchmark.WrongAnswer, match=says("wrong one", "at N=3", *parts)):
        benchmark.check_answers({"right": right, "wrong one": wrong}, right, 1e-5, "at N=3")
