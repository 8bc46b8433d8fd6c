"""`doctor`: one line for each thing the course needs, and the mend where it is not so.

A check is a function without arguments that yields `Finding`s. It works with nothing
installed; if `.venv` is complete it looks from inside it, as the lessons will.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from mha_lesson.course import bootstrap, install, notebook, paths, requirements
from mha_lesson.course.paths import COMMAND

ROOMY = 10_000_000_000  # bytes: enough for a CUDA build of torch


class Finding(NamedTuple):
    mark: str  # "ok", "fail" or "note"
    text: str
    mend: str = ""

    def __str__(self):
        line = f"{'[' + self.mark + ']':<6} {self.text}"
        return f"{line}\n       To mend: {self.mend}" if self.mend else line


def ok(text):
    return Finding("ok", text)


def fail(text, mend):
    return Finding("fail", text, mend)


def note(text):
    return Finding("note", text)


def run(arguments):
    """Print all findings; the exit code is 1 if one of them is a failure."""
    paths.require_course_folder()
    look_from_inside_venv(arguments)
    failures = 0
    for check in CHECKS:
        for finding in check():
            failures += finding.mark == "fail"
            print(finding, flush=True)
    print("\nEverything that is needed is here." if not failures else f"\n{failures} to mend.", flush=True)
    return 1 if failures else 0


def look_from_inside_venv(arguments):
    """The Python that will run the lessons is the one to examine."""
    started_again = os.environ.pop(bootstrap.AGAIN, None)
    if started_again or paths.inside_venv() or bootstrap.ready():
        return
    if bootstrap.venv_complete():
        bootstrap.start_again(arguments, 1)


# --- the machine ------------------------------------------------------------------------


def python():
    version = platform.python_version()
    bits = 64 if sys.maxsize > 2**32 else 32
    if bits == 32:
        yield fail(f"Python {version} is a 32-bit one", "install a 64-bit Python: the packages have no 32-bit builds.")
    else:
        yield ok(f"Python {version}, {platform.system()} {platform.machine()}")


def disk():
    free = shutil.disk_usage(paths.ROOT).free
    text = f"{free / 1e9:.1f} GB free on the disk of the course"
    if bootstrap.venv_complete() or bootstrap.ready():
        yield ok(text) if free > 200e6 else fail(text, "free some space: notebooks are saved here.")
    elif free < install.SPACE_NEEDED:
        yield fail(text, f"free some space: installing takes about {install.SPACE_NEEDED / 1e9:.1f} GB.")
    elif free < ROOMY and sys.platform == "linux":
        yield note(text + "; on Linux a CUDA build of torch takes up to 8 GB")
    else:
        yield ok(text)


def writable():
    for folder in (paths.ROOT, paths.NOTEBOOKS):
        if not folder.is_dir():
            continue
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            yield fail(
                f"{folder} may not be written ({error.strerror})",
                "copy the course's folder to a place of your own (your home, say).",
            )
            return
    yield ok("the course's folder may be written")


# --- the packages -------------------------------------------------------------------------


def where():
    """Which environment the lessons will use."""
    if paths.inside_venv():
        yield from state_of_venv("this is the course's own environment, .venv")
    elif bootstrap.ready():
        yield ok(f"using the environment that runs now: {sys.prefix}")
    elif not paths.VENV.exists():
        yield fail("the packages are not installed yet", f"{COMMAND} lab installs them into .venv (once).")
    elif not bootstrap.venv_complete():
        yield fail("the folder .venv is incomplete or of an older state", f"{COMMAND} lab completes it.")


def state_of_venv(text):
    if bootstrap.stamp_fits():
        yield ok(text)
    else:
        yield fail(f"{text}, and it is incomplete or of an older state", f"{COMMAND} lab completes it.")


def packages():
    """One line for each package; silent where nothing is installed yet (`where` says so)."""
    if not (paths.inside_venv() or bootstrap.ready()):
        return
    allowed = requirements.together(requirements.ranges("test"))
    for pin in requirements.pins():
        yield package(pin, pin._replace(spec=allowed.get(pin.name, pin.spec)))


def package(pin, allowed):
    version = requirements.installed(pin.name)
    if not requirements.applies(pin):
        return note(f"{pin.name} has no build for this machine; lessons 00-06 work without it")
    if version is None:
        if pin.name == "torch" and "torch" in bootstrap.read_stamp().get("without", []):
            return note("torch has no build for this machine; lessons 00-06 work without it")
        return fail(f"{pin.name} is not installed", f"{COMMAND} lab installs it.")
    if requirements.satisfies(version, pin.spec):
        return ok(f"{pin.name} {version}")
    if requirements.satisfies(version, allowed.spec):
        return ok(f"{pin.name} {version} (the stored outputs were made with {pin.spec[2:]})")
    return fail(f"{pin.name} {version}, expected {allowed.spec}", f"{COMMAND} lab installs {pin.spec[2:]} into .venv.")


TORCH = """
import torch
assert torch.equal(torch.ones(2, 2) @ torch.ones(2, 2), torch.full((2, 2), 2.0))
if torch.cuda.is_available():
    print("GPU: " + torch.cuda.get_device_name())
