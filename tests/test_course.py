"""The command line: each decision by itself, then the whole way in a small copy of the course."""

import ast
import base64
import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat import v4
from packaging.markers import Marker
from packaging.specifiers import SpecifierSet

from mha_lesson import __main__ as gate
from mha_lesson.course import (
    bootstrap,
    clean,
    cli,
    doctor,
    environment,
    install,
    lab,
    notebook,
    paths,
    pip_help,
    progress,
    refresh,
    requirements,
    suite,
)
from mha_lesson.course.errors import CourseError

posix = pytest.mark.skipif(os.name == "nt", reason="this test uses POSIX links, scripts or permissions")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty course folder that the code takes for its own."""
    root = tmp_path / "Kurs mit Leerzeichen – 注意"
    (root / "notebooks").mkdir(parents=True)
    (root / "requirements.txt").write_text("numpy==2.4.6\ntorch==2.13.0\n", encoding="utf-8")
    monkeypatch.setattr(paths, "ROOT", root)
    monkeypatch.setattr(paths, "NOTEBOOKS", root / "notebooks")
    monkeypatch.setattr(paths, "TESTS", root / "tests")
    monkeypatch.setattr(paths, "START", root / "notebooks" / "00_start_here.ipynb")
    monkeypatch.setattr(paths, "VENV", root / ".venv")
    monkeypatch.setattr(paths, "REQUIREMENTS", root / "requirements.txt")
    for name in (bootstrap.AGAIN, bootstrap.AS_IT_IS):
        monkeypatch.delenv(name, raising=False)
    return root


# --- which Python ------------------------------------------------------------------------


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


# --- what is needed, what is here ---------------------------------------------------------


def test_every_pin_is_exact_and_says_who_needs_it():
    lines = paths.REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if requirements.parse(line)]
    assert len(pinned) == len(requirements.pins()) > 10
    for line in pinned:
        assert requirements.parse(line).spec.startswith("=="), line
        assert line.partition("#")[2].strip(), f"no comment: {line}"


def test_pins_lie_in_the_ranges_and_both_files_name_the_same_packages():
    ranges = {need.name: need for need in requirements.ranges()}
    pins = {need.name: need for need in requirements.pins()}
    assert set(pins) == set(ranges)
    for name, pin in pins.items():
        assert requirements.satisfies(pin.spec[2:], ranges[name].spec), name
        assert pin.marker == ranges[name].marker, name


def test_a_line_is_read():
    line = "torch >=2.11, <3 ; sys_platform != 'darwin'  # lessons 07-13"
    assert requirements.parse(line) == ("torch", ">=2.11,<3", "sys_platform != 'darwin'")
    assert requirements.parse("  # only a comment") is None
    with pytest.raises(ValueError, match="expected a line like"):
        requirements.parse("-r other.txt")


versions = st.lists(st.integers(0, 30), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(versions, versions, st.sampled_from(["==", "!=", ">=", "<=", ">", "<"]))
def test_versions_compare_as_packaging_compares_them(version, other, operator):
    assert requirements.satisfies(version, operator + other) == (version in SpecifierSet(operator + other))


@pytest.mark.parametrize(
    ("version", "spec", "answer"),
    [
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.0+cu128", ">=2.11,<3", True),
        ("3.0", ">=2.11,<3", False),
        ("2.9.1", ">=2.11", False),
        ("2026.1", "", True),
    ],
)
def test_a_version_satisfies(version, spec, answer):
    assert requirements.satisfies(version, spec) is answer


def test_a_clause_that_is_not_understood_is_an_error():
    with pytest.raises(ValueError, match=r"expected a clause like '>=2.11', got '~=2.1'"):
        requirements.satisfies("2.1", "~=2.1")


@pytest.mark.parametrize(
    ("system", "machine", "has_torch"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("darwin", "arm64", True),
        ("darwin", "x86_64", False),
        ("win32", "AMD64", True),
        ("win32", "ARM64", False),
    ],
)
def test_torch_is_asked_for_only_where_it_has_a_build(system, machine, has_torch):
    torch = next(need for need in requirements.pins() if need.name == "torch")
    names = {"sys_platform": system, "platform_machine": machine}
    assert requirements.applies(torch, names) is has_torch
    assert Marker(torch.marker).evaluate(names) is has_torch
    missing = requirements.unmet([torch], version_of=lambda name: None, names=names)
    assert bool(missing) is has_torch


def test_unmet_names_what_was_found():
    here = {"numpy": "1.26.4", "torch": None, "pytest": "9.2.0"}
    needs = [requirements.parse(line) for line in ("numpy>=2.1", "torch>=2.11", "pytest>=8.2")]
    found = [str(lack) for lack in requirements.unmet(needs, version_of=here.get)]
    assert found == ["numpy>=2.1 (found 1.26.4)", "torch>=2.11 (not installed)"]


# --- the decision: use, start again, install ---------------------------------------------------


class Started(Exception):
    """Stands for the process that `start_again` becomes."""


@pytest.fixture
def decide(folder, monkeypatch):
    """Run `ensure` with given facts; tell what it did."""

    def run(ready, complete, times=None):
        did = []
        monkeypatch.setattr(bootstrap, "ready", lambda: ready)
        monkeypatch.setattr(bootstrap, "venv_complete", lambda: complete)
        monkeypatch.setattr(bootstrap, "missing", lambda: ["numpy>=2.1 (not installed)"])
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
    monkeypatch.setattr(requirements, "ranges", lambda: [])
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
    monkeypatch.setattr(requirements, "ranges", lambda: [requirements.parse("torch>=999")])
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


# --- installing --------------------------------------------------------------------------------


def fake_pip(tmp_path, *replies):
    """A stand-in for pip: its n-th `install` prints the n-th reply and ends with that code."""
    script = tmp_path / "fake_pip.py"
    state = tmp_path / "calls.txt"
    script.write_text(
        f"import sys, pathlib\nstate = pathlib.Path({str(state)!r})\n"
        f"calls = state.read_text().splitlines() if state.exists() else []\n"
        f"state.write_text('\\n'.join([*calls, sys.argv[-1]]))\n"
        f"code, text = {list(replies)!r}[len(calls)]\nprint(text)\nsys.exit(code)\n",
        encoding="utf-8",
    )
    return [sys.executable, "-S", str(script)], state


OFFLINE = """\
WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError(...)'
ERROR: Could not find a version that satisfies the requirement jupyterlab==4.6.6 (from versions: none)
ERROR: No matching distribution found for jupyterlab==4.6.6"""

NO_TORCH = """\
Collecting numpy==2.4.6
  Downloading numpy-2.4.6-cp311-cp311-macosx_13_0_arm64.whl.metadata (62 kB)
ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)
ERROR: No matching distribution found for torch==2.13.0"""


def test_success_writes_the_stamp_and_keeps_pips_words(folder, tmp_path, capsys):
    paths.VENV.mkdir()
    pip, calls = fake_pip(tmp_path, (0, "Collecting numpy\nInstalling collected packages: numpy"))
    install.install_requirements(pip)
    assert bootstrap.stamp_fits()
    assert not (paths.VENV / install.UNFINISHED).exists()
    assert calls.read_text() == str(paths.REQUIREMENTS)
    assert "Installing collected packages: numpy" in (paths.VENV / install.LOG).read_text(encoding="utf-8")
    assert "unpacking everything" in capsys.readouterr().out


def test_failure_leaves_no_stamp_and_is_explained(folder, tmp_path):
    paths.VENV.mkdir()
    pip, _ = fake_pip(tmp_path, (1, OFFLINE))
    with pytest.raises(CourseError) as caught:
        install.install_requirements(pip)
    assert not bootstrap.stamp_fits()
    for part in (
        "could not be reached",
        "No matching distribution found for jupyterlab",
        "PIP_FIND_LINKS",
        install.LOG,
    ):
        assert part in str(caught.value), part


def test_a_failure_while_unpacking_takes_the_old_stamp_away(folder, tmp_path):
    paths.VENV.mkdir()
    bootstrap.write_stamp()
    pip, _ = fake_pip(tmp_path, (1, "Installing collected packages: numpy\nERROR: [Errno 28] No space left on device"))
    with pytest.raises(CourseError, match="The disk is full"):
        install.install_requirements(pip)
    assert not bootstrap.stamp_fits()


def test_new_pins_without_network_keep_the_old_packages(folder, tmp_path, capsys, monkeypatch):
    paths.VENV.mkdir()
    bootstrap.write_stamp()
    paths.REQUIREMENTS.write_text("numpy==2.4.7\n", encoding="utf-8")
    monkeypatch.setenv(bootstrap.AS_IT_IS, "")  # so that the test's end removes what is set here
    pip, _ = fake_pip(tmp_path, (1, OFFLINE))
    install.install_requirements(pip)
    assert os.environ[bootstrap.AS_IT_IS] == "1"
    assert "Going on with those of before" in capsys.readouterr().out
    assert not bootstrap.stamp_fits(), "the next start tries again"


def test_without_a_build_of_torch_the_rest_is_installed(folder, tmp_path, capsys):
    paths.VENV.mkdir()
    pip, calls = fake_pip(tmp_path, (1, NO_TORCH), (0, "Installing collected packages: numpy"))
    install.install_requirements(pip)
    assert bootstrap.read_stamp()["without"] == ["torch"]
    second = Path(calls.read_text().splitlines()[1])
    assert second.read_text(encoding="utf-8") == "numpy==2.4.6\n"
    assert "Lessons 00-06 work" in capsys.readouterr().out


def test_an_interrupted_install_leaves_no_pip_behind(folder, tmp_path, monkeypatch):
    paths.VENV.mkdir()
    started = []

    class Interrupting(progress.Progress):
        def say(self, words):
            raise KeyboardInterrupt

    original = subprocess.Popen
    monkeypatch.setattr(install, "Progress", Interrupting)
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(original(*a, **k)) or started[-1])
    script = tmp_path / "slow.py"
    script.write_text("import time\nprint('Collecting numpy', flush=True)\ntime.sleep(60)\n")
    with pytest.raises(KeyboardInterrupt):
        install.run_pip([sys.executable, "-S", str(script)], paths.REQUIREMENTS)
    assert started[0].poll() is not None
    assert not bootstrap.stamp_fits()
    assert (paths.VENV / install.UNFINISHED).exists()


@pytest.mark.parametrize("unfinished", [True, False])
def test_a_venv_in_which_pip_was_killed_is_made_anew(folder, monkeypatch, unfinished):
    did = []
    paths.VENV.mkdir()
    if unfinished:
        (paths.VENV / install.UNFINISHED).touch()
    monkeypatch.setattr(bootstrap, "venv_runs", lambda: True)
    monkeypatch.setattr(install, "make_venv", lambda: did.append("make"))
    monkeypatch.setattr(install, "pip_command", lambda: ["pip"])
    monkeypatch.setattr(install, "install_requirements", lambda pip: did.append("install"))
    install.build()
    assert did == (["make"] if unfinished else []) + ["install"]


def test_two_installs_at_once_are_refused(folder, monkeypatch):
    monkeypatch.setattr(install, "build_alone", lambda: None)
    with install.alone(), pytest.raises(CourseError, match=r"installing right now.*wait until it is done"):
        install.build()
    install.build()  # and the lock is free again


HOLDS_LOCK = """
import os

