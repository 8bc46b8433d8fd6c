"""The course in a clone and in a wheel: the same files, found in both."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from mha_lesson import places

BUILT_FROM = ("mha_lesson", "notebooks", "data", "pyproject.toml", "README.md", "LICENSE")


def plain_environment(**more):
    """Nothing that leads to the clone, and no network."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "JUPYTER"))}
    return {**kept, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUTF8": "1", **more}


def run(command, **options):
    done = subprocess.run(command, capture_output=True, encoding="utf-8", **{"env": plain_environment(), **options})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- in a clone -----------------------------------------------------------------------------


def test_in_a_clone_the_files_lie_beside_the_package():
    root = Path(__file__).resolve().parents[1]
    assert not places.installed()
    assert places.folder("data") == root / "data" and places.folder("notebooks") == root / "notebooks"
    assert "git checkout -- data/x.npz" in places.mend("data/x.npz")


def test_in_a_wheel_they_lie_inside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    (tmp_path / "data").mkdir()
    assert places.installed() and places.folder("data") == tmp_path / "data"
    assert "git" not in places.mend("data/x.npz") and "pip install" in places.mend("data/x.npz")
    assert places.first_in_path(Path("a"), "b") == "b", "its folder is full of other packages"


def test_a_new_process_finds_the_package_first(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["theirs", str(places.ROOT)]))
    assert places.child_environment(A="1")["PYTHONPATH"].split(os.pathsep) == [str(places.ROOT), "theirs"]
    assert places.child_environment(A="1")["A"] == "1"
    monkeypatch.delenv("PYTHONPATH")
    assert places.child_environment()["PYTHONPATH"] == str(places.ROOT)


# --- a wheel, for real ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: a build leaves folders behind."""
    pytest.importorskip("pip", reason="this environment was made by another Python's pip")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in BUILT_FROM:
        if (places.ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(places.ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(places.ROOT / name, source)
    (source / "notebooks" / ".ipynb_checkpoints").mkdir()
    (source / "notebooks" / ".ipynb_checkpoints" / "mine-checkpoint.ipynb").write_text("{}")
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(target),
            str(source),
        ]
    )
    (file,) = target.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """An environment with the wheel, and all that the running one has, but not the clone."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env", symlinks=os.name != "nt")
    python = folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", str(wheel)])
    (site,) = folder.glob("env/[Ll]ib/**/site-packages")
    theirs = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # As site.addsitedir would, but without the .pth files there: one of them may lead to the clone.
    (site / "theirs.pth").write_text("".join(f"import sys; sys.path.append({path!a})\n" for path in theirs))
    (folder / "unrelated").mkdir()
    (folder / "home").mkdir()
    return folder, python


@pytest.mark.slow
def test_the_wheel_holds_what_the_course_is_made_of(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, kinds in (
        ("notebooks", "ipynb|md"),
        ("data", "npz|tsv|txt|md|json|safetensors"),
        ("mha_lesson", "py|js"),
    ):
        kept = re.compile(rf"[^.].*\.({kinds})")
        files = [file.relative_to(places.ROOT / folder) for file in sorted((places.ROOT / folder).rglob("*"))]
        there = {file.as_posix() for file in files if kept.fullmatch(file.name) and "__pycache__" not in file.parts}
        home = "mha_lesson" if folder == "mha_lesson" else f"mha_lesson/_shipped/{folder}"
        assert there, folder
        assert {name for name in there if not name.startswith(".")} <= {
            name.removeprefix(home + "/") for name in names if name.startswith(home + "/")
        }, folder
    assert {f"mha_lesson/_shipped/data/{file.name}" for file in places.folder("data").glob("LICENSE-*")} <= names
    assert not [name for name in names if "checkpoint" in name or name.startswith(("tests", "build"))]


EXECUTE = """
import pathlib, sys
import nbformat
from nbclient import NotebookClient
for name in sys.argv[1:]:
    (file,) = pathlib.Path().glob(name + "_*.ipynb")
    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, kernel_name="python3", timeout=300).execute()
    print(name, sum(bool(cell.get("outputs")) for cell in notebook.cells))
"""


@pytest.mark.slow
def test_an_installed_course_works_from_any_folder(elsewhere):
    folder, python = elsewhere
    home = {"HOME": str(folder / "home"), "USERPROFILE": str(folder / "home"), "MHA_LESSON_PROGRESS": os.devnull}
    options = {"cwd": folder / "unrelated", "env": plain_environment(**home)}
    found = run([python, "-c", "import mha_lesson; print(mha_lesson.__file__)"], **options).strip()
    assert Path(found).is_relative_to(folder.resolve()), "not the clone"
    said = run(
        [python, "-m", "mha_lesson", "lab", "--", "--version"], **options
    )  # JupyterLab says its version, and ends
    copies, lessons = folder / "home" / "mha_lessons", len(list(places.folder("notebooks").glob("*.ipynb")))
    assert f"Your copies of the lessons are in {copies}; {lessons} were made now." in said
    assert len(list(copies.glob("*.ipynb"))) == lessons > 10
    script = next(folder.glob("env/[bS]*/mha_lesson*"))
    assert run([script, "--version"], **options).startswith("mha_lesson ")
    counts = dict(
        line.split()
        for line in run([python, "-c", EXECUTE, "00", "01", "06"], **{**options, "cwd": copies}).splitlines()
    )
    assert set(counts) == {"00", "01", "06"} and all(int(count) > 5 for count in counts.values())
    assert not list((folder / "unrelated").iterdir())


@pytest.mark.slow
def test_an_installed_course_says_what_needs_a_clone(elsewhere):
    folder, python = elsewhere
    for word in ("test", "refresh", "faults"):
        command = [python, "-m", "mha_lesson", word]
        done = subprocess.run(
            command, cwd=folder / "unrelated", env=plain_environment(), capture_output=True, text=True
        )
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "needs a clone" in done.stderr


def test_the_notebooks_metadata_survive_the_wheel(wheel):
    """A wheel is a zip: what is in it is what is here, byte for byte."""
    archive = zipfile.ZipFile(wheel)
    for file in places.folder("notebooks").glob("*.ipynb"):
        stored = archive.read(f"mha_lesson/_shipped/notebooks/{file.name}")
        assert stored == file.read_bytes() and json.loads(stored)["metadata"]["mha_lesson"]
