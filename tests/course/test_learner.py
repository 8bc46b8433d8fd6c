"""What a learner did to a notebook is told from the course."""

import copy
import json

import pytest

from mha_lesson.course import learner

STUB = 'def scores(q, k):\n    raise NotImplementedError\n\n\ncheck("03.scores", scores)'
ADOPTED = "03.scores: until yours is right, the course's own function is used.\nshape (3, 5)\n"


def code(id, source, count, text="", stub=None):
    output = {"output_type": "execute_result", "data": {"text/plain": text}, "metadata": {}, "execution_count": count}
    metadata = {"mha_lesson": {"stub": stub}} if stub else {}
    return {
        "cell_type": "code", "id": id, "source": source, "metadata": metadata,
        "execution_count": count, "outputs": [output],
    }  # fmt: skip


SHIPPED = {
    "cells": [
        {"cell_type": "markdown", "id": "03-0", "metadata": {}, "source": "# Scaling"},
        code("03-1", STUB, 1, "03.scores: not attempted", STUB),
        code("03-2", 'scores = adopt("03.scores", scores)', 2, ADOPTED),
        code("03-3", 'status("03")', 3, "0 of 13 exercises solved in lesson 03."),
    ],
    "metadata": {},
}


def changed(edit):
    notebook = copy.deepcopy(SHIPPED)
    edit(notebook["cells"])
    return notebook


def test_the_course_itself_is_not_changed():
    assert not learner.changes(SHIPPED, "03_scaling")
    lines = changed(lambda cells: cells[1].update(source=STUB.splitlines(keepends=True)))
    assert not learner.changes(lines, "03_scaling"), "a file may keep a text as a list of lines"
    assert not learner.changes(SHIPPED, "notes"), "a notebook that is no lesson has no rule for its ids"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda cells: cells[1].update(source="def scores(q, k):\n    return q @ k"), "03.scores"),
        (lambda cells: cells[1].update(source=STUB + '\nhint("03.scores")'), "03.scores"),
        (lambda cells: cells.append(code("1f3a", "x", 4)), "1 cell more"),
        (lambda cells: [cells.insert(0, {**cells[0], "id": f"1f3{n}"}) for n in range(2)], "2 cells more"),
        (lambda cells: cells[2].update(execution_count=7), "it was run by hand and saved"),
        (lambda cells: cells[2].update(execution_count=None, outputs=[]), "it was run by hand and saved"),
        (
            lambda cells: cells.__setitem__(3, code("03-3", 'status("03")', 3, "12 of 13 exercises solved")),
            "it was run by hand and saved",
        ),
    ],
)
def test_each_change_is_seen_and_named(edit, words):
    found = learner.changes(changed(edit), "03_scaling")
    assert found and found.words == words


def test_a_change_of_the_lessons_own_code_is_none_of_a_learner():
    """Such a cell is compared as ever."""
    assert not learner.changes(changed(lambda cells: cells[2].update(source="print(1)")), "03_scaling")


def test_the_course_is_put_back(tmp_path, monkeypatch):
    def edit(cells):
        cells[1].update(source="mine")
        cells.insert(0, code("1f3a", "x", 4))

    file = tmp_path / "03_scaling.ipynb"
    file.write_text(json.dumps(changed(edit)), encoding="utf-8")
    monkeypatch.delenv(learner.STRICT, raising=False)
    back = learner.given_out(file)
    assert [cell["source"] for cell in back["cells"]] == [cell["source"] for cell in SHIPPED["cells"]]
    assert back["cells"][1]["outputs"] == []
    monkeypatch.setenv(learner.STRICT, "1")
    assert learner.given_out(file) == changed(edit)


def test_what_adopt_says_is_taken_out():
    mine = "03.scores: from here on your own function is used.\nshape (3, 5)\n"
    assert learner.without_whose(mine) == learner.without_whose(ADOPTED) == "shape (3, 5)\n"
    assert learner.without_whose("03.scores: correct\n") == "03.scores: correct\n"


@pytest.mark.parametrize(
    ("source", "stub"), [(STUB, True), ("raise NotImplementedError", False), ("def f(): 1", False)]
)
def test_what_is_an_empty_exercise(source, stub):
    assert learner.new_stub(code("a", source, 1)) == (source if stub else None)


@pytest.mark.parametrize(("value", "strict"), [("", False), ("0", False), ("1", True)])
def test_strict_is_a_variable(monkeypatch, value, strict):
    monkeypatch.setenv(learner.STRICT, value)
    assert learner.strict() is strict


def test_how_to_get_the_original_back(tmp_path):
    file = tmp_path / "03_scaling.ipynb"
    assert "git checkout -- notebooks/03_scaling.ipynb" in learner.get_back(file, git=True)
    assert "git" not in learner.get_back(file, git=False)
    assert all(learner.get_back(file, git).startswith("save yours") for git in (True, False))
