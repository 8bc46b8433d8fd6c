"""The stored notebooks keep the rules of course/lint.py, and each rule really bites."""

import copy
import json
import re

import pytest

from mha_lesson.course import learner, lint, notebook, paths
from mha_lesson.exercises import REGISTRY

FILES = paths.notebook_files()
README = paths.ROOT / "README.md"


# --- the notebooks -------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_stored_notebook_keeps_every_rule(file):
    problems = lint.lint_file(file, known_ids=lint.registered_ids())
    assert not problems, "\n" + "\n".join(map(str, problems))


def test_the_allow_list_names_only_notebooks_that_exist():
    assert set(lint.ALLOWED_IGNORES) <= {file.stem for file in FILES}


def test_the_readme_says_how_many_cells_are_not_compared():
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert f"except {words[sum(lint.ALLOWED_IGNORES.values())]} cells" in README.read_text(encoding="utf-8")


def test_the_exercises_are_those_of_the_notebooks_in_the_order_of_their_cells():
    stored = [name for file in FILES for _, name in lint.exercise_ids(learner.given_out(file))]
    assert list(REGISTRY) == list(dict.fromkeys(stored)), "status() lists them in the order of REGISTRY"


# --- the README's table ------------------------------------------------------------------

ROW = re.compile(r"^\|\s*\[[^\]]+\]\(notebooks/([^)#]+)\.ipynb\)\s*\|.*\|\s*(\d+)\s*(?:min(?:utes)?)?\s*\|\s*$", re.M)


def minutes_in_table(text):
    """{"00_start_here": 20, ...} from rows like | [00 Start here](notebooks/00_start_here.ipynb) | ... | 20 |"""
    return {stem: int(minutes) for stem, minutes in ROW.findall(text)}


def test_the_table_is_read_as_meant():
    table = """
| Lesson | You can | Minutes |
|---|---|---|
| [00 Start here](notebooks/00_start_here.ipynb) | run a cell | 20 |
| [03 Scaling](notebooks/03_scaling.ipynb) | derive 1/sqrt(d) | and | 35 min |
"""
    assert minutes_in_table(table) == {"00_start_here": 20, "03_scaling": 35}


def test_the_readme_gives_each_lesson_with_its_minutes():
    stored = {file.stem: notebook.read(file)["metadata"].get("mha_lesson", {}).get("minutes") for file in FILES}
    assert minutes_in_table(README.read_text(encoding="utf-8")) == stored


# --- each rule bites ---------------------------------------------------------------------

PNG = {"image/png": "iVBORw0KGgo=", "text/plain": "a line from 0 to 1"}


def markdown(source, **more):
    return {"cell_type": "markdown", "metadata": {}, "source": source, **more}


def code(source, count, *outputs, **metadata):
    return {
        "cell_type": "code",
        "metadata": metadata,
        "source": source,
        "execution_count": count,
        "outputs": list(outputs),
    }


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def picture(data=PNG, alt="a rising line"):
    return {"output_type": "display_data", "data": dict(data), "metadata": {"image/png": {"alt": alt}}}


DONE = stream("done")
STUB = 'def scores(q, k):\n    raise NotImplementedError\n\n\ncheck("03.scores", scores)'
# Each way to have a cell's output not compared, or the cell not run: all that nbval reads, and Jupyter's own.
IGNORED_BY_TAG = [
    "nbval-ignore-output",
    "pytest-validate-ignore-output",
    "nbval-skip",
    "nbval-raises-exception",
    "raises-exception",
    "skip-execution",
    "NBVAL-Skip",
]
IGNORED_BY_COMMENT = [
    "# NBVAL_IGNORE_OUTPUT",
    "#PYTEST_VALIDATE_IGNORE_OUTPUT",
    "##  NBVAL_SKIP",
    "    # NBVAL_RAISES_EXCEPTION",
]


