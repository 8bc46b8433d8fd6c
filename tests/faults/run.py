"""Put each fault into a copy of the tree and see what notices it.

Two columns, measured apart: the unit tests of the faulty file, and the stored outputs of the
notebooks that show what it does (strict nbval): see `route`. A run that says nothing
about the fault (nothing collected, a timeout, a dead kernel) is neither a success nor a failure: it
is shown by its name, and counts as not noticed. Where no notebook with stored outputs shows a file,
its faults have no part in that column.

All faults take hours. One file, or a few faults, without the notebooks, take minutes:

    python3 -m mha_lesson faults --files steps/masks pytorch/ --no-nbval
    python3 -m mha_lesson faults --only torch_split_by_reshape 03.scores.no_scale
    python3 -m mha_lesson faults --list
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mha_lesson.course import environment
from mha_lesson.course.paths import COMMAND
from mha_lesson.course.suite import NBVAL
from tests.faults.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("mha_lesson", "notebooks", "tests", "data", "pyproject.toml")
GOALS = {"unit": 1.0, "outputs": 0.9}
SECONDS = {"unit": 1200, "outputs": 1200}  # the unit tests of the layer take minutes on a busy machine
COLUMNS = {"unit": "unit tests", "outputs": "stored outputs"}
EXAMPLES = f"""examples:
  {COMMAND} faults --list
  {COMMAND} faults --files steps/scores steps/softmax --no-nbval
  {COMMAND} faults --only torch_split_by_reshape        (one fault, both columns)
"""
# Which notebooks show what the files do whose paths start so; the first that fits is taken. The one that
# teaches the file comes first: with -x a fault is then seen soonest. (tests/test_faults.py: they use it.)
FIRST_HALF = ("00", "01", "02", "03", "04", "05", "06", "07")
LAYER = ("08", "09", "07", "10", "11")
SHOWN_IN = {
    "steps/encoder_decoder": ("07",),
    "steps/inspection": ("09",),
    "steps/head_count": ("10",),
    "steps/gpu": ("13",),
    "steps/serving": ("11",),
    "steps/long_context": ("12", "13"),
    "steps/lookup": ("00",),
    "steps/embeddings": ("01",),
    "steps/projections": ("02", *FIRST_HALF),
    "steps/scores": ("03", *FIRST_HALF),
    "steps/masks": ("04", *FIRST_HALF),
    "steps/softmax": ("05", *FIRST_HALF),
    "steps/heads": ("06", *FIRST_HALF),
    "attention": ("06", *FIRST_HALF),
    "pytorch/layer.py": LAYER,
    "pytorch/masks": LAYER,
    "pytorch/heads": LAYER,
    "pytorch/cores/core": ("13",),
    "pytorch/cores/sdpa": LAYER,
    "pytorch/cores/tiled": ("12",),
    "pytorch/cores/window": ("12", "13"),
    "pytorch/cores/linear": ("12",),
    "pytorch/cache": ("11",),
    "pytorch/rotary": ("11",),
    "pytorch/cores/flash": ("13",),
    "pytorch/first_kernel": ("13",),
    "pytorch/parallel": ("13",),
    "pytorch/triton_numpy": ("13",),
    "pytorch/": ("08",),
    "models/minilm": ("09", "10"),
    "models/translation": ("07", "10"),
    "models/results": ("10", "07"),
    "models/blocks": ("09", "07", "10"),
    "models/char_lm": ("10", "11"),
    "models/training": ("09", "07", "10"),
    "models/induction": ("09", "10"),
    "models/recall": ("12",),
    "models/": ("10",),
    "data": ("01", "07", "09", "10", "06"),
}
# Beside the tests of its own name and of its room: those of what it is put together in.
USED_IN = {
    "steps/": ("tests/test_attention*.py",),
    "pytorch/triton_numpy/": ("tests/pytorch/cores/test_flash_triton.py",),
    "pytorch/cores/sdpa": ("tests/pytorch/test_*.py",),
    "models/char_lm": ("tests/pytorch/test_cache.py",),
}
NO_NOTEBOOK = "no notebook"


class Outcome(NamedTuple):
    """noticed: a test or a stored output failed. missed: all passed. Else: why nothing is known."""

    verdict: str
    where: str = ""
    seconds: float = 0.0


def main(arguments=None):
    options = parse(arguments)
    from tqdm import tqdm  # here: the help needs nothing installed

    faults = selected(options)
    if options.list:
        print("\n".join(f"{fault.file}  {fault.name}" for fault in faults))
        return 0
    kinds = [kind for kind in ("unit", "outputs") if getattr(options, kind)]
    if "outputs" in kinds and not any(notebooks(ROOT, route(fault.file)) for fault in faults):
        print("No notebook with stored outputs shows these files: that column is left out.")
        kinds.remove("outputs")
    if not (kinds and faults):
        print("Nothing to measure.")
        return 2
    # All copies come from this one: what is edited meanwhile does not count, and what
    # Python has compiled here need not be compiled again.
    with copied_tree(ROOT, leave_out=("__pycache__", ".*", "*.part")) as template:
        if not sound(template, kinds, faults):
            return 2
        print(f"\n{len(faults)} faults, {options.jobs} at a time\n", flush=True)
        rows = []
        with ThreadPoolExecutor(options.jobs) as pool, tqdm(total=len(faults), unit="fault", disable=None) as bar:
            for fault, outcomes in pool.map(lambda fault: (fault, judge(template, fault, kinds)), faults):
                rows.append(outcomes)
                cells = (f"{o.verdict} ({o.seconds:.0f} s) {o.where}" for o in outcomes.values())
                bar.write(f"  {len(rows):>3}/{len(faults)} {fault.name}: " + " | ".join(cells))
                bar.update()
    print("\n" + table(faults, rows, kinds))
    return summary(faults, rows, kinds)


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog=f"{COMMAND} faults",
        description=__doc__.splitlines()[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help="only these faults")
    parser.add_argument("--files", nargs="+", metavar="PART", help="only faults of files whose path has this in it")
    parser.add_argument("--list", action="store_true", help="the chosen faults by name, and nothing is run")
    parser.add_argument("--jobs", type=int, default=2, help="faults measured at the same time")
    parser.add_argument("--no-unit", dest="unit", action="store_false", help="leave the unit tests out")
    parser.add_argument("--no-nbval", dest="outputs", action="store_false", help="leave the notebooks out")
    return parser.parse_args(arguments)


def selected(options):
    """The faults that the options name: all, if they name none."""

    def wanted(fault):
        by_name = not options.only or fault.name in options.only
        return by_name and (not options.files or any(part in fault.file for part in options.files))

    return [fault for fault in FAULTS if wanted(fault)]


class Route(NamedTuple):
    """Who can notice a fault in a file, in the order of the runs: paths of tests, numbers of notebooks."""

    tests: tuple[str, ...]
    notebooks: tuple[str, ...]


def route(file):
    """The tests of the file's own name, then those of its room; and the notebooks that show it."""
    name = file.removeprefix("mha_lesson/")
    numbers = next(numbers for start, numbers in SHOWN_IN.items() if name.startswith(start))
    return Route(tests_of(name), tuple(dict.fromkeys(numbers)))


