"""Fixtures of the tests of the command line."""

import pytest

from mha_lesson.course import bootstrap, paths


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty course folder that the code takes for its own."""
    root = tmp_path / "Kurs mit Leerzeichen – 注意"
    (root / "notebooks").mkdir(parents=True)
    # As bytes: Windows would write other line ends, and one test adds them by itself.
    (root / "requirements.txt").write_bytes(b"numpy==2.4.6\ntorch==2.13.0\n")
    monkeypatch.setattr(paths, "ROOT", root)
    monkeypatch.setattr(paths, "NOTEBOOKS", root / "notebooks")
    monkeypatch.setattr(paths, "TESTS", root / "tests")
    monkeypatch.setattr(paths, "START", root / "notebooks" / "00_start_here.ipynb")
    monkeypatch.setattr(paths, "VENV", root / ".venv")
    monkeypatch.setattr(paths, "REQUIREMENTS", root / "requirements.txt")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))  # the same on Windows
    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
    for name in (bootstrap.AGAIN, bootstrap.AS_IT_IS):
        monkeypatch.delenv(name, raising=False)
    return root
