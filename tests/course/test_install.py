"""Making `.venv`: pip's words, what is left behind, two at once, full disks."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mha_lesson.course import bootstrap, install, paths, spinner
from mha_lesson.course.errors import CourseError
from tests.course.helpers import NO_TORCH, OFFLINE, posix


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
    assert "lessons 00-06 work" in capsys.readouterr().out


def test_an_interrupted_install_leaves_no_pip_behind(folder, tmp_path, monkeypatch):
    paths.VENV.mkdir()
    started = []

    class Interrupting(spinner.Progress):
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


@pytest.mark.parametrize(
    ("length", "windows", "long", "fits"),
    [(67, True, False, True), (68, True, False, False), (68, True, True, True), (68, False, False, True)],
)
def test_a_path_too_long_for_windows_is_noticed(folder, monkeypatch, length, windows, long, fits):
    root = "C:\\Users\\Firstname\\".ljust(length, "x")
    whole = f"{root}\\.venv\\Lib\\site-packages\\{'t' * 167}"  # the longest name in torch's wheel
    assert (len(whole) <= 259) == (length <= 67), "Windows' own limit"
    monkeypatch.setattr(paths, "ROOT", root)
    monkeypatch.setattr(install, "long_paths_enabled", lambda: long)
    problem = install.path_problem(windows)
    assert (problem is None) == fits
    if not fits:
        assert "68 characters" in problem[0] and "Windows allows 67" in problem[0] and r"C:\mha" in problem[1]


def test_a_path_too_long_is_said_before_anything_is_made(folder, monkeypatch):
    monkeypatch.setattr(install, "path_problem", lambda: ("It is too long.", "move it."))
    with pytest.raises(CourseError, match=r"It is too long\. To mend: move it"):
        install.build()
    assert not paths.VENV.exists()


def test_the_link_to_the_course_is_relative(folder):
    site = paths.VENV / ("Lib" if os.name == "nt" else "lib/python3.11") / "site-packages"
    site.mkdir(parents=True)
    install.link_course()
    line = (site / install.LINK).read_text(encoding="ascii").strip()
    assert not Path(line).is_absolute()
    assert (site / line).resolve() == paths.ROOT.resolve()
