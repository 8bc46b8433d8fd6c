"""`test`: two phases, and what is named alone."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from mha_lesson.course import paths, suite


@pytest.fixture
def phases(folder, monkeypatch):
    """Run `suite.run` with pretended results of pytest; tell what it was asked."""
    (folder / "tests").mkdir()
    (folder / "tests" / "test_x.py").write_text("")
    v4nb = v4.new_notebook(cells=[v4.new_code_cell("x = 1")])
    for stem in ("00_start_here", "07_torch"):
        v4nb.cells[0].update(id=f"{stem[:2]}-1", execution_count=1)
        nbformat.write(v4nb, folder / "notebooks" / f"{stem}.ipynb")

    def run(extra, codes, **more):
        """codes: what pytest answers in each phase. Gives the exit code and {phase: (arguments, variables)}."""
        asked = {}

        def pretend(command, env, cwd=None, **other):
            if command[1] == "-c":  # Matplotlib's list of fonts
                return subprocess.CompletedProcess(command, 0)
            assert cwd == paths.ROOT and command[1:3] == ["-m", "pytest"]
            phase = "notebooks" if "mha_lesson.course.comparison" in command else "tests"
            assert phase not in asked
            asked[phase] = command[3:], env
            if isinstance(codes[phase], BaseException):
                raise codes[phase]
            return subprocess.CompletedProcess(command, codes[phase])

        monkeypatch.setattr(subprocess, "run", pretend)
        return suite.run(extra, **more), asked

    return run


BOTH = {"tests": 0, "notebooks": 0}


@pytest.mark.parametrize(
    ("tests", "notebooks", "code", "closing"),
    [
        (0, 0, 0, "PASSED: tests and notebooks"),
        (1, 0, 1, "FAILED: tests"),
        (0, 1, 1, "FAILED: notebooks"),
        (1, 1, 1, "FAILED: tests and notebooks"),
        (2, 0, 1, "FAILED: tests"),  # pytest was interrupted
        (0, 2, 1, "FAILED: notebooks"),
        (3, 0, 1, "FAILED: tests"),  # a fault of pytest's own
        (0, 3, 1, "FAILED: notebooks"),
        (4, 4, 1, "FAILED: tests and notebooks"),  # it did not understand the command
        (0, 4, 1, "FAILED: notebooks"),
        (5, 0, 0, "PASSED: notebooks"),
        (5, 5, 1, "NOTHING RAN"),
        (-11, 0, 1, "FAILED: tests"),  # it crashed
    ],
)
def test_both_phases_always_run_and_either_can_fail(phases, capsys, tests, notebooks, code, closing):
    result, asked = phases([], {"tests": tests, "notebooks": notebooks})
    assert set(asked) == {"tests", "notebooks"}
    assert result == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == closing
    assert ("git diff" in out) == (notebooks not in (0, 5))


@pytest.mark.parametrize(
    ("code", "result"),
    [(0, "passed"), (5, "nothing to run: no test fits"), *((code, "failed") for code in (1, 2, 3, 4, 6, 137, -9))],
)
def test_only_two_exit_codes_are_no_failure(code, result):
    assert suite.verdict(code) == result
    assert suite.Phase("tests", result).failed == (code not in (0, 5))


def test_the_notebooks_run_strictly_in_fixed_surroundings(phases):
    _, asked = phases(["-x"], BOTH)
    arguments, variables = asked["notebooks"]
    assert {"--nbval-current-env", "--nbval-cell-timeout=300", "-x"} <= set(arguments)
    assert [Path(a).name for a in arguments[-2:]] == ["00_start_here.ipynb", "07_torch.ipynb"]
    assert variables["OMP_NUM_THREADS"] == "1" and variables["PYTHONHASHSEED"] == "0"
    assert variables["MHA_LESSON_PROGRESS"] == os.devnull
    assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(paths.ROOT)
    assert "MPLBACKEND" not in variables


def test_neither_phase_writes_into_your_home(phases):
    _, asked = phases([], BOTH)
    for _, variables in asked.values():
        for name in ("MPLCONFIGDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
            assert not Path(variables[name]).is_relative_to(Path.home() / ".config")
            assert Path(variables[name]).parent == Path(variables["MPLCONFIGDIR"]).parent


def test_what_is_named_alone_is_run(phases):
    _, asked = phases(["-k", "soft", "notebooks/07_torch.ipynb"], {"notebooks": 0})
    assert asked["notebooks"][0][-1].endswith("07_torch.ipynb") and "soft" in asked["notebooks"][0]
    _, asked = phases(["tests/test_x.py::test_one"], {"tests": 0})
    assert asked["tests"][0][-1].endswith("test_x.py::test_one")


def test_several_files_run_at_once_and_one_does_not(phases, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    both = ["00_start_here.ipynb::cell-1", "07_torch.ipynb"]
    for extra, at_once in [([], True), (both, True), (both[:1], False), ([*both, "-n0"], False), (["tests"], True)]:
        _, asked = phases(extra, BOTH)
        for arguments, _ in asked.values():
            assert ("--dist=loadfile" in arguments) is at_once, extra
            assert not at_once or arguments[arguments.index("-n") + 1] == "3"


def test_quick_leaves_the_slow_tests_out_and_says_so(phases, capsys):
    _, asked = phases([], BOTH, quick=True)
    arguments = asked["tests"][0]
    assert arguments[arguments.index("-m") + 1] == "not slow" and "not slow" not in asked["notebooks"][0]
    assert "left out   the tests that are marked slow" in capsys.readouterr().out
    _, asked = phases([], BOTH)
    assert "not slow" not in asked["tests"][0] and "left out" not in capsys.readouterr().out


def test_slowest_asks_pytest(phases):
    _, asked = phases([], BOTH, slowest=True)
    assert all(any(a.startswith("--durations=") for a in arguments) for arguments, _ in asked.values())


def test_one_report_for_both_phases(phases, tmp_path, monkeypatch):
    """Neither phase writes one here, as when pytest crashes: both are in the report, as errors."""
    phases(["--junitxml", str(tmp_path / "out.xml")], {"tests": 1, "notebooks": -11})
    root = ET.parse(tmp_path / "out.xml").getroot()
    assert [suite.get("name") for suite in root] == ["tests", "notebooks"] and root.get("errors") == "2"


def test_the_phases_remember_their_failures_apart_and_where_they_can(phases, monkeypatch):
    def places():
        _, asked = phases([], BOTH)
        return [next(a for a in arguments if a.startswith("cache_dir="))[10:] for arguments, _ in asked.values()]

    assert places() == [str(paths.ROOT / ".pytest_cache"), str(paths.ROOT / ".pytest_cache" / "notebooks")]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert len(set(places())) == 2 and not any(str(paths.ROOT) in place for place in places())


def test_the_summary_says_what_was_tested(phases, capsys):
    phases([], BOTH)
    out = capsys.readouterr().out
    import numpy

    assert f"numpy {numpy.__version__}" in out and "nbval " in out and f"Python {sys.version.split()[0]} on" in out


def test_ctrl_c_says_that_it_starts_afresh(phases, capsys):
    code, _ = phases([], {"tests": 0, "notebooks": KeyboardInterrupt()})
    said = capsys.readouterr()
    assert code == 130 and "starts afresh" in said.err and "goes on" not in said.err
    assert "PASSED" not in said.out


def test_a_notebook_that_a_learner_changed_is_named(phases, monkeypatch, capsys):
    monkeypatch.delenv("MHA_LESSON_STRICT", raising=False)
    phases([], BOTH)
    assert "You changed" not in capsys.readouterr().out
    nb = v4.new_notebook(cells=[v4.new_code_cell("x = 1", id="1f3a")])
    nbformat.write(nb, paths.NOTEBOOKS / "00_start_here.ipynb")
    (paths.NOTEBOOKS / "07_torch.ipynb").write_text("[broken")
    code, _ = phases([], BOTH)
    out = capsys.readouterr().out
    assert code == 0 and "You changed 00_start_here.ipynb (1 cell more)" in out
    assert "save yours under another name" in out and out.count("You changed") == 1
    monkeypatch.setenv("MHA_LESSON_STRICT", "1")
    phases([], BOTH)
    assert "You changed" not in capsys.readouterr().out


def test_no_notebook_yet_is_no_failure(phases, capsys):
    for file in paths.notebook_files():
        file.unlink()
    result, asked = phases([], {"tests": 0})
    assert result == 0 and list(asked) == ["tests"]
    assert "notebooks  nothing to run" in capsys.readouterr().out


def test_without_torch_its_lessons_are_left_out_and_named(phases, monkeypatch, capsys):
    nb = v4.new_notebook(cells=[v4.new_code_cell("import numpy\nfrom mha_lesson.pytorch import MultiHeadAttention")])
    nbformat.write(nb, paths.NOTEBOOKS / "07_torch.ipynb")
    monkeypatch.setattr(suite.importlib.util, "find_spec", lambda name: None)
    _, asked = phases([], BOTH)
    assert [Path(a).name for a in asked["notebooks"][0] if a.endswith(".ipynb")] == ["00_start_here.ipynb"]
    assert "SKIPPED 07_torch.ipynb: it needs torch" in capsys.readouterr().out