def is_lock(descriptor):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(LOCK))
    except OSError:
        return False

print("holds the lock:", any(map(is_lock, range(3, 100))))
"""


@posix
def test_a_pip_that_outlives_its_parent_is_waited_for(folder, tmp_path):
    """pip inherits the lock, so the lock lasts as long as the last of the two."""
    paths.VENV.mkdir()
    script = tmp_path / "pip.py"
    script.write_text(HOLDS_LOCK.replace("LOCK)", f"{str(paths.ROOT / install.LOCK)!r})"), encoding="utf-8")
    with install.alone():
        install.run_pip([sys.executable, "-S", str(script)], paths.REQUIREMENTS)
    assert (paths.VENV / install.LOG).read_text(encoding="utf-8") == "holds the lock: True\n"


def test_pip_of_the_running_python_stands_in(folder, monkeypatch):
    tried = []

    def runs(command):
        tried.append(command)
        return "--python" in command

    monkeypatch.setattr(install, "runs", runs)
    assert install.pip_command() == [sys.executable, "-m", "pip", "--python", str(paths.venv_python())]
    assert [command[2] for command in tried] == ["pip", "ensurepip", "pip"]


def test_no_pip_anywhere_names_the_package_to_install(folder, monkeypatch):
    monkeypatch.setattr(install, "runs", lambda command: False)
    with pytest.raises(CourseError, match=r"sudo apt install python3\.\d+-venv"):
        install.build()


def test_settings_that_send_packages_elsewhere_are_left_out(monkeypatch):
    for name in ("PIP_TARGET", "PIP_PREFIX", "PYTHONHOME"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels")
    used = install.pip_environment()
    assert not {"PIP_TARGET", "PIP_PREFIX", "PYTHONHOME"} & set(used)
    assert used["PIP_USER"] == "0" and used["PIP_FIND_LINKS"] == "wheels"


def test_too_little_space_is_said_before_anything_is_made(folder, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 3 * 10**8))
    with pytest.raises(CourseError, match=r"about 1\.8 GB, 0\.3 GB are free"):
        install.make_venv()
    assert not paths.VENV.exists()


def test_a_file_in_the_way_is_said(folder):
    paths.VENV.write_text("not a folder")
    with pytest.raises(CourseError, match="should be a folder and is a file"):
        install.make_venv()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EROFS, "may not be written"),
        (errno.EACCES, "may not be written"),
        (errno.EIO, "delete the folder .venv"),
    ],
)
def test_errors_of_the_system_come_with_their_mend(folder, monkeypatch, number, words):
    def fails():
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(install, "make_venv", fails)
    with pytest.raises(CourseError, match=words) as caught:
        install.build()
    assert caught.value.mend


def test_the_link_to_the_course_is_relative(folder):
    site = paths.VENV / ("Lib" if os.name == "nt" else "lib/python3.11") / "site-packages"
    site.mkdir(parents=True)
    install.link_course()
    line = (site / install.LINK).read_text(encoding="ascii").strip()
    assert not Path(line).is_absolute()
    assert (site / line).resolve() == paths.ROOT.resolve()


@pytest.mark.parametrize(
    ("output", "what"),
    [
        (OFFLINE, "could not be reached"),
        ("ERROR: No matching distribution found for jupyterlab==4.6.6 (from versions: none)", "no packages at all"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("OSError: [WinError 5] Access is denied: 'C:\\\\x'", "may not be written"),
        ("HINT: This error might have occurred since this system does not have Windows Long Path support", "too long"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "secure connection"),
        ("(from versions: 2.1.0, 2.2.0)\nERROR: No matching distribution found for torch==2.13.0", "no build for this"),
        ("zipfile.BadZipFile: File is not a zip file", "damaged"),
        ("Segmentation fault", "pip stopped"),
    ],
)
def test_pips_words_are_explained(output, what):
    said, mend = pip_help.explain(output.splitlines())
    assert what in said
    assert mend


def test_the_line_that_tells_is_chosen():
    lines = [
        "Collecting x",
        "ERROR: the cause",
        "note: This error originates from a subprocess",
        "[notice] upgrade",
        "",
    ]
    assert pip_help.last_relevant_line(lines) == "ERROR: the cause"
    assert pip_help.last_relevant_line(["only this", ""]) == "only this"
    assert pip_help.last_relevant_line([]) == "pip said nothing"


def test_torch_is_left_out_only_if_it_alone_is_missing():
    assert pip_help.lacks("torch", NO_TORCH.splitlines())
    assert not pip_help.lacks("torch", ["ERROR: No matching distribution found for torch==2.13.0"]), "there: no network"
    assert not pip_help.lacks("torch", NO_TORCH.replace("torch==", "torchvision==").splitlines())
    assert not pip_help.lacks("torch", OFFLINE.splitlines())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Collecting torch==2.13.0 (from -r requirements.txt (line 3))", "looking for torch"),
        ("  Downloading torch-2.13.0-cp311-cp311-win_amd64.whl (122.1 MB)", "downloading torch-2.13.0 (122.1 MB)"),
        ("  Downloading torch-2.13.0-cp311-cp311-win_amd64.whl.metadata (30 kB)", None),
        ("Processing c:\\wheels\\torch-2.13.0-cp311-cp311-win_amd64.whl", "reading torch-2.13.0"),
        ("Requirement already satisfied: numpy", None),
    ],
)
def test_progress_in_human_words(line, words):
    assert progress.describe(line) == words


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_only_what_takes_long():
    out = io.StringIO()
    with progress.Progress(out) as shown:
        for words in ("looking for numpy", "downloading six-1.17 (11 kB)", "downloading torch-2.13.0 (122.1 MB)", None):
            shown.say(words)
    assert out.getvalue().splitlines() == ["  [0:00] downloading torch-2.13.0 (122.1 MB)"]


def test_a_terminal_gets_one_line_with_a_clock():
    out = Terminal()
    with progress.Progress(out, interval=0.01) as shown:
        shown.say("looking for numpy")
        for _ in range(500):
            if "looking" in out.getvalue():
                break
            shown.done.wait(0.01)
    assert "\r  [0:00] looking for numpy" in out.getvalue()
    assert "\n" not in out.getvalue()


# --- JupyterLab -------------------------------------------------------------------------------


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


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tset"], "Did you mean test?"),
        (["labs"], "Did you mean lab?"),
        (["xyzzy"], "Expected one of lab, test, doctor, refresh"),
        (["test", "--frobnicate"], "Unrecognized arguments: --frobnicate"),
        (["refresh", "--", "-x"], "Nothing can follow -- with refresh"),
    ],
)
def test_words_that_do_not_exist_are_answered(arguments, said, capsys):
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "To mend:" in error and "Traceback" not in error


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_names_every_word(arguments, capsys):
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    text = capsys.readouterr().out
    assert all(f"    {word} " in text for word in cli.WORDS)


def test_what_follows_two_dashes_is_passed_on(monkeypatch):
    passed = []
    monkeypatch.setattr(bootstrap, "ensure", lambda arguments: passed.append(arguments))
    monkeypatch.setattr(lab, "run", lambda extra, browser: passed.append((extra, browser)) or 0)
    assert cli.main(["lab", "--no-browser", "--", "--port", "9000"]) == 0
    assert passed == [["lab", "--no-browser", "--", "--port", "9000"], (["--port", "9000"], False)]


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "doctor", interrupted)
    assert cli.main(["doctor"]) == 130
    assert "goes on from here" in capsys.readouterr().err


# --- test: two phases -------------------------------------------------------------------------------


@pytest.fixture
def phases(folder, monkeypatch):
    """Run `suite.run` with pretended results of pytest; tell what it was asked."""
    (folder / "tests").mkdir()
    (folder / "tests" / "test_x.py").write_text("")
    v4nb = v4.new_notebook(cells=[v4.new_code_cell("x = 1")])
    for stem in ("00_start_here", "07_torch"):
        nbformat.write(v4nb, folder / "notebooks" / f"{stem}.ipynb")

    def run(extra, codes):
        asked = []

        class Done:
            def __init__(self, code):
                self.returncode = code

        def pretend(command, cwd, env):
            assert cwd == paths.ROOT and command[1:3] == ["-m", "pytest"]
            asked.append((command[3:], env))
            return Done(codes["notebooks" if "--nbval" in command else "tests"])

        monkeypatch.setattr(suite.subprocess, "run", pretend)
        return suite.run(extra), asked

    return run


@pytest.mark.parametrize(
    ("tests", "notebooks", "code", "closing"),
    [
        (0, 0, 0, "PASSED: tests and notebooks"),
        (1, 0, 1, "FAILED: tests"),
        (0, 1, 1, "FAILED: notebooks"),
        (1, 1, 1, "FAILED: tests and notebooks"),
        (2, 0, 1, "FAILED: tests"),  # pytest was interrupted
        (5, 0, 0, "PASSED: notebooks"),
        (5, 5, 1, "NOTHING RAN"),
        (-11, 0, 1, "FAILED: tests"),  # it crashed
    ],
)
def test_both_phases_always_run_and_either_can_fail(phases, capsys, tests, notebooks, code, closing):
    result, asked = phases([], {"tests": tests, "notebooks": notebooks})
    assert len(asked) == 2
    assert result == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == closing
    assert ("git diff" in out) == (notebooks == 1)


def test_the_notebooks_run_strictly_in_fixed_surroundings(phases):
    _, asked = phases(["-x"], {"tests": 0, "notebooks": 0})
    arguments, variables = asked[1]
    assert {"--nbval", "--nbval-current-env", "--nbval-cell-timeout=300", "-x"} <= set(arguments)
    assert [Path(a).name for a in arguments[-2:]] == ["00_start_here.ipynb", "07_torch.ipynb"]
    assert variables["OMP_NUM_THREADS"] == "1" and variables["PYTHONHASHSEED"] == "0"
    assert variables["MHA_LESSON_PROGRESS"] == os.devnull
    assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(paths.ROOT)
    assert "MPLBACKEND" not in variables


def test_what_is_named_alone_is_run(phases):
    _, asked = phases(["-k", "soft", "notebooks/07_torch.ipynb"], {"tests": 1, "notebooks": 0})
    assert len(asked) == 1 and asked[0][0][-1].endswith("07_torch.ipynb") and "soft" in asked[0][0]
    _, asked = phases(["tests/test_x.py::test_one"], {"tests": 0, "notebooks": 1})
    assert len(asked) == 1 and asked[0][0][-1].endswith("test_x.py::test_one")


def test_no_notebook_yet_is_no_failure(phases, capsys):
    for file in paths.notebook_files():
        file.unlink()
    result, asked = phases([], {"tests": 0})
    assert (result, len(asked)) == (0, 1)
    assert "notebooks  nothing to run" in capsys.readouterr().out


def test_without_torch_its_lessons_are_left_out_and_named(phases, monkeypatch, capsys):
    nb = v4.new_notebook(cells=[v4.new_code_cell("import numpy\nfrom mha_lesson.pytorch import MultiHeadAttention")])
    nbformat.write(nb, paths.NOTEBOOKS / "07_torch.ipynb")
    monkeypatch.setattr(suite.importlib.util, "find_spec", lambda name: None)
    _, asked = phases([], {"tests": 0, "notebooks": 0})
    assert [Path(a).name for a in asked[1][0] if a.endswith(".ipynb")] == ["00_start_here.ipynb"]
    assert "SKIPPED 07_torch.ipynb: it needs torch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("import torch", True),
        ("x = 1\n    from torch import nn", True),
        ("import mha_lesson.models.train", True),
        ("import torchless", False),
        ("print('import torch')", False),
        ("from mha_lesson.attention import MultiHeadAttention", False),
    ],
)
def test_which_notebook_needs_torch(source, needed):
    assert notebook.needs_torch({"cells": [{"cell_type": "code", "source": source}]}) is needed


# --- refresh -------------------------------------------------------------------------------------------


def lesson(*sources):
    cells = [v4.new_code_cell(source, id=f"c{n}") for n, source in enumerate(sources)]
    return v4.new_notebook(cells=cells, metadata={"mha_lesson": {"minutes": 20}})


def image(png, text="3x3, max 0.8", alt="a map"):
    return v4.new_output("display_data", {"image/png": png, "text/plain": text}, metadata={"image/png": {"alt": alt}})


def test_cleaning_keeps_the_lesson_and_drops_the_noise():
    nb = lesson("a", "b")
    nb.metadata.update(widgets={"state": {}}, language_info={"name": "python", "version": "3.12.1"}, vscode={"x": 1})
    nb.cells[0].metadata.update(execution={"iopub.status.busy": "now"}, tags=["keep"], collapsed=True)
    nb.cells[0].outputs = [v4.new_output("stream", name="stdout", text=text) for text in ("a\n", "b\n")]
    nb.cells[0].outputs += [image("AA=="), v4.new_output("stream", name="stdout", text="c")]
    kept = clean.cleaned(nb)
    assert set(kept.metadata) == {"mha_lesson", "language_info", "kernelspec"}
    assert "version" not in kept.metadata.language_info
    assert kept.cells[0].metadata == {"tags": ["keep"]}
    assert [output.get("text") for output in kept.cells[0].outputs] == ["a\nb\n", None, "c"]
    assert [cell.id for cell in kept.cells] == ["c0", "c1"]
    assert nb.metadata.widgets, "the given notebook is left as it is"


def test_stdout_and_stderr_are_not_mixed():
    both = [v4.new_output("stream", name=name, text=name) for name in ("stdout", "stderr", "stdout")]
    assert [output.name for output in clean.merge_streams(both)] == ["stdout", "stderr", "stdout"]


def test_counts_start_at_one():
    nb = lesson("a", "  ", "b")
    nb.cells[2].outputs = [v4.new_output("execute_result", {"text/plain": "1"}, execution_count=9)]
    clean.number_counts(nb)
    assert [cell.execution_count for cell in nb.cells] == [1, None, 2]
    assert nb.cells[2].outputs[0].execution_count == 2


def test_a_picture_is_kept_if_what_it_shows_is_the_same():
    old, new = lesson("a", "b", "c", "d"), lesson("a", "b", "c", "d")
    old.cells[0].outputs = [image("OLD0"), image("OLD1", "first")]
    new.cells[0].outputs = [image("NEW0", alt="a better text"), image("NEW1", "second")]
    old.cells[1].outputs = [image("OLD2", "<Figure size 640x480 with 1 Axes>")]
    new.cells[1].outputs = [image("NEW2", "<Figure size 640x480 with 1 Axes>")]
    old.cells[2].outputs = []
    new.cells[2].outputs = [image("NEW3")]
    old.cells[3].outputs, old.cells[3].id = [image("OLD4")], "gone"
    new.cells[3].outputs = [image("NEW4")]
    clean.keep_pictures(new, old)
    stored = [output.data["image/png"] for cell in new.cells for output in cell.outputs]
    assert stored == ["OLD0", "NEW1", "NEW2", "NEW3", "NEW4"]
    assert new.cells[0].outputs[0].metadata["image/png"]["alt"] == "a better text"


def test_an_output_that_is_not_compared_is_kept_as_long_as_its_code_is_the_same():
    def printed(text):
        return [v4.new_output("stream", name="stdout", text=text)]

    ignored = "# NBVAL_IGNORE_OUTPUT\n"
    sources = (ignored + "time()", ignored + "time(1)", "time()", ignored + "t()")
    old, new = lesson(*sources), lesson(*sources)
    new.cells[1].source += "  # changed"
    for cell in old.cells[:3]:
        cell.outputs = printed("old")
    for cell in new.cells:
        cell.outputs = printed("new")
    clean.keep_uncompared(new, old)
    assert [cell.outputs[0].text for cell in new.cells] == ["old", "new", "new", "new"]


RANDOM_PICTURE = """\
import os
from IPython.display import display
data = {"image/png": os.urandom(30), "text/plain": "noise"}
display(data, raw=True, metadata={"image/png": {"alt": "noise"}})"""


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory):
    """A notebook run for real, twice."""
    file = tmp_path_factory.mktemp("refresh") / "03_scaling.ipynb"
    source = (
        "import os, mha_lesson\nprint(os.environ['OMP_NUM_THREADS'])\nprint(hash('a'), flush=True)\nmha_lesson.__name__"
    )
    nbformat.write(lesson(source, RANDOM_PICTURE), file)
    first = refresh.refresh(file)
    stored = file.read_bytes()
    os.utime(file, (1, 1))
    return file, first, stored, refresh.refresh(file)


def test_refresh_stores_clean_outputs(refreshed):
    file, first, stored, _ = refreshed
    assert first == ("changed", "")
    nb = nbformat.read(file, as_version=4)
    assert [cell.execution_count for cell in nb.cells] == [1, 2]
    assert [output.output_type for output in nb.cells[0].outputs] == ["stream", "execute_result"]
    assert nb.cells[0].outputs[0].text.startswith("1\n")
    assert nb.cells[0].outputs[1].data["text/plain"] == "'mha_lesson'"
    assert all(cell.metadata == {} for cell in nb.cells)
    assert stored.endswith(b"}\n") and b"\r" not in stored


def test_refresh_writes_nothing_for_noise(refreshed):
    file, _, stored, second = refreshed
    assert second == ("unchanged", ""), "hash('a') and the picture's bytes differ unless they are fixed and kept"
    assert file.read_bytes() == stored
    assert file.stat().st_mtime == 1


def test_refresh_leaves_a_notebook_that_fails(tmp_path, capsys):
    file = tmp_path / "04_masking.ipynb"
    nbformat.write(lesson("x = 1", "x / 0"), file)
    before = file.read_bytes()
    assert refresh.refresh_and_say(file, check=False, pictures=False) == "failed"
    said = capsys.readouterr().out
    assert "cell 2 fails" in said and "| x / 0" in said and "ZeroDivisionError: division by zero" in said
    assert file.read_bytes() == before


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """`refresh` of a stored notebook whose run gives these outputs, without a kernel."""

    def run(outputs, meanwhile=lambda file: None, **options):
        file = tmp_path / "05_softmax.ipynb"
        nb = lesson("print(1)")
        nb.cells[0].update(execution_count=1, outputs=[v4.new_output("stream", name="stdout", text="1\n")])
        nbformat.write(clean.cleaned(nb), file)
        before = file.read_bytes()

        def execute(client, **kwargs):
            client.nb.cells[0].update(execution_count=1, outputs=outputs)
            meanwhile(file)

        monkeypatch.setattr(refresh.NotebookClient, "execute", execute)
        state, detail = refresh.refresh(file, **options)
        return state, detail, file.read_bytes() != before

    return run


def printed(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)


def test_refresh_tells_what_would_change(pretend):
    assert pretend([printed("1\n")], check=True) == ("unchanged", "", False)
    assert pretend([printed("2\n")], check=True) == ("would change", "", False)
    assert pretend([printed("2\n")]) == ("changed", "", True)


def test_refresh_reports_stderr(pretend):
    state, detail, written = pretend([printed("1\n"), printed("DeprecationWarning: old\n", "stderr")])
    assert (state, written) == ("failed", False)
    assert "cell 1 writes to stderr: DeprecationWarning: old" in detail


def test_refresh_never_overwrites_what_was_saved_meanwhile(pretend):
    state, detail, _ = pretend([printed("2\n")], meanwhile=lambda file: file.write_text("my work"))
    assert state == "failed" and "nothing was written" in detail


def test_refresh_finds_notebooks_by_name(folder, tmp_path, monkeypatch):
    for stem in ("00_start_here", "03_scaling", "10_applications"):
        nbformat.write(lesson("x"), folder / "notebooks" / f"{stem}.ipynb")
    stems = lambda *names: [file.stem for file in refresh.find(names)]  # noqa: E731
    assert stems() == ["00_start_here", "03_scaling", "10_applications"]
    assert stems("03") == stems("03_scaling") == stems("03_scaling.ipynb") == ["03_scaling"]
    assert stems(str(folder / "notebooks" / "10_applications.ipynb"), "10") == ["10_applications"]
    with pytest.raises(CourseError, match=r"got '3x'.*choose from: 00_start_here, 03_scaling"):
        stems("3x")


@pytest.mark.parametrize(
    ("states", "check", "code"),
    [
        (["changed", "unchanged"], False, 0),
        (["changed", "failed"], False, 1),
        (["unchanged", "unchanged"], True, 0),
        (["would change", "unchanged"], True, 1),
    ],
)
def test_the_exit_code_of_refresh(folder, monkeypatch, states, check, code):
    for n in range(2):
        nbformat.write(lesson("x"), folder / "notebooks" / f"0{n}_x.ipynb")
    answers = iter(states)
    monkeypatch.setattr(refresh, "refresh_and_say", lambda *a: next(answers))
    assert refresh.run([], check=check) == code


def test_fixed_surroundings_do_not_depend_on_the_user():
    theirs = {
        "MPLBACKEND": "tk",
        "MATPLOTLIBRC": "mine",
        "OMP_NUM_THREADS": "8",
        "MHA_LESSON_PROGRESS": "mine",
        "A": "b",
    }
    fixed = environment.fixed("empty", theirs)
    assert fixed["A"] == "b" and fixed["OMP_NUM_THREADS"] == "1" and fixed["IPYTHONDIR"] == "empty"
    assert not {"MPLBACKEND", "MATPLOTLIBRC"} & set(fixed)
    assert fixed["MHA_LESSON_PROGRESS"] == os.devnull


def test_strict_comparison_really_bites(tmp_path, monkeypatch, capfd):
    """One output is stored wrong: the notebooks' phase fails, and names the cell."""
    nb = lesson("print(1 + 1)", "print(2 + 2)")
    for cell, text in zip(nb.cells, ("2\n", "5\n"), strict=True):
        cell.update(execution_count=1, outputs=[printed(text)])
    file = tmp_path / "06_heads.ipynb"
    nbformat.write(nb, file)
    phase = suite.run_notebooks(["-p", "no:cacheprovider"], [str(file)])
    assert phase.failed
    out = capfd.readouterr().out
    assert "1 failed, 1 passed" in out and "06_heads" in out


