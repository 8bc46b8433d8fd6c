"""JupyterLab: opened at the learner's copy of the first lesson."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest

from mha_lesson import places
from mha_lesson.course import kernel, lab, paths, requirements
from mha_lesson.course.errors import CourseError
from tests.course.helpers import lesson, posix


@pytest.fixture
def started(folder, monkeypatch):
    """Run `lab` in an environment of one's own that finds the course; tell what it would become."""
    nbformat.write(lesson("x = 1"), paths.START)
    asked = []
    monkeypatch.setattr(lab, "start", lambda command, environment: asked.append(command))
    monkeypatch.setattr(kernel, "make_findable", lambda folder, beside: None)
    monkeypatch.setattr(requirements, "pins", lambda: [])
    monkeypatch.setattr(requirements, "ranges", lambda needs: [])

    def run(*extra, **options):
        asked.clear()
        assert lab.run(list(extra), **options) == 0
        return asked[0] if asked else None

    return run


def test_lab_opens_the_first_copy_and_asks_no_server(started):
    command = started("--port", "9000", browser=False)
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={paths.ROOT}" in command
    assert "--LabApp.default_url=/lab/tree/my_lessons/00_start_here.ipynb" in command
    assert (paths.ROOT / "my_lessons" / "00_start_here.ipynb").is_file()
    assert "--LabApp.news_url=None" in command and "--no-browser" in command
    assert command[-2:] == ["--port", "9000"], "what the learner adds comes last, and wins"
    assert "--no-browser" not in started()


def test_the_stored_notebooks_are_opened_if_asked_for(started):
    command = started(original=True)
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in command
    assert not (paths.ROOT / "my_lessons").exists()


def test_copies_in_the_home_are_the_servers_root(started, monkeypatch, tmp_path):
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    home = tmp_path / "home" / "mha_lessons"
    command = started()
    assert f"--ServerApp.root_dir={home}" in command
    assert "--LabApp.default_url=/lab/tree/00_start_here.ipynb" in command and (home / "00_start_here.ipynb").is_file()


def test_it_says_where_the_copies_are_and_starts_a_lesson_again(started, capsys):
    started()
    assert f"Your copies of the lessons are in {paths.ROOT / 'my_lessons'}; 1 were made now." in capsys.readouterr().out
    started()
    assert capsys.readouterr().out == "", "nothing new, nothing said"
    started(fresh=["00"])
    assert "00_start_here starts again; your old copy is kept" in capsys.readouterr().out


@posix
@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_root_is_allowed_only_for_root(folder, monkeypatch, user, allowed):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("--allow-root" in lab.command(paths.NOTEBOOKS, [])) is allowed


def test_kernels_find_the_course(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "theirs")
    assert lab.environment()["PYTHONPATH"] == os.pathsep.join([str(paths.ROOT), "theirs"])
    assert lab.environment()["JUPYTER_PREFER_ENV_PATH"] == "1"
    assert lab.environment()["PYTHONUTF8"] == "1"


def test_other_versions_than_the_pins_are_said_in_one_line(started, monkeypatch, capsys):
    pins = [requirements.parse(line) for line in ("numpy==1.0", "pytest==1.0", "matplotlib==1.0", "absent==1.0")]
    monkeypatch.setattr(requirements, "pins", lambda: pins)
    monkeypatch.setattr(requirements, "ranges", lambda needs: [pins[0], *pins[2:]])
    started(original=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert "note: using your own environment" in line and "numpy==1.0 (found " in line and "and 1 more" in line
    monkeypatch.setattr(paths, "inside_venv", lambda: True)
    started(original=True)
    assert capsys.readouterr().out == "", "the course's own environment is as it should be"


# --- on a hub ------------------------------------------------------------------------------------


@pytest.fixture
def hub(started, monkeypatch):
    """Kernels that find the course or not, in this order."""
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/maya/")
    wrote = []
    monkeypatch.setattr(kernel, "stand_in", wrote.append)

    def run(*answers):
        left = list(answers)
        monkeypatch.setattr(kernel, "ask", lambda folder: left.pop(0))
        assert started() is None, "a second server was started"
        return wrote

    return run


def right():
    return kernel.Answer("python", str(paths.ROOT / "mha_lesson" / "__init__.py"), "")


def test_inside_a_hub_no_second_server_starts(hub, tmp_path, capsys):
    assert hub(right()) == []
    assert "open mha_lessons/00_start_here.ipynb in the file list" in capsys.readouterr().out
    assert (tmp_path / "home" / "mha_lessons" / "00_start_here.ipynb").is_file()


def test_a_hub_whose_kernels_are_another_python(hub, tmp_path):
    assert hub(kernel.Answer("other", "", "No module named 'mha_lesson'"), right()) == [
        tmp_path / "home" / "mha_lessons"
    ]


def test_a_hub_that_cannot_be_mended_gets_the_one_line(hub):
    lost = kernel.Answer("/hub/python", "", "No module named 'numpy'")
    with pytest.raises(CourseError, match=r"No module named 'numpy'\. To mend: \"/hub/python\" -m pip install -e"):
        hub(lost, lost)


def test_no_question_about_news_stands_before_the_first_lesson(monkeypatch):
    """JupyterLab asks in a new home, whatever news_url says; labconfig is where it looks for what not to load."""
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    first, mine = lab.environment()["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    page = json.loads((Path(first) / "labconfig" / "page_config.json").read_text(encoding="utf-8"))
    assert page == {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}} and mine == "mine"
    monkeypatch.delenv("JUPYTER_CONFIG_PATH")
    assert lab.environment()["JUPYTER_CONFIG_PATH"] == first
