"""Heads in PyTorch: cut apart, shared, joined."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch.heads import merge_heads, split_heads  # noqa: E402
from tests.pytorch.helpers import same, t  # noqa: E402
from tests.reports import reported  # noqa: E402


@reported("jsbaan/transformer-from-scratch#6")
def test_heads_are_swapped_back_before_they_are_joined():
    """The shape does not show it, and neither did training."""
    o = t([[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]])
    same(merge_heads(o), t([[[1, 2, 5, 6], [3, 4, 7, 8]]]), 0)
    same(split_heads(merge_heads(o), 2), o, 0)
