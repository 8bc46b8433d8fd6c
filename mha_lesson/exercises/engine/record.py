"""What the learner has solved, and met on the way, in one small file in their own data folder.

    {"03.scores": {"status": "correct", "attempts": 3, "hints": 1,
                   "first": "2026-01-31T09:00:00Z", "last": ..., "solved": ...,
                   "mistakes": {"no_scale": [2, first, last]}, "met": "no_scale"}}

Times are UTC; `met` is the last mistake. Entries of older versions have "status" and "attempts"
alone; they are kept, and so is what a newer version adds.

`MHA_LESSON_PROGRESS` names another file; the null device switches the record off, as the tests
do. Nothing is ever lost: several kernels write one after the other (lock.py), the file is replaced
in one step, and a file that cannot be understood is put aside under another name, not overwritten.
What cannot be written now (a full disk, a folder that is read-only) is written with what comes
next. No trouble with the file is a reason to stop.
"""

import contextlib
import glob
import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from mha_lesson.exercises.engine.lock import locked

FORMAT = 1  # of what `export` gives
OLD_PART = 3600.0  # seconds after which a half-written file is nobody's any more

Record = dict[str, dict[str, Any]]
Event = Callable[[Record], None]

_unwritten: dict[Path, list[Event]] = {}  # what happened, and could not be written yet


def clock() -> datetime:
    """The time that goes into the record."""
    return datetime.now(UTC)


def path() -> Path | None:
    """Where the record is kept; None if it is switched off."""
    named = os.environ.get("MHA_LESSON_PROGRESS")
    if named in (os.devnull, "/dev/null", "nul", "NUL"):
        return None
    return Path(named) if named else Path(platformdirs.user_data_dir("mha_lesson")) / "progress.json"


# -- what happens ----------------------------------------------------------------------------


def attempt(id: str, status: str, mistake: str | None) -> Event:
    """An answer was checked. Solved stays solved."""
    now = _now()

    def enter(record: Record) -> None:
        entry = record.setdefault(id, {"status": status})
        entry["attempts"] = _count(entry.get("attempts")) + 1
        entry.setdefault("first", now)
        entry["last"] = now
        if entry.get("status") != "correct":
            entry["status"] = status
        if status == "correct":
            entry.setdefault("solved", now)
        elif mistake:
            known = entry.get("mistakes")
            entry["mistakes"] = known if isinstance(known, dict) else {}
            entry["mistakes"][mistake] = _once_more(entry["mistakes"].get(mistake), now)
            entry["met"] = mistake

    return enter


def hinted(id: str, number: int) -> Event:
    """The first hints, so many of them, were read."""

    def enter(record: Record) -> None:
        entry = record.setdefault(id, {"status": "not attempted", "attempts": 0})
        entry["hints"] = max(number, _count(entry.get("hints")))

    return enter


def _once_more(met: Any, now: str) -> list:
    """[how often, first time, last time] after one more time."""
    if isinstance(met, list) and len(met) == 3:
        return [_count(met[0]) + 1, met[1], now]
    return [1, now, now]


def _count(value: Any) -> int:
    """A number that somebody else wrote."""
    return value if isinstance(value, int) else 0


def _now() -> str:
    return clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- reading and writing ---------------------------------------------------------------------


def load() -> Record:
    """All that is known, by exercise; empty if there is no record, or none that can be read now."""
    file = path()
    if file is None:
        return {}
    try:
        return _read(file)
    except (OSError, ValueError, RecursionError):
        return {}


def add(event: Event) -> None:
    """Enter what happened into the file, together with what could not be written before."""
    file = path()
    if file is None:
        return
    waiting = _unwritten.setdefault(file, [])
    waiting.append(event)
    try:
        _needs_a_file(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.with_name(f"{file.name}.lock")) as mine:
            if not mine:
                return
            record = _read_or_put_aside(file)
            for happened in waiting:
                happened(record)
            _write(file, record)
        waiting.clear()
    except OSError:
        return  # a read-only home must not spoil an answer


def export() -> dict[str, Any]:
    """The record as plain data, every entry complete: for a report on a class."""
    return {"format": FORMAT, "exercises": {id: {**_empty(), **entry} for id, entry in sorted(load().items())}}


def _empty() -> dict[str, Any]:
    """An entry with everything that an old one may lack."""
    never = dict.fromkeys(("first", "last", "solved", "met"))
    return {"status": "not attempted", "attempts": 0, "hints": 0, "mistakes": {}, **never}


def _read(file: Path) -> Record:
    """The record. ValueError: the file is something else; OSError: it cannot be read now."""
    if not file.exists():
        return {}
    _needs_a_file(file)
    text = file.read_text(encoding="utf8")
    record = json.loads(text)
    if not isinstance(record, dict) or not all(isinstance(entry, dict) for entry in record.values()):
        raise ValueError("This is no record.")
    return record


def _needs_a_file(file: Path) -> None:
    """A device or a pipe would be waited for without end, and must not be replaced."""
    if file.exists() and not file.is_file():
        raise OSError(f"{file} is no file.")


def _read_or_put_aside(file: Path) -> Record:
    try:
        return _read(file)
    except (ValueError, RecursionError):
        _put_aside(file)
        return {}


def _write(file: Path, record: Record) -> None:
    """In one step: whoever reads finds the old record or the new one, whole."""
    _sweep(file)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf8") as part:
            json.dump(record, part, indent=1, sort_keys=True)
            part.flush()
            os.fsync(part.fileno())
        _replace(Path(name), file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _replace(part: Path, file: Path) -> None:
    """Windows refuses as long as somebody else reads the file: a moment later it works."""
    for _ in range(20):
        with contextlib.suppress(PermissionError):
            part.replace(file)
            return
        time.sleep(0.02)
    part.replace(file)


def _sweep(file: Path) -> None:
    """Remove what a kernel that was killed in the middle left half-written."""
    for part in file.parent.glob(f"{glob.escape(file.name)}*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > OLD_PART:
                part.unlink()


def _put_aside(file: Path) -> None:
    """Under a name that is free; OSError if the folder does not allow it."""
    n = 1
    while (aside := file.with_name(f"{file.stem}.unreadable-{n}{file.suffix}")).exists():
        n += 1
    file.rename(aside)
