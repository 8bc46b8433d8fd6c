"""The learner's own copies of the lessons, with outputs cleared: what `lab` opens.

    notebooks/03_scaling.ipynb      the lesson as it comes, with its outputs, which tests compare
    my_lessons/03_scaling.ipynb     yours: made once, then never written again if you changed it

So you predict before you see, your editor saves into files of your own, and a newer version of
the course never conflicts with your work. Each copy remembers which lesson it was made from:

    no copy, or deleted                     it is made
    you changed nothing, the lesson is new  the new one takes its place
    you changed something                   it stays; `lab` says that there is a newer one
    `lab --fresh 03`                        a new copy; yours stays beside it, with the date in its name

Standard library alone.
"""

import contextlib
import copy
import datetime
import errno
import hashlib
import json
import os
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from mha_lesson import places
from mha_lesson.course import notebook, paths
from mha_lesson.course.errors import CourseError

IN_THE_COURSE = "my_lessons"
IN_THE_HOME = "mha_lessons"
STALE = 3600  # seconds after which a half-written file belongs to no running process


class State(NamedTuple):
    """How one lesson's copy stands; `word` is a key of WORDS."""

    lesson: Path  # the original
    word: str


# What each state means.
WORDS = {
    "made": "there was none",
    "same": "made from the lesson as it is now",
    "updated": "nobody had changed it, and the lesson is newer",
    "behind": "changed by the learner, and the lesson is newer",
    "theirs": "a notebook that was not made from a lesson: it is the learner's",
    "broken": "not a notebook",
    "fresh": "made anew because the learner asked for it",
}


# --- where ------------------------------------------------------------------------------


def on_a_hub():
    return bool(os.environ.get("JUPYTERHUB_SERVICE_PREFIX"))


def folder():
    """Where the copies are: in the course's folder if it is the learner's own, else in their home."""
    if places.installed() or on_a_hub() or not may_write(paths.ROOT):
        return Path.home() / IN_THE_HOME
    return paths.ROOT / IN_THE_COURSE


def may_write(place):
    """By trying: on Windows, and on a network's disk, the permissions do not tell."""
    probe = place / f".{uuid.uuid4().hex}.part"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


# --- the lesson and its copy --------------------------------------------------------------


def digest(document):
    """What a lesson says: its cells' kinds and sources. Outputs and settings do not count, nor does
    an empty cell: Shift-Enter in the last cell makes one."""
    cells = [[cell["cell_type"], notebook.source(cell)] for cell in document["cells"]]
    cells = [[kind, source] for kind, source in cells if source.strip()]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def handed_out(original):
    """The copy as it is made: no outputs, no counts, and a note of what it was made from."""
    document = copy.deepcopy(original)
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    document["metadata"].setdefault("mha_lesson", {})["copy_of"] = digest(original)
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8") + b"\n"


def read(data):
    """A notebook from bytes; None if it is none."""
    try:
        document = json.loads(data.decode("utf-8"))
        digest(document)  # has cells with sources
        return document if isinstance(document.get("metadata"), dict) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def made_from(document):
    """The digest of the lesson that this copy was made from; None if it is no copy."""
    ours = document["metadata"].get("mha_lesson")
    return ours.get("copy_of") if isinstance(ours, dict) else None


def changed(document):
    """Does this copy hold work of the learner's?"""
    return digest(document) != made_from(document)


def judge(document, original):
    """The state of a copy that is there; nothing is written."""
    if document is None:
        return "broken"
    if made_from(document) is None:
        return "theirs"
    if made_from(document) == digest(original):
        return "same"
    return "behind" if changed(document) else "updated"


# --- making them ----------------------------------------------------------------------------


def prepare(place, fresh=()):
    """A copy of every lesson in this folder; what was done with each. Never overwrites anyone's work."""
    anew = [lesson_named(name) for name in fresh]
    try:
        place.mkdir(parents=True, exist_ok=True)
        remove_stale(place)
        return [State(lesson, one(lesson, place, lesson in anew)) for lesson in paths.notebook_files()]
    except OSError as error:
        raise explained(error, place) from error


def one(lesson, place, anew):
    original = read(lesson.read_bytes())
    if original is None:
        raise CourseError(f"{lesson} is not a notebook any more.", f"{places.mend(f'notebooks/{lesson.name}')}.")
    target, new = place / lesson.name, handed_out(original)
    if anew and os.path.lexists(target):
        put_aside(target)
        write(target, new, instead=True)
        return "fresh"
    try:
        data = target.read_bytes()
    except FileNotFoundError:
        return "made" if write(target, new) else "same"  # another start of `lab` was faster
    except OSError:  # a folder of that name, say
        return "broken"
    word = judge(read(data), original)
    if word == "updated" and target.read_bytes() == data:  # not saved while we looked
        write(target, new, instead=True)
    return word


