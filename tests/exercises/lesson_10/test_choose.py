"""10.choose: names, right and wrong."""

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY, adopt, check

# ---------------------------------------------------------------------------- 10 choice


NAMES = ["baseline", "1 head", "8 heads"]


# ---------------------------------------------------------------------------- answers in many shapes


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda names, scores, costs: 3, "got a whole number; names[i] is the name of option i"),
        (lambda names, scores, costs: "9 heads", "got 9 heads"),
        (lambda names, scores, costs: {"name": names[0]}, "got a value of type dict"),
        (lambda names, scores, costs: names[3], "expected mean of the words, got 4 heads"),
    ],
)
def test_a_wrong_name_is_told_by_its_name(answer, said):
    result = check("10.choose", answer)
    assert result.status == "incorrect" and said in result.message


def test_an_adopted_choice_is_a_word():
    form = REGISTRY["10.choose"].forms["a loop"]
    assert adopt("10.choose", form)(NAMES, np.array([[1.0], [2], [3]]), np.array([1, 2, 3])) == "8 heads"
