"""The fixed surroundings of a run, and that the comparison bites."""

import os

import nbformat

from mha_lesson.course import environment, suite
from tests.course.helpers import lesson, printed


def test_fixed_surroundings_do_not_depend_on_the_user():
    theirs = {
        "MPLBACKEND": "tk",
        "MATPLOTLIBRC": "mine",
        "OMP_NUM_THREADS": "8",
        "MHA_LESSON_PROGRESS": "mine",
        "A": "b",
    }
    fixed = environment.fixed("empty", theirs)
    assert fixed["A"] == "b" and fixed["OMP_NUM_THREADS"] == "1" and fixed["IPYTHONDIR"] == "empty"
    assert not {"MPLBACKEND", "MATPLOTLIBRC"} & set(fixed)
    assert fixed["MHA_LESSON_PROGRESS"] == os.devnull


def test_strict_comparison_really_bites(tmp_path, monkeypatch, capfd):
    """One output is stored wrong: the notebooks' phase fails, and names the cell."""
    nb = lesson("print(1 + 1)", "print(2 + 2)")
    for cell, text in zip(nb.cells, ("2\n", "5\n"), strict=True):
        cell.update(execution_count=1, outputs=[printed(text)])
    file = tmp_path / "06_heads.ipynb"
    nbformat.write(nb, file)
    phase = suite.run_notebooks(["-p", "no:cacheprovider"], [str(file)])
    assert phase.failed
    out = capfd.readouterr().out
    assert "1 failed, 1 passed" in out and "06_heads" in out
