"""The list of faults is in order; `python3 -m mha_lesson faults` measures who notices them."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.faults import run
from tests.faults.faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted({fault.file for fault in FAULTS})


def files_of(folder, *without):
    names = {path.name for path in (ROOT / "mha_lesson" / folder).glob("*.py")} - {"__init__.py", *without}
    return {f"mha_lesson/{folder}/{name}" for name in names}


def test_there_are_enough_faults_with_names_of_their_own():
    assert len(FAULTS) >= 480
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


def test_every_file_that_computes_has_faults():
    wanted = files_of("steps", "typing.py") | files_of("pytorch")
    wanted |= files_of("pytorch/cores")
    wanted |= files_of("models", "command.py")  # this one computes nothing
    wanted |= files_of("pytorch/parallel", "command.py", "demos.py")  # these compare, and print
    wanted |= files_of("pytorch/triton_numpy") | {"mha_lesson/pytorch/triton_numpy/__init__.py"}
    assert set(FILES) == wanted | {"mha_lesson/attention.py", "mha_lesson/data.py"}


@pytest.mark.parametrize("file", FILES)
def test_each_fault_is_one_edit_that_compiles(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for fault in (fault for fault in FAULTS if fault.file == file):
        assert text.count(fault.old) == 1, fault.name
        faulty = text.replace(fault.old, fault.new)
        assert faulty != text, fault.name
        compile(faulty, fault.file, "exec")


@pytest.mark.parametrize("file", FILES)
def test_someone_is_asked_about_every_file(file):
    route = run.route(file)
    own = f"tests/{Path(file).relative_to('mha_lesson').parent}/test_{Path(file).stem.strip('_')}".replace("/./", "/")
    assert route.tests and route.tests[0].startswith(own), "a test file of its own name comes first"
    assert all((ROOT / name).exists() for name in route.tests)
    for number in route.notebooks:
        assert file in shown_in(number), f"lesson {number} uses nothing of {file}"


def test_every_row_is_needed():
    names = [file.removeprefix("mha_lesson/") for file in FILES]
    for table in (run.SHOWN_IN, run.USED_IN):
        assert all(any(name.startswith(start) for name in names) for start in table)


@cache
def shown_in(number):
    """The files of the package that a notebook uses: what it and its exercises import, and what those import."""
    (notebook,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    todo = {name for cell in cells if cell["cell_type"] == "code" for name in imported("".join(cell["source"]))}
    for file in (ROOT / f"mha_lesson/exercises/lesson_{number}").glob("*.py"):
        todo |= imported(file.read_text(encoding="utf-8"))
    found = set()
    while todo:
        name = todo.pop()
        for path in (ROOT / f"{name.replace('.', '/')}.py", ROOT / name.replace(".", "/") / "__init__.py"):
            file = path.relative_to(ROOT).as_posix()
            if path.exists() and file not in found and not file.startswith("mha_lesson/exercises/"):
                found.add(file)
                todo |= imported(path.read_text(encoding="utf-8"))
    return found


def imported(source):
    """Modules of the course that a source names: in imports, and as strings where they are loaded late."""
    names = set(re.findall(r"mha_lesson(?:\.\w+)+", source))
    for node in ast.walk(ast.parse(re.sub(r"^[%!].*", "", source, flags=re.M))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mha_lesson"):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    late = re.findall(
        r'^    "\w+": "([a-z_]+)\b[\w.]*"', source, flags=re.M
    )  # a table of what is loaded when asked for
    return names | {f"mha_lesson.{room}.{name}" for name in late for room in ("models", "pytorch")}


def test_only_notebooks_with_stored_outputs_are_asked_and_the_one_that_teaches_comes_first(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for name, outputs in (("04_masking", [1]), ("07_cross", []), ("09_heads", [1]), ("01_words", [1])):
        cells = [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": outputs}]
        (tmp_path / f"notebooks/{name}.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")

    def found(file):
        return [path.stem for path in run.notebooks(tmp_path, run.route(f"mha_lesson/{file}"))]

    assert found("steps/masks.py") == ["04_masking", "01_words"]
    assert found("steps/encoder_decoder.py") == []
    assert found("models/blocks.py") == ["09_heads"]
    assert (
        run.measure(tmp_path, "outputs", run.route("mha_lesson/steps/encoder_decoder.py"))[0].verdict == run.NO_NOTEBOOK
    )


def test_faults_may_be_chosen_by_file_and_by_name():
    def names(*arguments):
        return [fault.name for fault in run.selected(run.parse(arguments))]

    assert names() == [fault.name for fault in FAULTS]
    assert set(names("--files", "steps/heads", "scores")) == {
        fault.name for fault in FAULTS if fault.file.endswith(("steps/heads.py", "scores.py"))
    }
    assert names("--only", "no_scale") == names("--only", "no_scale", "--files", "steps/") == ["no_scale"]
    assert names("--only", "no_scale", "--files", "models/") == []


def test_what_no_notebook_shows_has_no_part_in_that_share(capsys):
    faults = FAULTS[:3]
    rows = [{"outputs": run.Outcome(verdict)} for verdict in ("noticed", "noticed", run.NO_NOTEBOOK)]
    assert run.summary(faults, rows, ["outputs"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 noticed, 100%" in said and "shown in no notebook: 1" in said
    rows[1] = {"outputs": run.Outcome("missed")}
    assert run.summary(faults, rows, ["outputs"]) == 1
    assert f"missed: {faults[1].name}" in capsys.readouterr().out
