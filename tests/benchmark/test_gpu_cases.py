"""The cases a kernel must pass find its usual faults."""

import importlib
import json
import math

import pytest

from mha_lesson import benchmark
from mha_lesson.benchmark import gpu_cases
from tests.benchmark.helpers import DRY

pytestmark = pytest.mark.torch


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


# ------------------------------------------------------------------------------ numbers


def test_a_relative_error_is_a_share_of_the_largest_number():
    import torch

    right = torch.tensor([1.0, -8.0, 0.0])
    assert gpu_cases.relative_error(right + torch.tensor([0, 0, 2.0]), right) == 0.25
    assert gpu_cases.relative_error(right * float("nan"), right) == math.inf
