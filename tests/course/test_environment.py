"""The fixed surroundings of a run, and that the comparison bites."""

import os
import sys
from pathlib import Path

import nbformat

from mha_lesson.course import clean, environment, selection, suite
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
    assert fixed["A"] == "b" and fixed["OMP_NUM_THREADS"] == "1" and Path(fixed["IPYTHONDIR"]).parent == Path("empty")
    assert not {"MPLBACKEND", "MATPLOTLIBRC"} & set(fixed)
    assert fixed["MHA_LESSON_PROGRESS"] == os.devnull


def test_strict_comparison_really_bites(tmp_path, monkeypatch, capfd):
    """One output is stored wrong: the notebooks' phase fails, and names the cell."""
    nb = lesson("print(1 + 1)", "print(2 + 2)", number="06")
    for cell, text in zip(nb.cells, ("2\n", "5\n"), strict=True):
        cell.update(outputs=[printed(text)])
    clean.number_counts(nb)
    file = tmp_path / "06_heads.ipynb"
    nbformat.write(nb, file)
    phase = suite.run_notebooks(selection.select([str(file)]), tmp_path)
    assert phase.failed
    out = capfd.readouterr().out
    assert "1 failed, 1 passed" in out and "06_heads" in out


def test_nothing_of_your_home_takes_part():
    private = environment.private("p", {"MATPLOTLIBRC": "mine", "MPLCONFIGDIR": "mine", "OMP_NUM_THREADS": "8"})
    assert private == {
        "OMP_NUM_THREADS": "8",
        "MPLCONFIGDIR": str(Path("p") / "matplotlib"),
        "IPYTHONDIR": str(Path("p") / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(Path("p") / "runtime"),
    }


def test_fonts_are_looked_for_before_a_lesson_needs_them(tmp_path):
    environment.build_font_cache(environment.private(tmp_path))
    assert list((tmp_path / "matplotlib").glob("fontlist*.json")), sys.executable
