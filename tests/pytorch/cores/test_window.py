"""The sliding window by chunks against PyTorch's attention with the dense window mask."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch.cores.window import window_attention  # noqa: E402
from mha_lesson.steps.masks import window_mask  # noqa: E402
from tests.pytorch.cores.helpers import Recorder, draw, near  # noqa: E402
from tests.reference import says, stable  # noqa: E402

pytestmark = pytest.mark.torch


def dense(q, k, v, width, sinks=0):
    """SDPA in float64 with a mask of L × S, made in NumPy; rows without a key set to 0 from outside."""
    L, S = q.shape[2], k.shape[2]
    mask = torch.from_numpy(window_mask(L, S, width))
    for i in range(L):
        mask[i, : max(min(sinks, i + S - L + 1), 0)] = True
    empty = ~mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), mask | empty, enable_gqa=True)
    return torch.where(empty, 0, out)


def grads_near(got, want, inputs, probe, tolerance):
    grads = torch.autograd.grad(got, inputs, probe), torch.autograd.grad(want, inputs, probe)
    for got_grad, want_grad in zip(*grads, strict=True):
        near(got_grad, want_grad, tolerance)


@stable
@given(st.integers(0, 2**16), st.sampled_from([(13, 13), (29, 29), (1, 29), (5, 29), (29, 13), (13, 1), (1, 1)]),
       st.sampled_from([1, 2, 3, 7, 13, 28, 29, 31]), st.sampled_from([None, 1, 2, 3, 7, 1000]),
       st.sampled_from([0, 1, 4, 40]), st.sampled_from([1, 2, 3, 6]))  # fmt: skip
def test_same_as_the_dense_mask(seed, lengths, width, chunk, sinks, G):
    q, k, v, probe = draw(seed, 2, 6, G, *lengths, 5, 7)
    got, want = window_attention(q, k, v, width, chunk, sinks), dense(q, k, v, width, sinks)
    near(got, want, 1e-12)
    grads_near(got, want, (q, k, v), probe, 1e-12)


@pytest.mark.parametrize("width", [1, 2, 3, 16, 17, 31, 64, 100])
def test_every_width_at_the_edges_of_chunks(width):
    """Chunks of 16 over 67 tokens: widths below, at and above the edges, with and without sinks."""
    q, k, v, _ = draw(width, 1, 2, 2, 67, 67, 3, 2)
    for sinks in (0, 3, 20):
        near(window_attention(q, k, v, width, 16, sinks), dense(q, k, v, width, sinks), 1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 2**-7)])
@pytest.mark.parametrize("sinks", [0, 4])
def test_other_dtypes(dtype, tolerance, sinks):
    q, k, v, probe = draw(1, 2, 6, 3, 131, 131, 5, 7, dtype)
    got = window_attention(q, k, v, 17, sinks=sinks)
    assert got.dtype == dtype
    near(got, dense(q, k, v, 17, sinks), tolerance)
    grads_near(got, dense(q, k, v, 17, sinks), (q, k, v), probe, tolerance * 4)


def test_by_hand():
    """All scores are 0, so each output is the mean of the values that are seen."""
    q = k = torch.zeros(1, 1, 5, 2)
    v = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).view(1, 1, 5, 1)
    flat = [[x.item() for x in window_attention(q, k, v, width, 2, sinks).flatten()]
            for width, sinks in ((1, 0), (2, 0), (9, 0), (2, 1))]  # fmt: skip
    assert flat[0] == [1, 2, 4, 8, 16]
    assert flat[1] == [1, 1.5, 3, 6, 12]
    assert flat[2] == pytest.approx([1, 1.5, 7 / 3, 15 / 4, 31 / 5])
    assert flat[3] == pytest.approx([1, 1.5, 7 / 3, 13 / 3, 25 / 3])


def test_one_new_token_with_a_cache_sees_the_last_keys():
    q, k, v, _ = draw(2, 1, 2, 1, 40, 40, 3, 2)
    whole = window_attention(q, k, v, 7, sinks=2)
    for new in (1, 2, 3):
        near(window_attention(q[:, :, -new:], k, v, 7, sinks=2), whole[:, :, -new:], 1e-14)


def test_gradients_against_finite_differences():
    q, k, v, _ = draw(3, 1, 2, 1, 5, 6, 2, 2)
    assert torch.autograd.gradcheck(lambda *x: window_attention(*x, 2, 2, 1), (q, k, v))


@pytest.mark.parametrize("sinks", [0, 1])
def test_what_a_query_may_not_see_may_hold_anything(sinks):
    """Keys 6 of 20 NaN: the windows of 4 that hold it are those of the queries 6 to 9."""
    q, k, v, _ = draw(4, 1, 2, 2, 20, 20, 3, 2)
    want = dense(q, k, v, 4, sinks)
    with torch.no_grad():
        k[:, :, 6], v[:, :, 6] = math.nan, math.inf
    got = window_attention(q, k, v, 4, 16, sinks)
    broken = torch.arange(20).sub(6).div(4, rounding_mode="floor") == 0
    near(got[:, :, ~broken], want[:, :, ~broken], 1e-12)
    assert not got[:, :, broken].isfinite().any()


def test_the_result_has_memory_of_its_own():
    q, k, v, _ = (x.detach() for x in draw(5, 1, 1, 1, 4, 4, 2, 2))
    before = [x.clone() for x in (q, k, v)]
    window_attention(q, k, v, 1, 2).zero_()
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True))


def cost(n, width, sinks):
    q, k, v, probe = draw(6, 1, 2, 2, n, n, 3, 2, torch.float32)
    with Recorder() as recorder:
        out = window_attention(q, k, v, width, 16, sinks)
        torch.autograd.grad(out, (q, k, v), probe)
    return recorder


@pytest.mark.parametrize("sinks", [0, 2])
def test_time_and_memory_grow_with_n_and_not_with_its_square(sinks):
    """Backwards too, where a slice of k for each chunk would cost N numbers each time."""
    short, long = cost(160, 10, sinks), cost(640, 10, sinks)
    assert long.total < 4.5 * short.total
    assert long.largest < 4.5 * short.largest
    assert long.largest < 640 * 640 / 10


@pytest.mark.parametrize(
    "change, parts",
    [
        ({"width": 0}, ["width: expected a whole number from 1 on, got 0"]),
        ({"width": 2.5}, ["width:", "got 2.5"]),
        ({"chunk": 0}, ["chunk: expected a whole number from 1 on, got 0"]),
        ({"sinks": -1}, ["sinks: expected a whole number from 0 on, got -1"]),
        ({"k": torch.zeros(2, 4, 7, 5)}, ["k: expected a number of heads that divides q's 6, got 4"]),
        ({"v": torch.zeros(2, 3, 6, 5)}, ["v: expected k's batch, heads and tokens"]),
    ],
)
def test_what_does_not_fit_is_named(change, parts):
    arguments = {"q": torch.zeros(2, 6, 7, 5), "k": torch.zeros(2, 3, 7, 5), "v": torch.zeros(2, 3, 7, 5), "width": 3}
    if "k" in change:
        arguments["v"] = change["k"]
    with pytest.raises(ValueError, match=says(*parts)):
        window_attention(**arguments | change)
