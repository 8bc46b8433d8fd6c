"""`refresh`: run again, store clean, never lose anything."""

import errno
import os
import warnings
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from mha_lesson.course import clean, refresh
from mha_lesson.course.errors import CourseError
from tests.course.helpers import lesson, printed

STUB = """\
from mha_lesson.exercises import check
def scores(q, k):
    raise NotImplementedError
check("03.scores", scores)"""
RANDOM_PICTURE = """\
import os
from IPython.display import display
data = {"image/png": os.urandom(30), "text/plain": "noise"}
display(data, raw=True, metadata={"image/png": {"alt": "noise"}})"""


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    """A notebook run for real, twice."""
    file = tmp_path_factory.mktemp("refresh") / "03_scaling.ipynb"
    source = (
        "import os, mha_lesson\nprint(os.environ['OMP_NUM_THREADS'])\nprint(hash('a'), flush=True)\nmha_lesson.__name__"
    )
    nbformat.write(lesson(source, RANDOM_PICTURE, STUB), file)
    first = refresh.refresh(file)
    stored = file.read_bytes()
    os.utime(file, (1, 1))
    return file, first, stored, refresh.refresh(file)


def test_refresh_stores_clean_outputs(refreshed):
    file, first, stored, _ = refreshed
    assert first == ("changed", "")
    nb = nbformat.read(file, as_version=4)
    assert [cell.execution_count for cell in nb.cells] == [1, 2, 3]
    assert [output.output_type for output in nb.cells[0].outputs] == ["stream", "execute_result"]
    assert nb.cells[0].outputs[0].text.startswith("1\n")
    assert nb.cells[0].outputs[1].data["text/plain"] == "'mha_lesson'"
    assert [cell.metadata for cell in nb.cells] == [{}, {}, {"mha_lesson": {"stub": STUB}}]
    assert [cell.id for cell in nb.cells] == ["03-c0", "03-c1", "03-c2"], "by its id a learner's cell is told apart"
    assert stored.endswith(b"}\n") and b"\r" not in stored


def test_refresh_writes_nothing_for_noise(refreshed):
    file, _, stored, second = refreshed
    assert second == ("unchanged", ""), "hash('a') and the picture's bytes differ unless they are fixed and kept"
    assert file.read_bytes() == stored
    assert file.stat().st_mtime == 1


def test_refresh_leaves_a_notebook_that_fails(tmp_path, capsys):
    file = tmp_path / "04_masking.ipynb"
    nb = lesson("x = 1", "x / 0")
    nb.cells.insert(0, v4.new_markdown_cell("## A part", id="c9"))
    nbformat.write(nb, file)
    before = file.read_bytes()
    assert refresh.refresh_and_say(file, check=False, pictures=False) == "failed"
    said = capsys.readouterr().out
    assert (
        'cell [2], under "A part" fails' in said and "| x / 0" in said and "ZeroDivisionError: division by zero" in said
    )
    assert file.read_bytes() == before


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """`refresh` of a stored notebook whose run gives these outputs, without a kernel."""

    def run(outputs, meanwhile=lambda file: None, **options):
        file = tmp_path / "05_softmax.ipynb"
        nb = lesson("print(1)", number="05")
        nb.cells[0].update(execution_count=1, outputs=[v4.new_output("stream", name="stdout", text="1\n")])
        nbformat.write(clean.cleaned(nb), file)
        before = file.read_bytes()

        def execute(client, **kwargs):
            client.nb.cells[0].update(execution_count=1, outputs=outputs)
            meanwhile(file)

        monkeypatch.setattr(refresh.NotebookClient, "execute", execute)
        state, detail = refresh.refresh(file, **options)
        return state, detail, file.read_bytes() != before

    return run


def test_refresh_tells_what_would_change(pretend):
    assert pretend([printed("1\n")], check=True) == ("unchanged", "", False)
    assert pretend([printed("2\n")], check=True) == ("would change", "", False)
    assert pretend([printed("2\n")]) == ("changed", "", True)


def test_refresh_reports_stderr(pretend):
    state, detail, written = pretend([printed("1\n"), printed("DeprecationWarning: old\n", "stderr")])
    assert (state, written) == ("failed", False)
    assert "cell [1] writes to stderr: DeprecationWarning: old" in detail


def test_refresh_never_overwrites_what_was_saved_meanwhile(pretend):
    state, detail, _ = pretend([printed("2\n")], meanwhile=lambda file: file.write_text("my work"))
    assert state == "failed" and "nothing was written" in detail


def test_refresh_finds_notebooks_by_name(folder, tmp_path, monkeypatch):
    for stem in ("00_start_here", "03_scaling", "10_applications"):
        nbformat.write(lesson("x"), folder / "notebooks" / f"{stem}.ipynb")
    stems = lambda *names: [file.stem for file in refresh.find(names)]  # noqa: E731
    assert stems() == ["00_start_here", "03_scaling", "10_applications"]
    assert stems("03") == stems("03_scaling") == stems("03_scaling.ipynb") == ["03_scaling"]
    assert stems(str(folder / "notebooks" / "10_applications.ipynb"), "10") == ["10_applications"]
    with pytest.raises(CourseError, match=r"got '3x'.*choose from: 00_start_here, 03_scaling"):
        stems("3x")


