"""Memory: what is held at once is counted."""

import numpy as np
import pytest

from mha_lesson import benchmark
from tests.benchmark.helpers import memory
from tests.reference import says


def holding(n):
    """Two alternatives for the memory test: n MB written at once, and n MB one by one."""
    return {
        "at once": lambda: np.ones(n * 2**17).sum(),
        "one by one": lambda: sum(np.ones(2**17).sum() for _ in range(n)),
    }


def test_peak_memory_counts_what_is_held_at_once():
    at_once, one_by_one = (
        benchmark.peak_memory("tests.benchmark.test_memory:holding", name, {"n": 64}, {"n": 1})
        for name in ("at once", "one by one")
    )
    assert at_once.bytes == pytest.approx(64 * 2**20, rel=0.1)
    assert one_by_one.bytes < 8 * 2**20
    assert at_once.meter == one_by_one.meter != ""


def test_the_command_s_own_forms_can_be_weighed():
    n, heads = 512, 2
    blocks, squares = (
        benchmark.peak_memory("mha_lesson.benchmark:numpy_forms", name, {"n": n, "heads": heads}, {"n": 16})
        for name in ("blocked_attention", "einsum")
    )
    assert squares.bytes > 2 * heads * n * n * 4  # the scores and their exponentials
    assert blocks.bytes < squares.bytes / 2


def test_a_machine_without_any_meter_falls_back_to_tracemalloc(monkeypatch):
    for meter in ("_linux_meter", "_windows_meter", "_rusage_meter"):
        monkeypatch.setattr(memory, meter, lambda: None)
    peak = benchmark.measure_peak(lambda: np.ones(2**17))
    assert peak.bytes == pytest.approx(2**20, rel=0.1)
    assert "tracemalloc" in peak.meter


def test_a_failing_process_is_an_error_with_its_own_words():
    with pytest.raises(RuntimeError, match=says("no such form", "KeyError")):
        benchmark.peak_memory("tests.benchmark.test_memory:holding", "no such form", {"n": 1})
