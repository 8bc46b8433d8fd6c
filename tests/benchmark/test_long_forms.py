"""`benchmark long`: forms for long texts."""

import importlib
import itertools
import json
import sys

import numpy as np
import pytest

from mha_lesson import benchmark
from tests.benchmark.helpers import long

TINY_LONG = ["long", "--heads", "2", "--d-head", "5", "--repeats", "3", "--budget", "0", "--no-weigh"]


@pytest.mark.torch
def test_long_compares_each_form_with_its_own_definition(tmp_path, capsys):
    file = tmp_path / "out.json"
    assert benchmark.main([*TINY_LONG, "--sizes", "1,13,601", "--json", str(file)]) == 0
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert [r["n"] for r in results] == [1, 13, 601]
    for result in results:
        assert set(result["forms"]) == {
            "SDPA is_causal", "dense mask", "tiled_attention", "window_attention", "linear_attention",
        }  # fmt: skip
        assert all(row["error"] <= 1e-5 for row in result["forms"].values())
    assert "0.30" in capsys.readouterr().out


@pytest.mark.torch
def test_the_definitions_are_those_of_a_plain_loop(monkeypatch):
    """Window of 3 and linear attention, query by query, from sums over the keys that it sees."""
    import torch

    monkeypatch.setattr(long, "WIDTH", 3)
    n = 7
    q, k, v = (x[0].double() for x in long._inputs(n, 2, 5, "float32"))
    found = long.long_reference(n, 2, 5, "float32")

    def weighed(i, first, weight):
        weights = [[weight(q[h, i], k[h, j]) for j in range(first, i + 1)] for h in range(2)]
        weights = torch.tensor(weights, dtype=torch.float64)
        return torch.einsum("hj,hjd->hd", weights, v[:, first : i + 1]) / weights.sum(1, keepdim=True)

    def likeness(a, b):
        a, b = (torch.where(x > 0, x + 1, x.exp()) for x in (a, b))
        return float(a @ b)

    def exponential(a, b):
        return float(torch.exp(a @ b / 5**0.5))

    for name, weight, width in [
        ("SDPA is_causal", exponential, n), ("window_attention", exponential, 3), ("linear_attention", likeness, n),
    ]:  # fmt: skip
        for i in range(n):
            want = weighed(i, max(i - width + 1, 0), weight)
            np.testing.assert_allclose(found[name][0, :, i], want, rtol=0, atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["window_attention", "linear_attention"])
def test_a_wrong_long_form_stops_the_command(monkeypatch, capsys, name):
    """Exact attention instead of the window or of linear attention: right for others, not for these."""
    import torch

    module = {"window_attention": "window", "linear_attention": "linear"}[name]
    exact = torch.nn.functional.scaled_dot_product_attention
    module = importlib.import_module(f"mha_lesson.pytorch.cores.{module}")
    monkeypatch.setattr(module, name, lambda q, k, v, *width: exact(q, k, v, is_causal=True))
    assert benchmark.main([*TINY_LONG, "--sizes", "601"]) == 1
    assert f"{name} at N=601" in capsys.readouterr().err


def test_the_compared_queries_are_spread_from_first_to_last():
    assert long.some_rows(1) == [0]
    assert long.some_rows(5) == [0, 1, 2, 3, 4]
    rows = long.some_rows(8192)
    assert (rows[0], rows[-1], len(rows)) == (0, 8191, 64)
    assert max(b - a for a, b in itertools.pairwise(rows)) <= 131


@pytest.mark.torch
def test_the_dense_form_is_left_out_where_its_arrays_do_not_fit(capsys):
    assert benchmark.main([*TINY_LONG, "--sizes", "17", "--memory", "1e-6"]) == 0
    assert "dense mask" in next(line for line in capsys.readouterr().out.splitlines() if "left out" in line)


@pytest.mark.parametrize("name", ["decode", "long"])
def test_without_torch_each_says_what_it_needs(monkeypatch, capsys, name):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert benchmark.main([name]) == 1
    assert f"{name}: needs PyTorch" in capsys.readouterr().err
