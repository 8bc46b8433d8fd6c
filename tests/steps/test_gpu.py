"""Lesson 13's plain functions: the pretend device, tolerances, counts of operations and bytes, the ring."""

import numpy as np
import pytest

from mha_lesson.steps import gpu
from mha_lesson.steps.masks import causal_mask


def test_the_device_answers_before_it_is_done():
    device = gpu.Device()
    device.launch(2.0)
    assert device.now() == pytest.approx(device.LAUNCH)
    device.wait()
    assert device.now() == pytest.approx(2.0 + device.FIRST + device.LAUNCH)
    device.wait()  # nothing left: no time passes
    assert device.now() == pytest.approx(2.0 + device.FIRST + device.LAUNCH)


def test_jobs_run_one_after_the_other_and_only_the_first_is_slow():
    device = gpu.Device(queued=3.0)
    for _ in range(4):
        device.launch(1.0)
    device.wait()
    assert device.now() == pytest.approx(3.0 + device.FIRST + 4.0)


@pytest.mark.parametrize("seconds", [0.003, 0.2, 5.0])
@pytest.mark.parametrize("queued", [0.0, 7.0])
def test_timed_finds_the_seconds_of_a_job(seconds, queued):
    device = gpu.Device(queued)
    measured = gpu.timed(lambda: device.launch(seconds), device, repeats=10)
    assert measured == pytest.approx(seconds, rel=0.01)


def test_a_clock_that_does_not_wait_measures_the_handing_over():
    measured = []
    for seconds in (0.1, 10.0):
        device = gpu.Device()
        device.launch(seconds)
        measured.append(device.now())
    assert measured[0] == measured[1] < 0.001


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_agrees_accepts_what_pytorch_computes_in_each_format(dtype):
    import torch

    generator = torch.Generator().manual_seed(5)
    for size in (0.01, 1.0, 30.0):
        q, k, v = (torch.randn(2, 3, 101, 32, generator=generator, dtype=torch.float64) for _ in range(3))
        q, k, v = (x.to(getattr(torch, dtype)) for x in (q, k, size * v))
        exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double()).numpy()
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v).double().numpy()
        assert gpu.agrees(output, exact, dtype)
        broken = output.copy()
        broken[1, 2, 100] = 0  # the last token was never written
        assert not gpu.agrees(broken, exact, dtype)
        if dtype != "float64":
            assert not gpu.agrees(output, exact, "float64")


def test_agrees_knows_nan_inf_and_shapes():
    exact = np.array([[1.0, -np.inf], [2.0, 3.0]])
    assert gpu.agrees(exact, exact, "float32")
    assert not gpu.agrees(-exact, exact, "float32")
    assert not gpu.agrees(np.where(np.isinf(exact), np.nan, exact), exact, "bfloat16")
    assert not gpu.agrees(exact[0], exact, "float32")
    assert not gpu.agrees(exact[:, :1], np.repeat(exact[:, :1], 2, 1), "float32")


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(gpu.ROUNDING))
def test_roundings_are_those_of_the_formats(name):
    import torch

    assert gpu.ROUNDING[name] == torch.finfo(getattr(torch, name)).eps / 2


def test_operations_and_bytes_counted_by_hand():
    # 2 sequences, 3 heads, 5 queries, 7 keys, width 11: Q K^T is 2·3·5·7·11 products, each added up; P V again.
    assert gpu.attention_flops(2, 3, 5, 7, 11) == 2 * (2 * 3 * 5 * 7 * 11) * 2
    assert gpu.attention_flops(2, 3, 5, 5, 11, causal=True) * 2 == gpu.attention_flops(2, 3, 5, 5, 11)
    inputs = 2 * 3 * 11 * (5 + 7 + 7 + 5)  # Q, K, V, O
    assert gpu.attention_bytes(2, 3, 5, 7, 11) == 2 * inputs
    assert gpu.attention_bytes(2, 3, 5, 7, 11, bytes_per_number=4) == 4 * inputs
    assert gpu.attention_bytes(2, 3, 5, 7, 11, fused=False) == 2 * (inputs + 4 * 2 * 3 * 5 * 7)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 3])
def test_the_ring_shows_each_rank_every_piece_once_and_all_together_are_causal(world, n):
    whole = np.zeros((world * n, world * n), int)
    for rank in range(world):
        for step in range(world):
            source, keep = gpu.ring_step(rank, step, world, n)
            assert keep.dtype == bool
            whole[rank * n : (rank + 1) * n, source * n : (source + 1) * n] += keep
            if step + 1 < world:  # what a rank holds next is what the rank before it holds now
                assert gpu.ring_step((rank + 1) % world, step + 1, world, n)[0] == source
    assert np.array_equal(whole, causal_mask(world * n, world * n).astype(int))
