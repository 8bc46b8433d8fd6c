"""Portable printing."""

import numpy as np
import pytest

from mha_lesson.show.numbers import number, say, say_error, table


@pytest.mark.parametrize(
    "value, text",
    [
        (0.5, "0.5000"),
        (-0.00000001, "0.0000"),
        (np.float32(0.25), "0.2500"),
        (3, "3"),
        (np.True_, "True"),
        (float("nan"), "nan"),
        (-np.inf, "-inf"),
    ],
)
def test_number(value, text):
    assert number(value) == text


def test_a_difference_in_the_last_digits_does_not_show():
    assert number(0.1 + 0.2) == number(0.3)


def test_table_with_names():
    text = table(np.array([[0.5, -1], [10, 0]]), rows=["she", "left"], columns=["a", "b"])
    assert text == "           a       b\nshe    0.500  -1.000\nleft  10.000   0.000"


def test_boolean_table():
    assert table(np.tril(np.ones((2, 2), bool))) == "1  ·\n1  1"


def test_wrong_names_are_named():
    with pytest.raises(ValueError, match="columns: expected 2 names, got 1"):
        table(np.zeros((1, 2)), columns=["a"])
    with pytest.raises(ValueError, match="rows: expected 1 names, got 2"):
        table(np.zeros((1, 2)), rows=["a", "b"])
    with pytest.raises(ValueError, match="Choose one"):
        table(np.zeros((1, 2, 2)))


def test_say_prints_each_rank(capsys):
    say("loss", 0.12345)
    say("row", [1.0, -0.00001])
    say("m", np.eye(2), decimals=1)
    say("t", np.ones((1, 2, 1, 1)), decimals=1)
    say("name", "she")
    assert capsys.readouterr().out == (
        "loss: 0.1235\nrow: [1.0000 0.0000]\nm, shape (2, 2):\n1.0  0.0\n0.0  1.0\n"
        "t, shape (1, 2, 1, 1):\n[0, 0]\n1.0\n[0, 1]\n1.0\nname: she\n"
    )


def test_a_long_error_is_broken_between_words(capsys):
    say_error(ValueError("word " * 40))
    lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert lines[0].startswith("ValueError: word") and all(len(line) <= 92 for line in lines)
    assert " ".join(lines).split() == ["ValueError:", *["word"] * 40]
