"""The list of faults is in order; `python3 -m mha_lesson faults` measures who notices them."""

import json
import re
from pathlib import Path

import pytest

from tests.mutation import run
from tests.mutation.faults import FAULTS

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted({fault.file for fault in FAULTS})


def files_of(folder, *without):
    names = {path.name for path in (ROOT / "mha_lesson" / folder).glob("*.py")} - {"__init__.py", *without}
    return {f"mha_lesson/{folder}/{name}" for name in names}


def test_there_are_enough_faults_with_names_of_their_own():
    assert len(FAULTS) >= 125
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


def test_every_file_that_computes_has_faults():
    wanted = files_of("steps", "typing.py") | files_of("pytorch")
    wanted |= files_of("pytorch/cores")
    wanted |= files_of("models", "command.py")  # this one computes nothing
    wanted |= files_of("pytorch/parallel", "command.py", "demos.py")  # these compare, and print
    wanted |= files_of("pytorch/triton_numpy") | {"mha_lesson/pytorch/triton_numpy/__init__.py"}
    assert set(FILES) == wanted | {"mha_lesson/attention.py", "mha_lesson/data.py"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_one_edit_that_compiles(fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1
    faulty = text.replace(fault.old, fault.new)
    assert faulty != text
    compile(faulty, fault.file, "exec")


@pytest.mark.parametrize("file", FILES)
def test_someone_is_asked_about_every_file(file):
    route = run.route(file)
    assert route.tests and all((ROOT / f"tests/test_{name}.py").exists() for name in route.tests)
    assert route.notebooks and all(re.fullmatch(r"\d\d", number) for number in route.notebooks)
    assert len(set(route.notebooks)) == len(route.notebooks)


def test_every_route_is_taken():
    assert {run.route(file) for file in FILES} == set(run.ROUTES)


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
