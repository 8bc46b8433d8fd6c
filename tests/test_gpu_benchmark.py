"""The run on a device, tried without one: a dry run takes the whole path, and faults are put in its way."""

import contextlib
import importlib
import io
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import mha_lesson
from mha_lesson import benchmark
from mha_lesson.benchmark import gpu, gpu_cases, gpu_forms, gpu_record
from mha_lesson.data import FOLDER, gpu_records
from tests.reference import says

pytestmark = pytest.mark.torch

DRY = ["gpu", "--dry-run", "--sizes", "16,32", "--widths", "16", "--repeats", "3"]
CELL = gpu_forms.Cell(n=6, d=16, causal=True, backward=False, batch=3, heads=2)


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """(exit status, what was printed, the file's content) of one dry run."""
    file = tmp_path_factory.mktemp("dry") / "record.json"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = benchmark.main([*DRY, "--json", str(file)])
    assert list(file.parent.iterdir()) == [file]  # no half-written one beside it
    return status, printed.getvalue(), json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture
def stored(dry):
    """A record as it would be stored: the dry run, passed off as a real one."""
    record = json.loads(json.dumps(dry[2])) | {"dry_run": False, "card": "NVIDIA H200", "driver": "1.2", "cuda": "3.4"}
    return record | {"peak": {"tflops": 989, "gbytes_per_s": 4800}}


def make_run(device=None, **settings):
    """A run that has not begun."""
    options = benchmark.parser().parse_args(DRY)
    record = {"dry_run": True, "peak": None, "settings": gpu.fill_in(options) | settings}
    record |= {name: [] for name in ("correctness", "default_backend", "rows", "left_out")}
    return gpu.Run(device or gpu_forms.Cpu(), record, None)


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


# ------------------------------------------------------------------------------ is the kernel right?


def honest(q, k, v, *, causal, lengths):
    """Right in every case: in float32 and rounded at the end."""
    return gpu_cases.exact(*(x.float() for x in (q, k, v)), causal, lengths).to(q.dtype)


def unscaled(q, k, v, *, causal, lengths):
    return honest(q * q.shape[-1] ** 0.5, k, v, causal=causal, lengths=lengths)


def reads_padding(q, k, v, *, causal, lengths):
    return honest(q, k, v, causal=causal, lengths=None)


def forgets_the_mask(q, k, v, *, causal, lengths):
    return honest(q, k, v, causal=False, lengths=lengths)


def aligned_upper_left(q, k, v, *, causal, lengths):
    """The first query sees the first key, as in SDPA."""
    L, S = q.shape[2], k.shape[2]
    if not causal or L == S:
        return honest(q, k, v, causal=causal, lengths=lengths)
    import torch

    k, v = (x if L <= S else torch.nn.functional.pad(x, (0, 0, 0, L - S)) for x in (k, v))
    return honest(q, k[:, :, :L], v[:, :, :L], causal=True, lengths=lengths)


def deals_out_heads(q, k, v, *, causal, lengths):
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
    return honest(q, k, v, causal=causal, lengths=lengths)


def misses_the_last_key(q, k, v, *, causal, lengths):
    """As a loop over whole blocks does."""
    import torch

    S = k.shape[2] // 32 * 32
    if S in (0, k.shape[2]) or q.shape[2] > S:
        return honest(q, k, v, causal=causal, lengths=lengths)
    k, v = (torch.cat([x[:, :, :S], torch.zeros_like(x[:, :, S:])], dim=2) for x in (k, v))
    return honest(q, k, v, causal=causal, lengths=lengths)


