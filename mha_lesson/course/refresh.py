"""`refresh`: run notebooks again and store what they show now.

Nothing is written if a cell fails, if a cell writes to stderr, if only noise has
changed, or if you saved the notebook in the meantime.
"""

import tempfile
import time

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from mha_lesson.course import clean, environment, paths
from mha_lesson.course.errors import CourseError

CELL_TIMEOUT = 600  # seconds


def run(names, check=False, pictures=False):
    """The exit code: 1 if a notebook could not be refreshed, or (with check) would change."""
    files = find(names)
    if not files:
        print("There is no notebook in notebooks/ yet.")
        return 0
    # One after another: two at once would slow each other down on a small machine.
    states = [refresh_and_say(file, check, pictures) for file in files]
    bad = {"failed", "would change"} if check else {"failed"}
    return 1 if bad & set(states) else 0


def find(names):
    """The notebooks meant by "03", "03_scaling", "03_scaling.ipynb" or a path."""
    files = paths.notebook_files()
    if not names:
        return files
    return list(dict.fromkeys(file for name in names for file in find_one(name, files)))


def find_one(name, files):
    path = paths.Path(name)
    if path.suffix == ".ipynb" and path.is_file():
        return [path.resolve()]
    stem = path.stem if path.suffix == ".ipynb" else path.name
    fits = [file for file in files if file.stem == stem or file.stem.split("_")[0] == stem]
    if len(fits) != 1:
        there = ", ".join(file.stem for file in (fits or files)) or "none"
        raise CourseError(f"Expected the name of one notebook, got {name!r}.", f"choose from: {there}.")
    return fits


def refresh_and_say(file, check, pictures):
    print(f"{file.stem:<34} ", end="", flush=True)
    start = time.monotonic()
    state, detail = refresh(file, check, pictures)
    print(f"{state:<13} {time.monotonic() - start:5.1f} s", flush=True)
    if detail:
        print(detail, flush=True)
    return state


def refresh(file, check=False, pictures=False):
    """(state, detail); state is "unchanged", "changed", "would change" or "failed"."""
    before = file.read_bytes()
    old = nbformat.reads(before.decode("utf-8"), as_version=4)
    new, problem = execute(old)
    if problem:
        return "failed", problem
    new = clean.cleaned(new)
    if not pictures:
        clean.keep_uncompared(new, old)
        clean.keep_pictures(new, old)
    clean.number_counts(new)
    if new == old:
        return "unchanged", ""
    if check:
        return "would change", ""
    if file.read_bytes() != before:
        return "failed", "  The file was saved by another program while it ran: nothing was written. Run refresh again."
    write(file, new)
    return "changed", ""


def execute(notebook):
    """(the notebook with new outputs, None) or (None, what went wrong and in which cell)."""
    notebook = nbformat.from_dict(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=40"],  # errors only; what cells print is not a log
        resources={"metadata": {"path": str(paths.NOTEBOOKS)}},
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ipython_dir:
        try:
            client.execute(env=environment.fixed(ipython_dir))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return None, failure(notebook, error)
    if written := clean.stderr_cells(notebook):
        return None, "\n".join(f"  cell {number} writes to stderr: {text.strip()}" for number, text in written)
    return notebook, None


def failure(notebook, error):
    """Which cell, what it says, and what the error is."""
    number = next((n for n, cell in enumerate(notebook.cells, start=1) if stopped_here(cell)), None)
    if number is None:  # the kernel died or the time was up: the first cell without a count
        runnable = [(n, c) for n, c in enumerate(notebook.cells, start=1) if c.cell_type == "code" and c.source.strip()]
        number = next((n for n, cell in runnable if cell.execution_count is None), runnable[-1][0])
    code = "\n".join("    | " + line for line in notebook.cells[number - 1].source.splitlines())
    if isinstance(error, CellExecutionError):
        said = f"{error.ename}: {error.evalue}"
    elif isinstance(error, CellTimeoutError):
        said = f"it ran for more than {CELL_TIMEOUT} s"
    else:
        said = "the kernel died (out of memory?)"
    return f"  cell {number} fails:\n{code}\n  {said}\n  The notebook file was left as it is."


def stopped_here(cell):
    return any(output.output_type == "error" for output in cell.get("outputs", []))


def write(file, notebook):
    """Whole or not at all, with the same line ends on every system."""
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    half = file.with_name(file.name + ".part")
    half.write_bytes(text.encode("utf-8"))
    half.replace(file)
