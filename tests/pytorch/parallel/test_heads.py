"""Heads shared out over processes: output and gradients of one process."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

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