def leaves_a_hole(q, k, v, *, causal, lengths):
    """The last block of queries is never written."""
    import torch

    whole = torch.empty(q.shape, dtype=q.dtype)
    done = max(q.shape[2] // 32 * 32, 1)
    mine = honest(q, k, v, causal=causal, lengths=lengths)
    if done == q.shape[2]:
        return mine
    return torch.cat([mine[:, :, :done], whole[:, :, done:]], dim=2)


def too_much_gradient(q, k, v, *, causal, lengths):
    """Right forwards; the gradient of v is 20 % too large."""
    wrong = v * 1.2 - (v * 0.2).detach()
    return honest(q, k, wrong, causal=causal, lengths=lengths)


def not_a_number(q, k, v, *, causal, lengths):
    """A query that may see nothing gives NaN: -inf - -inf."""
    output = honest(q, k, v, causal=causal, lengths=lengths)
    return output / (output.detach() != 0).any(-1, keepdim=True)


FAULTS = [unscaled, reads_padding, forgets_the_mask, aligned_upper_left, deals_out_heads, misses_the_last_key]
FAULTS += [leaves_a_hole, too_much_gradient, not_a_number]


def test_the_cases_pass_what_is_right():
    for case in gpu_cases.cases([16, 32], tiny=True):
        found = gpu_cases.check_case(case, honest, "cpu")
        assert (found["status"], found["why"]) == ("right", None)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_cases_find_a_kernel_s_usual_faults(fault):
    found = [gpu_cases.check_case(case, fault, "cpu") for case in gpu_cases.cases([16, 32], tiny=True)]
    wrong = [case for case in found if case["status"] == "wrong"]
    assert wrong
    assert all("off by" in case["why"] for case in wrong)
    json.dumps(found, allow_nan=False)


def test_every_format_meets_every_width_mask_and_shape():
    found = gpu_cases.cases([64, 128])
    assert len(found) == 4 + 12
    for dtype in gpu_cases.FORMATS:
        mine = [case for case in found if case.dtype == dtype]
        assert {(case.d, case.causal) for case in mine} == {(d, c) for d in (64, 128) for c in (True, False)}
        assert {case.shape for case in mine} >= set(gpu_cases.SHAPES)
    shapes = gpu_cases.SHAPES
    assert any(shape.G < shape.H for shape in shapes)
    assert any(shape.L > shape.S for shape in shapes)  # rows without a key
    assert any(shape.lengths and 0 in shape.lengths for shape in shapes)
    assert any(shape.L % 16 and shape.S % 16 for shape in shapes)


def test_memory_is_poisoned_inside_and_as_before_after():
    import torch

    with gpu_cases.poisoned_memory():
        assert torch.empty(1000).isnan().all()
        assert torch.empty_like(torch.ones(3, 5, dtype=torch.float16)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_exact_is_torch_s_own_in_float64():
    import torch

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 5, dtype=torch.float64) for h, n in ((6, 7), (3, 11), (3, 11)))
    keep = torch.ones(7, 11, dtype=torch.bool).tril(4)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
    torch.testing.assert_close(gpu_cases.exact(q, k, v, True, None), want, rtol=0, atol=1e-12)
    lengths = torch.tensor([4, 0])
    found = gpu_cases.exact(q, k, v, False, lengths)
    want = torch.nn.functional.scaled_dot_product_attention(q[:1], k[:1, :, :4], v[:1, :, :4], enable_gqa=True)
    torch.testing.assert_close(found[:1], want, rtol=0, atol=1e-12)
    assert (found[1] == 0).all()


def test_a_wrong_kernel_stops_the_run_and_the_file_says_why(monkeypatch, tmp_path, capsys):
    flash = importlib.import_module("mha_lesson.pytorch.cores.flash_triton")
    monkeypatch.setattr(flash, "flash_attention", aligned_upper_left)
    file = tmp_path / "out.json"
    assert benchmark.main([*DRY, "--json", str(file)]) == 1
    record = json.loads(file.read_text(encoding="utf-8"))
    assert record["ended"] == "wrong answers"
    assert record["rows"] == []
    wrong = [case for case in record["correctness"] if case["status"] == "wrong"]
    right = [case for case in record["correctness"] if case["status"] == "right"]
    assert wrong and right
    assert all(case["causal"] for case in wrong)
    printed = capsys.readouterr()
    assert wrong[0]["case"] in printed.err
    assert "off by" in printed.err


