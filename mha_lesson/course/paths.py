"""Where things are. Everything hangs on the folder that holds `mha_lesson`."""

import os
import sys
from pathlib import Path

from mha_lesson.course.errors import CourseError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
TESTS = ROOT / "tests"
VENV = ROOT / ".venv"
REQUIREMENTS = ROOT / "requirements.txt"
PYPROJECT = ROOT / "pyproject.toml"
START = NOTEBOOKS / "00_start_here.ipynb"

# How to type the command on this system, for messages.
COMMAND = "py -m mha_lesson" if os.name == "nt" else "python3 -m mha_lesson"


def venv_python():
    """The Python of the course's own environment; Windows keeps it elsewhere."""
    return VENV / "Scripts" / "python.exe" if os.name == "nt" else VENV / "bin" / "python"


def inside_venv():
    """Is that the Python that runs now?"""
    return Path(sys.prefix).resolve() == VENV.resolve()


def require_course_folder():
    """The commands work on a copy of the course, not on an installed package alone."""
    if not REQUIREMENTS.is_file():
        raise CourseError(
            f"Expected the course's files beside the package, in {ROOT}, but requirements.txt is not there.",
            "run this command inside the course's folder (the one with notebooks/ and README.md).",
        )


def notebook_files():
    """The lessons in order. `.ipynb_checkpoints` holds an editor's copies."""
    return sorted(p for p in NOTEBOOKS.glob("*.ipynb") if p.is_file())
