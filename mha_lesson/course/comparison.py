"""A plugin for pytest: each code cell of a notebook is run, and what it shows is compared with what is stored.

nbval does the work (its kernel, its strict comparison of every text). Here is what it lacks:

- the words for a picture (`alt`) are compared like any printed text;
- one cell alone can be asked for (a name, -k, --lf): the cells before it are run first;
- a cell that was never run is a failure, where nbval lets it pass;
- exercises that a learner has solved, and cells that were added, are left out (course/learner.py);
- a failure names lesson, cell and heading, and shows stored (-) against new (+), as git does.

It is loaded by `-p mha_lesson.course.comparison`, in place of nbval's own option --nbval.
"""

import difflib
import re

from nbval.plugin import IPyNbCell, IPyNbFile, NbCellError, coalesce_streams

from mha_lesson.course import learner
from mha_lesson.course import notebook as nb

MOST_LINES = 60  # of a difference: more is not read
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def pytest_configure(config):
    config.option.nbval = False  # else nbval would collect every notebook a second time


def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".ipynb":
        return Notebook.from_parent(parent, path=file_path)


class Notebook(IPyNbFile):
    """One notebook: one kernel for all its cells, started when the first of them is run."""

    def collect(self):
        """The code cells, in order. Those of a learner are marked, or put back as the course gives them out."""
        try:
            plain = {id(item.cell): item for item in super().collect()}
        except Exception as error:  # nbformat has an error of its own for each way to be broken
            raise self.CollectError(f"{self.path.name} can't be read as a notebook: {first_line(error)}") from error
        changed = learner.changes(self.nb, self.path.stem)
        lenient = bool(changed) and not learner.strict()
        self.cells = []
        for number, cell in nb.numbered_cells(self.nb, "code"):
            if not cell.source.strip() and lenient:
                continue
            shown = nb.shown_number(self.nb, number)
            options = plain[id(cell)].options
            item = Cell.from_parent(self, name=f"cell-{shown or 'empty'}", cell_num=shown, cell=cell, options=options)
            item.place = nb.place(self.nb, number)
            if lenient:
                item.allow(changed, number)
            self.cells.append(item)
        return self.cells

    def run_before(self, wanted):
        """Run the cells above the wanted one that were not asked for: it needs what they define."""
        for cell in self.cells[: self.cells.index(wanted)]:
            if not cell.has_run:
                cell.run_only()


class Cell(IPyNbCell):
    """One code cell. `place` says where it stands, in words."""

    place = ""
    has_run = False
    lenient = False  # a learner has changed the notebook

    def allow(self, changed, number):
        """Leave out what a learner's own work changes."""
        self.lenient = True
        if number in changed.solved:
            self.cell.source = learner.stub(self.cell)
        if number in changed.added:
            self.set(check_exception=True)
        own = number in changed.solved or number in changed.added
        if own or ((changed.solved or changed.run) and learner.SAYS_WHO_SOLVED.search(self.cell.source)):
            self.leave_out()

    def leave_out(self):
        """Run the cell and compare nothing, not even that it was run."""
        self.set(skip=False, check=False)
        self.cell.outputs, self.cell.execution_count = [], None

    def runtest(self):
        self.parent.run_before(self)
        self.has_run = True
        if self.cell.execution_count is None and not self.lenient:
            self.raise_cell_error("It was never run, so there is nothing to compare. Run `refresh`.")
        super().runtest()

    def run_only(self):
        """For what the cell defines: nothing is compared."""
        before = self.options
        self.set(check=False)
        self.has_run = True
        try:
            super().runtest()
        finally:
            self.options = before

    def set(self, **options):
        self.options = self.options.copy()  # nbval's own kind of dictionary: what is not in it is False
        self.options.update(options)

    def compare_outputs(self, test, ref, skip_compare=None):
        """nbval's comparison, then that of the words for pictures."""
        if self.lenient:
            test, ref = ([whose_left_out(output) for output in outputs] for outputs in (test, ref))
        same = super().compare_outputs(test, ref, skip_compare) and pictures(test) == pictures(ref)
        if not same:
            self.comparison_traceback = difference(ref, test) or [ANSI.sub("", s) for s in self.comparison_traceback]
        return same

    def repr_failure(self, excinfo):
        error = excinfo.value
        if not isinstance(error, NbCellError):
            return f"It could not be run: {first_line(error)} (did the kernel die, or run out of memory?)"
        lines = [sentence(error), *("    | " + line for line in error.source.splitlines())]
        if error.inner_traceback:
            lines += ["", ANSI.sub("", str(error.inner_traceback)).strip("\n")]
        return "\n".join(lines)

    def where(self):
        return f"{self.path.stem}, {self.place}"

    def reportinfo(self):
        return self.path, 0, self.where()


def sentence(error):
    """nbval's words in ours."""
    words = {
        "Cell outputs differ": "It shows something else than what is stored (- stored, + new).",
        "Cell execution caused an exception": "It stops with an error.",
    }
    return words.get(str(error), str(error))


def first_line(error):
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def whose_left_out(output):
    """A copy of an output without the lines that say whose function is used."""
    if output.output_type != "stream":
        return output
    return type(output)({**output, "text": learner.without_whose(output.text)})


# --- what is compared, as text ---------------------------------------------------------------


def pictures(outputs):
    """The words for every picture, in order."""
    return [
        output.get("metadata", {}).get(kind, {}).get("alt", "")
        for output in outputs
        for kind in sorted(output.get("data", {}))
        if kind.startswith("image/")
    ]


def difference(stored, new):
    """The lines that differ, with their surroundings; [] if the texts are the same."""
    lines = difflib.unified_diff(as_lines(stored), as_lines(new), lineterm="", n=2)
    shown = [line for line in lines if not line.startswith(("---", "+++"))]
    more = len(shown) - MOST_LINES
    return shown[:MOST_LINES] + ([f"... and {more} lines more"] if more > 0 else [])


def as_lines(outputs):
    """Everything that is compared, in lines; each kind of output with its name above."""
    lines = []
    for output in coalesce_streams(list(outputs)):
        for kind, text in texts(output):
            lines += [f"[{kind}]", *nb.text(text).split("\n")]
    return lines


def texts(output):
    """(kind, text) of all that one output shows."""
    if output.output_type == "stream":
        yield output.name, output.text
    elif output.output_type == "error":
        yield output.ename, output.evalue
    for kind, value in sorted(output.get("data", {}).items()):
        if kind.startswith("image/") and kind != "image/svg+xml":
            yield f"words for {kind}", output.get("metadata", {}).get(kind, {}).get("alt", "")
        elif isinstance(value, (str, list)):
            yield kind, value
