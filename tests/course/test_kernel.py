"""Notebooks find the course, whoever starts their kernel."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from mha_lesson import places
from mha_lesson.course import install, kernel, paths


@pytest.fixture
def course(folder):
    """A course whose package is one small file, in a folder with letters that a console may not know."""
    package = paths.ROOT / "mha_lesson"
    package.mkdir()
    (package / "__init__.py").write_text("part = 'the package'\n")
    (package / "exercises.py").write_text("from mha_lesson import part\n")
    (folder / "my_lessons").mkdir()
    return folder


def without_paths():
    """Variables that lead nowhere."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def python_says(python, code, cwd):
    command = [python, "-c", f"import sys; sys.path.insert(0, '')\n{code}"]
    return subprocess.run(command, cwd=cwd, env=without_paths(), capture_output=True, text=True)


@pytest.fixture
def environment(tmp_path):
    """An empty virtual environment: its Python, and its site-packages."""
    venv.create(tmp_path / "env", symlinks=os.name != "nt")
    (site,) = (tmp_path / "env").glob("[Ll]ib/**/site-packages")
    return next(tmp_path.glob("env/[bS]*/python*")), site


def test_a_file_beside_the_copies_leads_to_the_course(course, environment):
    python, _ = environment
    cwd = course / "my_lessons"
    code = "from mha_lesson.exercises import part; import mha_lesson; print(part, mha_lesson.__file__.isascii())"
    assert "No module named 'mha_lesson'" in python_says(python, code, cwd).stderr
    assert str(cwd) in kernel.stand_in(cwd)
    done = python_says(python, code, cwd)
    assert (done.stdout, done.stderr) == ("the package False\n", "")
    first = (cwd / kernel.STAND_IN).stat().st_mtime_ns
    kernel.stand_in(cwd)
    assert (cwd / kernel.STAND_IN).stat().st_mtime_ns == first, "it is not written twice"


def test_the_command_line_works_in_the_folder_of_the_copies(course, environment):
    main = "import sys; from mha_lesson import part; print(part, *sys.argv[1:])"
    (paths.ROOT / "mha_lesson" / "__main__.py").write_text(main)
    kernel.stand_in(course / "my_lessons")
    command = [environment[0], "-m", "mha_lesson", "lab", "--fresh"]
    done = subprocess.run(command, cwd=course / "my_lessons", env=without_paths(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("the package lab --fresh\n", "")


def test_a_course_that_was_moved_is_named(course, environment):
    kernel.stand_in(course / "my_lessons")
    (paths.ROOT / "mha_lesson" / "__init__.py").unlink()
    done = python_says(environment[0], "import mha_lesson", course / "my_lessons")
    assert "The course is no longer in" in done.stderr and "RecursionError" not in done.stderr
    assert "To mend: start lab" in done.stderr


def test_a_link_in_site_packages_leads_to_the_course(course, environment, tmp_path):
    python, site = environment
    install.link_course([site])
    assert (site / install.LINK).read_bytes().isascii(), "Python reads it in an encoding that we do not know"
    done = python_says(python, "import mha_lesson; print(mha_lesson.part)", tmp_path)
    assert done.stdout == "the package\n", done.stderr


@pytest.fixture
def mending(course, tmp_path, monkeypatch):
    """Let `make_findable` work on an environment that finds what is told; say what it wrote."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(kernel.sysconfig, "get_path", lambda name: str(site))

    def run(found, beside=True, linked_is_enough=True):
        def ask(folder):
            now = str(paths.ROOT / "mha_lesson" / "__init__.py")
            return kernel.Answer("python", now if linked_is_enough and (site / install.LINK).exists() else found, "")

        monkeypatch.setattr(kernel, "ask_python", ask)
        said = kernel.make_findable(course / "my_lessons", beside)
        return said, (site / install.LINK).exists(), (course / "my_lessons" / kernel.STAND_IN).exists()

    return run


def test_nothing_is_written_where_the_course_is_found(mending):
    assert mending(str(paths.ROOT / "mha_lesson" / "__init__.py")) == (None, False, False)


def test_an_environment_of_ones_own_gets_a_link(mending):
    said, link, stand_in = mending("")
    assert (link, stand_in) == (True, False) and install.LINK in said


def test_another_copy_of_the_course_keeps_its_link(mending):
    said, link, stand_in = mending("/other/mha_lesson/__init__.py")
    assert (link, stand_in) == (False, True) and kernel.STAND_IN in said


def test_an_environment_of_somebody_else_means_a_file_beside_the_copies(mending, monkeypatch):
    def refuses(sites):
        raise PermissionError("not yours")

    monkeypatch.setattr(install, "link_course", refuses)
    said, link, stand_in = mending("")
    assert (link, stand_in) == (False, True) and kernel.STAND_IN in said


def test_nothing_is_written_beside_the_stored_notebooks(mending):
    assert mending("/other/mha_lesson/__init__.py", beside=False) == (None, False, False)


# --- a real kernel ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_kernel_is_asked(course, tmp_path, monkeypatch):
    """It is told by no variable where the course is; what lies beside the copies is enough."""
    monkeypatch.setenv("PYTHONPATH", str(paths.ROOT))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "mha_lesson.py").write_text("raise RuntimeError('not me')\n")
    answer = kernel.ask(tmp_path / "empty")
    assert not answer.right and "not me" in answer.said and Path(answer.python).exists()
    kernel.stand_in(course / "my_lessons")
    answer = kernel.ask(course / "my_lessons")
    assert answer.right and answer.found == str(paths.ROOT / "mha_lesson" / "__init__.py")


def test_a_kernel_that_does_not_start_is_said(course, monkeypatch):
    monkeypatch.setattr(kernel, "ASK", "raise SystemExit('No such kernel named python3')")
    answer = kernel.ask(course / "my_lessons")
    assert answer == ("", "", "No such kernel named python3") and not answer.right


def test_the_mend_is_one_line_for_the_python_of_the_kernel(course):
    line = kernel.mend(kernel.Answer("/hub/python", "", "No module named 'mha_lesson'"))
    assert line == f'"/hub/python" -m pip install -e "{paths.ROOT}"'
    assert sys.executable in kernel.mend(kernel.Answer("", "", ""))


def test_the_question_is_asked_without_lab_s_help(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(paths.ROOT), "theirs"]))
    assert kernel.surroundings()["PYTHONPATH"] == "theirs"
    assert kernel.surroundings()["JUPYTER_PREFER_ENV_PATH"] == "1"
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/maya/")
    monkeypatch.delenv("JUPYTER_PREFER_ENV_PATH", raising=False)
    assert "JUPYTER_PREFER_ENV_PATH" not in kernel.surroundings(), "a hub's server has its own way"


def test_an_installed_package_needs_no_path(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    assert places.first_in_path(paths.ROOT, "theirs") == "theirs"
