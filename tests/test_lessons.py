"""The notebooks and the exercises fit together, and a learner who solves them gets through."""

import ast
import copy
import functools
import json
import re

import nbformat
import pytest

from mha_lesson.course import clean, learner, lint, paths, refresh
from mha_lesson.course import notebook as nb
from mha_lesson.exercises import REGISTRY

FILES = {file.stem: file for file in paths.notebook_files()}
CHECK = re.compile(r'^check\("([^"]+)", (\w+)\)$', re.MULTILINE)


@functools.cache
def stored(stem):
    """A lesson as the course gives it out: read when a test first asks for it, and never changed."""
    return nbformat.reads(json.dumps(learner.given_out(FILES[stem])), as_version=4)


def exercise_cells(notebook):
    """(cell, id, function name) of every cell with an empty function and its check."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and "raise NotImplementedError" in cell.source:
            id, name = CHECK.search(cell.source).groups()
            yield cell, id, name


def test_every_exercise_stands_in_its_notebook_once():
    found = [(id, stem[:2]) for stem in FILES for _, id, _ in exercise_cells(stored(stem))]
    assert sorted(id for id, _ in found) == sorted(REGISTRY)
    assert all(id.startswith(number) for id, number in found)


@pytest.mark.parametrize("stem", FILES)
def test_the_stub_has_the_signature_of_the_registry(stem):
    for cell, id, name in exercise_cells(stored(stem)):
        function = next(n for n in ast.parse(cell.source).body if isinstance(n, ast.FunctionDef))
        arguments = ", ".join(a.arg for a in function.args.args)
        assert f"{function.name}({arguments})" == REGISTRY[id].signature
        assert name == function.name
        assert f"**`{id}`**" in "".join(c.source for c in stored(stem).cells if c.cell_type == "markdown")


CALLS = 'def {name}(*arguments):\n    return _registry["{id}"].solution(*arguments)'
# A kernel is not called: its own code is run with other words, or compiled.
COPIES = """import types as _types
_s = _registry["{id}"].solution
{name} = _types.FunctionType(_s.__code__, _s.__globals__, "{name}")
{name}.__annotations__ = _s.__annotations__"""


def solved(notebook):
    """The notebook with every empty function replaced by the course's solution. Nothing is written."""
    notebook = copy.deepcopy(notebook)
    for cell, id, name in exercise_cells(notebook):
        answer = (COPIES if id == "13.kernel" else CALLS).format(id=id, name=name)
        cell.source = f'from mha_lesson.exercises import REGISTRY as _registry\n{answer}\ncheck("{id}", {name})'
    return notebook


def shown(cell):
    """What a cell shows, without pictures and without the line that says whose function is used."""
    texts = []
    for output in cell.outputs:
        text = nb.text(output.get("text", output.get("data", {}).get("text/plain", "")))
        texts += learner.without_whose(text).split("\n")
    return texts


def stays_the_same(cell):
    """Does a cell show the same, whoever solved what? (One that a learner cleared shows nothing now.)"""
    if cell.cell_type != "code" or cell.execution_count is None:
        return False
    return not (lint.leaves_output_out(cell) or learner.SAYS_WHO_SOLVED.search(cell.source))


@pytest.mark.slow
@pytest.mark.parametrize("stem", FILES)
def test_the_solved_notebook_runs_to_its_end_and_shows_the_same(stem):
    lesson = stored(stem)
    if nb.needs_torch(lesson):
        pytest.importorskip("torch")
    ran, problem = refresh.execute(solved(lesson))
    assert problem is None, problem
    ran = clean.cleaned(ran)  # what is printed in one go may arrive in pieces
    exercises = {id for _, id, _ in exercise_cells(lesson)}
    correct = set()
    for before, after in zip(lesson.cells, ran.cells, strict=True):
        if before.cell_type == "code":
            text = "\n".join(shown(after))
            correct |= {id for id in exercises if text.startswith(f"{id}: correct")}
        if stays_the_same(before):
            assert shown(after) == shown(before), before.source
    assert correct == exercises