def tests_of(name):
    """tests/ mirrors the package: softmax.py of steps/ is tested by test_softmax*.py of tests/steps/."""
    room, stem = Path("tests") / Path(name).parent, Path(name).stem.strip("_")
    extra = [pattern for start, patterns in USED_IN.items() if name.startswith(start) for pattern in patterns]
    patterns = [f"{room}/test_{stem}*.py", *([f"{room}/test_*.py"] if room != Path("tests") else []), *extra]
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return tuple(dict.fromkeys(path.relative_to(ROOT).as_posix() for path in found))


def sound(root, kinds, faults):
    """The tree without a fault passes, and what is tested is the copy."""
    print("Without a fault:", flush=True)
    found = python(root, ["-c", "import mha_lesson; print(mha_lesson.__file__)"], "unit").stdout.strip()
    if not Path(found).resolve().is_relative_to(root):
        print(f"  Python does not import the copy, but {found}")
        return False
    routes = list({route(fault.file): None for fault in faults})
    tests = tuple({name: None for r in routes for name in r.tests})
    numbers = tuple({number: None for r in routes for number in r.notebooks})
    for kind in kinds:
        outcome, output = measure(root, kind, Route(tests, numbers), stop_early=False)
        print(f"  {COLUMNS[kind]}: {outcome.verdict.replace('missed', 'pass')} ({outcome.seconds:.0f} s)")
        if outcome.verdict != "missed":
            print(output[-4000:])
            return False
    return True


def judge(template, fault, kinds):
    with copied_tree(template) as root:
        file = root / fault.file
        file.write_text(fault.put_into(file.read_text(encoding="utf-8")), encoding="utf-8")
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()
        return {kind: measure(root, kind, route(fault.file))[0] for kind in kinds}