def test_a_kernel_that_does_not_compile_is_a_failed_case():
    def broken(q, k, v, **_):
        raise RuntimeError("\n  at 3:7: out of registers\nand a long listing")

    found = gpu_cases.check_case(gpu_cases.cases([16])[0], broken, "cpu")
    assert (found["status"], found["why"]) == ("failed", "RuntimeError: at 3:7: out of registers")
    assert gpu_cases.first_line(ValueError()) == "ValueError: no message"


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


# ------------------------------------------------------------------------------ numbers


def test_work_and_bytes_of_a_cell():
    cell = gpu_forms.Cell(n=8, d=3, causal=False, backward=False, batch=2, heads=5)
    assert cell.flops() == 4 * 2 * 5 * 8 * 8 * 3
    assert cell.bytes("flash_attention") == 2 * 4 * 2 * 5 * 8 * 3  # Q, K, V and O, two bytes each
    assert cell.bytes("naive") == cell.bytes("SDPA MATH") == cell.bytes("flash_attention") + 2 * 4 * 2 * 5 * 8 * 8
    both = gpu_forms.Cell(n=8, d=3, causal=True, backward=True, batch=2, heads=5)
    assert both.flops() == cell.flops() / 2 * 3.5
    assert both.bytes("naive") == 3 * cell.bytes("naive")


def test_shares_of_the_peak_and_of_the_roofline():
    """At 2 flops a byte and 3 bytes a second, no more than 6 flops a second can be had, whatever the peak."""
    run = make_run()
    cell = gpu_forms.Cell(n=16, d=4, causal=False, backward=False, batch=1, heads=1)
    assert cell.flops() / cell.bytes("flash_attention") == 8
    seconds = benchmark.Spread(cell.flops() / 2e12, 1.0, 1.0)  # 2 TFLOP/s
    run.record["peak"] = {"tflops": 10, "gbytes_per_s": 500}
    found = run.figures(cell, "flash_attention", seconds)
    assert (found["tflops"], found["share_of_peak"], found["share_of_roofline"]) == pytest.approx((2, 0.2, 0.5))
    run.record["peak"] = {"tflops": 10, "gbytes_per_s": 5000}
    assert run.figures(cell, "flash_attention", seconds)["share_of_roofline"] == pytest.approx(0.2)
    run.record["peak"] = None
    assert run.figures(cell, "flash_attention", seconds)["share_of_peak"] is None


def test_peaks_are_in_the_table_by_the_full_name():
    assert gpu_record.PEAKS["NVIDIA H200"].tflops == gpu_record.PEAKS["NVIDIA H100 80GB HBM3"].tflops == 989
    assert gpu_record.PEAKS["NVIDIA A100-SXM4-80GB"].tflops == 312
    assert "NVIDIA H200 MIG 1g.18gb" not in gpu_record.PEAKS  # a part of a card has a part of its peak


def test_a_relative_error_is_a_share_of_the_largest_number():
    import torch

    right = torch.tensor([1.0, -8.0, 0.0])
    assert gpu_cases.relative_error(right + torch.tensor([0, 0, 2.0]), right) == 0.25
    assert gpu_cases.relative_error(right * float("nan"), right) == math.inf


# ------------------------------------------------------------------------------ the device


def test_a_device_is_timed_between_two_marks_with_a_cover_before_them():
    order = []

    class Mark:
        def __init__(self, name):
            self.name = name

        def record(self):
            order.append(self.name)

        def synchronize(self):
            order.append(f"wait for {self.name}")

        def elapsed_time(self, end):
            assert (self.name, end.name) == ("begin", "end")
            return 250.0  # milliseconds

    device = object.__new__(gpu_forms.Cuda)
    device.cover = SimpleNamespace(zero_=lambda: order.append("cover"))
    device.marks = [Mark("begin"), Mark("end")]
    assert device.seconds(lambda: order.append("run")) == 0.25
    assert order == ["cover", "begin", "run", "end", "wait for end"]


