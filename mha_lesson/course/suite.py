"""`test`: first tests/, then every stored output of the notebooks, strictly.

Both always run, so that one call shows all that is wrong.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from mha_lesson.course import bootstrap, environment, junit, learner, notebook, paths, selection
from mha_lesson.course.paths import COMMAND

# pytest's exit codes: 1 some failed, 2 it was stopped (an error while collecting, say), 3 its own fault,
# 4 it did not understand the command. Only these two are no failure:
PASSED, NOTHING_COLLECTED = 0, 5
STOPPED = 130  # the exit code after Ctrl-C

NBVAL = (
    "-p", "mha_lesson.course.comparison",  # strict: every output of every cell is compared
    "--nbval-current-env",  # with the Python that runs now
    "--nbval-cell-timeout=300",
    "--nbval-kernel-startup-timeout=120",
    "--continue-on-collection-errors",  # a broken notebook does not hide the others
    "-p", "no:pytest_mpl",
    "-o", "filterwarnings=default",  # the warnings of nbval itself are not our errors
)  # fmt: skip


# Whole files go to one process: a notebook's cells need one kernel, and a file's fixtures are made once.
SEVERAL = ("--dist=loadfile", "-n")
MOST_PROCESSES = 4  # each may hold a gigabyte
QUICK = ("-m", "not slow")
SLOWEST = ("--durations=20", "--durations-min=1")
SHOWN_VERSIONS = ("numpy", "torch", "matplotlib", "nbval", "pytest")


class Phase(NamedTuple):
    name: str
    result: str  # "passed", "failed" or why nothing ran
    seconds: float = 0.0

    @property
    def failed(self):
        return self.result == "failed"


def run(extra, quick=False, slowest=False):
    """Run both phases; the exit code is 1 if either fails, or if nothing ran at all."""
    wanted = selection.select([*(SLOWEST if slowest else ()), *extra])
    phases = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as private:
        try:
            if wanted.tests or not wanted.only_some:
                phases.append(run_tests(wanted, private, quick))
            if wanted.lessons or not wanted.only_some:
                phases.append(run_notebooks(wanted, private))
        except KeyboardInterrupt:
            print(f"\nStopped. Nothing is kept of this run: {COMMAND} test starts afresh.", file=sys.stderr)
            return STOPPED
        if wanted.junit:
            junit.join({p.name: report_file(p.name, private) for p in phases if p.seconds}, wanted.junit)
    report(phases, quick)
    ran = any(phase.result == "passed" for phase in phases)
    return 0 if ran and not any(phase.failed for phase in phases) else 1


def run_tests(wanted, private, quick=False):
    print("== Tests: tests/ ==", flush=True)
    if not list(paths.TESTS.rglob("test_*.py")):
        return Phase("tests", "nothing to run: no test_*.py in tests/")
    targets = wanted.tests or [str(paths.TESTS)]
    processes = at_once(wanted, many=not wanted.tests or several_files(targets))
    arguments = [*processes, *(QUICK if quick else ()), *cache("tests", private), *wanted.options]
    return pytest("tests", [*arguments, *targets], environment.private(private), report_to(wanted, "tests", private))


def run_notebooks(wanted, private):
    print("\n== Notebooks: every stored output ==", flush=True)
    files = leave_out_torch(wanted.lessons or [str(path) for path in paths.notebook_files()])
    if not files:
        return Phase("notebooks", "nothing to run: no notebook in notebooks/ that can run here")
    variables = environment.fixed(private)
    environment.build_font_cache(variables)
    arguments = [*NBVAL, *at_once(wanted, several_files(files)), *cache("notebooks", private), *wanted.options, *files]
    return pytest("notebooks", arguments, variables, report_to(wanted, "notebooks", private))


def at_once(wanted, many):
    """Options for pytest to use several cores, if there is more than one file. (One file goes to one process.)"""
    processes = min(os.cpu_count() or 1, MOST_PROCESSES)
    asked = wanted.has("-n", "--numprocesses", "--dist", "--pdb", "--trace")
    if not many or asked or processes == 1 or importlib.util.find_spec("xdist") is None:
        return []
    return [*SEVERAL, str(processes)]


def several_files(targets):
    files = {selection.file_of(target) for target in targets}
    return len(files) > 1 or any(Path(file).is_dir() for file in files)


def cache(phase, private):
    """Where pytest notes what failed, for --lf: each phase by itself, and elsewhere if the folder can't be written."""
    place = paths.ROOT / ".pytest_cache"
    there = place if place.exists() else paths.ROOT
    folder = place if os.access(there, os.W_OK) else Path(private) / "pytest_cache"
    return ["-o", f"cache_dir={folder if phase == 'tests' else folder / phase}"]