@contextmanager
def copied_tree(source, leave_out=()):
    """A temporary folder that holds what tests and notebooks need."""
    with tempfile.TemporaryDirectory(prefix="fault_", ignore_cleanup_errors=True) as folder:
        root = Path(folder).resolve()
        for name in NEEDED:
            if (source / name).is_dir():
                shutil.copytree(source / name, root / name, ignore=shutil.ignore_patterns(*leave_out))
            elif (source / name).exists():
                shutil.copy2(source / name, root / name)
        yield root


def notebooks(root, route):
    """Those of the route that exist and have stored outputs, in its order."""
    files = [file for number in route.notebooks for file in sorted((root / "notebooks").glob(f"{number}_*.ipynb"))]
    return [file for file in files if any(cell.get("outputs") for cell in json.loads(file.read_text("utf-8"))["cells"])]


def measure(root, kind, route, stop_early=True):
    """The outcome of the runs for this kind, up to the first that does not pass, and their output."""
    if kind == "unit":
        files = list(route.tests)
        runs = [["-p", "no:nbval", file] for file in files]  # importing nbval takes seconds
    else:
        shown = notebooks(root, route)
        runs = [[*NBVAL, *map(str, shown)]] if shown else []
    if not runs:
        return Outcome(NO_NOTEBOOK), ""
    start = time.monotonic()
    for number, targets in enumerate(runs):
        report = root / f"{kind}_{number}.xml"
        stop = ["-x"] if stop_early else []
        try:
            done = python(
                root, ["-m", "pytest", *stop, "-p", "no:cacheprovider", f"--junitxml={report}", *targets], kind
            )
        except subprocess.TimeoutExpired:
            return Outcome("timeout", "", time.monotonic() - start), ""
        verdict, where = read(done.returncode, report)
        if verdict != "missed":
            break
    return Outcome(verdict, where, time.monotonic() - start), done.stdout + done.stderr


def read(code, report):
    """What pytest's exit code and its report say together."""
    if code == 0:
        return "missed", ""
    if code != 1 or not report.exists():
        return {2: "not collected", 5: "nothing ran"}.get(code, f"pytest stopped with code {code}"), ""
    for case in ET.parse(report).iter("testcase"):
        where = f"{Path(case.get('classname', '').replace('.', '/')).name}::{case.get('name')}".removeprefix("::")
        if case.find("error") is not None:
            return "not collected", where
        if (failure := case.find("failure")) is not None:
            text = f"{failure.get('message')} {failure.text}"
            for sign in ("Timeout of", "Kernel died", "kernel died"):
                if sign in text:
                    return "timeout" if sign == "Timeout of" else "dead kernel", where
            return "noticed", where
    return "no test failed", ""


def python(root, arguments, kind):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ipython_dir:
        variables = environment.fixed(ipython_dir)
        variables |= {"PYTHONPATH": str(root), "MHA_LESSON_PROGRESS": os.devnull}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.run(
            [sys.executable, *arguments], cwd=root, env=variables, capture_output=True, text=True, timeout=SECONDS[kind]
        )


def table(faults, rows, kinds):
    width = max(len(fault.name) for fault in faults)
    lines = [" | ".join(["fault".ljust(width), *(f"{COLUMNS[kind] + ' fail':<19}" for kind in kinds)])]
    lines.append("-" * len(lines[0]))
    words = {"noticed": "yes", "missed": "NO"}
    for fault, outcomes in zip(faults, rows, strict=True):
        cells = (f"{words.get(outcomes[kind].verdict, outcomes[kind].verdict):<19}" for kind in kinds)
        lines.append(" | ".join([fault.name.ljust(width), *cells]))
    return "\n".join(lines)


def summary(faults, rows, kinds):
    """The share of each column, against its goal; what is not known is named apart."""
    code = 0
    for kind in kinds:
        verdicts = [outcomes[kind].verdict for outcomes in rows]
        counted = len(verdicts) - verdicts.count(NO_NOTEBOOK)
        share = verdicts.count("noticed") / counted
        reached = share >= GOALS[kind]
        code = code or int(not reached)
        print(
            f"\n{COLUMNS[kind]}: {verdicts.count('noticed')} of {counted} noticed, {share:.0%} "
            f"(goal {GOALS[kind]:.0%}: {'reached' if reached else 'NOT reached'})"
        )
        missed = [f.name for f, verdict in zip(faults, verdicts, strict=True) if verdict == "missed"]
        known = ("noticed", "missed", NO_NOTEBOOK)
        unknown = [f"{f.name}: {v}" for f, v in zip(faults, verdicts, strict=True) if v not in known]
        print(f"  missed: {', '.join(missed) or 'none'}")
        print(f"  not known: {', '.join(unknown) or 'none'}")
        if counted < len(verdicts):
            print(f"  shown in no notebook: {len(verdicts) - counted}")
    return code
