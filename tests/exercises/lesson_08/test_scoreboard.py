"""The scoreboard: which wrong layers a test finds, and what it says of bad tests."""

import sys

import numpy as np
import pytest

from mha_lesson.exercises import check, scoreboard
from mha_lesson.exercises.engine import sandbox

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import layer_checks  # noqa: E402
from tests.exercises.lesson_08.helpers import each_head, no_eval, without  # noqa: E402

pytestmark = pytest.mark.torch


# -- the scoreboard --------------------------------------------------------------------------


def stub(layer):
    raise NotImplementedError


def test_the_scoreboard_of_the_right_test():
    board = scoreboard(layer_checks.works)
    lines = repr(board).split("\n")
    assert lines[0] == "10 of 10 wrong layers found; all 6 right ones accepted."
    assert lines[1] == "found     a layer that does not divide the scores by sqrt(D)"
    assert lines[-1] == "accepted  a right layer that calls what nn.MultiheadAttention calls"
    assert len(lines) == 17, "no hints where nothing is wrong"
    assert repr(scoreboard(layer_checks.works)) == repr(board)


def test_the_scoreboard_says_what_survived_and_where_to_look():
    board = scoreboard(each_head)
    assert repr(board).startswith("1 of 10 wrong layers found; all 6 right ones accepted.\nsurvived  a layer that does")
    assert "found     a layer whose weights are averaged over the heads\n" in repr(board)
    assert "Pass three different things as query, key and value." in repr(board)
    assert max(map(len, repr(board).split("\n"))) <= 92
    markdown = board._repr_markdown_().split("\n")
    assert markdown[0] == "**1 of 10 wrong layers found; all 6 right ones accepted.**"
    assert "| ✅\u00a0found | a layer whose weights are averaged over the heads |  |" in markdown
    assert len([line for line in markdown if line.startswith("| 🔎\u00a0survived |")]) == 9


def test_the_scoreboard_says_which_right_layer_is_rejected():
    text = repr(scoreboard(no_eval))
    assert text.startswith("10 of 10 wrong layers found; 5 of 6 right ones accepted.")
    assert "rejected  a right layer with dropout, in training mode" in text
    assert "call layer.eval() first" in scoreboard(no_eval).markdown


def test_the_scoreboard_survives_every_test():
    text = repr(scoreboard(lambda layer: layer.no_such_thing))
    assert text.startswith("0 of 10 wrong layers found; 0 of 6 right ones accepted.\ntest crashed: AttributeError")
    assert "it raises `AttributeError:" in text
    assert "test crashed: SystemExit" in repr(scoreboard(lambda layer: sys.exit()))
    assert "no True or False but None  a" in repr(scoreboard(lambda layer: None))
    assert "no True or False but Tensor of shape (3, 5" in repr(
        scoreboard(lambda layer: layer_checks.inputs(layer)[0] > 0)
    )
    assert "no True or False but tuple" in repr(scoreboard(lambda layer: (True, True)))
    assert "no True or False but dict" in repr(scoreboard(lambda layer: {}))
    assert "no True or False but str" in repr(scoreboard(lambda layer: "True"))
    assert repr(scoreboard(lambda layer: np.False_)).startswith("10 of 10")
    assert repr(scoreboard(lambda layer, more: True)).count("test crashed: TypeError") == 16
    assert repr(scoreboard(17)) == "This is a int, not a function. Pass the function itself: scoreboard(works)."


def test_a_test_that_asserts_counts_as_a_crash_and_is_told_how_to_answer():
    def asserts(layer):
        assert layer_checks.works(layer)
        return True

    text = repr(scoreboard(asserts))
    assert text.startswith("0 of 10 wrong layers found; all 6 right ones accepted.")
    assert "Where a test is asked for, it returns False; it does not raise." in text


def test_an_endless_test_is_stopped(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)

    def endless(layer):
        while layer.fault == "no_scale":
            pass
        return True

    text = repr(scoreboard(endless))
    assert "endless" in text and text.count("not reached") == 9


def test_before_anything_is_written_the_scoreboard_is_a_fixed_line():
    line = "Write works(layer) in the cell above; then this table shows which of the wrong layers it finds."
    assert scoreboard(stub).markdown == line and repr(scoreboard(stub)).replace("\n", " ") == line
    assert check("08.works", stub).status == "not attempted"


# -- what a newcomer was told, and should have been -------------------------------------------


def test_the_count_of_right_probes_is_that_of_the_scoreboard():
    for test in (without("formula_holds", "future_is_hidden", "empty_rows_are_zero"), no_causal_at_all):
        board = repr(scoreboard(test))
        n = board.count("\nfound ") + board.count("\naccepted ")
        text = check("08.works", test).message
        assert text.startswith(f"{n} of 16 probes are right. Probe ") and "first one only: scoreboard(works)" in text


def no_causal_at_all(layer):
    return layer.fault in ("", "no_scale", "causal_upper_left")
