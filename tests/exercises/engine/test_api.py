"""check, hint, solution, adopt, status: the words of a learner."""

import pytest

from mha_lesson.exercises import REGISTRY, adopt, check, hint, solution
from mha_lesson.exercises.engine import api
from tests.exercises.helpers import BAD, loops

# ---------------------------------------------------------------------------- answers in many shapes


def test_what_the_shown_helpers_call_is_shown_too():
    assert "def project(" in solution("09.ablate").text


# -- the registry ---------------------------------------------------------------------------


def test_the_learner_sees_the_package_function_as_solution():
    assert "math.sqrt(d_head)" in repr(solution("03.scores"))
    assert "def attention_scores" in solution("03.scores")._repr_markdown_()
    assert "def project(" in repr(solution("06.output")), "what the solution calls is shown too"
    assert "an array of floats with the axes *any, L and D. A name with *" in repr(solution("03.scores"))
    assert repr(solution("03.scores")).startswith("import math\nfrom ")
    assert "an array of floats with the axis S" in repr(solution("12.online"))
    assert repr(solution("11.bytes")).startswith("def "), "what needs nothing begins at once"


# -- bad answers, each with a message of its own --------------------------------------------


def test_id_and_function_in_the_wrong_order_are_said():
    result = check(loops, "03.scores")
    assert result.mistake == "swapped_arguments" and 'check("03.scores", loops)' in result.message


def test_an_unknown_id_is_answered_with_a_guess():
    result = check("03.score", lambda q, k: q)
    assert result.mistake == "unknown_id" and "03.scores" in result.message
    assert check(3, None).mistake == "unknown_id"
    assert "no exercise" in repr(hint("nonsense")) and "no exercise" in repr(solution("nonsense"))
    with pytest.raises(KeyError, match="no exercise"):
        adopt("nonsense", print)


# -- hints, adopt, status, progress ---------------------------------------------------------


def test_hints_go_one_deeper_at_each_call_and_end_with_the_solution(monkeypatch):
    monkeypatch.setattr(api, "_hints_given", {})
    texts = [hint("05.softmax").text for _ in range(5)]
    assert texts[0].startswith("05.softmax, hint 1 of 3") and texts[1].startswith("05.softmax, hint 2")
    assert texts[2] == texts[3] == texts[4] and 'solution("05.softmax")' in texts[2]


def test_adopt_gives_back_what_works_and_says_which(capsys):
    e = REGISTRY["03.scores"]
    mine = e.forms["einsum"]
    assert adopt("03.scores", mine).__wrapped__ is mine
    assert adopt("03.scores", adopt("03.scores", mine)).__wrapped__ is mine, "a second run changes nothing"
    assert adopt("03.scores", BAD["different"]) is e.solution
    assert adopt("03.scores", adopt("03.scores", BAD["different"])) is e.solution
    assert capsys.readouterr().out.count("until yours is right") == 3
    assert adopt("03.scores", mine)
    adopt("03.scores", BAD["different"])
    out = capsys.readouterr().out
    assert "your own function" in out and "the course's own function" in out
