"""Make `.venv` and install requirements.txt into it, saying what happens.

Every step may find the leftovers of a try that was killed half-way, and goes on from there.
"""

import contextlib
import errno
import importlib.util
import os
import shutil
import subprocess
import sys

from mha_lesson.course import bootstrap, paths, pip_help
from mha_lesson.course.errors import CourseError
from mha_lesson.course.spinner import Progress, describe

LOG = "mha_lesson_install.log"
LINK = "mha_lesson_course.pth"
LOCK = ".venv.lock"  # beside .venv, which may be made anew
# In .venv while pip works. Found at the next start, it says that pip was killed: then a
# package may be there in part, and pip would take it for whole. (Downloads stay cached.)
UNFINISHED = "mha_lesson_install_unfinished"
# A path on Windows has 259 characters, unless long ones are enabled. \.venv\Lib\site-packages\ are 25 of
# them, and the longest name in torch's wheel 167.
LONGEST_FOLDER = 259 - 25 - 167
SPACE_NEEDED = 1_800_000_000  # bytes; 1.3-1.6 GB were measured without a CUDA build


class PipFailed(Exception):
    """pip stopped; `lines` is what it said, `touched` whether it had begun to unpack."""

    def __init__(self, lines, touched):
        self.lines = lines
        self.touched = touched
        super().__init__(pip_help.last_relevant_line(lines))


def build():
    """Leave a complete .venv behind, or say in one line why there is none."""
    try:
        with alone():
            build_alone()
    except OSError as error:
        raise explain_os_error(error) from error


def build_alone():
    if problem := path_problem():
        raise CourseError(*problem)
    if not bootstrap.venv_runs() or (paths.VENV / UNFINISHED).exists():
        make_venv()
    pip = pip_command()
    if pip is None:  # .venv has a pip that is damaged
        make_venv()
        pip = pip_command()
    if pip is None:
        raise CourseError("This Python comes without pip and ensurepip: nothing can be installed.", debian_hint())
    install_requirements(pip)
    link_course()


@contextlib.contextmanager
def alone():
    """Two installs at once, from two terminals, would destroy each other's work.

    The system lets go of the lock when the last process that holds it ends, however it
    ends. pip inherits it: so one that outlived its parent is waited for as well.
    """
    with (paths.ROOT / LOCK).open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            lock(file.fileno())
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                raise CourseError(
                    "Another start of the course is installing right now.",
                    "wait until it is done, then run the same command again.",
                ) from None
            # else the file system has no locks: go on without
        yield


def lock(descriptor):
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- the folder ----------------------------------------------------------------------------


def path_problem(windows=os.name == "nt"):
    """(what, mend) if the packages' files will not fit into Windows' longest path; else None."""
    length = len(str(paths.ROOT))
    if not windows or length <= LONGEST_FOLDER or long_paths_enabled():
        return None
    return (
        f"The course's folder has {length} characters in its path, Windows allows {LONGEST_FOLDER} here: {paths.ROOT}.",
        r"move it to a short path such as C:\mha, or enable long paths in Windows, and run the same command again.",
    )


def long_paths_enabled():
    """Windows' own switch; off unless somebody has turned it on."""
    try:
        import winreg

        key = winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem")
        with key:
            return winreg.QueryValueEx(key, "LongPathsEnabled")[0] == 1
    except (ImportError, OSError):
        return False


# --- the environment -----------------------------------------------------------------


def make_venv():
    check_space()
    try:
        import venv
    except ImportError:
        raise CourseError("This Python has no venv module.", debian_hint()) from None
    if paths.VENV.exists() and not paths.VENV.is_dir():
        raise CourseError(f"{paths.VENV} should be a folder and is a file.", "rename or delete it.")
    print(f"Making a virtual environment in {paths.VENV}", flush=True)
    # pip comes in its own step: so a Python without ensurepip can still go on.
    venv.EnvBuilder(clear=True, symlinks=os.name != "nt", with_pip=False).create(paths.VENV)
    if not bootstrap.venv_runs():
        raise CourseError(
            f"The Python in {paths.VENV} does not start.",
            "start with another Python (python.org, your system's packages, conda or uv).",
        )


def check_space():
    free = shutil.disk_usage(paths.ROOT).free
    if free < SPACE_NEEDED:
        raise CourseError(
            f"The course takes about {SPACE_NEEDED / 1e9:.1f} GB, {free / 1e9:.1f} GB are free in {paths.ROOT}.",
            "free some space, or move the course's folder to a larger disk, and run the same command again.",
        )


def debian_hint():
    major, minor = sys.version_info[:2]
    return f"on Debian or Ubuntu: sudo apt install python{major}.{minor}-venv; then run the same command again."


