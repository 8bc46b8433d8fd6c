"""`benchmark layers`: layers forwards and backwards."""

import json
import sys

import pytest

from mha_lesson import benchmark
from tests.benchmark.helpers import layers

TINY_LAYERS = ["layers", "--heads", "2", "--d-head", "5", "--repeats", "3", "--budget", "0"]


LAYERS = {"bare SDPA layer", "nn.MultiheadAttention", "mha_lesson.pytorch"}


@pytest.mark.torch
def test_layers_forwards_and_backwards(tmp_path, capsys):
    file = tmp_path / "out.json"
    arguments = [*TINY_LAYERS, "--sizes", "11", "--dtypes", "float32,float64", "--no-weigh", "--json", str(file)]
    assert benchmark.main(arguments) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [(r["dtype"], r["backward"]) for r in found["results"]] == [
        ("float32", False), ("float32", True), ("float64", False), ("float64", True),
    ]  # fmt: skip
    for result in found["results"]:
        assert set(result["forms"]) == LAYERS
        assert result["base"] == "bare SDPA layer"
        assert all(row["error"] <= benchmark.TOLERANCE[result["dtype"]] for row in result["forms"].values())
    printed = capsys.readouterr().out
    assert "N = 11, float32, forward, 3 rounds" in printed
    assert "N = 11, float32, forward and backward, 3 rounds" in printed
    assert "not installed" not in printed


@pytest.mark.torch
def test_layers_take_the_gradients_of_all_weights(monkeypatch):
    import torch

    taken = []
    honest = torch.autograd.grad

    def grad(output, inputs, probe):
        taken.append(sum(x.numel() for x in inputs))
        return honest(output, inputs, probe)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    for run in benchmark.layer_forms(n=3, heads=2, d_head=5, dtype="float32", backward=True).values():
        run()
    assert taken == [3 * 10 + 4 * (10 * 10 + 10)] * 3
    for run in benchmark.layer_forms(n=3, heads=2, d_head=5, dtype="float32", backward=False).values():
        assert not run().requires_grad
    assert len(taken) == 3


@pytest.mark.torch
@pytest.mark.parametrize("n", [11, benchmark.REFERENCE_SIZE + 1])
def test_a_wrong_layer_stops_the_command(monkeypatch, capsys, n):
    import torch

    def not_causal(x, qkv, out, heads):
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv(x).chunk(3, dim=-1))
        return out(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    monkeypatch.setattr(layers, "bare_layer", not_causal)
    assert benchmark.main([*TINY_LAYERS, "--sizes", str(n), "--no-weigh"]) == 1
    printed = capsys.readouterr()
    assert f"at N={n}" in printed.err
    assert "ratio" not in printed.out


@pytest.mark.torch
def test_the_layer_holds_no_square_array():
    """The weights of 8 heads would be 33 MB here; what goes in and out of the layer is 0.3 MB each."""
    arguments = {"n": 1024, "heads": 8, "d_head": 8, "dtype": "float32", "backward": False}
    peak = benchmark.peak_memory("mha_lesson.benchmark:layer_forms", "mha_lesson.pytorch", arguments, {"n": 16})
    assert peak.bytes < 8e6


def test_layers_without_torch_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert benchmark.main(TINY_LAYERS) == 1
    assert "needs PyTorch" in capsys.readouterr().err
