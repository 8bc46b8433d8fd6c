"""The run on a device, tried without one: a dry run takes the whole path, and faults are put in its way."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mha_lesson import benchmark
from mha_lesson.benchmark import gpu, gpu_cases, gpu_forms, gpu_record
from mha_lesson.data import gpu_records
from tests.benchmark.helpers import CELL, DRY, make_run
from tests.reference import says

pytestmark = pytest.mark.torch


# ------------------------------------------------------------------------------ a whole run


def test_a_dry_run_goes_the_whole_way(dry):
    status, printed, record = dry
    assert status == 0
    assert record["dry_run"] is True
    assert record["ended"] == "finished"
    assert record["left_out"] == []
    assert "none of these numbers is a measurement" in printed
    assert "D = 16, causal, forward and backward" in printed
    assert "8 of 8 cases right" in printed


def test_a_dry_run_checks_formats_masks_and_shapes(dry):
    cases = dry[2]["correctness"]
    assert {case["status"] for case in cases} == {"right"}
    assert {(case["dtype"], case["causal"]) for case in cases} == {
        (dtype, causal) for dtype in gpu_cases.FORMATS for causal in (True, False)
    }
    for case in cases:
        assert set(case["errors"]) == {"output", "d_q", "d_k", "d_v"}
        assert all(0 <= error <= 2 * case["tolerance"] for error in case["errors"].values())
    assert sorted({case["tolerance"] for case in cases}) == pytest.approx([68 * 2**-24, 2**-9, 2**-6], rel=0.01)


def test_a_dry_run_times_every_form_in_every_cell(dry):
    rows = dry[2]["rows"]
    forms = {"SDPA default", "flash_attention", "naive"} | {f"SDPA {name}" for name in gpu_forms.BACKENDS}
    cells = [(n, causal, backward) for n in (16, 32) for causal in (True, False) for backward in (True, False)]
    want = {(form, *cell) for form in forms for cell in cells}
    want |= {("FlexAttention", *cell) for cell in cells if cell[0] == 16}
    found = [(row["form"], row["n"], row["causal"], row["backward"]) for row in rows]
    assert len(found) == len(set(found))
    assert set(found) == want
    for row in rows:
        if row["status"] == "timed":
            assert 0 < row["seconds"]["low"] <= row["seconds"]["median"] <= row["seconds"]["high"]
            assert row["rounds"] == 3
            flops = 4 * row["batch"] * row["heads"] * row["n"] ** 2 * row["d"] / (2 if row["causal"] else 1)
            flops *= 3.5 if row["backward"] else 1
            assert row["tflops"] == pytest.approx(flops / row["seconds"]["median"] / 1e12)
            assert row["share_of_peak"] is None  # no card, no peak
            assert row["batch"] * row["n"] == 32
            assert row["heads"] * row["d"] == 32
    timed = {row["form"] for row in rows if row["status"] == "timed"}
    assert timed >= {"SDPA default", "SDPA FLASH_ATTENTION", "SDPA MATH", "flash_attention", "naive", "FlexAttention"}
    assert all(row["ratio"]["median"] == 1 for row in rows if row["form"] == "SDPA default")


def test_forms_that_this_machine_lacks_are_written_down_with_the_reason(dry):
    rows = [row for row in dry[2]["rows"] if row["form"] in ("SDPA CUDNN_ATTENTION", "SDPA EFFICIENT_ATTENTION")]
    assert len(rows) == 16
    for row in rows:
        assert row["status"] == "failed"
        assert "RuntimeError" in row["why"]
        assert row["seconds"] is None


def test_a_dry_run_keeps_no_record_unless_told_to(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_record, "FOLDER", tmp_path)
    monkeypatch.setattr(gpu.Run, "all", lambda self: "finished")
    assert benchmark.main(DRY) == 0
    assert list(tmp_path.iterdir()) == []
    assert "Written" not in capsys.readouterr().out


def test_a_run_on_a_card_is_a_record(monkeypatch, tmp_path, capsys):
    """A card in name only: what it computes is computed here, what is written is what a card would write."""

    class Pretended(gpu_forms.Cpu):
        facts = SimpleNamespace(name="NVIDIA H200", total_memory=150_000_000_000)

        def seconds(self, run):
            run()
            return 1e-6

        def peak_bytes(self, run):
            return run(), 12345

    monkeypatch.setattr(gpu, "missing", lambda: None)
    monkeypatch.setattr(gpu, "driver", lambda: "570.1")
    monkeypatch.setattr(gpu, "Cuda", Pretended)
    monkeypatch.setattr(gpu, "cases", lambda widths, tiny: gpu_cases.cases(widths, tiny=True)[:2])
    monkeypatch.setattr(gpu_record, "FOLDER", tmp_path)
    tiny = ["--sizes", "16", "--widths", "32", "--flex-sizes", "16", "--tokens", "32", "--features", "64"]
    assert benchmark.main(["gpu", *tiny, "--repeats", "3"]) == 0
    (record,) = gpu_records(tmp_path)
    assert (record["card"], record["driver"], record["dry_run"]) == ("NVIDIA H200", "570.1", False)
    assert record["peak"] == {"tflops": 989, "gbytes_per_s": 4800}
    (row,) = [r for r in record["rows"] if r["form"] == "flash_attention" and r["causal"] and not r["backward"]]
    assert row["tflops"] == pytest.approx(2 * 2 * 2 * 16 * 16 * 32 / 1e6)
    assert row["share_of_peak"] == pytest.approx(row["tflops"] / 989)
    assert row["peak_bytes"] == 12345
    printed = capsys.readouterr().out
    assert str(next(tmp_path.iterdir())) in printed
    assert "dry run" not in printed


def test_the_driver_is_asked_of_its_own_tool(monkeypatch):
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None)
    assert gpu.driver() is None
    monkeypatch.setattr(gpu.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="570.1\n570.1\n"))
    assert gpu.driver() == "570.1"


# ------------------------------------------------------------------------------ what is missing


def test_without_a_device_one_line_says_so(monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark.main(["gpu"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    parts = ["needs a CUDA device", torch.__version__, "16 cases", "N = 512, ", "16384", "D = 64, 128", "--dry-run"]
    assert re.search(says(*parts), printed.err)


@pytest.mark.parametrize("lacking", ["torch", "triton"])
def test_without_a_library_one_line_says_so(monkeypatch, capsys, lacking):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, lacking, None)
    assert benchmark.main(["gpu"]) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"this Python has no{'ne' if lacking == 'triton' else ' torch'}" in printed


def test_a_file_that_cannot_be_written_is_noticed_before_the_run(tmp_path, capsys):
    assert benchmark.main([*DRY, "--json", str(tmp_path / "no such folder" / "out.json")]) == 1
    printed = capsys.readouterr()
    assert re.search(says("gpu: cannot write", "no such folder", "--json"), printed.err)
    assert "cases checked" not in printed.out


def test_where_records_go(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_record, "FOLDER", tmp_path)
    found = gpu_record.default_file("NVIDIA H100 80GB HBM3", "2031-05-17T14:03:59")
    assert found == tmp_path / "nvidia-h100-80gb-hbm3-2031-05-17t14-03.json"
    monkeypatch.setattr(gpu_record, "FOLDER", tmp_path / "is not there")
    monkeypatch.chdir(tmp_path)
    assert gpu_record.default_file("X", "2031-05-17T14:03:59") == Path.cwd() / "x-2031-05-17t14-03.json"


# ------------------------------------------------------------------------------ forms that fail


def rows_of(monkeypatch, naive=None, run=None, cell=CELL):
    if naive is not None:
        monkeypatch.setattr(gpu_forms, "naive", naive)
    run = run or make_run()
    run.measure(cell, gpu_forms.fast_forms, 1.0)
    return {row["form"]: row for row in run.record["rows"]}


def test_a_form_without_enough_memory_is_written_down_and_others_go_on(monkeypatch):
    import torch

    def hungry(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 68.00 GiB")

    rows = rows_of(monkeypatch, hungry)
    assert rows["naive"]["status"] == "out of memory"
    assert "68.00 GiB" in rows["naive"]["why"]
    assert rows["naive"]["tflops"] is None
    assert rows["flash_attention"]["status"] == rows["SDPA default"]["status"] == "timed"


def test_a_form_that_does_not_compile_is_written_down_and_others_go_on(monkeypatch):
    def broken(*_):
        raise NotImplementedError("no such instruction\nmore")

    rows = rows_of(monkeypatch, broken)
    assert (rows["naive"]["status"], rows["naive"]["why"]) == ("failed", "NotImplementedError: no such instruction")
    assert rows["flash_attention"]["status"] == "timed"


def test_a_form_with_a_wrong_answer_is_not_timed(monkeypatch):
    rows = rows_of(monkeypatch, lambda q, k, v, causal: gpu_forms.sdpa(q, k, v, not causal))
    assert rows["naive"]["status"] == "wrong"
    assert "off by" in rows["naive"]["why"]
    assert rows["naive"]["error"] > 0.1
    assert rows["naive"]["seconds"] is None
    assert rows["flash_attention"]["status"] == "timed"


def test_wrong_gradients_are_wrong_answers(monkeypatch):
    def half(q, k, v, causal):
        k = k * 0.5 + (k * 0.5).detach()
        return gpu_forms.sdpa(q, k, v, causal)

    cell = gpu_forms.Cell(n=6, d=16, causal=True, backward=True, batch=3, heads=2)
    rows = rows_of(monkeypatch, half, cell=cell)
    assert rows["naive"]["status"] == "wrong"
    assert rows["SDPA MATH"]["status"] == "timed"


def test_a_form_that_fails_only_in_turns_does_not_end_the_run(monkeypatch):
    calls = []

    def sometimes(q, k, v, causal):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("too tired")
        return gpu_forms.sdpa(q, k, v, causal)

    run = make_run()
    rows = rows_of(monkeypatch, sometimes, run)
    assert rows["flash_attention"]["status"] == "failed"
    assert re.search(says("while they took turns", "too tired"), rows["flash_attention"]["why"])
    assert run.record["left_out"] == []


def test_a_device_that_is_lost_ends_the_run_and_keeps_what_there_is(monkeypatch, capsys):
    class Fragile(gpu_forms.Cpu):
        broken = False

        def wait(self):
            if self.broken:
                raise RuntimeError("an illegal memory access was encountered")

    device = Fragile()

    def crash(q, k, v, causal):
        if q.shape[2] > 16:
            device.broken = True
            raise RuntimeError("unspecified launch failure")
        return gpu_forms.sdpa(q, k, v, causal)

    monkeypatch.setattr(gpu_forms, "naive", crash)
    monkeypatch.setattr(gpu.Run, "check", lambda self: None)
    run = make_run(device)
    assert run.all() == "device error"
    assert {row["n"] for row in run.record["rows"]} == {16}
    assert len(run.record["rows"]) == 4 * 7
    assert "illegal memory access" in run.record["left_out"][-1]["why"]
    assert "naive, N = 32" in capsys.readouterr().err


# ------------------------------------------------------------------------------ the budget


class SlowRun(gpu.Run):
    """Cells take n seconds on a clock that nothing else moves."""

    now = 0.0

    def left(self, share=1.0):
        return share * self.settings["budget"] - self.now

    def rows(self, cell, forms):
        self.now += cell.n
        self.clock.now = self.now
        return [{"form": "any", **cell.facts()}]


def slow_run(monkeypatch, budget):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: clock.now)
    plain = make_run(budget=budget, sizes=[40, 10, 20], flex_sizes=[10])
    run = SlowRun(plain.device, plain.record, None)
    run.clock = clock
    monkeypatch.setattr(run, "check", lambda: None)
    monkeypatch.setattr(run, "ask", lambda: None)
    monkeypatch.setattr(gpu, "fast_forms", lambda cell: {})
    monkeypatch.setattr(run, "flex_beside_base", lambda cell: {})
    return run


def test_the_budget_leaves_out_the_largest_sizes_and_says_so(monkeypatch):
    """Four cells a size: 40, 80 and 160 s. 80 % of 200 s reach for 10 and 20, and for one of the largest."""
    run = slow_run(monkeypatch, 200)
    assert run.all() == "finished"
    assert [row["n"] for row in run.record["rows"]] == [10] * 4 + [20] * 4 + [40] + [10] * 4
    left_out = run.record["left_out"]
    assert [entry["what"][:18] for entry in left_out] == ["all forms, N = 40,"] * 3
    assert all(re.search(says("budget of 200 s", "about 40.0 s"), entry["why"]) for entry in left_out)
    assert run.now <= 200


def test_a_large_budget_leaves_nothing_out(monkeypatch):
    run = slow_run(monkeypatch, 10_000)
    assert run.all() == "finished"
    assert len(run.record["rows"]) == 16
    assert run.record["left_out"] == []


def test_cases_end_with_their_share_of_the_budget(monkeypatch):
    run = make_run(budget=0)
    run.check()
    assert run.record["correctness"] == []
    assert len(run.record["left_out"]) == 8
    assert "the case bfloat16, D 16, causal" in run.record["left_out"][0]["what"]


# ------------------------------------------------------------------------------ where there is a device


@pytest.mark.gpu
@pytest.mark.slow
def test_a_small_run_on_a_device(tmp_path):
    pytest.importorskip("triton")
    store_in = tmp_path / "out.json"
    small = ["gpu", "--sizes", "512", "--widths", "64", "--tokens", "2048", "--flex-sizes", "512", "--budget", "120"]
    assert benchmark.main([*small, "--json", str(store_in)]) == 0
    (record,) = gpu_records(tmp_path)
    assert record["ended"] == "finished"
    assert all(found["kernels"] for found in record["default_backend"])
    ours = [row for row in record["rows"] if row["form"] == "flash_attention"]
    assert {row["status"] for row in ours} == {"timed"}
    assert all(row["peak_bytes"] > 0 for row in ours)
