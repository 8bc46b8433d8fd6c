"""The comparison of notebooks, with real kernels: what it notices, what it leaves out, what it says."""

import re

import nbformat
import pytest
from nbformat import v4

from mha_lesson.course import environment, learner, selection, suite
from tests.course.helpers import lesson, printed

STUB = 'def scores(q, k):\n    raise NotImplementedError\n\n\ncheck("03.scores", scores)'
FIRST = "import numpy as np\nfrom mha_lesson.exercises import adopt, check, hint, status"
ADOPT = 'scores = adopt("03.scores", scores)\nprint("shape", scores(np.ones((1, 2)), np.ones((1, 2))).shape)'
PICTURE = """\
from IPython.display import display
data = {"image/png": "iVBORw0KGgo=", "text/plain": "3x3, max 0.8"}
display(data, raw=True, metadata={"image/png": {"alt": "a map of 3 by 3"}})"""


@pytest.fixture
def compare(tmp_path, capfd, monkeypatch):
    """Store a notebook and compare it: compare(nb) -> (did it pass?, what was printed)."""
    monkeypatch.delenv(learner.STRICT, raising=False)
    monkeypatch.setattr(environment, "build_font_cache", lambda variables: None)  # no figure is drawn here

    def run(nb, *extra, target=""):
        file = tmp_path / "03_scaling.ipynb"
        nbformat.write(nb, file)
        chosen = selection.select([*extra, str(file) + target])
        phase = suite.run_notebooks(chosen, tmp_path / "private")
        return phase.result == "passed", capfd.readouterr().out

    return run


def stored(*cells, heading="# The scale"):
    """A notebook of (source, outputs), as if it had been run from start to end."""
    nb = lesson(*(source for source, *_ in cells), number="03")
    for count, (cell, (_, *outputs)) in enumerate(zip(nb.cells, cells, strict=True), start=1):
        cell.update(execution_count=count, outputs=outputs)
    nb.cells.insert(0, v4.new_markdown_cell(heading, id="03-top"))
    return nb


def picture(alt):
    data = {"image/png": "AAAA", "text/plain": "3x3, max 0.8"}
    return v4.new_output("display_data", data, metadata={"image/png": {"alt": alt}})


def test_what_is_wrong_is_named_as_git_does(compare, monkeypatch):
    monkeypatch.setenv(learner.STRICT, "1")  # else a cell that was never run may be a learner's
    nb = stored(
        ("x = 1",),
        ('print("one\\ntwo\\nthree")', printed("one\n2\nthree\n")),
        (PICTURE, picture("A photo of a cat.")),
        ("x + y", printed("2\n")),
        ("print(x)", printed("1\n")),
    )
    nb.cells.append(v4.new_code_cell("print(5)", id="03-never"))
    passed, said = compare(nb)
    assert not passed and "4 failed, 2 passed" in said and "\x1b" not in said
    failures = re.split(r"^_{5,} (.*) _{5,}$", said.partition("short test summary")[0], flags=re.MULTILINE)[1:]
    titles, texts = failures[::2], failures[1::2]
    assert titles == [f'03_scaling, cell [{n}], under "The scale"' for n in (2, 3, 4, 6)]
    assert "\n-2\n+two\n" in texts[0] and '    | print("one' in texts[0]
    assert "\n-A photo of a cat.\n+a map of 3 by 3\n" in texts[1]
    assert "NameError: name 'y' is not defined" in texts[2]
    assert "never run" in texts[3]
    assert "FAILED" in said and "03_scaling.ipynb::cell-3" in said


def test_one_cell_alone_has_what_the_cells_before_it_define(compare, tmp_path):
    nb = stored(("x = 1",), ("print(x)", printed("wrong\n")), ("print(x + 1)", printed("2\n")), ("y", printed("3\n")))
    passed, said = compare(nb, f"{tmp_path / '03_scaling.ipynb'}::cell-2", target="::cell-3")
    assert not passed and "1 failed, 1 passed" in said and "-wrong\n+1\n" in said


def test_the_last_failures_alone(compare, tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "cache", lambda *a: ["-o", f"cache_dir={tmp_path / 'cache'}"])
    nb = stored(("x = 1",), ("print(x)", printed("1\n")), ("print(x + 1)", printed("wrong\n")))
    assert "1 failed, 2 passed" in compare(nb)[1]
    nb.cells[-1].outputs[0].text = "2\n"
    passed, said = compare(nb, "--lf")
    assert passed and "1 passed" in said


@pytest.fixture
def solved():
    """A lesson with one exercise, as its learner saved it: begun, run out of order, with two cells of their own."""
    not_found = v4.new_output("error", ename="NameError", evalue="nonsense", traceback=[])
    nb = stored(
        (FIRST,),
        ("def scores(q, k) return half an answer", not_found),
        (ADOPT, printed("03.scores: from here on your own function is used.\nshape (1, 1)\n")),
        ('status("03")', printed("3 of 3 exercises solved")),
        ("print(6 * 7)", printed("42\n")),
    )
    nb.cells[2].metadata = {"mha_lesson": {"stub": STUB}}
    nb.cells[3].execution_count = 31
    nb.cells.insert(3, v4.new_code_cell("undefined_name", id="1f3a9c2e", execution_count=9, outputs=[printed("x")]))
    nb.cells.append(v4.new_code_cell("", id="1f3a9c2f"))
    return nb


def test_a_learners_work_is_left_out_and_a_fault_beside_it_is_found(compare, solved):
    """Of six cells (the empty one at the end is none) those two fail whose stored text is made wrong here."""
    solved.cells[4].outputs[0].text = solved.cells[4].outputs[0].text.replace("(1, 1)", "(1, 2)")
    solved.cells[-2].outputs[0].text = "43\n"
    passed, said = compare(solved)
    assert not passed and "2 failed, 4 passed" in said
    assert "-shape (1, 2)\n+shape (1, 1)\n" in said and "-43\n+42\n" in said


def test_nothing_is_left_out_where_the_course_itself_is_checked(compare, solved, monkeypatch):
    monkeypatch.setenv(learner.STRICT, "1")
    passed, said = compare(solved)
    assert not passed and "SyntaxError" in said and "undefined_name" in said


def test_broken_notebooks_are_said_without_a_traceback_and_the_others_compared(tmp_path, capfd):
    broken = ['{"cells": [', '{"nbformat": 5, "nbformat_minor": 0, "cells": [], "metadata": {}}', "[]", "\x00"]
    for number, text in enumerate(broken):
        (tmp_path / f"1{number}_broken.ipynb").write_text(text)
    nbformat.write(stored(("print(1)", printed("1\n"))), tmp_path / "03_scaling.ipynb")
    chosen = selection.select(["-n0", *map(str, sorted(tmp_path.glob("*.ipynb")))])
    phase = suite.run_notebooks(chosen, tmp_path / "private")
    said = capfd.readouterr().out
    assert phase.failed and "1 passed, 4 errors" in said
    assert all(f"1{number}_broken.ipynb can't be read as a notebook" in said for number in range(4))
    assert "Traceback" not in said and "plugin.py" not in said
