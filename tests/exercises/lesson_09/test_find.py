"""09.find: an answer is a place."""

import pytest

from mha_lesson.exercises import check


@pytest.mark.parametrize("answer, got", [("L1H2", "a str"), ({"layer": 1}, "a dict")])
def test_a_place_is_two_numbers(answer, got):
    said = check("09.find", lambda weights, query, key: answer).message
    assert f"expected two numbers, (layer, head), got {got}" in said
