"""Keep what a lesson shows, drop what only differs from run to run.

All functions here work on a notebook in memory (an nbformat node); none reads or writes.
"""

import copy
import re

import nbstripout
from nbformat.corpus.words import generate_corpus_id as random_corpus_id

from mha_lesson.course import learner, lint

LANGUAGE = {"name": "python", "pygments_lexer": "ipython3"}  # no version: it would differ for everyone
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# Leftovers of editors and of the run itself.
LEFTOVERS = [
    "metadata.widgets",
    "metadata.signature",
    "metadata.toc-autonumbering",
    "metadata.vscode",
    "metadata.colab",
    "cell.metadata.collapsed",
    "cell.metadata.execution",
    "cell.metadata.ExecuteTime",
    "cell.metadata.heading_collapsed",
    "cell.metadata.hidden",
    "cell.metadata.jupyter",
    "cell.metadata.scrolled",
    "cell.metadata.trusted",
    "cell.metadata.vscode",
    "cell.metadata.colab",
    "cell.metadata.outputId",
]


def cleaned(notebook):
    """A copy as it is stored."""
    notebook = copy.deepcopy(notebook)
    nbstripout.strip_output(notebook, keep_output=True, keep_count=True, keep_id=True, extra_keys=LEFTOVERS)
    notebook.metadata["language_info"] = dict(LANGUAGE)
    notebook.metadata["kernelspec"] = dict(KERNEL)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = merge_streams(cell.outputs)
            drop_widget_views(cell.outputs)
    return notebook


def drop_widget_views(outputs):
    """Without its kernel a stored widget shows "model not found" and hides the picture beside it."""
    for output in outputs:
        if len(output.get("data", {})) > 1:
            output.data.pop(WIDGET_VIEW, None)
            output.metadata.pop(WIDGET_VIEW, None)


def merge_streams(outputs):
    """How printed text is cut into pieces depends on timing: join neighbours of one stream."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def number_counts(notebook):
    """Counts 1..N over the code cells, in the outputs too. (An empty cell is not run.)"""
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if not cell.source.strip():
            cell.execution_count = None
            continue
        count += 1
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def mark_as_given_out(notebook, name):
    """Note what is the course's own: the empty function of each exercise, and ids that start with the lesson's number.

    By these marks a learner's work is told from the course (learner.py).
    """
    number = learner.lesson_number(name)
    for cell in notebook.cells:
        if number and not cell.get("id", "").startswith(number + "-"):
            cell["id"] = f"{number}-{cell.get('id') or random_corpus_id()}"
        stub = learner.new_stub(cell)
        if stub is not None and not_attempted(cell):
            cell.metadata["mha_lesson"] = {**cell.metadata.get("mha_lesson", {}), "stub": stub}


def not_attempted(cell):
    """Does `check` say so? Half an answer may still hold the line of the empty function."""
    texts = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return any(re.match(r"\d\d\.\w+: not attempted", text) for text in texts)


def keep_pictures(new, old):
    """Put the stored picture back where only its bytes differ.

    A drawing's bytes change with the machine's fonts. What it shows is told by the
    text/plain beside it: where that is the same, so is the picture.
    """
    before = {cell.get("id"): pictures(cell) for cell in old.cells}
    for cell in new.cells:
        for now, then in zip(pictures(cell), before.get(cell.get("id"), []), strict=False):
            if telling_text(now) and telling_text(now) == telling_text(then):
                now.data["image/png"] = then.data["image/png"]


def keep_uncompared(new, old):
    """Put back what cells printed that are left out of the comparison: times, what a machine has.

    They differ at every run. Where the code is the same, the stored output is as good as the new one.
    """
    before = {cell.get("id"): cell for cell in old.cells}
    for cell in new.cells:
        then = before.get(cell.get("id"))
        same = cell.cell_type == "code" and then is not None and then.source == cell.source
        if same and then.outputs and lint.leaves_output_out(cell):
            cell.outputs = copy.deepcopy(then.outputs)


def pictures(cell):
    return [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]


def telling_text(output):
    """The text beside a picture, unless it is matplotlib's own, which tells nothing."""
    text = output.data.get("text/plain", "")
    return "" if text.startswith("<Figure size") else text


def stderr_cells(notebook):
    """(cell number, text) of what was written to stderr."""
    return [
        (number, output.text)
        for number, cell in enumerate(notebook.cells, start=1)
        for output in cell.get("outputs", [])
        if output.output_type == "stream" and output.name == "stderr"
    ]
