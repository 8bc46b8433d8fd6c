"""`doctor`: one line for each thing the course needs, and the mend where it is not so.

A check is a function without arguments that yields `Finding`s. It works with nothing
installed; if `.venv` is complete it looks from inside it, as the lessons will.
"""

import os
import platform
import shutil
import subprocess
import sys
from typing import NamedTuple

from mha_lesson import places
from mha_lesson.course import bootstrap, copies, install, kernel, notebook, paths, pip_help, requirements
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
    if started_again or paths.inside_venv() or environment_will_do():
        return
    if bootstrap.venv_complete():
        bootstrap.start_again(arguments, 1)


def environment_will_do():
    """As it is now: on a hub without torch, too, since no .venv would help there."""
    return bootstrap.ready("hub" if copies.on_a_hub() else "lab")


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
    if bootstrap.venv_complete() or environment_will_do():
        yield ok(text) if free > 200e6 else fail(text, "free some space: notebooks are saved here.")
    elif free < install.SPACE_NEEDED:
        yield fail(text, f"free some space: installing takes about {install.SPACE_NEEDED / 1e9:.1f} GB.")
    elif free < ROOMY and sys.platform == "linux":
        yield note(text + "; on Linux a CUDA build of torch takes up to 8 GB")
    else:
        yield ok(text)


def path():
    """Windows' longest path, before 122 MB of torch have been downloaded in vain."""
    if problem := install.path_problem():
        yield fail(*problem)


def writable():
    """Where your copies of the lessons go; without an environment of your own, .venv goes beside them."""
    folder = copies.folder()
    place = folder if folder.is_dir() else folder.parent
    if not copies.may_write(place):
        yield fail(f"{place} may not be written", "make it writable: your copies of the lessons go there.")
    elif places.installed() or copies.may_write(paths.ROOT):
        yield ok(f"{place} may be written")
    elif environment_will_do():
        yield note(f"{paths.ROOT} may not be written: your copies of the lessons go to {folder}")
    else:
        yield fail(f"{paths.ROOT} may not be written", "copy it to a place of your own (your home, say).")


# --- the packages -------------------------------------------------------------------------


def where():
    """Which environment the lessons will use."""
    if places.installed():
        yield ok(f"the course is installed in {places.PACKAGE}")
    elif paths.inside_venv():
        yield from state_of_venv("this is the course's own environment, .venv")
    elif environment_will_do():
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
    if not (paths.inside_venv() or environment_will_do() or places.installed()):
        return
    ranges = requirements.together(requirements.ranges("test"))
    pins = requirements.pins() if paths.REQUIREMENTS.is_file() else []
    if not pins:  # an installed package has only ranges
        pins = [requirements.Requirement(name, spec, "") for name, spec in ranges.items()]
    needed = {need.name for need in requirements.ranges("hub" if no_venv() else "lab")}
    for pin in pins:
        if pin.name in needed:
            yield package(pin, pin._replace(spec=ranges.get(pin.name, pin.spec)))
    yield from not_needed([need for need in requirements.ranges("test") if need.name not in needed])


def not_needed(needs):
    """What is missing and stops no lesson of 00-06: one line each for torch's part, and for the tests'."""
    lacks = [lack.requirement.name for lack in requirements.unmet(needs)]
    if no_venv() and requirements.installed("torch") is None:
        yield note("torch is not installed: lessons 00-06 work without it; pip install torch safetensors adds the rest")
    if tools := [name for name in lacks if name not in ("torch", "safetensors")]:
        yield note(f"only {COMMAND} test needs these, which are missing or too old: {', '.join(tools)}")


def no_venv():
    """Where `lab` makes no .venv: an installed package, and a hub, whose kernels run in its own environment."""
    return places.installed() or copies.on_a_hub()


def package(pin, allowed):
    version = requirements.installed(pin.name)
    if not requirements.applies(pin):
        return note(f"{pip_help.no_torch()} Lessons 00-06 work without it")
    if version is None:
        if pin.name == "torch" and "torch" in bootstrap.read_stamp().get("without", []):
            return note(f"{pip_help.no_torch()} Lessons 00-06 work without it")
        return fail(f"{pin.name} is not installed", mend_package(allowed))
    if requirements.satisfies(version, pin.spec):
        return ok(f"{pin.name} {version}")
    if requirements.satisfies(version, allowed.spec):
        return ok(f"{pin.name} {version} (the stored outputs were made with {pin.spec[2:]})")
    return fail(f"{pin.name} {version}, expected {allowed.spec}", mend_package(allowed))


def mend_package(allowed):
    if no_venv():
        return f'"{sys.executable}" -m pip install "{allowed.name}{allowed.spec}"'
    return f"{COMMAND} lab installs what the course was made with into .venv."


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


def unreadable(file):
    try:
        cells = notebook.read(file)["cells"]
        return None if cells else fail(f"{file.name} is empty", restore(file))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return fail(f"{file.name} is not a notebook any more ({type(error).__name__})", restore(file))


def restore(file):
    return f"{places.mend(f'notebooks/{file.name}')} (your changes in it are lost)."


def own_copies():
    """What `lab` opens: a line on how your copies stand."""
    yield note(copies.standing(copies.folder()))


def import_in_a_kernel():
    """A real kernel, started as a server starts it that knows nothing of the course."""
    if not (places.installed() or paths.inside_venv() or environment_will_do()):
        return  # `where` says what comes first
    place = copies.folder() if copies.folder().is_dir() else paths.NOTEBOOKS
    answer = kernel.ask(place)
    if answer.right:
        yield ok("a notebook's kernel starts, and imports the course")
    elif not answer.python:
        yield fail(
            f"no kernel starts: {answer.said}", f"{COMMAND} lab mends the packages of .venv; else install ipykernel."
        )
    else:
        said = f"it finds another copy, in {answer.found}" if answer.found else answer.said
        yield fail(f"a notebook's kernel does not import the course: {said}", mend_import(answer))


def mend_import(answer):
    return f"start {COMMAND} lab once, or: {kernel.mend(answer)}"


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


CHECKS = (
    python,
    disk,
    path,
    writable,
    where,
    packages,
    torch,
    notebooks,
    own_copies,
    import_in_a_kernel,
    changed_notebooks,
)
