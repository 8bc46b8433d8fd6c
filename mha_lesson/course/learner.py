"""What somebody who takes the course has changed in a stored notebook. Standard library alone.

Learners solve exercises, add cells to try something, and save. That is what notebooks are for, and no fault of
the course: `test` leaves these cells out, compares the rest, and says which notebook it was.

- `refresh` keeps the empty function of each exercise in the metadata of its cell (`stub`). A cell whose code is
  another one was worked on.
- The cells of lesson 03 have ids that start with "03-"; `refresh` sees to it. A cell with another id was added.
"""

import copy
import os
import re
from typing import NamedTuple

from mha_lesson.course import notebook as nb

# With MHA_LESSON_STRICT=1 nothing is left out: for whoever checks the course itself, not a learner's copy.
STRICT = "MHA_LESSON_STRICT"
EMPTY = "raise NotImplementedError"
CHECKED = re.compile(r'^check\("([^"]+)", \w+\)\s*$', re.MULTILINE)

# Cells that show who has solved what, or how often a hint was asked for.
SAYS_WHO_SOLVED = re.compile(r"\b(check|status|hint)\(|\bscoreboard\(works\)")
# What status() says if something is solved. The course stores a notebook in which nothing is.
SOLVED = re.compile(r"\b[1-9]\d* of \d+ exercises solved")
# The line of `adopt` that says whose function the lesson goes on with.
WHOSE = re.compile(r"^\d\d\.\w+: (?:until yours is right|from here on)\b.*\n?", re.MULTILINE)


class Changes(NamedTuple):
    """Cells by their number from the top, counted from 1."""

    solved: dict[int, str]  # cell of an exercise that was worked on -> its id
    added: list[int]
    run: bool  # run in another order than from start to end, or by somebody who has solved something

    def __bool__(self):
        return bool(self.solved or self.added or self.run)

    @property
    def words(self):
        """What was changed: 03.scores and 2 cells more."""
        parts = [", ".join(self.solved.values())] if self.solved else []
        if self.added:
            parts.append(f"{len(self.added)} cell{'s' if len(self.added) > 1 else ''} more")
        return " and ".join(parts) or "it was run by hand and saved"


def strict():
    return os.environ.get(STRICT, "") not in ("", "0")


def stub(cell):
    """The empty function of an exercise's cell, as the course gives it out; None for other cells."""
    return cell.get("metadata", {}).get("mha_lesson", {}).get("stub")


def new_stub(cell):
    """What `stub` has to say of a cell that still is as empty as the course gives it out; None for other cells."""
    code = nb.source(cell)
    return code if cell["cell_type"] == "code" and EMPTY in code and CHECKED.search(code) else None


def changes(notebook, name):
    """What a learner has changed in the notebook of this name (a file's stem)."""
    number = lesson_number(name)
    solved, added = {}, []
    for n, cell in nb.numbered_cells(notebook):
        given = stub(cell)
        if number and not str(cell.get("id") or number + "-").startswith(number + "-"):
            added.append(n)
        elif given is not None and nb.source(cell).strip() != given.strip():
            solved[n] = CHECKED.search(given)[1]
    return Changes(solved, added, not in_order(notebook) or says_solved(notebook))


def given_out(path):
    """The notebook as the course gives it out, as far as that can be told: exercises empty, no added cells.

    With MHA_LESSON_STRICT=1 as it stands in the file.
    """
    notebook = nb.read(path)
    return notebook if strict() else restored(notebook, changes(notebook, path.stem))


def restored(notebook, changed):
    """A copy without what a learner has changed."""
    cells = []
    for number, cell in nb.numbered_cells(copy.deepcopy(notebook)):
        if number in changed.solved:
            cell.update(source=stub(cell), outputs=[])
        if number not in changed.added:
            cells.append(cell)
    return {**notebook, "cells": cells}


def lesson_number(name):
    """ "03" of "03_scaling"; "" for a notebook that is no lesson."""
    found = re.match(r"\d\d(?=_)", name)
    return found[0] if found else ""


def in_order(notebook):
    """Was it run once, from start to end? Then the counts are 1, 2, 3, ..."""
    cells = [cell for _, cell in nb.numbered_cells(notebook, "code") if nb.source(cell).strip()]
    return [cell.get("execution_count") for cell in cells] == list(range(1, len(cells) + 1))


def says_solved(notebook):
    """Does a stored status() say that something is solved?"""
    shown = [
        nb.text(output.get("data", {}).get("text/plain", ""))
        for _, cell in nb.numbered_cells(notebook, "code")
        if "status(" in nb.source(cell)
        for output in cell.get("outputs", [])
    ]
    return any(map(SOLVED.search, shown))


def without_whose(text):
    """A printed text without the lines that say whose function is used."""
    return WHOSE.sub("", text)


def get_back(path, git):
    """How to get the course's own notebook again, in words for the end of a sentence."""
    how = f"git checkout -- notebooks/{path.name}" if git else "take the file out of a fresh download of the course"
    return f"save yours under another name, then {how}"
