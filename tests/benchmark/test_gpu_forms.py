"""Forms on a device: cells, clocks, inputs, one pass."""

from types import SimpleNamespace

import pytest

from mha_lesson import benchmark
from mha_lesson.benchmark import gpu_forms
from tests.benchmark.helpers import CELL, make_run

pytestmark = pytest.mark.torch


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
