"""Where things are. Everything hangs on the folder that holds `mha_lesson`."""

import os
import sys

from mha_lesson import places
from mha_lesson.course.errors import CourseError
from mha_lesson.places import COMMAND as COMMAND
from mha_lesson.places import ROOT, Path

NOTEBOOKS = places.folder("notebooks")
TESTS = ROOT / "tests"
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "requirements.txt"
PYPROJECT = ROOT / "pyproject.toml"
START = NOTEBOOKS / "00_start_here.ipynb"


def venv_python():
    """The Python of the course's own environment; Windows keeps it elsewhere."""
    return VENV / "Scripts" / "python.exe" if os.name == "nt" else VENV / "bin" / "python"


def inside_venv():
    """Is that the Python that runs now?"""
    return Path(sys.prefix).resolve() == VENV.resolve()


def require_course_folder():
    """In a clone the course's files lie beside the package; an installed one has brought its own."""
    if not places.installed() and not REQUIREMENTS.is_file():
        raise CourseError(
            f"Expected the course's files beside the package, in {ROOT}, but requirements.txt is not there.",
            "run this command inside the course's folder (the one with notebooks/ and README.md).",
        )


def require_clone(word):
    """What looks after the course itself works on its folder, not on an installed package."""
    if places.installed():
        raise CourseError(
            f"{word} needs a clone of the course; this is the installed package, which has no tests/.",
            f"clone the course's repository, and run {COMMAND} {word} in its folder.",
        )
    require_course_folder()


def notebook_files():
    """The lessons in order. `.ipynb_checkpoints` holds an editor's copies."""
    return sorted(p for p in NOTEBOOKS.glob("*.ipynb") if p.is_file())
