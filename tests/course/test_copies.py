"""The learner's copies: made, kept, brought up to date, and never lost."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from mha_lesson import places
from mha_lesson.course import copies, paths
from mha_lesson.course.errors import CourseError
from tests.course.helpers import lesson, printed


@pytest.fixture
def place(folder):
    """Two lessons with outputs, and the folder for the copies, not made yet."""
    store("00_start_here.ipynb", "x = 1", "print(x)")
    store("03_scaling.ipynb", "y = 2")
    return folder / "my_lessons"


def store(name, *sources):
    """A lesson as it is stored: run, with outputs."""
    document = lesson(*sources)
    for count, cell in enumerate(document.cells, start=1):
        cell.execution_count, cell.outputs = count, [printed("seen")]
    document.cells.insert(0, v4.new_markdown_cell("# Predict [first](03_scaling.ipynb) – √d", id="m"))
    nbformat.write(document, paths.NOTEBOOKS / name)


def words(place, fresh=()):
    return {state.lesson.stem[:2]: state.word for state in copies.prepare(place, fresh)}


def edit(file, change=None):
    """What an editor does: run, change, save."""
    document = nbformat.read(file, as_version=4)
    document.cells[1].outputs = [printed("mine")]
    document.cells[1].execution_count = 7
    if change:
        document.cells[1].source = change
    nbformat.write(document, file)


def test_a_copy_is_the_lesson_without_what_it_shows(place):
    assert words(place) == {"00": "made", "03": "made"}
    original = nbformat.read(paths.START, as_version=4)
    copy = nbformat.read(place / "00_start_here.ipynb", as_version=4)
    nbformat.validate(copy)
    assert [cell.source for cell in copy.cells] == [cell.source for cell in original.cells]
    assert [cell.id for cell in copy.cells] == [cell.id for cell in original.cells]
    code = [cell for cell in copy.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * 2
    assert copy.metadata.mha_lesson.minutes == 20, "the course's own metadata stays"
    assert "√d" in (place / "00_start_here.ipynb").read_text(encoding="utf-8")


def test_what_is_stored_stays_as_it_is(place):
    before = {file: file.read_bytes() for file in paths.notebook_files()}
    copies.prepare(place, ["03"])
    copies.prepare(place, ["03"])
    assert {file: file.read_bytes() for file in paths.notebook_files()} == before


def test_a_second_start_changes_no_byte(place):
    copies.prepare(place)
    edit(place / "03_scaling.ipynb", "y = 'mine'")
    edit(place / "00_start_here.ipynb")
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    assert words(place) == {"00": "same", "03": "same"}
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before


def test_a_newer_lesson_is_offered_to_who_changed_something(place):
    copies.prepare(place)
    edit(place / "03_scaling.ipynb", "y = 'mine'")
    before = (place / "03_scaling.ipynb").read_bytes()
    store("03_scaling.ipynb", "y = 3")
    states = copies.prepare(place)
    assert {state.lesson.stem: state.word for state in states}["03_scaling"] == "behind"
    assert (place / "03_scaling.ipynb").read_bytes() == before
    (line,) = copies.news(states, place)
    assert "newer version of: 03." in line and "lab --fresh 03" in line


def test_a_copy_that_was_only_run_takes_the_newer_lesson(place):
    copies.prepare(place)
    edit(place / "03_scaling.ipynb")  # run, and nothing else
    document = nbformat.read(place / "03_scaling.ipynb", as_version=4)
    document.cells.append(v4.new_code_cell("", id="z"))  # Shift-Enter in the last cell
    nbformat.write(document, place / "03_scaling.ipynb")
    store("03_scaling.ipynb", "y = 3")
    assert words(place)["03"] == "updated"
    assert "y = 3" in (place / "03_scaling.ipynb").read_text(encoding="utf-8")
    assert words(place)["03"] == "same"


def test_new_outputs_alone_are_no_newer_lesson(place):
    copies.prepare(place)
    document = nbformat.read(paths.START, as_version=4)
    document.cells[1].outputs = [printed("another")]
    nbformat.write(document, paths.START)
    assert words(place)["00"] == "same"


def test_starting_again_keeps_every_old_copy(place):
    copies.prepare(place)
    kept = []
    for number in range(3):
        edit(place / "03_scaling.ipynb", f"y = 'work {number}'")
        assert words(place, ["03_scaling.ipynb"])["03"] == "fresh"
        kept.append(f"work {number}")
    beside = sorted(file for file in place.glob("03_scaling-kept-*.ipynb"))
    assert len(beside) == 3
    assert all(any(work in file.read_text(encoding="utf-8") for file in beside) for work in kept)
    assert "work" not in (place / "03_scaling.ipynb").read_text(encoding="utf-8")


def test_a_copy_that_was_deleted_is_made_again(place):
    copies.prepare(place)
    (place / "03_scaling.ipynb").unlink()
    assert words(place) == {"00": "same", "03": "made"}
    assert words(place, ["03"])["03"] == "fresh"


def test_a_lesson_that_was_renamed_leaves_the_old_copy(place):
    copies.prepare(place)
    edit(place / "03_scaling.ipynb", "mine")
    (paths.NOTEBOOKS / "03_scaling.ipynb").rename(paths.NOTEBOOKS / "03_scores.ipynb")
    assert words(place) == {"00": "same", "03": "made"}
    assert "mine" in (place / "03_scaling.ipynb").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"cells": [{}]}', b"\xff\xfe", b'{"cells": 3, "metadata": {}}']
)
def test_what_is_no_notebook_stays_and_is_named(place, content):
    copies.prepare(place)
    (place / "03_scaling.ipynb").write_bytes(content)
    states = copies.prepare(place)
    assert states[1].word == "broken" and (place / "03_scaling.ipynb").read_bytes() == content
    assert "lab --fresh 03" in next(copies.news(states, place))
    assert words(place, ["03"])["03"] == "fresh"
    assert content in [file.read_bytes() for file in place.glob("*-kept-*")]


def test_a_folder_in_the_place_of_a_copy(place):
    (place / "03_scaling.ipynb").mkdir(parents=True)
    (place / "03_scaling.ipynb" / "mine.txt").write_text("mine")
    assert words(place)["03"] == "broken"
    assert words(place, ["03"])["03"] == "fresh"
    assert [file.read_text() for file in place.glob("*-kept-*/mine.txt")] == ["mine"]


def test_a_notebook_of_the_learners_own_with_a_lessons_name(place):
    place.mkdir()
    nbformat.write(lesson("my own"), place / "03_scaling.ipynb")
    assert words(place)["03"] == "theirs"
    assert "my own" in (place / "03_scaling.ipynb").read_text(encoding="utf-8")


# --- what can go wrong while it is written ---------------------------------------------------


@pytest.mark.parametrize("fresh", [(), ("03",)])
def test_a_full_disk_loses_nothing(place, monkeypatch, fresh):
    copies.prepare(place)
    edit(place / "03_scaling.ipynb", "mine")
    (place / "00_start_here.ipynb").unlink()
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    original = Path.write_bytes

    def full(self, data):
        original(self, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CourseError, match=r"disk is full: your copies .* are as they were\. To mend: free some space"):
        copies.prepare(place, fresh)
    assert {file.name: file.read_bytes() for file in place.iterdir()} == before


def test_a_folder_that_may_not_be_written_names_the_way_out(place, monkeypatch):
    def refuses(self, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuses)
    with pytest.raises(CourseError, match=r"Permission denied.*lab --original"):
        copies.prepare(place)


KILLED = """
import os, sys
from pathlib import Path
from mha_lesson.course import copies, paths
paths.NOTEBOOKS = Path(sys.argv[1])
Path.replace = os.link = lambda *a: os._exit(9)  # the moment before the file gets its name
copies.prepare(Path(sys.argv[2]), sys.argv[3:])
"""


@pytest.mark.parametrize("fresh", [[], ["03"]])
def test_killed_while_writing(place, fresh):
    copies.prepare(place)
    edit(place / "03_scaling.ipynb", "mine")
    (place / "00_start_here.ipynb").unlink()
    before = (place / "03_scaling.ipynb").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(paths.NOTEBOOKS), str(place), *fresh], env=places.child_environment()
    )
    assert done.returncode == 9
    assert (place / "03_scaling.ipynb").read_bytes() == before
    assert not (place / "00_start_here.ipynb").exists() and list(place.glob(".*.part")), "it was half written"
    assert words(place) == {"00": "made", "03": "same"}
    (half,) = place.glob(".*.part")
    os.utime(half, (0, 0))
    copies.prepare(place)
    assert not list(place.glob(".*.part")), "an old one is swept up"


def test_many_starts_at_once(place):
    for number in range(20):
        store(f"{number + 20}_lesson.ipynb", f"x = {number}")
    found, together = [], threading.Barrier(6)

    def start():
        together.wait()
        found.append(words(place))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for name in found[0]:
        assert sorted(states[name] for states in found) == ["made"] + ["same"] * 5, name
    assert not list(place.glob(".*")) and len(list(place.iterdir())) == 22


def test_a_disk_without_links(place, monkeypatch):
    def no_links(*names):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert words(place) == {"00": "made", "03": "made"}
    edit(place / "03_scaling.ipynb", "mine")
    assert words(place, ["03"]) == {"00": "same", "03": "fresh"}
    assert words(place, ["03"]) == {"00": "same", "03": "fresh"}
    assert len(list(place.glob("*-kept-*"))) == 2


def test_saved_in_the_moment_of_an_update(place, monkeypatch):
    copies.prepare(place)
    store("03_scaling.ipynb", "y = 3")
    judge = copies.judge

    def slow(document, original):
        word = judge(document, original)
        edit(place / "03_scaling.ipynb", "just saved")
        return word

    monkeypatch.setattr(copies, "judge", slow)
    copies.prepare(place)
    assert "just saved" in (place / "03_scaling.ipynb").read_text(encoding="utf-8")


# --- where, and what is said --------------------------------------------------------------------


def test_the_folder_is_in_the_course_or_at_home(folder, tmp_path, monkeypatch):
    assert copies.folder() == paths.ROOT / "my_lessons"
    assert not [file for file in paths.ROOT.iterdir() if file.name.endswith(".part")]
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/maya/")
    assert copies.folder() == tmp_path / "home" / "mha_lessons"
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX")
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    assert copies.folder() == tmp_path / "home" / "mha_lessons"


def test_a_read_only_course_means_home(folder, tmp_path, monkeypatch):
    def refuses(self):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuses)
    assert copies.folder() == tmp_path / "home" / "mha_lessons"


def test_a_lesson_is_named_in_short(place):
    for name in ("03", "03_scaling", "03_scaling.ipynb", "my_lessons/03_scaling.ipynb"):
        assert copies.lesson_named(name) == paths.NOTEBOOKS / "03_scaling.ipynb"
    with pytest.raises(CourseError, match=r"got '04'. To mend: choose from: 00_start_here, 03_scaling"):
        copies.prepare(place, ["04"])
    assert not place.exists(), "a wrong name is said before anything is made"


def test_a_lesson_that_is_damaged_is_not_handed_out(place):
    (paths.NOTEBOOKS / "03_scaling.ipynb").write_text("<<<<<<< HEAD")
    with pytest.raises(CourseError, match=r"03_scaling.ipynb is not a notebook any more.*git checkout"):
        copies.prepare(place)


def test_how_they_stand_in_one_line(place):
    assert "lab makes them" in copies.standing(place)
    copies.prepare(place)
    assert f"2 in {place}, 0 changed by you" in copies.standing(place)
    edit(place / "03_scaling.ipynb", "mine")
    assert copies.standing(place).endswith("1 changed by you")
    store("03_scaling.ipynb", "y = 3")
    assert "1 changed by you, 1 with a newer lesson" in copies.standing(place)
    (place / "00_start_here.ipynb").write_text("{")
    assert "1 not a notebook any more" in copies.standing(place)
    assert "\n" not in copies.standing(place)


def test_every_lesson_of_the_course_can_be_handed_out(tmp_path):
    """The real ones: each is as it was, but for outputs, counts and the note."""
    for file in paths.notebook_files():
        original = json.loads(file.read_text(encoding="utf-8"))
        copy = json.loads(copies.handed_out(original))
        assert copy["metadata"]["mha_lesson"].pop("copy_of") == copies.digest(copy) == copies.digest(original)
        for cell in original["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        assert copy == original
        nbformat.validate(nbformat.from_dict(copy))