# --- doctor --------------------------------------------------------------------------------------------


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


# --- the walls between the packages ----------------------------------------------------------------------


def test_the_import_contracts_hold(monkeypatch, capfd):
    from importlinter.cli import lint_imports

    monkeypatch.chdir(paths.ROOT)
    code = lint_imports(config_filename=str(paths.PYPROJECT), no_cache=True)
    assert code == 0, capfd.readouterr().out


@pytest.mark.parametrize("module", ["mha_lesson", "mha_lesson.course.cli", "mha_lesson.attention"])
def test_what_has_to_start_fast_loads_nothing_heavy(module):
    ask = f"import sys, {module}; print(*sorted({{'torch', 'matplotlib', 'IPython', 'nbformat'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", ask], cwd=paths.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# --- the whole way, in a small copy of the course ---------------------------------------------------------

FAKE_LAB = "import sys\nprint('LAB', sys.prefix, *sys.argv[1:])\n"


def make_wheel(folder, name, version, source):
    """The smallest wheel: one module that can be started with -m."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


class SmallCourse:
    """A copy of the course that needs one tiny package, started by a Python that has nothing."""

    def __init__(self, folder):
        self.root = folder / "Kurs mit Leerzeichen – 注意"
        self.wheels = folder / "wheels"
        self.elsewhere = folder / "elsewhere"
        for made in (self.root / "notebooks", self.root / "mha_lesson", self.wheels, self.elsewhere):
            made.mkdir(parents=True)
        package = paths.ROOT / "mha_lesson"
        for file in ("__init__.py", "__main__.py"):
            shutil.copy(package / file, self.root / "mha_lesson")
        shutil.copytree(package / "course", self.root / "mha_lesson" / "course")
        (self.root / "pyproject.toml").write_text('[project]\ndependencies = ["jupyterlab>=1"]\n')
        (self.root / "requirements.txt").write_text("jupyterlab==1.0\n")
        (self.root / "notebooks" / "00_start_here.ipynb").write_text('{"cells": [{}], "mine": true}')
        make_wheel(self.wheels, "jupyterlab", "1.0", FAKE_LAB)
        self.venv = self.root / ".venv"
        self.stamp = self.venv / bootstrap.STAMP

    def give_venv_pip(self):
        """What `ensurepip` would do, in a tenth of the time: copy the pip that is here."""
        import venv

        venv.create(self.venv, symlinks=os.name != "nt")
        site = next(self.venv.glob("[Ll]ib/**/site-packages"))
        for part in Path(sysconfig.get_path("purelib")).glob("pip*"):
            if part.name == "pip" or part.name.startswith("pip-"):
                shutil.copytree(part, site / part.name)

    def start(self, *arguments, wheels=True):
        """-S: a Python without any installed package. No network in any case."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "MHA_", "PYTHON"))}
        variables = {**kept, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PYTHONUTF8": "1"}
        if wheels:
            variables["PIP_FIND_LINKS"] = self.wheels.as_uri()
        return subprocess.run(
            [sys.executable, "-S", str(self.root / "mha_lesson"), *arguments],
            cwd=self.elsewhere, env=variables, capture_output=True, encoding="utf-8",
        )  # fmt: skip


def test_the_whole_way(tmp_path):
    course = SmallCourse(tmp_path)

    # doctor works with nothing installed, and says what to do
    done = course.start("doctor")
    assert done.returncode == 1 and "[fail] the packages are not installed yet" in done.stdout
    assert not course.venv.exists()

    # no network: one clear reason, a mend, no stamp
    course.give_venv_pip()
    done = course.start("lab", wheels=False)
    assert done.returncode == 1 and "PIP_FIND_LINKS" in done.stderr and "Traceback" not in done.stderr
    assert not course.stamp.exists()

    # with an offline folder the install is completed, and the lab started inside .venv
    done = course.start("lab", "--no-browser", "--", "--port", "9000")
    assert done.returncode == 0, done.stdout + done.stderr
    started = done.stdout.splitlines()[-1]
    assert started.startswith(f"LAB {course.venv} ") and started.endswith(" --port 9000")
    assert f"--ServerApp.root_dir={course.root}" in started
    assert json.loads(course.stamp.read_text())["without"] == []

    # the second start installs nothing and needs no network
    done = course.start("lab", wheels=False)
    assert done.returncode == 0 and "Installing" not in done.stdout and "LAB" in done.stdout

    # a package was removed since: it is put back
    for module in course.venv.glob("[Ll]ib/**/site-packages/jupyterlab*"):
        shutil.rmtree(module) if module.is_dir() else module.unlink()
    done = course.start("lab")
    assert done.returncode == 0 and "Installing" in done.stdout and "LAB" in done.stdout

    # new pins that cannot be had now: the packages of before are used
    (course.root / "requirements.txt").write_text("jupyterlab==1.1\n")
    done = course.start("lab", wheels=False)
    assert done.returncode == 0 and "Going on with those of before" in done.stdout and "LAB" in done.stdout

    # and the learner's notebook was never touched
    assert '"mine": true' in (course.root / "notebooks" / "00_start_here.ipynb").read_text()
