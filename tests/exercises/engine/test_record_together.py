"""The learner's record: what it keeps, and that nothing of it is lost, whatever happens to kernels and folders."""

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from mha_lesson.exercises import check, hint, status
from mha_lesson.exercises.engine import api, lock, record


@pytest.fixture
def file(tmp_path, monkeypatch):
    place = tmp_path / "a folder" / "record.json"
    monkeypatch.setenv("MHA_LESSON_PROGRESS", str(place))
    monkeypatch.setattr(api, "_sitting", {})
    monkeypatch.setattr(api, "_hints_given", {})
    monkeypatch.setattr(record, "_unwritten", {})
    return place


@pytest.fixture
def times(monkeypatch):
    """Sets the clock: times(9, 30) is half past nine."""

    def at(hour, minute=0):
        monkeypatch.setattr(record, "clock", lambda: datetime(2026, 1, 31, hour, minute, tzinfo=UTC))

    return at


def no_scale(q, k):
    return q @ k.swapaxes(-1, -2)


def right(q, k):
    return q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5


# -- what it keeps -----------------------------------------------------------------------------


def test_attempts_mistakes_hints_and_their_times_are_kept(file, times):
    times(9)
    check("03.scores", no_scale)
    times(9, 30)
    hint("03.scores")
    check("03.scores", no_scale)
    hint("03.scores")
    times(10)
    check("03.scores", lambda q, k: None)
    times(11)
    check("03.scores", right)
    times(12)
    check("03.scores", no_scale)
    on = "2026-01-31T{}:00Z".format
    assert json.loads(file.read_text()) == {
        "03.scores": {
            "status": "correct",
            "attempts": 5,
            "first": on("09:00"),
            "last": on("12:00"),
            "solved": on("11:00"),
            "mistakes": {
                "no_scale": [3, on("09:00"), on("12:00")],
                "returns_none": [1, on("10:00"), on("10:00")],
            },
            "met": "no_scale",
            "hints": 2,
        }
    }


def test_times_are_utc_wherever_the_learner_is(file, monkeypatch):
    noon_far_east = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=9)))
    monkeypatch.setattr(record, "clock", lambda: noon_far_east)
    check("03.scores", right)
    assert record.load()["03.scores"]["solved"] == "2026-01-31T03:00:00Z"


def test_a_hint_alone_is_no_attempt(file):
    hint("03.scores")
    assert record.load() == {"03.scores": {"status": "not attempted", "attempts": 0, "hints": 1}}
    assert "\n   03.scores" in status("03").text


def test_an_example_of_the_lesson_is_no_attempt(file):
    shown = check("03.scores", no_scale, record=False)
    assert shown == check("03.scores", no_scale), "it is diagnosed all the same"
    assert record.load()["03.scores"]["attempts"] == 1
    assert check("04.causal", lambda n, S: None, record=False).status == "incorrect"
    assert "04.causal" not in record.load() and "\n   04.causal" in status("04").text


def test_status_names_the_last_mistake_of_what_is_not_solved(file):
    check("03.scores", no_scale)
    check("03.variance", lambda *given: None)
    lines = status("03").text.split("\n")
    assert "~  03.scores, last: no scale" in lines and "~  03.variance, last: returns none" in lines
    assert "- 03.scores 🔎 tried, last: no scale" in status("03")._repr_markdown_()
    check("03.scores", right)
    check("03.scores", no_scale)
    assert "x  03.scores" in status("03").text.split("\n"), "solved stays solved, and says no more"


def test_the_old_format_is_read_and_goes_on(file, times):
    file.parent.mkdir()
    file.write_text(
        '{"03.scores": {"attempts": 4, "status": "incorrect"}, "00.double": {"attempts": 1, "status": "correct"}}'
    )
    assert "x  00.double" in status("00").text and "~  03.scores" in status("03").text
    times(9)
    check("03.scores", right)
    now = "2026-01-31T09:00:00Z"
    assert record.load() == {
        "00.double": {"attempts": 1, "status": "correct"},
        "03.scores": {"attempts": 5, "status": "correct", "first": now, "last": now, "solved": now},
    }


