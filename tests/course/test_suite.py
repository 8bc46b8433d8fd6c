"""`test`: two phases, and what is named alone."""

import os
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
        nbformat.write(v4nb, folder / "notebooks" / f"{stem}.ipynb")

    def run(extra, codes):
        asked = []

        class Done:
            def __init__(self, code):
                self.returncode = code

        def pretend(command, cwd, env):
            assert cwd == paths.ROOT and command[1:3] == ["-m", "pytest"]
            asked.append((command[3:], env))
            return Done(codes["notebooks" if "--nbval" in command else "tests"])

        monkeypatch.setattr(suite.subprocess, "run", pretend)
        return suite.run(extra), asked

    return run


@pytest.mark.parametrize(
    ("tests", "notebooks", "code", "closing"),
    [
        (0, 0, 0, "PASSED: tests and notebooks"),
        (1, 0, 1, "FAILED: tests"),
        (0, 1, 1, "FAILED: notebooks"),
        (1, 1, 1, "FAILED: tests and notebooks"),
        (2, 0, 1, "FAILED: tests"),  # pytest was interrupted
        (5, 0, 0, "PASSED: notebooks"),
        (5, 5, 1, "NOTHING RAN"),
        (-11, 0, 1, "FAILED: tests"),  # it crashed
    ],
)
def test_both_phases_always_run_and_either_can_fail(phases, capsys, tests, notebooks, code, closing):
    result, asked = phases([], {"tests": tests, "notebooks": notebooks})
    assert len(asked) == 2
    assert result == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == closing
    assert ("git diff" in out) == (notebooks == 1)


def test_the_notebooks_run_strictly_in_fixed_surroundings(phases):
    _, asked = phases(["-x"], {"tests": 0, "notebooks": 0})
    arguments, variables = asked[1]
    assert {"--nbval", "--nbval-current-env", "--nbval-cell-timeout=300", "-x"} <= set(arguments)
    assert [Path(a).name for a in arguments[-2:]] == ["00_start_here.ipynb", "07_torch.ipynb"]
    assert variables["OMP_NUM_THREADS"] == "1" and variables["PYTHONHASHSEED"] == "0"
    assert variables["MHA_LESSON_PROGRESS"] == os.devnull
    assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(paths.ROOT)
    assert "MPLBACKEND" not in variables


def test_what_is_named_alone_is_run(phases):
    _, asked = phases(["-k", "soft", "notebooks/07_torch.ipynb"], {"tests": 1, "notebooks": 0})
    assert len(asked) == 1 and asked[0][0][-1].endswith("07_torch.ipynb") and "soft" in asked[0][0]
    _, asked = phases(["tests/test_x.py::test_one"], {"tests": 0, "notebooks": 1})
    assert len(asked) == 1 and asked[0][0][-1].endswith("test_x.py::test_one")


def test_no_notebook_yet_is_no_failure(phases, capsys):
    for file in paths.notebook_files():
        file.unlink()
    result, asked = phases([], {"tests": 0})
    assert (result, len(asked)) == (0, 1)
    assert "notebooks  nothing to run" in capsys.readouterr().out


def test_without_torch_its_lessons_are_left_out_and_named(phases, monkeypatch, capsys):
    nb = v4.new_notebook(cells=[v4.new_code_cell("import numpy\nfrom mha_lesson.pytorch import MultiHeadAttention")])
    nbformat.write(nb, paths.NOTEBOOKS / "07_torch.ipynb")
    monkeypatch.setattr(suite.importlib.util, "find_spec", lambda name: None)
    _, asked = phases([], {"tests": 0, "notebooks": 0})
    assert [Path(a).name for a in asked[1][0] if a.endswith(".ipynb")] == ["00_start_here.ipynb"]
    assert "SKIPPED 07_torch.ipynb: it needs torch" in capsys.readouterr().out
