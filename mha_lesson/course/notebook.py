"""Small helpers to read notebooks, as plain dictionaries. Standard library alone."""

import json
import re

# A cell that imports torch, or a part of the package that is written with it.
TORCH = re.compile(r"^\s*(import torch|from torch|(from|import) mha_lesson\.(pytorch|models))\b", re.MULTILINE)


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
