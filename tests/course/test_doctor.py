"""`doctor`: one line for each thing, with its mend."""

import errno
import shutil
import subprocess

import nbformat
import pytest

from mha_lesson.course import bootstrap, doctor, paths, requirements
from tests.course.helpers import lesson


def marks(findings):
    findings = list(findings)
    assert all(finding.mend for finding in findings if finding.mark == "fail"), "a failure without its mend"
    return [finding.mark for finding in findings]


def test_doctor_on_a_fresh_copy(folder, monkeypatch):
    monkeypatch.setattr(bootstrap, "ready", lambda: False)
    assert marks(doctor.where()) == ["fail"]
    assert "lab installs them" in next(doctor.where()).mend
    assert marks(doctor.packages()) == [], "one line says it all"
    paths.VENV.mkdir()
    assert "incomplete" in next(doctor.where()).text


@pytest.mark.parametrize(
    ("version", "mark", "said"),
    [
        ("2.4.6", "ok", "numpy 2.4.6"),
        ("2.2.0", "ok", "the stored outputs were made with 2.4.6"),
        ("1.26.4", "fail", "expected >=2.1"),
        (None, "fail", "not installed"),
    ],
)
def test_doctor_on_a_package(monkeypatch, version, mark, said):
    monkeypatch.setattr(requirements, "installed", lambda name: version)
    finding = doctor.package(requirements.parse("numpy==2.4.6"), requirements.parse("numpy>=2.1"))
    assert finding.mark == mark and said in str(finding)
    marks([finding])


def test_doctor_where_torch_has_no_build():
    pin = requirements.parse('torch==2.13.0 ; sys_platform == "nowhere"')
    finding = doctor.package(pin, pin)
    assert finding.mark == "note" and "lessons 00-06 work without it" in finding.text


def test_doctor_when_torch_does_not_start(monkeypatch):
    monkeypatch.setattr(requirements, "installed", lambda name: "2.13.0")
    monkeypatch.setattr(doctor, "TORCH", "raise OSError('libcudart.so is missing')")
    (finding,) = doctor.torch()
    assert finding.mark == "fail" and "libcudart.so is missing" in finding.text and finding.mend


def test_doctor_on_disk_and_folder(folder, monkeypatch):
    monkeypatch.setattr(bootstrap, "ready", lambda: False)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 3 * 10**8))
    assert marks(doctor.disk()) == ["fail"]
    assert marks(doctor.writable()) == ["ok"]

    def read_only(**kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", read_only)
    assert marks(doctor.writable()) == ["fail"]


def test_doctor_on_notebooks(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "signatures"))
    assert marks(doctor.notebooks()) == ["fail"]
    nbformat.write(lesson("x"), paths.START)
    assert marks(doctor.notebooks()) == ["ok", "note"], "readable; widgets appear once it was run"
    (paths.NOTEBOOKS / "01_x.ipynb").write_text("<<<<<<< HEAD")
    findings = list(doctor.notebooks())  # all of them: the later ones must not stumble over it
    first = findings[0]
    assert first.mark == "fail" and "01_x.ipynb" in first.text and "git checkout" in first.mend


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_doctor_on_notebooks_that_were_changed(folder):
    assert marks(doctor.changed_notebooks()) == []
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x"]
    nbformat.write(lesson("x"), paths.START)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    assert marks(doctor.changed_notebooks()) == []
    nbformat.write(lesson("my work"), paths.START)
    (finding,) = doctor.changed_notebooks()
    assert finding.mark == "note" and "00_start_here.ipynb" in finding.text


def test_doctors_exit_code(folder, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "look_from_inside_venv", lambda arguments: None)
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [doctor.ok("fine"), doctor.note("so so")],))
    assert doctor.run([]) == 0
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [doctor.fail("bad", "do this")],))
    assert doctor.run([]) == 1
    assert "[fail] bad\n       To mend: do this" in capsys.readouterr().out
