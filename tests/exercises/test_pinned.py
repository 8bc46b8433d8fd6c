"""A file whose lines are quoted word for word says so, and names who quotes them."""

import inspect
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from mha_lesson.course.paths import ROOT
from mha_lesson.exercises import REGISTRY
from tests.conftest import HAS_TORCH

PACKAGE = ROOT / "mha_lesson"
BEGIN = "# Quoted word for word by "


def quoted():
    """{file: the exercises that edit a function of it}, both as paths within the package."""
    found = defaultdict(list)
    for e in REGISTRY.values():
        if (e.needs_torch and not HAS_TORCH) or not any(m.old for m in e.mistakes):
            continue
        file = Path(inspect.getsourcefile(inspect.unwrap(e.solution))).resolve()
        lesson, name = e.id.split(".")
        exercise = PACKAGE / "exercises" / f"lesson_{lesson}" / f"{name}.py"
        if file != exercise:  # an exercise may have its solution in itself
            found[file.relative_to(PACKAGE).as_posix()].append(exercise.relative_to(PACKAGE).as_posix())
    return dict(found)


def remark(exercises):
    """What stands in the file, below its docstring."""
    text = f"{BEGIN[2:]}{', '.join(sorted(exercises))} and tests/faults: change them together."
    return textwrap.fill(text, 108, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def test_quoted_files_say_so():
    for file, exercises in quoted().items():
        text = (PACKAGE / file).read_text(encoding="utf-8")
        assert text.count(remark(exercises) + "\n") == 1, f"{file} should say:\n{remark(exercises)}"


@pytest.mark.skipif(not HAS_TORCH, reason="some exercises are only known with torch")
def test_no_other_file_says_so():
    said = {f.relative_to(PACKAGE).as_posix() for f in PACKAGE.rglob("*.py") if BEGIN in f.read_text(encoding="utf-8")}
    assert said == set(quoted())
