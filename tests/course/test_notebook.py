"""Which notebooks need torch, and how a cell is named."""

import pytest

from mha_lesson.course import notebook


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("import torch", True),
        ("x = 1\n    from torch import nn", True),
        ("import mha_lesson.models.train", True),
        ("import torchless", False),
        ("print('import torch')", False),
        ("from mha_lesson.attention import MultiHeadAttention", False),
    ],
)
def test_which_notebook_needs_torch(source, needed):
    assert notebook.needs_torch({"cells": [{"cell_type": "code", "source": source}]}) is needed


CELLS = [
    ("markdown", "# Scaling\n\n```python\n# no heading\n```"),
    ("code", "import numpy"),
    ("code", "  "),
    ("markdown", "text without a heading"),
    ("markdown", "## Why a root ##\nand\n### The measure\nmore"),
    ("code", "print(1)"),
    ("raw", "## no heading either"),
    ("code", "print(2)"),
]
NOTEBOOK = {"cells": [{"cell_type": kind, "source": source} for kind, source in CELLS]}


def test_a_cell_has_the_number_that_jupyter_shows():
    assert [notebook.shown_number(NOTEBOOK, n) for n in range(1, 9)] == [None, 1, None, None, None, 2, None, 3]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (2, 'cell [1], under "Scaling"'),
        (3, 'an empty cell 3 from the top, under "Scaling"'),
        (4, 'the text in cell 4 from the top, under "Scaling"'),
        (5, 'the text in cell 5 from the top, under "The measure"'),
        (8, 'cell [3], under "The measure"'),
    ],
)
def test_a_place_names_the_number_and_the_heading_above(number, words):
    assert notebook.place(NOTEBOOK, number) == words


def test_without_a_heading_there_is_the_number_alone():
    assert notebook.place({"cells": NOTEBOOK["cells"][1:2]}, 1) == "cell [1]"
