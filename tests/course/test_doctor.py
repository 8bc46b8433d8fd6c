"""`doctor`: one line for each thing, with its mend."""

import shutil
import subprocess
import sys

import nbformat
import pytest

from mha_lesson import places
from mha_lesson.course import bootstrap, copies, doctor, install, kernel, paths, requirements
from mha_lesson.course.requirements import unmet
from tests.course.helpers import lesson


def marks(findings):
    findings = list(findings)
    assert all(finding.mend for finding in findings if finding.mark == "fail"), "a failure without its mend"
    return [finding.mark for finding in findings]


def test_doctor_on_a_fresh_copy(folder, monkeypatch):
    monkeypatch.setattr(bootstrap, "ready", lambda needs: False)
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


def test_doctor_on_what_the_lessons_do_not_need(folder, monkeypatch):
    needs = [requirements.parse(line) for line in ("torch>=2", "pytest>=8", "ruff>=1")]
    here = {"pytest": "9.0"}
    monkeypatch.setattr(requirements, "installed", here.get)
    monkeypatch.setattr(requirements, "unmet", lambda needs: unmet(needs, version_of=here.get))
    (finding,) = doctor.not_needed(needs)
    assert finding.mark == "note" and finding.text.endswith("too old: ruff")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/maya/")
    first, second = doctor.not_needed(needs)
    assert "lessons 00-06 work without it" in first.text and second == finding


def test_doctor_names_what_to_install_where_no_venv_is_made(folder, monkeypatch):
    need = requirements.parse("numpy>=2.1")
    assert "lab installs" in doctor.mend_package(need)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/maya/")
    assert doctor.mend_package(need) == f'"{sys.executable}" -m pip install "numpy>=2.1"'


def test_doctor_on_an_installed_package(folder, tmp_path, monkeypatch):
    paths.REQUIREMENTS.unlink()
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    needs = [requirements.parse(line) for line in ("numpy>=2.1", 'numpy>=2.4 ; sys_platform == "nowhere"', "absent>=1")]
    monkeypatch.setattr(requirements, "ranges", lambda needs_: needs)
    versions = {"numpy": "2.2", "torch": "2.13"}
    monkeypatch.setattr(requirements, "installed", versions.get)
    assert str(next(doctor.packages())) == "[ok]   numpy 2.2"
    assert marks(doctor.packages()) == ["ok", "fail"]


@pytest.mark.parametrize(
    ("answer", "mark", "said"),
    [
        (kernel.Answer("python", "HERE", ""), "ok", "imports the course"),
        (kernel.Answer("/hub/python", "", "No module named 'mha_lesson'"), "fail", "No module named"),
        (kernel.Answer("/hub/python", "/other/mha_lesson/__init__.py", ""), "fail", "another copy, in /other"),
        (kernel.Answer("", "", "No such kernel"), "fail", "no kernel starts: No such kernel"),
    ],
)
def test_doctor_on_a_real_kernel(folder, monkeypatch, answer, mark, said):
    here = str(paths.ROOT / "mha_lesson" / "__init__.py")
    asked = []
    monkeypatch.setattr(bootstrap, "ready", lambda needs: True)
    monkeypatch.setattr(
        kernel, "ask", lambda place: asked.append(place) or answer._replace(found=answer.found.replace("HERE", here))
    )
    (finding,) = doctor.import_in_a_kernel()
    assert finding.mark == mark and said in finding.text and asked == [paths.NOTEBOOKS]
    marks([finding])
    if answer.python == "/hub/python":
        assert '"/hub/python" -m pip install -e' in finding.mend
    (paths.ROOT / "my_lessons").mkdir()
    list(doctor.import_in_a_kernel())
    assert asked[-1] == paths.ROOT / "my_lessons", "where the learner's lessons are"


def test_doctor_asks_no_kernel_before_anything_is_installed(folder, monkeypatch):
    monkeypatch.setattr(bootstrap, "ready", lambda needs: False)
    monkeypatch.setattr(kernel, "ask", lambda place: pytest.fail("asked"))
    assert marks(doctor.import_in_a_kernel()) == []


def test_doctor_on_the_copies_and_the_path(folder, monkeypatch):
    assert marks(doctor.own_copies()) == ["note"]
    assert marks(doctor.path()) == []
    monkeypatch.setattr(install, "path_problem", lambda: ("too long", "move it"))
    assert marks(doctor.path()) == ["fail"]


def test_doctor_where_torch_has_no_build():
    pin = requirements.parse('torch==2.13.0 ; sys_platform == "nowhere"')
    finding = doctor.package(pin, pin)
    assert (
        finding.mark == "note"
        and "torch has no build for this machine" in finding.text
        and "Lessons 00-06 work without it" in finding.text
    )


def test_doctor_when_torch_does_not_start(monkeypatch):
    monkeypatch.setattr(requirements, "installed", lambda name: "2.13.0")
    monkeypatch.setattr(doctor, "TORCH", "raise OSError('libcudart.so is missing')")
    (finding,) = doctor.torch()
    assert finding.mark == "fail" and "libcudart.so is missing" in finding.text and finding.mend


def test_doctor_on_disk_and_folder(folder, monkeypatch):
    monkeypatch.setattr(bootstrap, "ready", lambda needs: False)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 3 * 10**8))
    assert marks(doctor.disk()) == ["fail"]
    assert marks(doctor.writable()) == ["ok"]


def test_doctor_on_a_course_that_may_not_be_written(folder, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(copies, "may_write", lambda place: paths.ROOT not in (place, *place.parents))
    monkeypatch.setattr(bootstrap, "ready", lambda needs: True)
    (finding,) = doctor.writable()
    assert finding.mark == "note" and str(tmp_path / "home" / "mha_lessons") in finding.text
    monkeypatch.setattr(bootstrap, "ready", lambda needs: False)
    assert marks(doctor.writable()) == ["fail"], "then there is no place for .venv"
    monkeypatch.setattr(copies, "may_write", lambda place: False)
    assert marks(doctor.writable()) == ["fail"]


def test_doctor_on_notebooks(folder):
    assert marks(doctor.notebooks()) == ["fail"]
    nbformat.write(lesson("x"), paths.START)
    assert marks(doctor.notebooks()) == ["ok"]
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
