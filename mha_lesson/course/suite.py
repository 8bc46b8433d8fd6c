"""`test`: first tests/, then every stored output of the notebooks, strictly.

Both always run, so that one call shows all that is wrong.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from mha_lesson.course import bootstrap, environment, notebook, paths
from mha_lesson.course.paths import COMMAND

NOTHING_COLLECTED = 5  # pytest's exit code when no test fits

NBVAL = (
    "--nbval",  # strict: every output of every cell is compared
    "--nbval-current-env",  # with the Python that runs now
    "--nbval-cell-timeout=300",
    "--nbval-kernel-startup-timeout=120",
    f"--nbval-sanitize-with={paths.TESTS / 'nbval_sanitize.cfg'}",
    "-p", "no:pytest_mpl",
    "-o", "filterwarnings=default",  # the warnings of nbval itself are not our errors
)  # fmt: skip


# Whole files go to one process: a notebook's cells need one kernel, and a file's fixtures are made once.
SEVERAL = ("--dist=loadfile", "-n")
MOST_PROCESSES = 4  # each may hold a gigabyte


class Phase(NamedTuple):
    name: str
    result: str  # "passed", "failed" or why nothing ran
    seconds: float = 0.0

    @property
    def failed(self):
        return self.result == "failed"


def run(extra):
    """Run both phases; the exit code is 1 if either fails, or if nothing ran at all."""
    options, tests, lessons = split_targets(extra)
    only_some = bool(tests or lessons)
    phases = []
    if tests or not only_some:
        phases.append(run_tests(options, tests))
    if lessons or not only_some:
        phases.append(run_notebooks(options, lessons))
    report(phases)
    ran = any(phase.result == "passed" for phase in phases)
    return 0 if ran and not any(phase.failed for phase in phases) else 1


def split_targets(extra):
    """Options for pytest, and what it shall look at: tests, notebooks, or (neither) everything."""
    options, tests, lessons = [], [], []
    for argument in extra:
        file = argument.split("::")[0]
        path = next((p for p in (paths.ROOT / file, paths.NOTEBOOKS / file) if p.exists()), None)
        if argument.startswith("-") or path is None:
            options.append(argument)
        else:
            chosen = lessons if path.suffix == ".ipynb" or path == paths.NOTEBOOKS else tests
            chosen.append(str(path) + argument[len(file) :])
    return options, tests, lessons


def run_tests(options, targets):
    print("== Tests: tests/ ==", flush=True)
    if not list(paths.TESTS.rglob("test_*.py")):
        return Phase("tests", "nothing to run: no test_*.py in tests/")
    return pytest("tests", [*at_once(targets), *options, *(targets or [str(paths.TESTS)])], os.environ)


def run_notebooks(options, targets):
    print("\n== Notebooks: every stored output ==", flush=True)
    files = targets or [str(path) for path in paths.notebook_files()]
    files = leave_out_torch(files)
    if not files:
        return Phase("notebooks", "nothing to run: no notebook in notebooks/ that can run here")
    color = [] if sys.stdout.isatty() else ["--color=no"]  # nbval colours even a log file
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ipython_dir:
        arguments = [*NBVAL, *at_once(targets), *color, *options, *files]
        return pytest("notebooks", arguments, environment.fixed(ipython_dir))


def at_once(targets):
    """Options for pytest to use several cores, if all is to be run. A few tests are done sooner without."""
    processes = min(os.cpu_count() or 1, MOST_PROCESSES)
    if targets or processes == 1 or importlib.util.find_spec("xdist") is None:
        return []
    return [*SEVERAL, str(processes)]


def leave_out_torch(files):
    """Where torch has no build, the lessons that need it are left out, and named."""
    if importlib.util.find_spec("torch"):
        return files
    without = [file for file in files if not notebook.needs_torch(notebook.read(paths.Path(file.split("::")[0])))]
    for file in sorted(set(files) - set(without)):
        print(f"SKIPPED {paths.Path(file).name}: it needs torch, which has no build for this machine")
    return without


def pytest(name, arguments, variables):
    variables = {**variables, "PYTHONPATH": bootstrap.course_first(variables.get("PYTHONPATH"))}
    start = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=paths.ROOT, env=variables).returncode
    return Phase(name, verdict(code), time.monotonic() - start)


def verdict(code):
    if code == NOTHING_COLLECTED:
        return "nothing to run: no test fits"
    return "passed" if code == 0 else "failed"


def report(phases):
    print("\n== Summary ==")
    for phase in phases:
        print(f"{phase.name:<10} {phase.result:<8} {phase.seconds:6.0f} s")
    if any(phase.failed and phase.name == "notebooks" for phase in phases):
        print(
            f"To see what a notebook prints now: {COMMAND} refresh NAME (such as 03), then git diff notebooks/\n"
            "(each failure above names its notebook and cell)."
        )
    failed = [phase.name for phase in phases if phase.failed]
    passed = [phase.name for phase in phases if phase.result == "passed"]
    if failed:
        print(f"FAILED: {' and '.join(failed)}", flush=True)
    elif passed:
        print(f"PASSED: {' and '.join(passed)}", flush=True)
    else:
        print("NOTHING RAN", flush=True)
