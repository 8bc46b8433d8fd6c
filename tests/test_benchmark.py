"""The harness: rounds, ratios, memory, wrong answers. No test looks at how long something took."""

import importlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mha_lesson
from mha_lesson import benchmark
from tests.reference import says

ROOT = Path(mha_lesson.__file__).resolve().parents[1]
TINY = ["numpy", "--heads", "2", "--d-head", "5", "--repeats", "3", "--budget", "0"]
# Of the same name as the functions that the package offers, so asked for in this way.
command, comparison, decode, layers, long, memory = (
    importlib.import_module(f"mha_lesson.benchmark.{name}")
    for name in ("command", "comparison", "decode_forms", "layer_forms", "long_forms", "memory")
)
FORMS = {"textbook loop over heads", "einsum", "scaled_dot_product_attention", "blocked_attention"}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """main() finds the threads that it wants, so it stays in this process."""
    for name in benchmark.THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")


def test_alternatives_take_turns_forwards_and_backwards():
    calls = []
    names = ["a", "b", "c"]
    times = benchmark.interleave({name: lambda name=name: calls.append(name) for name in names}, repeats=3)
    assert "".join(calls) == "abc" + "abc" + "cba" + "abc"  # the first round does not count
    assert {name: len(taken) for name, taken in times.items()} == dict.fromkeys(names, 3)
    assert all(seconds >= 0 for taken in times.values() for seconds in taken)


def test_rounds_end_with_the_budget_but_not_before_the_least():
    assert len(benchmark.interleave({"a": lambda: None}, repeats=50, budget=0, least=4)["a"]) == 4
    assert len(benchmark.interleave({"a": lambda: None}, repeats=2, budget=60, least=4)["a"]) == 2


def test_a_device_may_bring_a_clock_of_its_own():
    """A clock that says two seconds, whatever it ran, and did run it."""
    ran = []

    def clock(run):
        run()
        return 2.0

    times = benchmark.interleave({"a": lambda: ran.append("a")}, repeats=3, seconds=clock)
    assert times == {"a": [2.0, 2.0, 2.0]}
    assert ran == ["a"] * 4


def test_ratios_compare_within_a_round():
    """The machine was ten times slower in the second half; the ratio does not notice."""
    times = {"base": [1.0, 1.0, 10.0, 10.0], "other": [2.0, 2.0, 20.0, 20.0]}
    found = benchmark.ratios(times, "base")
    assert found["other"] == benchmark.Spread(2.0, 2.0, 2.0)
    assert found["base"] == benchmark.Spread(1.0, 1.0, 1.0)
    assert benchmark.spread([1, 2, 3, 4, 5]) == benchmark.Spread(3, 2, 4)
    assert benchmark.spread([7.0]) == benchmark.Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (np.full((2, 3), 1e-3), ["off by 0.001", "1e-05"]),
        (np.full((2, 3), np.nan), ["off by nan"]),
        (np.zeros((3, 2)), ["expected shape (2, 3)", "got (3, 2)"]),
    ],
)
def test_wrong_answers_are_named(wrong, parts):
    right = np.zeros((2, 3))
    assert benchmark.check_answers({"right": right + 1e-7}, right, 1e-5) == {"right": pytest.approx(1e-7)}
    with pytest.raises(benchmark.WrongAnswer, match=says("wrong one", "at N=3", *parts)):
        benchmark.check_answers({"right": right, "wrong one": wrong}, right, 1e-5, "at N=3")


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


def holding(n):
    """Two alternatives for the memory test: n MB written at once, and n MB one by one."""
    return {
        "at once": lambda: np.ones(n * 2**17).sum(),
        "one by one": lambda: sum(np.ones(2**17).sum() for _ in range(n)),
    }


def test_peak_memory_counts_what_is_held_at_once():
    at_once, one_by_one = (
        benchmark.peak_memory("tests.test_benchmark:holding", name, {"n": 64}, {"n": 1})
        for name in ("at once", "one by one")
    )
    assert at_once.bytes == pytest.approx(64 * 2**20, rel=0.1)
    assert one_by_one.bytes < 8 * 2**20
    assert at_once.meter == one_by_one.meter != ""


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
        benchmark.peak_memory("tests.test_benchmark:holding", "no such form", {"n": 1})


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


def test_each_command_has_defaults_of_its_own():
    found = [benchmark.parser().parse_args([name]) for name in ("numpy", "layers", "decode", "long")]
    assert [options.heads for options in found] == [8, 12, 32, 8]
    assert [options.sizes[-1] for options in found] == [16384, 2048, 8192, 8192]
    assert [options.weigh for options in found] == [True, True, False, True]


def test_works_without_torch_and_loads_numpy_late():
    """In a process of its own, where torch cannot be imported and NumPy is not yet."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from mha_lesson.benchmark import main\n"
        "assert 'numpy' not in sys.modules\n"
        "import mha_lesson.benchmark\n"
        "assert set(mha_lesson.benchmark.__all__) <= set(dir(mha_lesson.benchmark))\n"
        "assert 'numpy' not in sys.modules and 'mha_lesson.data' not in sys.modules\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    started = [sys.executable, "-c", code, *TINY, "--sizes", "11", "--no-weigh"]
    done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "torch not installed" in done.stdout
    assert "the base is a form in NumPy" in done.stdout
    assert "torch SDPA" not in done.stdout


def test_threads_that_come_too_late_start_another_process(monkeypatch):
    started = {}

    def run(command, env):
        started.update(command=command, env=env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(command.subprocess, "run", run)
    assert benchmark.main(["numpy", "--threads", "2"]) == 0
    assert started["command"][1:] == ["-c", command.AGAIN, "numpy", "--threads", "2"]
    assert {started["env"][name] for name in benchmark.THREAD_VARIABLES} == {"2"}


def test_a_wrong_option_is_named(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["numpy", "--dtypes", "float16"])
    assert "float32 or float64" in capsys.readouterr().err


# ------------------------------------------------------------------------------ decode and long

TINY_DECODE = ["decode", "--heads", "8", "--d-head", "5", "--repeats", "3", "--budget", "0"]
TINY_LONG = ["long", "--heads", "2", "--d-head", "5", "--repeats", "3", "--budget", "0", "--no-weigh"]


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
    module = importlib.import_module(f"mha_lesson.pytorch.{module}")
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
