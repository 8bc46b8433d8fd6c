"""Bytes as predicted, and as counted."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import parallel  # noqa: E402

pytestmark = pytest.mark.torch


def test_bytes_are_those_predicted(found):
    for seen in found:
        for one in (*seen["layers"].values(), *seen["rings"].values()):
            assert one["bytes"] == one["predicted"] > 0
        assert seen["layers"]["float64, 4 kv heads"]["calls"] == {"all_reduce": 1}
        counted, predicted, calls = seen["backward"]
        assert counted == predicted and calls == {"all_reduce": 2}


def test_predictions_by_hand():
    assert parallel.head_parallel_bytes(2, 3, 5, 4) == 2 * 3 * 5 * 4
    assert parallel.head_parallel_bytes(2, 3, 5, 4, backward=True) == 2 * 2 * 3 * 5 * 4
    # keys and values: 2 sequences, 3 heads, 5 tokens, width 7, half precision; three of four ranks must be reached
    assert parallel.ring_bytes(2, 3, 5, 7, world=4, bytes_per_number=2) == (2 * 3 * 5 * 7 * 2) * 2 * 3
    assert parallel.ring_bytes(2, 3, 5, 7, world=1) == 0


def test_counted_is_what_torch_distributed_is_handed(four):
    for seen in four:
        found, closed = seen["bytes"]
        for size, (outer, inner, handed) in zip((8, 4, 2), found, strict=True):
            predicted = parallel.head_parallel_bytes(2, 5, 20, size) + parallel.ring_bytes(2, 2, 5, 7, 4, size)
            assert outer == inner == handed == predicted
        assert closed == found[-1][0]
