"""07.cost: counts as newcomers write them."""

import numpy as np
import pytest

from mha_lesson.exercises import adopt, check
from mha_lesson.steps.encoder_decoder import cross_cost


@pytest.mark.parametrize(
    "answer, name",
    [
        (lambda L, S, E: 2 * (L + S) * E**2, "projections_only"),
        (lambda L, S, E: 4 * S * E**2 + 2 * S * S * E, "encoder_self_attention"),
        (lambda L, S, E: 6 * L * E**2 + 2 * L * L * E + 2 * S * E**2 + 2 * L * S * E, "self_and_cross"),
        (lambda L, S, E: 2 * L * E ^ 2 + 2 * S * E ^ 2 + 2 * L * S * E, "caret_doubled"),
        (lambda L, S, E: 2 * E ^ 2 * (L + S) + 2 * L * S * E, "different"),
        (lambda L, S, E: [1, 2], "wrong_shape"),
    ],
)
def test_the_counts_of_a_newcomer_are_named(answer, name):
    result = check("07.cost", answer)
    assert result.mistake == name
    if name.startswith(("caret", "different")):
        assert "E**2" in result.message


def test_a_count_may_come_in_an_array():
    for wrap in (lambda n: np.array([n]), lambda n: [n], lambda n: np.array([[float(n)]])):
        answer = lambda L, S, E, wrap=wrap: wrap(cross_cost(L, S, E))  # noqa: E731
        assert check("07.cost", answer).status == "correct"
        assert adopt("07.cost", answer)(2, 3, 5) == 310
