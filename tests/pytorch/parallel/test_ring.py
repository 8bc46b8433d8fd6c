"""Keys that travel round a ring."""

import pytest

from mha_lesson.steps.gpu import ring_step

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch.parallel.ring import ring_work  # noqa: E402

pytestmark = pytest.mark.torch
NEAR = {"float64": 1e-12, "float32": 1e-6}


def test_ranks_that_disagree_are_all_told(four):
    for seen in four:
        refused = seen["disagree"]
        assert "ValueError" in refused["not all causal"] and "causal on all ranks" in refused["not all causal"]
        assert "shapes, dtype and causal on all ranks" in refused["two formats"]
        assert "four axes" in refused["three axes"]
        assert "TypeError q, k, v: expected one of" in refused["whole numbers"]
        assert "ValueError keep: expected a shape that broadcasts" in refused["my heads only"]
        assert "keep: expected a boolean mask" in refused["numbers"]
        assert "TypeError layer: expected a mha_lesson" in refused["another layer"]


def test_a_ring_gives_the_output_of_one_process(found):
    for rank, seen in enumerate(found):
        for name, ring in seen["rings"].items():
            assert ring["output"] < NEAR[name.split(",")[0]], (rank, name)


def test_a_layer_with_the_ring_for_its_core_gives_its_piece_of_one_process(found):
    """With rotary positions, too, which go on where the pieces before end. Control: without a ring it does not."""
    for rank, seen in enumerate(found):
        cases = {case: far for case, far in seen["layers on rings"].items() if case != "refused"}
        assert len(cases) == 4
        for case, far in cases.items():
            assert far["ring"] < 1e-12, (rank, case)
            first_piece_alone = rank == 0 and case.startswith("(True")
            assert (far["without a ring"] < 1e-12) == first_piece_alone, (rank, case)
        assert "query: expected no gradients" in seen["layers on rings"]["refused"]


@pytest.mark.parametrize("world", [1, 2, 5])
def test_work_is_counted_and_zigzag_is_fair(world):
    plain, fair = ring_work(world), ring_work(world, "zigzag")
    assert sum(plain) == sum(fair) == sum(range(1, 2 * world + 1))
    assert len(set(fair)) == 1 and plain == sorted(plain)
    with pytest.raises(ValueError, match='expected "plain" or "zigzag"'):
        ring_work(world, "round")


def test_the_ring_turns_as_the_lesson_says():
    assert [ring_step(1, step, 4, 1)[0] for step in range(4)] == [1, 0, 3, 2]


def test_a_ring_in_half_precision_rounds_once(four):
    for seen in four:
        assert seen["halves"] == {"torch.float16": True, "torch.bfloat16": True}
