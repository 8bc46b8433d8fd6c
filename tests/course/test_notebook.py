"""Which notebooks need torch."""

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
