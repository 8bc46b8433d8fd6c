"""One comparison: what is checked, printed and stored."""

import importlib
import json

import numpy as np
import pytest

from mha_lesson import benchmark
from tests.benchmark.helpers import TINY, comparison

FORMS = {"textbook loop over heads", "einsum", "scaled_dot_product_attention", "blocked_attention"}


@pytest.mark.parametrize("n", [11, benchmark.REFERENCE_SIZE + 1])
def test_a_wrong_form_stops_the_command(monkeypatch, capsys, n):
    """Attention without the mask, against float64 and, at larger N, against the other forms."""
    honest = benchmark.numpy_forms

    def forms(**arguments):
        q, k, v = importlib.import_module("mha_lesson.benchmark.numpy_forms")._inputs(**arguments)
        unmasked = benchmark.scaled(q, k, v)
        return honest(**arguments) | {"forgot the mask": lambda: unmasked}

    def scaled(q, k, v):
        from mha_lesson.attention import blocked_attention

        return blocked_attention(q, k, v)

    monkeypatch.setattr(benchmark, "scaled", scaled, raising=False)
    monkeypatch.setattr(benchmark, "numpy_forms", forms)
    assert benchmark.main([*TINY, "--sizes", str(n), "--no-weigh"]) == 1
    printed = capsys.readouterr()
    assert "forgot the mask" in printed.err
    assert f"N={n}" in printed.err
    assert "ratio" not in printed.out


def test_what_the_file_holds(tmp_path, capsys):
    file = tmp_path / "out.json"
    arguments = [*TINY, "--sizes", "11,17", "--dtypes", "float32,float64", "--no-weigh", "--json", str(file)]
    assert benchmark.main(arguments) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert set(found) == {"title", "settings", "machine", "results"}
    assert found["settings"]["heads"] == 2
    assert found["machine"]["numpy"] == np.__version__
    assert [(r["n"], r["dtype"]) for r in found["results"]] == [
        (11, "float32"), (17, "float32"), (11, "float64"), (17, "float64"),
    ]  # fmt: skip
    printed = capsys.readouterr().out
    for result in found["results"]:
        assert set(result) == {"n", "heads", "d_head", "dtype", "base", "rounds", "forms", "skipped"}
        assert set(result["forms"]) >= FORMS
        assert result["rounds"] == 3
        assert result["skipped"] == {}
        for name, row in result["forms"].items():
            assert name in printed
            assert set(row) == {"seconds", "ratio", "error"}
            assert 0 < row["seconds"]["low"] <= row["seconds"]["median"] <= row["seconds"]["high"]
            assert row["error"] <= benchmark.TOLERANCE[result["dtype"]]
        assert result["forms"][result["base"]]["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert str(tmp_path) not in file.read_text(encoding="utf-8")


def test_forms_that_need_too_much_are_left_out_and_say_so(capsys):
    """17 queries: the N×N arrays of a form need 4 kB or more, blocks have none."""
    assert benchmark.main([*TINY, "--sizes", "17", "--no-weigh", "--memory", "2e-6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    left_out = {line.split("left out")[0].strip() for line in lines if "left out" in line}
    assert left_out == FORMS - {"blocked_attention"}
    assert all("--memory 2e-06" in line for line in lines if "left out" in line)
    assert any(line.strip().startswith("blocked_attention") for line in lines)


def test_memory_stands_in_the_table_and_the_file(monkeypatch, tmp_path, capsys):
    asked = []

    def weigh(builder, name, arguments, warm):
        asked.append((builder, name, arguments["n"], warm["n"]))
        return benchmark.Peak(12_300_000, "a kitchen scale")

    monkeypatch.setattr(comparison, "peak_memory", weigh)
    file = tmp_path / "out.json"
    assert benchmark.main([*TINY, "--sizes", "11", "--json", str(file)]) == 0
    forms = json.loads(file.read_text(encoding="utf-8"))["results"][0]["forms"]
    assert {name for _, name, _, _ in asked} == set(forms)
    assert {(builder, n, warm) for builder, _, n, warm in asked} == {("mha_lesson.benchmark:numpy_forms", 11, 16)}
    assert all(row["peak"] == {"bytes": 12_300_000, "meter": "a kitchen scale"} for row in forms.values())
    printed = capsys.readouterr().out
    assert printed.count("12.3") == len(forms)
    assert "measured by a kitchen scale" in printed