BROKEN = {
    "cut off": b'{"cells": [{"cell_type": "code", "sou',
    "format 5": b'{"nbformat": 5, "nbformat_minor": 0, "metadata": {}, "cells": []}',
    "no notebook": b"[1, 2]",
    "empty": b"",
    "not text": b"\xff\xfe\x00",
    "conflict": b"<<<<<<< HEAD\n{}\n=======\n",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_notebook_is_said_and_left(tmp_path, capsys, content):
    file = tmp_path / "03_scaling.ipynb"
    file.write_bytes(content)
    assert refresh.refresh_and_say(file, check=False, pictures=False) == "failed"
    said = capsys.readouterr().out
    assert "03_scaling.ipynb can't be read as a notebook of format 4" in said and "git checkout" in said
    assert file.read_bytes() == content


def test_a_broken_notebook_does_not_keep_the_others_from_being_refreshed(folder, monkeypatch, capsys):
    for stem in ("00_a", "02_c"):
        nbformat.write(lesson("x", number=stem[:2]), folder / "notebooks" / f"{stem}.ipynb")
    (folder / "notebooks" / "01_b.ipynb").write_text("{")
    monkeypatch.setattr(refresh, "execute", lambda notebook: (notebook, None))
    assert refresh.run([]) == 1
    out = capsys.readouterr().out
    assert "In all: 2 changed, 1 failed" in out and " 3 of 3  02_c" in out


@pytest.mark.parametrize("fails", ["write_bytes", "replace"])
def test_a_full_disk_is_said_and_leaves_nothing_behind(pretend, tmp_path, monkeypatch, fails):
    real = getattr(Path, fails)

    def full(self, *content):
        if not self.name.endswith(".part"):
            return real(self, *content)
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, fails, full)
    with pytest.raises(
        CourseError, match=r"05_softmax.ipynb could not be written \(No space left on device\).*make room"
    ):
        pretend([printed("2\n")])
    assert [file.name for file in tmp_path.iterdir()] == ["05_softmax.ipynb"]
    stored = nbformat.read(tmp_path / "05_softmax.ipynb", as_version=4)
    assert stored.cells[0].outputs[0].text == "1\n", "the stored one is as it was"


def test_no_room_to_run_in_is_said(folder, monkeypatch):
    nbformat.write(lesson("x"), folder / "notebooks" / "00_x.ipynb")

    def no_room(*a):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(refresh, "execute", no_room)
    with pytest.raises(CourseError, match=r"00_x could not be run \(.*No usable temporary directory"):
        refresh.run([])


def test_ctrl_c_says_what_is_left_and_what_is_stored(folder, monkeypatch, capsys):
    nbformat.write(lesson("x"), folder / "notebooks" / "00_x.ipynb")

    def interrupted(*a):
        raise KeyboardInterrupt

    monkeypatch.setattr(refresh, "execute", interrupted)
    assert refresh.run([]) == 130
    assert "00_x was left as it was" in capsys.readouterr().out


def test_the_warning_of_windows_about_its_loop_is_no_error(pretend, recwarn):
    """There pyzmq warns in every run, and the tests make warnings errors."""

    def warn(file):
        warnings.warn("Proactor event loop does not implement add_reader", RuntimeWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pretend([printed("2\n")], meanwhile=warn) == ("changed", "", True)


def test_a_learners_answer_is_never_taken_for_the_empty_function():
    nb = lesson(
        STUB, STUB.replace("raise", "print(1)\n    raise"), STUB.replace("03.scores", "03.variance"), number="03"
    )
    for cell, said in zip(nb.cells, ("not attempted", "incorrect", "not attempted"), strict=True):
        text = f"03.scores: {said}\nmore"
        cell.outputs = [v4.new_output("execute_result", {"text/plain": text})]
    nb.cells[1].metadata = {"mha_lesson": {"stub": STUB}}
    clean.mark_as_given_out(nb, "03_scaling")
    assert [cell.metadata["mha_lesson"]["stub"] for cell in nb.cells] == [STUB, STUB, nb.cells[2].source]


@pytest.mark.parametrize(
    ("states", "check", "code"),
    [
        (["changed", "unchanged"], False, 0),
        (["changed", "failed"], False, 1),
        (["unchanged", "unchanged"], True, 0),
        (["would change", "unchanged"], True, 1),
        (["would change", "failed"], True, 2),
    ],
)
def test_the_exit_code_of_refresh(folder, monkeypatch, states, check, code):
    for n in range(2):
        nbformat.write(lesson("x"), folder / "notebooks" / f"0{n}_x.ipynb")
    answers = iter(states)
    monkeypatch.setattr(refresh, "refresh_and_say", lambda *a: next(answers))
    assert refresh.run([], check=check) == code
