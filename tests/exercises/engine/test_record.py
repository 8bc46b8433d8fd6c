"""What is kept of a learner's progress, and how nothing of it is lost."""

import os

import pytest

from mha_lesson.exercises import REGISTRY, check, status
from mha_lesson.exercises.engine import api, record
from tests.exercises.helpers import BAD


@pytest.fixture
def record_file(tmp_path, monkeypatch):
    file = tmp_path / "folder" / "record.json"
    monkeypatch.setenv("MHA_LESSON_PROGRESS", str(file))
    monkeypatch.setattr(api, "_sitting", {})
    return file


def test_progress_is_kept_and_solved_stays_solved(record_file, monkeypatch):
    e = REGISTRY["03.scores"]
    check("03.scores", BAD["different"])
    assert record.load()["03.scores"].items() >= {"status": "incorrect", "attempts": 1}.items()
    check("03.scores", e.forms["einsum"])
    check("03.scores", BAD["nan"])
    assert record.load()["03.scores"].items() >= {"status": "correct", "attempts": 3}.items()
    monkeypatch.setattr(api, "_sitting", {})  # the next day
    assert "1 of 3 exercises solved in lesson 03" in status("03").text
    assert "x  03.scores" in status().text
    assert {file.name for file in record_file.parent.iterdir()} == {"record.json", "record.json.lock"}


def test_an_unreadable_record_is_put_aside_not_lost(record_file):
    record_file.parent.mkdir()
    record_file.write_text("{not json")
    check("00.double", lambda x: x + x)
    assert record.load().keys() == {"00.double"} and record.load()["00.double"]["status"] == "correct"
    assert (record_file.parent / "record.unreadable-1.json").read_text() == "{not json"


def test_a_folder_that_cannot_be_made_does_not_spoil_the_answer(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("MHA_LESSON_PROGRESS", str(blocker / "record.json"))
    assert check("00.double", lambda x: x + x).status == "correct"


def test_the_null_device_switches_the_record_off(monkeypatch):
    monkeypatch.setenv("MHA_LESSON_PROGRESS", os.devnull)
    assert record.path() is None and record.load() == {}
