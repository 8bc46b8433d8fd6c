"""What two and four processes found: heads shared out, the ring, the bytes. They are started once, for this file."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import parallel  # noqa: E402
from tests.pytorch.parallel import workers  # noqa: E402

pytestmark = pytest.mark.torch
NEAR = {"float64": 1e-12, "float32": 1e-6}


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


def test_a_ring_in_half_precision_rounds_once(four):
    for seen in four:
        assert seen["halves"] == {"torch.float16": True, "torch.bfloat16": True}


def test_bytes_are_those_predicted(found):
    for seen in found:
        for one in (*seen["layers"].values(), *seen["rings"].values()):
            assert one["bytes"] == one["predicted"] > 0
        assert seen["layers"]["float64, 4 kv heads"]["calls"] == {"all_reduce": 1}
        counted, predicted, calls = seen["backward"]
        assert counted == predicted and calls == {"all_reduce": 2}


def test_counted_is_what_torch_distributed_is_handed(four):
    for seen in four:
        found, closed = seen["bytes"]
        for size, (outer, inner, handed) in zip((8, 4, 2), found, strict=True):
            predicted = parallel.head_parallel_bytes(2, 5, 20, size) + parallel.ring_bytes(2, 2, 5, 7, 4, size)
            assert outer == inner == handed == predicted
        assert closed == found[-1][0]
