"""`benchmark decode`: full and shared key heads."""

import json

import pytest

from mha_lesson import benchmark
from tests.benchmark.helpers import decode

TINY_DECODE = ["decode", "--heads", "8", "--d-head", "5", "--repeats", "3", "--budget", "0"]


@pytest.mark.torch
def test_decode_compares_full_and_shared_key_heads(tmp_path, capsys):
    file = tmp_path / "out.json"
    assert benchmark.main([*TINY_DECODE, "--sizes", "11,601", "--dtypes", "float32,float64", "--json", str(file)]) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [(r["n"], r["dtype"]) for r in found["results"]] == [
        (11, "float32"), (601, "float32"), (11, "float64"), (601, "float64"),
    ]  # fmt: skip
    for result in found["results"]:
        assert list(result["forms"]) == [
            "SDPA, 8 key heads",
            "SDPA enable_gqa, 2 key heads", "grouped_attention, 2 key heads",
            "SDPA enable_gqa, 1 key head", "grouped_attention, 1 key head",
        ]  # fmt: skip
        assert result["base"] == "SDPA, 8 key heads"
        assert all(row["error"] <= benchmark.TOLERANCE[result["dtype"]] for row in result["forms"].values())
    printed = capsys.readouterr().out
    assert "0.45" in printed  # the goals stand below the table
    assert "from float64.\n" in printed


@pytest.mark.torch
@pytest.mark.parametrize(("heads", "expected"), [(32, [32, 8, 1]), (8, [8, 2, 1]), (4, [4, 1]), (6, [6, 1]), (1, [1])])
def test_how_many_key_heads_are_compared(heads, expected):
    assert decode.key_heads(heads) == expected
    names = list(benchmark.decode_forms(3, heads=heads, d_head=2))
    assert len(names) == 2 * len(expected) - 1
    assert set(names) <= set(decode.decode_reference(3, heads, 2, "float32"))


@pytest.mark.torch
def test_decode_takes_turns_over_the_caches_of_all_layers(monkeypatch):
    """Each of 8 layers has keys of its own, and their answers all differ."""
    answer = benchmark.decode_forms(7, heads=4, d_head=3)["SDPA, 4 key heads"]()
    assert answer.shape == (8, 1, 4, 1, 3)
    assert len({tuple(layer.flatten().tolist()) for layer in answer}) == 8


@pytest.mark.torch
@pytest.mark.parametrize("n", [11, benchmark.REFERENCE_SIZE + 1])
def test_a_wrong_way_to_share_heads_stops_the_command(monkeypatch, capsys, n):
    """Query heads dealt out in turns, where neighbours share: the answer has the right shape."""
    import torch

    def dealt_out(q, k, v):
        H, G = q.shape[1], k.shape[1]
        k, v = (x.repeat(1, H // G, 1, 1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    monkeypatch.setattr(decode, "_enable_gqa", dealt_out)
    assert benchmark.main([*TINY_DECODE, "--sizes", str(n)]) == 1
    printed = capsys.readouterr()
    assert "SDPA enable_gqa, 2 key heads" in printed.err
    assert "ratio" not in printed.out