def test_what_a_newer_version_adds_is_kept(file):
    file.parent.mkdir()
    file.write_text(
        '{"03.scores": {"attempts": 1, "status": "incorrect", "mood": "good"}, "settings": {"theme": "dark"}}'
    )
    check("03.scores", right)
    known = record.load()
    assert known["03.scores"]["mood"] == "good" and known["settings"] == {"theme": "dark"}


def test_export_gives_complete_entries_of_a_named_format(file, times):
    file.parent.mkdir()
    file.write_text('{"00.double": {"attempts": 2, "status": "correct"}}')
    times(9)
    check("03.scores", no_scale)
    given = record.export()
    assert given["format"] == 1
    assert given["exercises"]["00.double"] == {
        "status": "correct", "attempts": 2, "hints": 0, "mistakes": {},
        "first": None, "last": None, "solved": None, "met": None,
    }  # fmt: skip
    assert given["exercises"]["03.scores"]["mistakes"] == {
        "no_scale": [1, "2026-01-31T09:00:00Z", "2026-01-31T09:00:00Z"]
    }
    assert json.loads(json.dumps(given)) == given, "plain data"


@pytest.mark.parametrize(
    "odd", ['{"03.scores": {"attempts": "many", "mistakes": 3, "hints": null}}', '{"03.scores": {}}']
)
def test_an_entry_that_somebody_else_wrote_oddly_is_no_stumbling_block(file, odd):
    file.parent.mkdir()
    file.write_text(odd)
    hint("03.scores")
    assert check("03.scores", no_scale).mistake == "no_scale"
    assert record.load()["03.scores"]["mistakes"]["no_scale"][0] == 1
    assert isinstance(status("03").text, str) and record.export()["exercises"]["03.scores"]["attempts"] == 1


# -- several kernels at once -------------------------------------------------------------------

KERNEL = """
import sys
from mha_lesson.exercises.engine import record
for i in range(int(sys.argv[2])):
    record.add(record.attempt(f"{sys.argv[1]}.{i}", "incorrect", "slip"))
    record.add(record.attempt("together", "incorrect", "slip"))
"""


def kernel(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env=environment)


@pytest.mark.slow
def test_of_four_kernels_that_write_at_once_nothing_is_lost(file):
    kernels = [kernel(KERNEL, name, 100) for name in "abcd"]
    assert [k.wait() for k in kernels] == [0] * 4
    known = record.load()
    assert known.keys() == {"together"} | {f"{name}.{i}" for name in "abcd" for i in range(100)}
    assert known["together"]["attempts"] == known["together"]["mistakes"]["slip"][0] == 400
    assert {f.name for f in file.parent.iterdir()} == {"record.json", "record.json.lock"}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows ends a process in another way")
def test_a_kernel_that_is_killed_in_the_middle_leaves_a_record_that_can_be_read(file):
    waits = random.Random(0)
    counted = 0
    for _ in range(30):
        victim = kernel(KERNEL, "a", 10_000)
        end = time.monotonic() + 30
        while time.monotonic() < end and not (record.load().get("together", {}).get("attempts", 0) > counted):
            time.sleep(0.005)
        time.sleep(waits.random() * 0.02)
        victim.kill()
        victim.wait()
        known = json.loads(file.read_text())
        assert known["together"]["attempts"] > counted, "what was written before is there"
        counted = known["together"]["attempts"]
    start = time.monotonic()
    assert check("03.scores", right).status == "correct"
    assert "03.scores" in record.load(), "nobody holds the lock any more"
    assert time.monotonic() - start < 30


def test_what_a_killed_kernel_left_half_written_goes_away(file):
    file.parent.mkdir()
    old, new, other = (file.parent / name for name in ("record.json1.part", "record.json2.part", "mine.part"))
    for part in (old, new, other):
        part.write_text("{")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    check("03.scores", right)
    assert not old.exists() and new.exists() and other.exists(), "a young one may still be written"