def good(*more):
    """A notebook that keeps every rule, with cells to try added at its end."""
    cells = [
        markdown(
            "# A lesson\n\nTakes about **20 minutes**. See [the notes](notes/more%20notes.md#part) and [b](#top)."
        ),
        code("x = 1\nprint(x)  # https://example.org explains it", 1, stream("1\n")),
        code('plot(x, title="#1")', 2, picture()),
        code('check("03.scores", f)', 3, stream("03.scores: correct\n")),
        *more,
    ]
    for number, cell in enumerate(cells):
        cell.setdefault("id", f"cell-{number}")
    metadata = {"mha_lesson": {"minutes": 20}, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def rules_broken(tmp_path):
    """The names of the rules that a notebook breaks."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "more notes.md").write_text("text", encoding="utf-8")

    def broken(nb):
        problems = lint.lint(nb, "lesson", folder=tmp_path, root=tmp_path, known_ids={"03.scores"})
        return {problem.rule for problem in problems}

    return broken


def changed(edit):
    nb = good()
    edit(nb)
    return nb


def set_minutes(value):
    return lambda nb: nb["metadata"].update(mha_lesson={"minutes": value})


BAD = {
    "counts": [
        changed(lambda nb: nb["cells"][2].update(execution_count=7)),
        changed(lambda nb: nb["cells"][1].update(execution_count=2)),
    ],
    "unrun": [good(code("y = 2", None)), good(code("  \n", None))],
    "errors": [
        good(code("1 / 0", 4, {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "", "traceback": []})),
        good(code("warn()", 4, stream("careful", name="stderr"))),
    ],
    "width": [good(code("x = " + "1 + " * 26 + "1", 4, DONE))],
    "length": [good(code("\n\n".join(f"x{i} = {i}" for i in range(16)), 4, DONE))],
    "alt-text": [
        good(markdown("![](notes/more%20notes.md)")),
        good(markdown("<img src='notes/more notes.md'>")),
        good(markdown("<img src='notes/more notes.md' alt=''>")),
        good(code("plot()", 4, picture(alt=" "))),
        good(code("plot()", 4, {**picture(), "metadata": {}})),
        good(code("plot()", 4, picture({"image/png": "iVBORw0KGgo="}))),
    ],
    "minutes": [
        changed(lambda nb: nb["metadata"].pop("mha_lesson")),
        changed(set_minutes("20")),
        changed(set_minutes(True)),
        changed(set_minutes(25)),
        changed(lambda nb: nb["cells"][0].update(source="# A lesson")),
    ],
    "ids": [
        changed(lambda nb: nb["cells"][1].pop("id")),
        changed(lambda nb: nb["cells"][1].update(id=nb["cells"][0]["id"])),
    ],
    "links": [
        good(markdown("[gone](gone.md)")),
        good(markdown("![a picture](gone.png)")),
        good(markdown('<a href="gone.html">gone</a>')),
        good(markdown("[out](../../outside.md)")),
        good(markdown("![a picture](attachment:gone.png)")),
        good(markdown("see [a]\n\n[a]: gone.md")),
    ],
    "network": [
        good(code("import requests", 4, DONE)),
        good(code("from urllib.request import urlopen", 4, DONE)),
        good(code("!pip install torch", 4, DONE)),
        good(code("%pip install torch", 4, DONE)),
        good(code("!wget file", 4, DONE)),
        good(code('read("https://example.org/data")', 4, DONE)),
        good(code('AutoModel.from_pretrained("x")', 4, DONE)),
        good(code("MNIST(root, download=True)", 4, DONE)),
    ],
    "machine-paths": [
        good(code("f()", 4, stream("see /home/maya/x.py"))),
        good(code("f()", 4, stream("see /root/x.py"))),
        good(code("f()", 4, stream(["first\n", "/tmp/ipykernel_12/3.py:4"]))),
        good(code("f()", 4, stream("C:\\Users\\maya\\x.py"))),
        good(code("f()", 4, {**picture({"text/html": "<b>/Users/maya/x</b>", "text/plain": "b"}), "metadata": {}})),
    ],
    "addresses": [good(code("f", 4, stream("<function f at 0x7f3a5c0d1e20>")))],
    "figure-repr": [good(code("plot()", 4, picture({**PNG, "text/plain": "<Figure size 640x480 with 1 Axes>"})))],
    "widgets": [changed(lambda nb: nb["metadata"].update(widgets={"application/vnd.jupyter.widget-state+json": {}}))],
    "ignored": [
        *(good(code("time()", 4, stream("1 s"), tags=[tag])) for tag in IGNORED_BY_TAG),
        *(good(code(f"{comment}\ntime()", 4, stream("1 s"))) for comment in IGNORED_BY_COMMENT),
    ],
    "exercises": [good(code('check("03.typo", f)', 4, DONE)), good(code("f = adopt('03.typo', f)", 4, DONE))],
    "silent": [
        good(code("time()", 4)),
        good(code("f = 1\nassert f", 4), code("print(f)", 5, DONE)),
        good(code("for f in range(3): pass", 4), code("print(f)", 5, DONE)),
        good(code("def f():\n    return g", 4), code("g()", 5, DONE)),  # it shows something, but not of f
        good(code("f = 1", 4), code("f = 2\nprint(3)", 5, DONE)),
        good(code("import f.g", 4), code("print(g)", 5, DONE)),
    ],
    "stubs": [
        good(code(STUB, 4, DONE)),
        good(code(STUB.replace("raise NotImplementedError", "return q"), 4, DONE, mha_lesson={"stub": STUB})),
        good(code(STUB + "\n# changed", 4, DONE, mha_lesson={"stub": STUB})),
    ],
}


def test_a_good_notebook_breaks_no_rule(rules_broken):
    assert rules_broken(good()) == set()


def test_every_rule_is_tried():
    assert set(BAD) == set(lint.RULES)


@pytest.mark.parametrize(
    ("rule", "nb"),
    [(rule, nb) for rule, bad in BAD.items() for nb in bad],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_rule_fires_and_no_other_does(rule, nb, rules_broken):
    assert rules_broken(nb) == {rule}


# --- what the rules must let pass ---------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [
        markdown("`[x](y)` is Python, and so is\n\n```python\nd[k](gone)\n![](gone.png)\n```\n"),
        markdown("[outside](https://example.org/x.md), [mail](mailto:a@example.org)"),
        markdown("![a cat](attachment:cat.png)", attachments={"cat.png": {"image/png": ""}}),
        markdown("[![a badge](notes/more%20notes.md)](notes/more%20notes.md)"),
        code("\n\n".join(f"x{i} = {i}" for i in range(15)), 4, DONE),
        code("n = 4  # wget - and requests.get are named in a comment only", 4, DONE),
        code("f()", 4, stream("a ratio of 3/tmp, 0x1f, and / home /")),
        code("check(name, f)", 4, DONE),
        code(STUB, 4, DONE, mha_lesson={"stub": STUB}),
    ],
)
def test_a_rule_lets_pass(cell, rules_broken):
    assert rules_broken(good(copy.deepcopy(cell))) == set()


def test_ignores_are_counted_exactly(rules_broken, monkeypatch):
    one = good(code("time()", 4, DONE, tags=["nbval-ignore-output"]))
    monkeypatch.setitem(lint.ALLOWED_IGNORES, "lesson", 1)
    assert rules_broken(one) == set()
    assert rules_broken(good()) == {"ignored"}, "an allowance that is not used any more has to go"


def test_a_problem_names_notebook_cell_and_rule():
    problem = next(p for p in lint.lint(good(code("import requests", 4, DONE)), "03_scaling") if p.rule == "network")
    assert str(problem).startswith('03_scaling, cell [4], under "A lesson" [network]: ')


def test_exercises_are_not_checked_without_a_registry():
    nb = good(code('check("99.nothing", f)', 4))
    assert "exercises" not in {problem.rule for problem in lint.lint(nb, known_ids=None)}


def test_lint_knows_every_way_to_be_ignored_that_nbval_reads():
    from nbval.plugin import comment_markers, metadata_tags

    for tag in set(metadata_tags) - {"nbval-check-output"}:  # that one asks for the comparison
        assert lint.leaves_output_out(code("time()", 4, tags=[tag])), tag
    for comment in set(comment_markers) - {"NBVAL_CHECK_OUTPUT"}:
        assert lint.leaves_output_out(code(f"# {comment}\ntime()", 4)), comment
    assert not lint.leaves_output_out(code("# NBVAL_CHECK_OUTPUT\ntime()", 4, tags=["nbval-check-output"]))


def test_ids_start_with_the_number_of_the_lesson():
    nb = good()
    problems = [p for p in lint.lint(nb, "03_scaling") if p.rule == "ids"]
    assert len(problems) == len(nb["cells"]) and "start with '03-'" in problems[0].message
    for cell in nb["cells"]:
        cell["id"] = f"03-{cell['id']}"
    assert "ids" not in {p.rule for p in lint.lint(nb, "03_scaling")}


def test_a_definition_counts_where_a_later_cell_uses_it(rules_broken):
    define, show = "import numpy as np\nf: int = 1\n\n\nclass G:\n    pass", code("print({name})", 5, DONE)
    for name in ("np", "f", "G"):
        later = {**show, "source": f"print({name})"}
        assert rules_broken(good(code(define, 4), later)) == set(), name


@pytest.fixture
def learners_file(tmp_path):
    """A lesson as a learner left it: one exercise solved, one cell added, some cells run twice."""
    nb = good(code(STUB, 4, DONE, mha_lesson={"stub": STUB}))
    for cell in nb["cells"]:
        cell["id"] = f"03-{cell['id']}"
    nb["cells"][-1].update(source="import requests\ncheck('x', y)", execution_count=17)
    nb["cells"].append({**code("1 / 0", 3, stream("no", name="stderr")), "id": "1f3a9c2e"})
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "more notes.md").write_text("text", encoding="utf-8")

    def write(edit=lambda nb: None):
        edit(nb)
        (tmp_path / "03_scaling.ipynb").write_text(json.dumps(nb), encoding="utf-8")
        problems = lint.lint_file(tmp_path / "03_scaling.ipynb", root=tmp_path, known_ids={"03.scores"})
        return {problem.rule for problem in problems}

    return write


def test_what_a_learner_did_is_no_fault_of_the_course(learners_file, monkeypatch):
    monkeypatch.delenv(learner.STRICT, raising=False)
    assert learners_file() == set()
    monkeypatch.setenv(learner.STRICT, "1")
    assert learners_file() == {"counts", "errors", "ids", "network", "stubs", "exercises"}


def test_a_fault_beside_a_learners_work_is_found(learners_file, monkeypatch):
    monkeypatch.delenv(learner.STRICT, raising=False)
    assert learners_file(lambda nb: nb["cells"].insert(1, {**markdown("[x](gone.md)"), "id": "03-x"})) == {"links"}