def report_to(wanted, phase, private):
    if not wanted.junit:
        return []
    return [f"--junitxml={report_file(phase, private)}"]


def report_file(phase, private):
    return Path(private) / f"{phase}.xml"


def leave_out_torch(files):
    """Where torch has no build, the lessons that need it are left out, and named."""
    if importlib.util.find_spec("torch"):
        return files
    without = [file for file in files if not needs_torch(Path(selection.file_of(file)))]
    for file in sorted(set(files) - set(without)):
        print(f"SKIPPED {Path(file).name}: it needs torch, which has no build for this machine")
    return without


def needs_torch(path):
    try:
        return notebook.needs_torch(notebook.read(path))
    except (OSError, ValueError, KeyError, TypeError):  # broken, or a folder: for the comparison to say
        return False


def pytest(name, arguments, variables, reporting=()):
    variables = {**variables, "PYTHONPATH": bootstrap.course_first(variables.get("PYTHONPATH"))}
    command = [sys.executable, "-m", "pytest", *arguments, *reporting]
    start = time.monotonic()
    code = subprocess.run(command, cwd=paths.ROOT, env=variables).returncode
    return Phase(name, verdict(code), time.monotonic() - start)


def verdict(code):
    if code == NOTHING_COLLECTED:
        return "nothing to run: no test fits"
    return "passed" if code == PASSED else "failed"


# --- what is said at the end -----------------------------------------------------------------


def report(phases, quick=False):
    print("\n== Summary ==")
    print(versions())
    for phase in phases:
        print(f"{phase.name:<10} {phase.result:<8} {phase.seconds:6.0f} s")
    if quick:
        print("left out   the tests that are marked slow (--quick)")
    for line in changed_notebooks():
        print(line)
    if any(phase.failed and phase.name == "notebooks" for phase in phases):
        print(
            f"To see what a notebook prints now: {COMMAND} refresh NAME (such as 03), then git diff notebooks/\n"
            "(each failure above names its lesson, its cell and the heading above it)."
        )
    print(closing(phases), flush=True)


def closing(phases):
    failed = [phase.name for phase in phases if phase.failed]
    passed = [phase.name for phase in phases if phase.result == "passed"]
    if failed:
        return f"FAILED: {' and '.join(failed)}"
    return f"PASSED: {' and '.join(passed)}" if passed else "NOTHING RAN"


def versions():
    """What was tested, so that a log says it: Python 3.12.3 on Linux x86_64, numpy 2.4.6, ..."""
    packages = [f"{name} {version(name)}" for name in SHOWN_VERSIONS]
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return ", ".join([python, *packages])


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def changed_notebooks():
    """A line for each notebook that a learner has changed: what was left out, and how to get the original back."""
    if learner.strict():
        return
    git = (paths.ROOT / ".git").exists() and shutil.which("git") is not None
    for path in paths.notebook_files():
        try:
            changed = learner.changes(notebook.read(path), path.stem)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # broken: the comparison has said so
        if changed:
            yield (
                f"You changed {path.name} ({changed.words}); your work was left out of the comparison. "
                f"To have the course's own again: {learner.get_back(path, git)}. "
                f"(If you work on the course itself: {COMMAND} refresh {path.stem[:2]})"
            )