def write(target, data, instead=False):
    """The whole file or none, also if this process is killed. False if there is one already, and it stays."""
    half = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        half.write_bytes(data)
        if instead:
            half.replace(target)
            return True
        return appear(half, target)
    finally:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


def appear(half, target):
    """Give the finished file its name, unless another has it."""
    try:
        os.link(half, target)  # refuses to overwrite, on every system
    except FileExistsError:
        return False
    except OSError:  # a disk without links
        if os.path.lexists(target):
            return False
        half.replace(target)
    return True


def put_aside(target):
    """Keep the old copy beside the new one, under a name that nobody has."""
    today = datetime.date.today().isoformat()
    for number in range(1, 1000):
        kept = target.with_name(f"{target.stem}-kept-{today}{f'-{number}' if number > 1 else ''}{target.suffix}")
        if target.is_dir():
            if not kept.exists():
                target.rename(kept)
                return
        elif write(kept, target.read_bytes()):
            return
    raise CourseError(f"There are 1000 old copies of {target.name} of today.", "delete some of them.")


def remove_stale(place):
    """What a start that was killed has left; one that is running needs its own."""
    for half in place.glob(".*.part"):
        with contextlib.suppress(OSError):
            if time.time() - half.stat().st_mtime > STALE:
                half.unlink()


def lesson_named(name):
    """The lesson meant by "03", "03_scaling" or "03_scaling.ipynb", also with a folder before it."""
    stem = Path(name).name.removesuffix(".ipynb")
    fits = [file for file in paths.notebook_files() if stem in (file.stem, file.stem.split("_")[0])]
    if len(fits) != 1:
        there = ", ".join(file.stem for file in paths.notebook_files()) or "none"
        raise CourseError(f"Expected the name of one lesson, got {name!r}.", f"choose from: {there}.")
    return fits[0]


def explained(error, place):
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        return CourseError(
            f"The disk is full: your copies of the lessons in {place} are as they were.",
            "free some space and run the same command again.",
        )
    return CourseError(
        f"Your copies of the lessons could not be written into {place} ({error.strerror or error}).",
        f"make that folder writable, or read the stored ones: {places.COMMAND} lab --original",
    )


# --- what there is to say ---------------------------------------------------------------------


def news(states, place):
    """Lines for the learner; none where all is as it was."""
    by_word = {word: [state.lesson for state in states if state.word == word] for word in WORDS}
    if by_word["made"]:
        yield f"Your copies of the lessons are in {place}; {len(by_word['made'])} were made now."
    if by_word["updated"]:
        yield f"Newer lessons took the place of copies that you had not changed: {numbers(by_word['updated'])}."
    for lesson in by_word["fresh"]:
        yield f"{lesson.stem} starts again; your old copy is kept beside it, with the date in its name."
    if by_word["behind"]:
        first = number(by_word["behind"][0])
        yield (
            f"There is a newer version of: {numbers(by_word['behind'])}. Your copies stay. To start one again, "
            f"with the old one kept beside it: {places.COMMAND} lab --fresh {first}"
        )
    for lesson in by_word["broken"]:
        yield (
            f"{place / lesson.name} is not a notebook any more; it stays as it is. "
            f"To start the lesson again: {places.COMMAND} lab --fresh {number(lesson)}"
        )


def number(lesson):
    return lesson.stem.split("_")[0]


def numbers(lessons):
    return ", ".join(map(number, lessons))


def standing(place):
    """One line for `doctor`: how many copies there are, and how many hold the learner's own work."""
    if not place.is_dir():
        return f"no copies of the lessons yet: {places.COMMAND} lab makes them in {place}"
    lessons = [lesson for lesson in paths.notebook_files() if (place / lesson.name).is_file()]
    pairs = [(read((place / lesson.name).read_bytes()), read(lesson.read_bytes())) for lesson in lessons]
    words = [judge(document, original) for document, original in pairs if original]
    parts = [f"{len(lessons)} in {place}", f"{sum(bool(own and changed(own)) for own, _ in pairs)} changed by you"]
    if "behind" in words:
        parts.append(f"{words.count('behind')} with a newer lesson (lab --fresh)")
    if "broken" in words:
        parts.append(f"{words.count('broken')} not a notebook any more (lab --fresh)")
    return f"your copies of the lessons: {', '.join(parts)}"