def test_inputs_rotate_and_are_larger_than_the_cache():
    device = gpu_forms.Cpu()
    sets = gpu_forms.inputs(CELL, device, "bfloat16")
    assert len(sets) == 2  # one is larger than twice the cache
    device.cache_bytes = 10_000
    sets = gpu_forms.inputs(CELL, device, "bfloat16")
    assert sum(3 * 2 * q.numel() for q, *_ in sets) >= 2 * 10_000
    assert {x.shape for one in sets for x in one} == {(3, 2, 6, 16)}
    seen = []
    run = gpu_forms.one_pass(lambda q, k, v: seen.append(q) or q, sets, backward=False)
    for _ in range(len(sets) + 1):
        run()
    assert [any(q is one[0] for one in sets) for q in seen] == [True] * len(seen)
    assert len({id(q) for q in seen}) == len(sets)
    assert seen[-1] is seen[0]


def test_one_pass_backwards_gives_three_gradients():
    import torch

    cell = gpu_forms.Cell(n=6, d=5, causal=False, backward=True, batch=3, heads=2)
    sets = gpu_forms.inputs(cell, gpu_forms.Cpu(), "float32")
    (forwards,) = gpu_forms.one_pass(lambda q, k, v: 2 * q + 3 * k * v, sets[:1], False)()
    assert not forwards.requires_grad
    _, k, v, probe = sets[0]
    d_q, d_k, d_v = gpu_forms.one_pass(lambda q, k, v: 2 * q + 3 * k * v, sets[:1], True)()
    torch.testing.assert_close(d_q, 2 * probe)
    torch.testing.assert_close(d_k, 3 * v.detach() * probe)
    torch.testing.assert_close(d_v, 3 * k.detach() * probe)


def test_who_ran_is_asked_of_torch_itself():
    q, k, v, _ = gpu_forms.inputs(CELL, gpu_forms.Cpu(), "bfloat16")[0]
    for backend in ("FLASH_ATTENTION", "MATH"):
        found = gpu_forms.called_operation(lambda name=backend: gpu_forms.sdpa(q, k, v, True, name))
        assert gpu_forms.OPERATIONS.get(found, "MATH") == backend
    assert gpu_forms.called_operation(lambda: gpu_forms.naive(q, k, v, True)) == "plain operations"


def test_the_default_is_proved_by_the_kernels_too():
    """A device whose kernels are named after the backend that was forced; the default runs flash here."""
    import torch

    class Named(gpu_forms.Cpu):
        def kernels(self, run):
            operation = gpu_forms.called_operation(run)
            return [gpu_forms.OPERATIONS.get(operation, "MATH").lower()]

    found = gpu_forms.default_backend(CELL, Named(), "bfloat16")
    assert (found["backend"], found["same_kernels_as"]) == ("FLASH_ATTENTION", ["FLASH_ATTENTION"])
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        found = gpu_forms.default_backend(CELL, Named(), "bfloat16")
    assert (found["backend"], found["same_kernels_as"]) == ("MATH", ["MATH"])


# ------------------------------------------------------------------------------ records


def store(folder, record, name="run.json"):
    (folder / name).write_text(json.dumps(record), encoding="utf-8")


def test_what_is_stored_in_the_course_is_whole():
    for record in gpu_records():
        assert record["ended"] in ("finished", "wrong answers", "device error", "cut off")


def test_records_are_read_oldest_first(stored, tmp_path):
    assert gpu_records(tmp_path) == gpu_records(tmp_path / "is not there") == []
    for name, date in (("a", "2031-05-17T14:03:59"), ("b", "2030-05-17T14:03:59")):
        store(tmp_path, stored | {"date": date}, f"{name}.json")
    (tmp_path / "schema.json").write_text("not a record", encoding="utf-8")
    assert [record["date"][:4] for record in gpu_records(tmp_path)] == ["2030", "2031"]