def test_a_kernel_with_the_first_version_of_the_course_loses_nothing_either(file):
    """It knows {"status", "attempts"} alone, and takes anything but dictionaries for unreadable."""
    check("03.scores", no_scale)
    known = json.loads(file.read_text())
    assert all(isinstance(entry, dict) for entry in known.values())
    known["03.scores"]["attempts"] += 1  # as it counts
    known.setdefault("00.double", {"status": "correct", "attempts": 1})
    file.write_text(json.dumps(known, indent=1, sort_keys=True))
    check("03.scores", no_scale)
    now = record.load()
    assert now["03.scores"]["attempts"] == 3 and now["03.scores"]["mistakes"]["no_scale"][0] == 2
    assert now["00.double"] == {"status": "correct", "attempts": 1}


# -- folders and disks that fail ---------------------------------------------------------------


def test_a_lock_that_is_never_free_is_not_waited_for_long_and_what_happened_is_kept(file, monkeypatch):
    monkeypatch.setattr(lock, "SECONDS", 0.05)
    file.parent.mkdir()
    with lock.locked(file.with_name("record.json.lock")) as mine:
        assert mine
        assert check("03.scores", no_scale).mistake == "no_scale"
        assert record.load() == {}
    check("03.scores", right)
    assert record.load()["03.scores"]["attempts"] == 2, "both"


def test_where_there_are_no_locks_the_record_is_kept_all_the_same(file, monkeypatch):
    def none(file):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(lock, "_take", none)
    check("03.scores", right)
    assert record.load()["03.scores"]["status"] == "correct"


def full(*given):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_on_a_full_disk_the_old_record_stays_and_the_new_entries_follow_later(file, monkeypatch):
    check("03.scores", no_scale)
    before = file.read_bytes()
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        assert check("03.scores", right).status == "correct"
    assert file.read_bytes() == before
    assert not list(file.parent.glob("*.part")), "what was half-written is taken away"
    check("00.double", lambda x: x * 2)
    assert record.load()["03.scores"]["status"] == "correct" and record.load()["00.double"]["attempts"] == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
def test_what_is_no_file_is_neither_waited_for_nor_replaced(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, tmp_path):
        monkeypatch.setenv("MHA_LESSON_PROGRESS", str(place))
        assert check("03.scores", right).status == "correct"
        assert record.load() == {}
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(file):
    check("03.scores", no_scale)
    file.parent.chmod(0o500)
    try:
        assert check("03.scores", right).status == "correct"
        assert record.load()["03.scores"]["status"] == "incorrect"
    finally:
        file.parent.chmod(0o700)


def test_a_folder_in_which_nothing_can_be_made(file, monkeypatch):
    check("03.scores", no_scale)

    def refuse(*given, **named):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(record.tempfile, "mkstemp", refuse)
    assert check("03.scores", right).status == "correct"
    assert record.load()["03.scores"]["status"] == "incorrect"


def test_a_record_that_cannot_be_read_now_is_neither_overwritten_nor_put_aside(file, monkeypatch):
    check("03.scores", right)
    before = file.read_bytes()
    with monkeypatch.context() as virus_scanner:

        def refuse(*given, **named):
            raise PermissionError(errno.EACCES, "Permission denied")

        virus_scanner.setattr(Path, "read_text", refuse)
        assert check("00.double", lambda x: x * 2).status == "correct"
        assert record.load() == {}
    assert file.read_bytes() == before and not list(file.parent.glob("*unreadable*"))
    check("00.lookup", lambda *given: None)
    assert record.load().keys() == {"00.double", "00.lookup", "03.scores"}


@pytest.mark.parametrize("content", ["{not json", "[1, 2]", '{"03.scores": 3}', "\ud800", "[" * 100_000, ""])
def test_what_is_no_record_is_put_aside_each_time_under_a_new_name(file, content):
    content = content.encode("utf8", "surrogatepass")
    file.parent.mkdir()
    for n in (1, 2):
        file.write_bytes(content)
        assert isinstance(status().text, str)
        assert file.read_bytes() == content, "looking changes nothing"
        check("03.scores", right)
        assert record.load().keys() == {"03.scores"}
        assert file.with_name(f"record.unreadable-{n}.json").read_bytes() == content


def test_the_stop_button_in_the_middle_of_writing_leaves_the_old_record(file, monkeypatch):
    check("03.scores", no_scale)
    before = file.read_bytes()

    def stop(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with contextlib.suppress(KeyboardInterrupt):
        check("03.scores", right)
    assert file.read_bytes() == before and not list(file.parent.glob("*.part"))
