"""Where the course's files are, and how its programs are found. Standard library alone.

In a clone, `data/` and `notebooks/` lie beside the package. A wheel has them inside it
(`pyproject.toml` says how), so that `pip install` brings the whole course along.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent  # in a clone: the course's folder
SHIPPED = PACKAGE / "_shipped"  # only in an installed package

# How to type the command on this system, for messages.
COMMAND = "py -m mha_lesson" if os.name == "nt" else "python3 -m mha_lesson"


def folder(name: str) -> Path:
    """`data` or `notebooks`: inside the package if it was installed, else beside it."""
    inside = SHIPPED / name
    return inside if inside.is_dir() else ROOT / name


def installed() -> bool:
    """Was the package installed by pip, away from the course's folder?"""
    return SHIPPED.is_dir()


def mend(file: str) -> str:
    """How to get a file of the course back, such as data/moby_dick.txt: for messages."""
    if installed():
        return "Install the course again: pip install --force-reinstall --no-deps and what you gave pip before"
    return f"Get it back with `git checkout -- {file}` in the course's folder"


def first_in_path(folder: Path, pythonpath: str | None) -> str:
    """A PYTHONPATH with the folder in front, so that a new process finds the course from anywhere.

    An installed package is found without, and its folder holds other packages, too.
    """
    if installed():
        return pythonpath or ""
    others = [part for part in (pythonpath or "").split(os.pathsep) if part and part != str(folder)]
    return os.pathsep.join([str(folder), *others])


def child_environment(**more: str) -> dict[str, str]:
    """The environment of a new Python that has to find this package."""
    return {**os.environ, "PYTHONPATH": first_in_path(ROOT, os.environ.get("PYTHONPATH")), **more}