def link_course(sites=None):
    """Let every program that uses these site-packages (an editor, say) find `mha_lesson`; those of .venv
    if none are named. There the path is relative, so that the course's folder may be moved."""
    if sites is None:
        for site in [*paths.VENV.glob("lib/python*/site-packages"), *paths.VENV.glob("Lib/site-packages")]:
            (site / LINK).write_text(os.path.relpath(paths.ROOT, site) + "\n", encoding="ascii")
        return
    # Python reads the file in the system's encoding, whichever that is. So it holds plain letters alone.
    path = str(paths.ROOT)
    line = path if path.isascii() else f"import sys; sys.path.append({path!a})"
    for site in sites:
        (site / LINK).write_text(line + "\n", encoding="ascii")


def explain_os_error(error):
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        return CourseError(
            "The disk is full.", "free some space (about 2 GB) and run the same command again: it goes on from here."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CourseError(
            f"{error.filename or paths.ROOT} may not be written.",
            "copy the course's folder to a place of your own (your home, say) and run the command there.",
        )
    mend = "delete the folder .venv and run the same command again."
    return CourseError(f"Making {paths.VENV} failed: {error}.", mend)


# --- pip -------------------------------------------------------------------------------


def pip_command():
    """How to run pip for .venv: its own, else one made by ensurepip, else the pip of the
    Python that runs now (Debian keeps ensurepip in a package of its own), else None."""
    python = str(paths.venv_python())
    own = [python, "-m", "pip"]
    if runs([*own, "--version"]) or (runs([python, "-m", "ensurepip"]) and runs([*own, "--version"])):
        return own
    outer = [sys.executable, "-m", "pip", "--python", python]
    if importlib.util.find_spec("pip") and runs([*outer, "--version"]):
        return outer
    return None


def runs(command):
    return subprocess.run(command, capture_output=True, env=pip_environment()).returncode == 0


def pip_environment():
    """pip reads settings from variables; those that send packages elsewhere are left out."""
    elsewhere = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_HASHES", "PYTHONHOME"}
    kept = {key: value for key, value in os.environ.items() if key not in elsewhere}
    return {**kept, "PYTHONIOENCODING": "utf-8:replace", "PIP_USER": "0"}


def install_requirements(pip):
    """Install the pins and write the stamp; a failure is explained."""
    print("Installing the course's packages (once; three to ten minutes, depending on the network).", flush=True)
    if sys.platform == "linux":
        print("The largest is torch: on Linux it may come as a CUDA build of several GB.", flush=True)
    before = bootstrap.read_stamp()
    without = []
    try:
        try:
            run_pip(pip, paths.REQUIREMENTS)
        except PipFailed as failure:
            if not pip_help.lacks("torch", failure.lines):
                raise
            without = ["torch"]
            print(f"{pip_help.no_torch()} Going on without it: lessons 00-06 work.", flush=True)
            run_pip(pip, requirements_without_torch())
    except PipFailed as failure:
        if before and not failure.touched:
            keep_old_packages(failure)
            return
        raise explain_pip_failure(failure) from None
    bootstrap.write_stamp(without)
    print("Done. The next start takes no time.", flush=True)


def run_pip(pip, requirements_file):
    """Run pip, turn its output into one progress line, keep all of it in a log."""
    # fmt: off
    command = [*pip, "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off",
               "-r", str(requirements_file)]
    # fmt: on
    lines, touched = [], False
    (paths.VENV / UNFINISHED).touch()
    process = subprocess.Popen(
        command, env=pip_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace", close_fds=False,  # so that pip holds the lock too
    )  # fmt: skip
    with process, (paths.VENV / LOG).open("w", encoding="utf-8") as log, Progress() as progress:
        try:
            for line in process.stdout:
                if line.startswith("Installing collected packages"):
                    bootstrap.remove_stamp()  # from here on .venv is incomplete until pip ends
                    touched = True
                lines.append(line.rstrip())
                log.write(line)
                log.flush()
                progress.say(describe(line))
        except BaseException:  # Ctrl-C, or the log's disk is full: leave no pip behind
            process.terminate()
            raise
    if process.returncode == 0 or not touched:
        (paths.VENV / UNFINISHED).unlink()
    if process.returncode != 0:
        raise PipFailed(lines, touched)


def requirements_without_torch():
    lines = paths.REQUIREMENTS.read_text(encoding="utf-8").splitlines(keepends=True)
    copy = paths.VENV / "requirements-without-torch.txt"
    copy.write_text("".join(line for line in lines if not line.startswith("torch")), encoding="utf-8")
    return copy


def keep_old_packages(failure):
    """requirements.txt has changed and cannot be installed now; what was complete before still is."""
    what, _ = pip_help.explain(failure.lines)
    print(f"note: newer packages could not be installed ({what} {failure}). Going on with those of before.")
    os.environ[bootstrap.AS_IT_IS] = "1"


def explain_pip_failure(failure):
    what, mend = pip_help.explain(failure.lines)
    return CourseError(
        f"Installing the packages failed. {what}\n  pip said: {failure}\n ",
        f"{mend}\n  All of pip's output: {paths.VENV / LOG}",
    )