elif torch.backends.mps.is_available():
    print("GPU: Apple silicon (mps)")
else:
    print("no GPU that torch can use: everything runs on the CPU")
"""


def torch():
    """Does torch start (a driver or a system library may be missing), and is there a GPU?"""
    if requirements.installed("torch") is None:
        return  # `packages` says what there is to say
    try:
        done = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        yield fail("importing torch takes more than 5 minutes", "try again when the machine is less busy.")
        return
    if done.returncode == 0:
        yield ok("torch works")
        yield note(done.stdout.strip().splitlines()[-1])
    else:
        said = (done.stderr.strip().splitlines() or ["it died without a word"])[-1]
        yield fail(f"torch does not start (lessons 00-06 work without it): {said}", torch_mend())


def torch_mend():
    if os.name == "nt":
        return "install Microsoft's Visual C++ Redistributable (x64), then try again."
    return f"delete the folder .venv and run {COMMAND} lab; if it stays, search the web for the message."


# --- the notebooks --------------------------------------------------------------------------


def notebooks():
    files = paths.notebook_files()
    if not files:
        yield fail(f"no notebook in {paths.NOTEBOOKS}", "get a fresh copy of the course.")
        return
    broken = [finding for file in files if (finding := unreadable(file))]
    yield from broken
    if not paths.START.is_file():
        yield fail(f"{paths.START.name} is missing", "get a fresh copy of the course.")
    if not broken:
        yield ok(f"{len(files)} notebooks, all readable")
    yield from trust(files)


def unreadable(file):
    try:
        cells = notebook.read(file)["cells"]
        return None if cells else fail(f"{file.name} is empty", restore(file))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return fail(f"{file.name} is not a notebook any more ({type(error).__name__})", restore(file))


def restore(file):
    return f"git checkout -- notebooks/{file.name} brings back the course's own (your changes in it are lost)."


def trust(files):
    """JupyterLab shows the interactive outputs of a notebook only after you ran it yourself."""
    try:
        import nbformat
        from nbformat.sign import NotebookNotary

        notary = NotebookNotary()
        new = [file.stem for file in files if not notary.check_signature(nbformat.read(file, as_version=4))]
        notary.store.close()
    except Exception:  # not installed, no home to keep signatures in, a broken notebook:
        return  # a note is not worth a crash, and `unreadable` has named what is broken
    if new:
        yield note(f"{len(new)} of {len(files)} notebooks were not run by you yet: widgets appear when you run them")


def changed_notebooks():
    """Your own work in a notebook is normal; knowing of it helps when one misbehaves."""
    git = shutil.which("git")
    if not git or not (paths.ROOT / ".git").exists():
        return
    command = [git, "-C", str(paths.ROOT), "status", "--porcelain", "-z", "--", "notebooks"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    names = [entry[3:] for entry in done.stdout.split("\0") if entry.endswith(".ipynb")]
    if done.returncode == 0 and names:
        yield note("changed by you: " + ", ".join(sorted(names)))


CHECKS = (python, disk, writable, where, packages, torch, notebooks, changed_notebooks)