def test_the_record_of_a_wrong_kernel_can_be_stored(stored, tmp_path):
    case = stored["correctness"][0] | {"status": "wrong", "why": "output: off by 1", "errors": {"output": None}}
    record = stored | {"ended": "wrong answers", "rows": [], "correctness": [case], "measured": None, "peak": None}
    store(tmp_path, record)
    assert gpu_records(tmp_path) == [record]
    assert "wrong: output: off by 1" in benchmark.gpu_summary([record])
    assert "ended early: wrong answers" in benchmark.gpu_summary([record])


def test_a_dry_run_is_no_record(dry, tmp_path):
    store(tmp_path, dry[2])
    with pytest.raises(ValueError, match=says("run.json", "dry_run", "measures nothing")):
        gpu_records(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "says_field"),
    [
        (["card"], 7, "field card: 7"),
        (["date"], "yesterday", "field date: 'yesterday'"),
        (["rows", 0, "tflops"], "fast", "field rows[0].tflops: 'fast'"),
        (["rows", 0, "tflops"], -1.0, "field rows[0].tflops: -1.0"),
        (["rows", 0, "seconds"], None, "field rows[0].seconds"),
        (["ended"], "well", "field ended: 'well'"),
        (["correctness", 2, "tolerance"], 0, "field correctness[2].tolerance"),
        (["surprise"], 1, "'surprise' was unexpected"),
    ],
)
def test_a_damaged_record_names_file_and_field(stored, tmp_path, path, value, says_field):
    place = stored
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    store(tmp_path, stored)
    with pytest.raises(ValueError, match=says("run.json", says_field)):
        gpu_records(tmp_path)


def test_a_file_that_is_no_record_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=says("run.json", "not JSON")):
        gpu_records(tmp_path)
    store(tmp_path, [])
    with pytest.raises(ValueError, match=says("run.json", "the whole file")):
        gpu_records(tmp_path)


def test_the_summary_says_when_there_is_nothing():
    assert benchmark.gpu_summary([]).startswith("No record stored yet")
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"```\n{benchmark.gpu_summary()}\n```" in readme, "README.md shows another summary: paste the new one"
    assert (benchmark.gpu_summary() == benchmark.gpu_summary([])) == (gpu_records() == [])


def test_the_summary_is_a_table_with_the_fastest_first(stored):
    speeds = {"slow": (300, 100), "fast": (100, 400), "middle": (200, 200)}
    row = next(row for row in stored["rows"] if row["status"] == "timed")
    rows = [
        row | {"form": form, "n": n, "causal": True, "backward": False, "tflops": tflops, "share_of_peak": tflops / 989}
        for form, found in speeds.items()
        for n, tflops in zip((512, 1024), found, strict=True)
    ]
    hungry = row | {"form": "hungry", "n": 1024, "causal": True, "backward": False, "tflops": None}
    rows.append(hungry | {"status": "out of memory", "share_of_peak": None})
    lines = benchmark.gpu_summary([stored | {"rows": rows}]).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("D = 16, causal, forward:"))
    assert lines[at + 1].split() == ["512", "1024"]
    assert [line.split() for line in lines[at + 2 : at + 6]] == [
        ["fast", "100", "(10%)", "400", "(40%)"],
        ["middle", "200", "(20%)", "200", "(20%)"],
        ["slow", "300", "(30%)", "100", "(10%)"],
        ["hungry", "-", "no", "memory"],
    ]
    assert "NVIDIA H200" in lines[0]
    assert "not in the table" not in "\n".join(lines)


def test_the_summary_of_several_runs_is_in_order(stored):
    records = [stored | {"date": date, "card": card} for card, date in (("B", "2031-01-01"), ("A", "2030-01-01"))]
    printed = benchmark.gpu_summary(records)
    assert printed.index("A, 2030") < printed.index("B, 2031")


def test_the_folder_says_what_belongs_there():
    readme = (FOLDER / "gpu" / "README.md").read_text(encoding="utf-8")
    assert "python3 -m mha_lesson benchmark gpu" in readme
    assert gpu_record.FOLDER == FOLDER / "gpu" == Path(mha_lesson.__file__).parents[1] / "data" / "gpu"


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
