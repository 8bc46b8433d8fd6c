"""Small helpers to read notebooks, as plain dictionaries. Standard library alone."""

import json
import re

# A cell that imports torch, or a part of the package that is written with it.
TORCH = re.compile(r"^\s*(import torch|from torch|(from|import) mha_lesson\.(pytorch|models))\b", re.MULTILINE)
FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,}).*?^ {0,3}\2[`~]*\s*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def text(value):
    """Notebook files keep a text as one string or as a list of lines."""
    return value if isinstance(value, str) else "".join(value)


def source(cell):
    return text(cell.get("source", ""))


def numbered_cells(notebook, kind=None):
    """(1, first cell), (2, second cell), ...; only those of one kind if it is given."""
    cells = enumerate(notebook["cells"], start=1)
    return [(number, cell) for number, cell in cells if kind in (None, cell["cell_type"])]


def needs_torch(notebook):
    return any(TORCH.search(source(cell)) for _, cell in numbered_cells(notebook, "code"))


# --- saying which cell is meant ------------------------------------------------------------


def shown_number(notebook, number):
    """The number that Jupyter shows beside a cell, [6], after "Restart and run all"; None for one without.

    `number` counts every cell from 1. Jupyter counts the code cells that hold something.
    """
    runnable = [n for n, cell in numbered_cells(notebook, "code") if source(cell).strip()]
    return runnable.index(number) + 1 if number in runnable else None


def heading(notebook, number):
    """The nearest heading in this cell or above it, or ""."""
    for _, cell in reversed(numbered_cells(notebook)[:number]):
        found = HEADING.findall(FENCE.sub("", source(cell))) if cell["cell_type"] == "markdown" else []
        if found:
            return found[-1]
    return ""


def place(notebook, number):
    """Where to look: cell [6], under "Why a root". Text has no number in Jupyter, so it is counted here."""
    shown = shown_number(notebook, number)
    kind = notebook["cells"][number - 1]["cell_type"]
    words = (
        f"cell [{shown}]" if shown else f"{'an empty' if kind == 'code' else 'the text in'} cell {number} from the top"
    )
    above = heading(notebook, number)
    return f'{words}, under "{above}"' if above else words
