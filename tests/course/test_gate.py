"""Which Python will do: the first file that any of them can read."""

import ast
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from mha_lesson import __main__ as gate
from mha_lesson.course import paths


@pytest.mark.parametrize("version", [(2, 7), (3, 6), (3, 9), (3, 10), (3, 15), (4, 0)])
def test_a_python_that_will_not_do_is_named_with_the_mend(version):
    problem = gate.python_problem((*version, 1, "final", 0))
    assert f"needs Python 3.11 to 3.14, this is {version[0]}.{version[1]}." in problem
    assert "To mend:" in problem and "\n" not in problem


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13), (3, 14)])
def test_a_python_that_will_do(version):
    assert gate.python_problem((*version, 0)) is None


def test_the_gate_agrees_with_pyproject():
    import tomllib

    stated = SpecifierSet(tomllib.loads(paths.PYPROJECT.read_text(encoding="utf-8"))["project"]["requires-python"])
    for minor in range(6, 20):
        assert (gate.python_problem((3, minor)) is None) == (f"3.{minor}" in stated), minor


@pytest.mark.parametrize("file", ["__init__.py", "__main__.py"])
def test_an_old_python_can_read_the_first_files(file):
    text = (paths.ROOT / "mha_lesson" / file).read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 6))
    assert "from __future__ import annotations" not in text, "Python 3.6 stops at this line"


def old_pythons():
    """Old Pythons that happen to be here (made by pyenv, or in the PATH)."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in (6, 7, 8, 9, 10):
        here = [*pyenv.glob(f"3.{minor}.*/bin/python"), *filter(None, [shutil.which(f"python3.{minor}")])]
        yield from here[:1]


@pytest.mark.parametrize("python", list(old_pythons()), ids=str)
def test_a_real_old_python_says_so(python):
    done = subprocess.run([python, "-m", "mha_lesson", "lab"], cwd=paths.ROOT, capture_output=True, text=True)
    if "this is 3." not in done.stderr and "not found" in done.stderr:
        pytest.skip(f"{python} is a stand-in for a Python that is not active")
    assert done.returncode == 1
    assert "mha_lesson needs Python 3.11 to 3.14, this is 3." in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
