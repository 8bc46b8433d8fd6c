"""The command line: words, help, what follows `--`."""

import pytest

from mha_lesson.course import bootstrap, cli, lab


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tset"], "Did you mean test?"),
        (["labs"], "Did you mean lab?"),
        (["xyzzy"], "Expected one of lab, test, doctor, refresh"),
        (["test", "--frobnicate"], "Unrecognized arguments: --frobnicate"),
        (["refresh", "--", "-x"], "Nothing can follow -- with refresh"),
    ],
)
def test_words_that_do_not_exist_are_answered(arguments, said, capsys):
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "To mend:" in error and "Traceback" not in error


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_names_every_word(arguments, capsys):
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    text = capsys.readouterr().out
    assert all(f"    {word} " in text for word in cli.WORDS)


def test_what_follows_two_dashes_is_passed_on(monkeypatch):
    passed = []
    monkeypatch.setattr(bootstrap, "ensure", lambda arguments: passed.append(arguments))
    monkeypatch.setattr(lab, "run", lambda extra, browser: passed.append((extra, browser)) or 0)
    assert cli.main(["lab", "--no-browser", "--", "--port", "9000"]) == 0
    assert passed == [["lab", "--no-browser", "--", "--port", "9000"], (["--port", "9000"], False)]


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "doctor", interrupted)
    assert cli.main(["doctor"]) == 130
    assert "goes on from here" in capsys.readouterr().err
