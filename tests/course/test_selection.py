"""What follows `test --` is understood as pytest does."""

from pathlib import Path

import pytest

from mha_lesson.course import paths, selection
from mha_lesson.course.errors import CourseError


@pytest.fixture
def course(folder):
    for name in ("tests/test_x.py", "notebooks/03_scaling.ipynb", "data/words.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    return folder


def test_a_value_is_no_file_even_if_there_is_one(course):
    for arguments in (["-k", "data"], ["--junit-prefix", "tests"], ["--maxfail", "data", "-x"]):
        assert selection.select(arguments) == (arguments, [], [], None)


def test_files_folders_and_ids_are_told_apart(course):
    chosen = selection.select(["-x", "tests/test_x.py::test_one", "03_scaling.ipynb::cell-6", "notebooks", "data"])
    assert chosen.options == ["-x"]
    assert chosen.tests == [f"{paths.ROOT / 'tests/test_x.py'}::test_one", str(paths.ROOT / "data")]
    assert chosen.lessons == [f"{paths.NOTEBOOKS / '03_scaling.ipynb'}::cell-6", str(paths.NOTEBOOKS)]
    assert chosen.only_some and not selection.select(["-x"]).only_some


@pytest.mark.parametrize("arguments", [["--junitxml", "out.xml"], ["--junit-xml=out.xml"]])
def test_a_report_is_ours_to_write(course, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert selection.select(arguments) == ([], [], [], tmp_path / "out.xml")


def test_a_missing_value_is_said():
    for option in ("-k", "--junitxml"):
        with pytest.raises(CourseError, match=f"Expected a value after {option}, got nothing"):
            selection.select(["-x", option])


def test_what_failed_last_does_not_make_the_other_phase_run_everything():
    assert selection.select(["--lf"]).options == ["--lf", "--last-failed-no-failures=none"]
    assert selection.select(["-k", "--lf"]).options[:2] == ["-k", "--lf"]


def test_options_in_one_piece_are_found():
    chosen = selection.select(["-n4", "--maxfail=1"])
    assert chosen.has("-n") and chosen.has("--maxfail") and not chosen.has("--pdb")


def test_the_options_with_a_value_are_those_of_pytest():
    """Asked of pytest's own parser, with the plugins that are here."""
    from _pytest.config import Config

    parser = Config.fromdictargs({}, [])._parser.optparser
    actions = [action for action in parser._actions if action.option_strings]
    takes = {name for action in actions if action.nargs is None for name in action.option_strings}
    takes_none = {name for action in actions if action.nargs == 0 for name in action.option_strings}
    assert {"-k", "--junitxml", "--numprocesses"} <= takes and "-x" in takes_none
    assert takes - set(selection.WITH_VALUE) - set(selection.JUNIT) == set()
    assert takes_none & set(selection.WITH_VALUE) == set()


def test_the_file_of_an_id():
    assert selection.file_of("a.ipynb::cell-6") == "a.ipynb" and Path(selection.file_of("tests")).name == "tests"
