"""The command line: words, help, what follows `--`."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mha_lesson import places
from mha_lesson.course import bootstrap, cli, lab, paths


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tset"], "Did you mean test?"),
        (["labs"], "Did you mean lab?"),
        (["xyzzy"], "Expected one of lab, test, doctor, refresh, benchmark"),
        (["test", "--frobnicate"], "Unrecognized arguments: --frobnicate"),
        (["benchmrk", "numpy"], "Did you mean benchmark?"),
        (["parallel", "rings"], "Argument demo: invalid choice: 'rings'"),
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
    assert all(re.search(rf"^    {word}\s", text, re.MULTILINE) for word in cli.WORDS)


def test_what_follows_two_dashes_is_passed_on(monkeypatch):
    passed = []
    monkeypatch.setattr(bootstrap, "ensure", lambda arguments, needs: passed.append(arguments))
    monkeypatch.setattr(lab, "run", lambda extra, browser, fresh, original: passed.append((extra, browser)) or 0)
    assert cli.main(["lab", "--no-browser", "--", "--port", "9000"]) == 0
    assert passed == [["lab", "--no-browser", "--", "--port", "9000"], (["--port", "9000"], False)]


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "doctor", interrupted)
    assert cli.main(["doctor"]) == 130
    assert "goes on from here" in capsys.readouterr().err


# --- the words whose options the program behind reads ----------------------------------------


@pytest.fixture
def program(monkeypatch):
    """Run a word of a program that only notes what it got; tell that, and what was asked of the environment."""

    def run(*arguments):
        noted = {}
        monkeypatch.setattr(bootstrap, "ensure", lambda line, needs="lab": noted.update(ensured=line, needs=needs))
        pretended = SimpleNamespace(main=lambda rest: noted.update(rest=rest) or 3)
        monkeypatch.setattr(cli.importlib, "import_module", lambda name: noted.update(module=name) or pretended)
        return cli.main(list(arguments)), noted

    return run


@pytest.mark.parametrize(("word", "needs"), [("benchmark", "lab"), ("train", "lab"), ("faults", "test")])
def test_a_program_gets_its_options_as_they_are_after_the_bootstrap(program, word, needs):
    code, noted = program(word, "layers", "--sizes", "128,512", "--", "x")
    assert code == 3
    assert noted["ensured"] == [word, "layers", "--sizes", "128,512", "--", "x"] and noted["needs"] == needs
    assert noted["rest"] == ["layers", "--sizes", "128,512", "--", "x"]


def test_the_help_of_a_program_installs_nothing(program):
    for flag in ("-h", "--help"):
        _, noted = program("benchmark", "numpy", flag)
        assert "ensured" not in noted and noted["rest"] == ["numpy", flag]


@pytest.mark.parametrize("word", ["test", "refresh", "faults"])
def test_an_installed_package_says_what_needs_a_clone(monkeypatch, capsys, tmp_path, word):
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    monkeypatch.setattr(bootstrap, "ensure", lambda *a: pytest.fail("went on"))
    assert cli.main([word]) == 1
    error = capsys.readouterr().err
    assert f"{word} needs a clone of the course" in error and "To mend:" in error and error.count("\n") == 1


def examples():
    """Every command that a help shows: (its arguments, what read them)."""
    from mha_lesson.benchmark.command import EXAMPLES as OF_BENCHMARK
    from mha_lesson.models.command import EXAMPLES as OF_TRAIN
    from tests.faults.run import EXAMPLES as OF_FAULTS

    lines = "\n".join([*map(cli.shown, ["", *cli.WORDS]), OF_BENCHMARK, OF_TRAIN, OF_FAULTS]).splitlines()
    commands = [line.split(f"{cli.COMMAND} ")[1] for line in lines if cli.COMMAND in line]
    return sorted({re.split(r"  +\(", command)[0].strip() for command in commands})


@pytest.mark.parametrize("command", examples())
def test_every_example_is_understood(command, monkeypatch):
    """As far as the first thing that would run: the options are read, and nothing is started."""
    from mha_lesson.benchmark import command as benchmark
    from mha_lesson.models import command as train
    from tests.faults import run as faults

    word, *rest = shlex.split(command)
    if word == "benchmark":
        benchmark.parser().parse_args([part for part in rest if part != "--help"])
    elif word == "train":
        parser = train.sweep_parser() if rest[:1] == ["sweep"] else train.train_parser()
        assert not rest or parser.parse_args(rest[1:] if rest[0] == "sweep" else rest).name
    elif word == "faults":
        assert faults.selected(faults.parse(rest))
    else:
        own, _ = cli.split([word, *rest])
        assert cli.parser().parse_args(own).word == word in cli.COMMANDS


def test_there_are_examples_of_every_word():
    assert {command.split()[0] for command in examples()} == set(cli.WORDS)


@pytest.mark.parametrize("arguments", [["benchmark", "numpy", "--help"], ["train", "--help"], ["faults", "--help"]])
def test_help_on_a_console_of_plain_letters(arguments):
    """Some letters of the help are not ASCII; a Python without site-packages (-S) is enough for it."""
    variables = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-S", str(paths.ROOT / "mha_lesson"), *arguments],
        capture_output=True,
        text=True,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    assert f"usage: {cli.COMMAND} {arguments[0]}" in done.stdout and "--" in done.stdout


@pytest.mark.skipif(shutil.which("head") is None, reason="there is no head here")
def test_a_reader_that_has_seen_enough_is_no_traceback():
    talk = "cli.COMMANDS['doctor'] = lambda *a: [print('x' * 99, flush=True) for _ in range(10000)]"
    code = f"import sys; from mha_lesson.course import cli; {talk}; sys.exit(cli.main(['doctor']))"
    command = shlex.join([sys.executable, "-c", code])
    variables = places.child_environment()
    done = subprocess.run(f"{command} | head -c 1", shell=True, capture_output=True, text=True, env=variables)
    assert (done.stdout, done.stderr) == ("x", "")
