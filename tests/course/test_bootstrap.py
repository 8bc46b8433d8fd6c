"""The decision: use this Python, start again in `.venv`, or install."""

import os
import sys
from pathlib import Path

import pytest

from mha_lesson import places
from mha_lesson.course import bootstrap, install, paths, requirements
from mha_lesson.course.errors import CourseError
from tests.course.helpers import posix


class Started(Exception):
    """Stands for the process that `start_again` becomes."""


@pytest.fixture
def decide(folder, monkeypatch):
    """Run `ensure` with given facts; tell what it did."""

    def run(ready, complete, times=None):
        did = []
        monkeypatch.setattr(bootstrap, "ready", lambda needs: ready)
        monkeypatch.setattr(bootstrap, "venv_complete", lambda: complete)
        monkeypatch.setattr(bootstrap, "missing", lambda needs: ["numpy>=2.1 (not installed)"])
        monkeypatch.setattr(install, "build", lambda: did.append("build"))
        monkeypatch.setattr(bootstrap, "start_again", lambda arguments, n: did.append(f"start {arguments} {n}"))
        if times is not None:
            monkeypatch.setenv(bootstrap.AGAIN, str(times))
        bootstrap.ensure(["lab"])
        return did

    return run


def test_a_python_that_has_it_all_is_used(decide):
    assert decide(ready=True, complete=False, times=1) == []
    assert bootstrap.AGAIN not in os.environ, "commands started from here begin anew"


def test_a_complete_venv_is_used_at_once(decide):
    assert decide(ready=False, complete=True) == ["start ['lab'] 1"]


def test_an_incomplete_venv_is_built_first(decide):
    assert decide(ready=False, complete=False) == ["build", "start ['lab'] 1"]


def test_a_stamp_that_is_wrong_is_mended_once(decide):
    assert decide(ready=False, complete=True, times=1) == ["build", "start ['lab'] 2"]
    with pytest.raises(CourseError, match=r"numpy>=2.1 \(not installed\).*delete the folder"):
        decide(ready=False, complete=True, times=2)


def test_outside_the_course_folder_is_said(folder):
    paths.REQUIREMENTS.unlink()
    with pytest.raises(CourseError, match=r"requirements.txt is not there. To mend: "):
        bootstrap.ensure(["lab"])


def test_inside_our_venv_the_stamp_decides_too(folder, monkeypatch):
    paths.VENV.mkdir()
    monkeypatch.setattr(sys, "prefix", str(paths.VENV))
    monkeypatch.setattr(requirements, "ranges", lambda needs: [])
    assert not bootstrap.ready()
    bootstrap.write_stamp()
    assert bootstrap.ready()
    paths.REQUIREMENTS.write_text("numpy==2.4.7\n", encoding="utf-8")
    assert not bootstrap.ready()
    monkeypatch.setenv(bootstrap.AS_IT_IS, "1")
    assert bootstrap.ready()


def test_the_stamp_may_excuse_torch(folder, monkeypatch):
    paths.VENV.mkdir()
    monkeypatch.setattr(sys, "prefix", str(paths.VENV))
    monkeypatch.setattr(requirements, "ranges", lambda needs: [requirements.parse("torch>=999")])
    assert [lack.requirement.name for lack in bootstrap.missing()] == ["torch"]
    bootstrap.write_stamp(without=["torch"])
    assert bootstrap.missing() == []


def test_the_stamp(folder):
    paths.VENV.mkdir()
    assert not bootstrap.stamp_fits()
    (paths.VENV / bootstrap.STAMP).write_text('{"requirements": "ab', encoding="utf-8")
    assert not bootstrap.stamp_fits(), "a damaged stamp is no stamp"
    (paths.VENV / bootstrap.STAMP).write_text("[]", encoding="utf-8")
    assert not bootstrap.stamp_fits()
    bootstrap.write_stamp()
    assert bootstrap.stamp_fits()
    crlf = paths.REQUIREMENTS.read_bytes().replace(b"\n", b"\r\n")
    paths.REQUIREMENTS.write_bytes(crlf)
    assert bootstrap.stamp_fits(), "git may have changed the line ends"
    paths.REQUIREMENTS.write_text("numpy==2.4.7\n", encoding="utf-8")
    assert not bootstrap.stamp_fits()
    bootstrap.remove_stamp()
    bootstrap.remove_stamp()


@posix
def test_only_a_working_virtual_environment_counts(folder):
    assert not bootstrap.venv_runs()
    python = paths.venv_python()
    python.parent.mkdir(parents=True)
    python.symlink_to("/nowhere/python")
    assert not bootstrap.venv_runs(), "its Python was removed"
    python.unlink()
    python.symlink_to(Path(sys.executable).resolve())
    assert not bootstrap.venv_runs(), "a link to the system's Python alone is no virtual environment"
    python.unlink()
    python.write_bytes(b"MZ of another system")
    python.chmod(0o755)
    assert not bootstrap.venv_runs()
    install.make_venv()
    assert bootstrap.venv_runs()


def test_the_course_comes_first_in_the_path(folder):
    theirs = os.pathsep.join(["a", "b"])
    assert bootstrap.course_first(theirs).split(os.pathsep) == [str(paths.ROOT), "a", "b"]
    assert bootstrap.course_first(None) == str(paths.ROOT)
    assert bootstrap.course_first(bootstrap.course_first(theirs)) == bootstrap.course_first(theirs)


def test_windows_waits_for_the_child_and_gives_its_exit_code():
    assert bootstrap.run_and_wait([sys.executable, "-S", "-c", "import sys; sys.exit(7)"], dict(os.environ)) == 7


def test_on_a_hub_no_venv_is_made(folder, monkeypatch):
    monkeypatch.setattr(install, "build", lambda: pytest.fail("installed something"))
    asked = []
    monkeypatch.setattr(requirements, "ranges", lambda needs: asked.append(needs) or [requirements.parse("nowhere>=1")])
    with pytest.raises(CourseError, match=r"This Python lacks nowhere>=1.*pip install \"nowhere>=1\""):
        bootstrap.ensure(["lab"], "hub")
    assert set(asked) == {"hub"}


def test_an_installed_package_installs_nothing_and_says_what_it_lacks(folder, tmp_path, monkeypatch):
    paths.REQUIREMENTS.unlink()
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    monkeypatch.setattr(install, "build", lambda: pytest.fail("installed something"))
    needs = [requirements.parse(line) for line in ("numpy>=2.1", "nowhere-to-be-found>=1.2")]
    monkeypatch.setattr(requirements, "ranges", lambda needs_: needs)
    assert not bootstrap.venv_complete()
    with pytest.raises(CourseError) as caught:
        bootstrap.ensure(["lab"])
    assert caught.value.what == "This Python lacks nowhere-to-be-found>=1.2 (not installed)."
    assert caught.value.mend == f'{sys.executable} -m pip install "nowhere-to-be-found>=1.2"'
    monkeypatch.setattr(requirements, "ranges", lambda needs_: needs[:1])
    assert bootstrap.ensure(["lab"]) is None
