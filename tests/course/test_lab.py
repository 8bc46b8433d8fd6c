"""JupyterLab: opened at the first notebook."""

import os
import sys

import pytest

from mha_lesson.course import lab, paths
from tests.course.helpers import posix


def test_lab_opens_the_first_notebook_and_asks_no_server(folder):
    paths.START.write_text("{}")
    command = lab.command(["--port", "9000"], browser=False)
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={paths.ROOT}" in command
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in command
    assert "--LabApp.news_url=None" in command and "--no-browser" in command
    assert command[-2:] == ["--port", "9000"], "what the learner adds comes last, and wins"
    assert "--no-browser" not in lab.command([])


@posix
@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_root_is_allowed_only_for_root(folder, monkeypatch, user, allowed):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("--allow-root" in lab.command([])) is allowed


def test_kernels_find_the_course(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "theirs")
    assert lab.environment()["PYTHONPATH"] == os.pathsep.join([str(paths.ROOT), "theirs"])
    assert lab.environment()["JUPYTER_PREFER_ENV_PATH"] == "1"


def test_inside_a_hub_no_second_server_starts(monkeypatch, capsys):
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/maya/")
    monkeypatch.setattr(lab, "start", lambda *a: pytest.fail("started a server"))
    assert lab.run([]) == 0
    assert "notebooks/00_start_here.ipynb" in capsys.readouterr().out
