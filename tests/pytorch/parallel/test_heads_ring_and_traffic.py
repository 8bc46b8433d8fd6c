"""Heads shared out, the ring, and the bytes of both: equal to one process, as predicted, and what is refused.

They share a file because to start processes takes longer than all that these tests look at.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import parallel  # noqa: E402
from mha_lesson.pytorch.parallel.ring import ring_work  # noqa: E402
from mha_lesson.steps.gpu import ring_step  # noqa: E402
from tests.pytorch.parallel import workers  # noqa: E402

pytestmark = pytest.mark.torch
NEAR = {"float64": 1e-12, "float32": 1e-6}


@pytest.fixture(scope="module")
def two():
    """What every rank saw; the processes are started once."""
    return parallel.run(workers.all_of_it, 2)


@pytest.fixture(scope="module")
def four():
    return parallel.run(workers.all_of_it, 4)


@pytest.fixture(params=["two", "four"])
def found(request):
    return request.getfixturevalue(request.param)


# ------------------------------------------------------------------------------ heads shared out


def test_heads_shared_out_give_output_and_gradients_of_one_process(found):
    for rank, seen in enumerate(found):
        for name, layer in seen["layers"].items():
            near = NEAR[name.split(",")[0]]
            assert layer["output"] < 3 * near, (rank, name)  # outputs up to 3
            assert layer["gradients"] < 10 * near, (rank, name)
            assert layer["same everywhere"] == 0, (rank, name)


def test_what_cannot_be_shared_out_is_refused(found):
    for seen in found:
        refused = seen["refused"]
        assert f"{len(found)} ranks can share evenly, got 3" in refused["heads"]
        assert "without gradients" in refused["gradients"]
        assert "pieces of one size" in refused["pieces"] and "[3, 4" in refused["pieces"]
        assert "as many tokens in each" in refused["tokens"]


def test_pytorchs_own_tools_agree(two):
    for seen in two:
        assert max(seen["dtensor"]) < 1e-12


@pytest.mark.parametrize("case", workers.UNEVEN, ids=str)
def test_shared_heads_rotary_positions_and_masks_of_each_head(four, case):
    for rank, seen in enumerate(four):
        distances, kv_heads, trains_bias = seen["uneven"][case]
        assert kv_heads == workers.UNEVEN[case][rank]
        assert max(distances.values()) < 1e-12, (rank, distances)
        assert not trains_bias, "a frozen parameter stays frozen"


def test_f_sums_backwards_g_forwards_and_nobodys_tensor_is_written_into(four):
    for seen in four:
        assert seen["sums"] == {"f": (1, 4, True), "g": (4, 1, True)}


def test_a_part_of_the_ranks_can_work_alone(four):
    assert four[0]["group"] is four[2]["group"] is None
    for place, rank in enumerate((1, 3)):
        heads, ring, which = four[rank]["group"]
        assert heads < 1e-12 and ring < 1e-12 and which == [place]


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


# ------------------------------------------------------------------------------ the ring


def test_a_ring_gives_the_output_of_one_process(found):
    for rank, seen in enumerate(found):
        for name, ring in seen["rings"].items():
            assert ring["output"] < NEAR[name.split(",")[0]], (rank, name)


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


# ------------------------------------------------------------------------------ bytes


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
