"""The list of faults is in order; `python3 -m mha_lesson faults` measures who notices them."""

import ast
import json
import re
import textwrap
from functools import cache
from pathlib import Path

import pytest

from mha_lesson.course.errors import CourseError
from mha_lesson.exercises import REGISTRY
from tests.faults import run
from tests.faults.faults import FAULTS, Fault, KnownMistake

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
        faulty = fault.put_into(text)
        assert program(faulty) != program(text), fault.name
        compile(faulty, fault.file, "exec")


def program(text):
    """What Python sees of a text: no comments, no spaces."""
    return ast.dump(ast.parse(text))


@pytest.mark.parametrize("times", [0, 2])
def test_an_edit_that_does_not_fit_once_is_named(times):
    fault = Fault("sign", "mha_lesson/steps/heads.py", "a + b", "a - b")
    with pytest.raises(CourseError, match=rf"^sign: .* once in mha_lesson/steps/heads.py, and occurs {times} times: "):
        fault.put_into("c = a + b\n" * times)


# -- faults that are known mistakes ---------------------------------------------------------

KNOWN = [fault for fault in FAULTS if isinstance(fault, KnownMistake)]
WRITTEN = [fault for fault in FAULTS if isinstance(fault, Fault)]


@pytest.mark.parametrize("fault", KNOWN, ids=lambda fault: fault.name)
def test_a_known_mistake_is_what_its_exercise_runs(fault):
    exercise = REGISTRY[fault.exercise]
    if exercise.missing:
        pytest.skip("PyTorch is not installed")
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    before, after = ast.parse(text).body, ast.parse(fault.put_into(text)).body
    (pair,) = [pair for pair in zip(before, after, strict=True) if ast.dump(pair[0]) != ast.dump(pair[1])]
    assert {node.name for node in pair} == {exercise.solution.__name__}
    assert ast.get_docstring(pair[0]) == ast.get_docstring(pair[1])
    del pair[1].body[0]  # the docstring: an exercise runs its mistakes without
    assert program(ast.unparse(pair[1])) == program(exercise.source.replace(fault.old, fault.new))


def test_words_of_the_solution_that_stand_elsewhere_too_stay_there():
    text = """\
def mean_scores(query, key, d_head):
    \"\"\"Scores / math.sqrt(d_head), and their mean.\"\"\"
    return (query @ key.swapaxes(-1, -2) / math.sqrt(d_head)).mean()


@kept
def attention_scores(query, key, d_head):{docstring}
    return query @ key.swapaxes(-1, -2) / math.sqrt(d_head)


mean = attention_scores(1, 2) / math.sqrt(d_head)
"""
    one, more = '\n    """Dots / math.sqrt(d_head)."""', '\n    """Dots.\n\n    / math.sqrt(d_head)\n    """'
    for docstring in ("", one, more):
        right = text.format(docstring=docstring)
        wrong = right.replace("-2) / math.sqrt(d_head)\n", "-2)\n")
        assert KnownMistake("03.scores", "no_scale").put_into(right) == wrong != right


def test_an_edit_of_an_exercise_that_no_longer_fits_is_named():
    with pytest.raises(CourseError, match=r"^03.scores.no_scale: .* in mha_lesson/steps/scores.py, and occurs 0 times"):
        KnownMistake("03.scores", "no_scale").put_into("def attention_scores(query, key):\n    return query @ key\n")


@pytest.mark.parametrize("file", sorted({fault.file for fault in KNOWN}))
def test_no_fault_says_again_what_an_exercise_knows(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    edits = [KnownMistake(id, m.name) for id, e in REGISTRY.items() for m in e.mistakes if m.old]
    known = {program(edit.put_into(text)): edit.name for edit in edits if edit.file == file}
    written = {fault.name: program(fault.put_into(text)) for fault in WRITTEN if fault.file == file}
    assert {name: known[faulty] for name, faulty in written.items() if faulty in known} == {}


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
    one = "03.scores.no_scale"
    assert names("--only", one) == names("--only", one, "--files", "steps/") == [one]
    assert names("--only", one, "--files", "models/") == []


def test_what_no_notebook_shows_has_no_part_in_that_share(capsys):
    faults = FAULTS[:3]
    rows = [{"outputs": run.Outcome(verdict)} for verdict in ("noticed", "noticed", run.NO_NOTEBOOK)]
    assert run.summary(faults, rows, ["outputs"]) == 0
    said = capsys.readouterr().out
    assert "2 of 2 noticed, 100%" in said and "shown in no notebook: 1" in said
    rows[1] = {"outputs": run.Outcome("missed")}
    assert run.summary(faults, rows, ["outputs"]) == 1
    assert f"missed: {faults[1].name}" in capsys.readouterr().out


# -- what is quoted says so -----------------------------------------------------------------


def quoted_by():
    """The files of the package whose lines somebody quotes: (file, who does), from the registry and the list."""
    found = {file: {"tests/faults/faults.py"} for file in FILES if any(fault.file == file for fault in WRITTEN)}
    for id, exercise in REGISTRY.items():
        file = KnownMistake(id, "").file
        if any(mistake.old for mistake in exercise.mistakes) and not file.startswith("mha_lesson/exercises/"):
            found.setdefault(file, set()).add(f"exercises/lesson_{id.replace('.', '/')}.py")
    return {file: sorted(names) for file, names in found.items()}


def comment(names):
    who = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    together = "both" if len(names) == 1 else "them"
    text = f"Quoted word for word by {who}: change {together} together."
    return textwrap.fill(text, 120, initial_indent="# ", subsequent_indent="# ")


@pytest.mark.parametrize("file", sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("mha_lesson/**/*.py")))
def test_a_file_whose_lines_are_quoted_says_so_above_its_imports_and_no_other_does(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    names = quoted_by().get(file, [])
    if not names:
        assert "# Quoted word for word" not in text
        return
    assert all((ROOT / ("" if name.startswith("tests") else "mha_lesson") / name).exists() for name in names)
    behind = "\n".join(text.split("\n")[ast.parse(text).body[0].end_lineno :])
    assert behind.startswith(f"\n{comment(names)}\n\n"), f"below the docstring of {file} belongs:\n{comment(names)}"
    assert text.count("# Quoted word for word") == 1
