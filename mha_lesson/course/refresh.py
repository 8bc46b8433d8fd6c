"""`refresh`: run notebooks again and store what they show now.

Nothing is written if a cell fails, if a cell writes to stderr, if only noise has
changed, or if you saved the notebook in the meantime.
"""

import collections
import contextlib
import tempfile
import time
import warnings

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat.warnings import MissingIDFieldWarning

from mha_lesson.course import clean, environment, paths
from mha_lesson.course import notebook as nb
from mha_lesson.course.errors import CourseError

CELL_TIMEOUT = 600  # seconds

# Exit codes; `--check` tells "would change" from "could not be told".
DONE, DIFFERENT, NOT_CHECKED, STOPPED = 0, 1, 2, 130


def run(names, check=False, pictures=False):
    """The exit code: 1 if a notebook could not be refreshed. With check: 1 if one would change, 2 if one failed."""
    files = find(names)
    if not files:
        print("There is no notebook in notebooks/ yet.")
        return DONE
    states = []
    # One after another: two at once would slow each other down on a small machine.
    for number, file in enumerate(files, start=1):
        print(f"{number:2d} of {len(files)}  ", end="")
        try:
            states.append(refresh_and_say(file, check, pictures))
        except KeyboardInterrupt:
            print(f"stopped\n{file.stem} was left as it was. What was said to be changed before is stored.")
            return STOPPED
        except OSError as error:
            raise CourseError(
                f"{file.stem} could not be run ({error}).", "make room on the disk, and run the same command again."
            ) from error
    if len(files) > 1:
        counted = collections.Counter(states)
        print("In all:", ", ".join(f"{number} {state}" for state, number in counted.items()))
    return exit_code(states, check)


def exit_code(states, check):
    if "failed" in states:
        return NOT_CHECKED if check else DIFFERENT
    return DIFFERENT if "would change" in states else DONE


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
    old, problem = read(before)
    if problem:
        return "failed", f"  {file.name} {problem}"
    new, problem = execute(old)
    if problem:
        return "failed", problem
    new = clean.cleaned(new)
    if not pictures:
        clean.keep_uncompared(new, old)
        clean.keep_pictures(new, old)
    clean.number_counts(new)
    clean.mark_as_given_out(new, file.stem)
    if new == old:
        return "unchanged", ""
    if check:
        return "would change", ""
    if file.read_bytes() != before:
        return "failed", "  The file was saved by another program while it ran: nothing was written. Run refresh again."
    write(file, new)
    return "changed", ""


def read(content):
    """(the notebook, None) or (None, why these bytes are none)."""
    try:
        text = content.decode("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingIDFieldWarning)  # `refresh` gives ids itself
            return nbformat.reads(text, as_version=4), None
    except Exception as error:  # nbformat has an error of its own for each way to be broken
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return None, (
            f"can't be read as a notebook of format 4: {line[:200]}\n"
            "  Was it cut off, or is there a conflict of a merge in it? "
            "git checkout -- notebooks/ gets the stored ones back. It was left as it is."
        )


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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as private:
        variables = environment.fixed(private)
        environment.build_font_cache(variables)
        try:
            with warnings.catch_warnings():
                # Windows: pyzmq says that it helps itself there.
                warnings.filterwarnings("ignore", "Proactor event loop", RuntimeWarning)
                client.execute(env=variables)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return None, failure(notebook, error)
    if written := clean.stderr_cells(notebook):
        return None, "\n".join(
            f"  {nb.place(notebook, number)} writes to stderr: {text.strip()}" for number, text in written
        )
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
    return f"  {nb.place(notebook, number)} fails:\n{code}\n  {said}\n  The notebook file was left as it is."


def stopped_here(cell):
    return any(output.output_type == "error" for output in cell.get("outputs", []))


def write(file, notebook):
    """Whole or not at all, with the same line ends on every system."""
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    half = file.with_name(file.name + ".part")
    try:
        half.write_bytes(text.encode("utf-8"))
        half.replace(file)
    except OSError as error:  # the disk is full, the folder may only be read, or another program holds the file
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise CourseError(
            f"{file.name} could not be written ({error.strerror or error}); the stored one was left as it is.",
            "make room on the disk, or look whether you may write in this folder, and run the same command again.",
        ) from error
