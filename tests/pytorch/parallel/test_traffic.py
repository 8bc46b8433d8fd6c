"""Bytes, predicted by hand."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import parallel  # noqa: E402

pytestmark = pytest.mark.torch


def test_predictions_by_hand():
    assert parallel.head_parallel_bytes(2, 3, 5, 4) == 2 * 3 * 5 * 4
    assert parallel.head_parallel_bytes(2, 3, 5, 4, backward=True) == 2 * 2 * 3 * 5 * 4
    # keys and values: 2 sequences, 3 heads, 5 tokens, width 7, half precision; three of four ranks must be reached
    assert parallel.ring_bytes(2, 3, 5, 7, world=4, bytes_per_number=2) == (2 * 3 * 5 * 7 * 2) * 2 * 3
    assert parallel.ring_bytes(2, 3, 5, 7, world=1) == 0
