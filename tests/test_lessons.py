"""The notebooks and the exercises fit together, and a learner who solves them gets through."""

import ast
import copy
import re

import nbformat
import pytest

from mha_lesson.course import clean, lint, paths, refresh
from mha_lesson.exercises import REGISTRY

NOTEBOOKS = {file.stem: nbformat.read(file, as_version=4) for file in paths.notebook_files()}
CHECK = re.compile(r'^check\("([^"]+)", (\w+)\)$', re.MULTILINE)
SAYS_WHO_SOLVED = ("check(", "status(", "scoreboard(works)")  # their outputs are meant to differ


def exercise_cells(notebook):
    """(cell, id, function name) of every cell with an empty function and its check."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and "raise NotImplementedError" in cell.source:
            id, name = CHECK.search(cell.source).groups()
            yield cell, id, name


def test_every_exercise_stands_in_its_notebook_once():
    found = [(id, stem[:2]) for stem, nb in NOTEBOOKS.items() for _, id, _ in exercise_cells(nb)]
    assert sorted(id for id, _ in found) == sorted(REGISTRY)
    assert all(id.startswith(number) for id, number in found)


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_the_stub_has_the_signature_of_the_registry(stem):
    for cell, id, name in exercise_cells(NOTEBOOKS[stem]):
        function = next(n for n in ast.parse(cell.source).body if isinstance(n, ast.FunctionDef))
        arguments = ", ".join(a.arg for a in function.args.args)
        assert f"{function.name}({arguments})" == REGISTRY[id].signature
        assert name == function.name
        assert f"**`{id}`**" in "".join(c.source for c in NOTEBOOKS[stem].cells if c.cell_type == "markdown")


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
        data = output.get("data", {})
        text = output.get("text", data.get("text/plain", ""))
        texts += [line for line in text.split("\n") if not re.match(r"\d\d\.\w+: (until|from here)", line)]
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_the_solved_notebook_runs_to_its_end_and_shows_the_same(stem):
    stored = NOTEBOOKS[stem]
    if any("import torch" in c.source and "except ImportError" not in c.source for c in stored.cells):
        pytest.importorskip("torch")
    ran, problem = refresh.execute(solved(stored))
    assert problem is None, problem
    ran = clean.cleaned(ran)  # what is printed in one go may arrive in pieces
    exercises = {id for _, id, _ in exercise_cells(stored)}
    correct = set()
    for before, after in zip(stored.cells, ran.cells, strict=True):
        if before.cell_type != "code":
            continue
        text = "\n".join(shown(after))
        correct |= {id for id in exercises if text.startswith(f"{id}: correct")}
        if not lint.leaves_output_out(before) and not any(word in before.source for word in SAYS_WHO_SOLVED):
            assert shown(after) == shown(before), before.source
    assert correct == exercises
