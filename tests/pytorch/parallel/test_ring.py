"""The ring, as far as one process can tell: who works how much, and whose keys come by."""

import pytest

from mha_lesson.steps.gpu import ring_step

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch.parallel.ring import ring_work  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("world", [1, 2, 5])
def test_work_is_counted_and_zigzag_is_fair(world):
    plain, fair = ring_work(world), ring_work(world, "zigzag")
    assert sum(plain) == sum(fair) == sum(range(1, 2 * world + 1))
    assert len(set(fair)) == 1 and plain == sorted(plain)
    with pytest.raises(ValueError, match='expected "plain" or "zigzag"'):
        ring_work(world, "round")


def test_the_ring_turns_as_the_lesson_says():
    assert [ring_step(1, step, 4, 1)[0] for step in range(4)] == [1, 0, 3, 2]
