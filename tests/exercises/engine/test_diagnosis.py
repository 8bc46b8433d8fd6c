"""The checker's own failure is never laid at the learner's door."""

import re
from pathlib import Path

import pytest

from mha_lesson.exercises import REGISTRY, adopt, check, status
from mha_lesson.exercises.engine import Protocol, api, compare, record
from tests.exercises.engine.helpers import exercise


@pytest.fixture
def entered(monkeypatch, tmp_path):
    """Puts an exercise among the others; what happens is recorded."""
    monkeypatch.setattr(api, "_sitting", {})
    monkeypatch.setenv("MHA_LESSON_PROGRESS", str(tmp_path / "record.json"))
    return lambda e: monkeypatch.setitem(REGISTRY, e.id, e)


def broken(*given):
    raise ZeroDivisionError("a slip of the checker")


def fails_in_the_solution():
    return exercise(broken, (1,))


def fails_in_the_probes():
    e = exercise(lambda x: x, (1,))
    object.__setattr__(e, "probes", broken)
    return e


def fails_in_the_call():
    """What comes before the learner's function, such as an import that does not work."""
    return exercise(lambda x: x, (1,), protocol=Protocol(call=broken))


def fails_in_the_comparison():
    return exercise(lambda x: x, (1,), protocol=Protocol(differ=broken))


def fails_in_the_copy():
    return exercise(lambda x: 1, ((i for i in ()),))


FAILURES = [fails_in_the_solution, fails_in_the_probes, fails_in_the_call, fails_in_the_comparison, fails_in_the_copy]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f.__name__)
def test_a_failure_of_the_checker_is_no_verdict(failure, entered):
    entered(failure())
    result = check("99.f", lambda x: x)
    assert (result.status, result.mistake) == ("not judged", None)
    assert result.message.startswith("The checker itself failed; your answer was not judged")
    assert "99.f: " in result.message and "Error" in result.message and "Python 3." in result.message
    assert "99.f" not in record.load() and "99.f" not in api._sitting, "no attempt"
    assert "   99.f" in status("99").text
    assert "⚠️ **99.f: not judged**" in result._repr_markdown_()


def test_what_to_report_names_the_place_and_no_folder_of_this_machine(entered, monkeypatch):
    monkeypatch.setattr(compare, "_close", broken)
    entered(exercise(lambda x: x, (1.0,)))
    report = check("99.f", lambda x: x).message.split("\n")[-1]
    assert report.startswith("`99.f: ZeroDivisionError: a slip of the checker (mha_lesson")
    assert re.search(r"\(mha_lesson[/\\]exercises[/\\]engine[/\\]compare\.py, line \d+\)", report)
    assert str(Path.cwd()) not in report


def test_adopt_says_so_and_the_lesson_goes_on(entered, monkeypatch, capsys):
    e = exercise(lambda x: x, (1,), protocol=Protocol(differ=broken))
    entered(e)
    assert adopt("99.f", lambda x: x) is e.solution
    said = capsys.readouterr().out
    assert "the checker itself failed" in said and "until yours is right" not in said


def test_what_failed_once_is_tried_again(entered):
    works = []

    def solution(x):
        if not works:
            raise ImportError("not yet")
        return x

    entered(exercise(solution, (1,)))
    assert check("99.f", lambda x: x).status == "not judged"
    works.append(True)
    assert check("99.f", lambda x: x).status == "correct"


def test_the_stop_button_while_the_course_computes_leaves_no_verdict_behind(entered):
    pressed = [True]

    def solution(x):
        if pressed:
            pressed.pop()
            raise KeyboardInterrupt
        return x

    entered(exercise(solution, (1,)))
    with pytest.raises(KeyboardInterrupt):
        check("99.f", lambda x: x)
    assert check("99.f", lambda x: x).status == "correct"


def test_without_a_name_the_first_difference_and_what_is_right_are_said():
    e = exercise(lambda x: x, (1.0,), (2.0,), (3.0,))
    assert e.diagnose(lambda x: min(x, 2.0)).message.startswith(
        "2 of 3 probes are right. Probe 3 (probe 2): expected 3.0"
    )
    assert e.diagnose(lambda x: float("nan")).mistake == "nan"
