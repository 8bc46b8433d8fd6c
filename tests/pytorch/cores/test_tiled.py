"""Attention by tiles against the form with the whole array, forwards and backwards, and its merge."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch.cores.tiled import attention_with_lse, merge, tiled_attention  # noqa: E402
from tests.pytorch.cores.helpers import TOLERANCE, Recorder, draw, near  # noqa: E402
from tests.reference import loop_attention, says, stable  # noqa: E402

pytestmark = pytest.mark.torch


KINDS = ["none", "(L, S)", "(1, S)", "(B, 1, 1, S)", "(B, 1, L, S)", "(B, H, L, S)"]


seeds = st.integers(0, 2**16)


sizes = st.sampled_from([1, 2, 3, 7, 1000])


def draw_keep(seed, kind, B, H, L, S):
    shape = {"(L, S)": (L, S), "(1, S)": (1, S), "(B, 1, 1, S)": (B, 1, 1, S), "(B, 1, L, S)": (B, 1, L, S)}
    if kind == "none":
        return None
    return torch.rand(shape.get(kind, (B, H, L, S)), generator=torch.Generator().manual_seed(seed)) < 0.4


def allowed(keep, causal, L, S):
    """One boolean mask (..., L, S) for both."""
    mask = torch.ones(L, S, dtype=torch.bool) if keep is None else keep
    return mask & torch.ones(L, S, dtype=torch.bool).tril(S - L) if causal else mask


def whole(q, k, v, keep=None, causal=False):
    """PyTorch's own, in float64, with a mask; rows without a key set to 0 from outside."""
    q, k, v = (x.to(torch.float64) for x in (q, k, v))
    mask = allowed(keep, causal, q.shape[2], k.shape[2])
    empty = ~mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, mask | empty, enable_gqa=True)
    return torch.where(empty, 0, out)


def scores_of(q, k, keep=None, causal=False):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = torch.einsum("bhld,bhsd->bhls", q, k).double() / q.shape[-1] ** 0.5
    return scores.masked_fill(~allowed(keep, causal, *scores.shape[-2:]), -math.inf)


# ------------------------------------------------------------------------------ the same as the whole array


@stable
@given(seeds, sizes, sizes, st.booleans(), st.permutations([2, 5, 7, 11, 13]), st.sampled_from(KINDS),
       st.sampled_from(list(TOLERANCE)), st.sampled_from([1, 2, 3, 6]), st.sampled_from([1.0, 30.0]))  # fmt: skip
def test_same_as_the_whole_array(seed, block_q, block_k, causal, primes, kind, dtype, G, loud):
    (B, L, S, D, V), H = primes, 6
    loud = 1.0 if dtype in (torch.bfloat16, torch.float16) else loud
    q, k, v, probe = draw(seed, B, H, G, L, S, D, V, dtype, loud)
    keep = draw_keep(seed, kind, B, H, L, S)
    got = tiled_attention(q, k, v, keep, causal, block_q, block_k)
    want = whole(q, k, v, keep, causal)
    assert got.dtype == dtype
    tolerance = TOLERANCE[dtype]
    near(got, want, tolerance)
    got_grads = torch.autograd.grad(got, (q, k, v), probe)
    for x, got_grad, want_grad in zip("qkv", got_grads, torch.autograd.grad(want, (q, k, v), probe), strict=True):
        assert got_grad.dtype == dtype, x
        near(got_grad, want_grad, tolerance * (4 if loud == 1 else 30))


def test_same_as_a_loop_over_python_floats():
    q, k, v, _ = draw(0, 1, 1, 1, 5, 7, 3, 2)
    keep = draw_keep(2, "(L, S)", 1, 1, 5, 7)
    lists = [x.detach()[0, 0].tolist() for x in (q, k, v)]
    want = torch.tensor(loop_attention(*lists, keep.tolist())[0], dtype=torch.float64)
    near(tiled_attention(q, k, v, keep, block_q=2, block_k=3)[0, 0], want, 1e-14)


@pytest.mark.parametrize("causal, G", [(False, 1), (True, 2)])
def test_gradients_against_finite_differences(causal, G):
    """gradcheck; query 1 of 3 may attend to nothing, and two tiles meet in each row."""
    q, k, v, _ = draw(3, 1, 2, G, 3, 5, 2, 3)
    keep = torch.ones(3, 5, dtype=torch.bool)
    keep[1], keep[0, 1] = False, False
    assert torch.autograd.gradcheck(lambda *x: tiled_attention(*x, keep, causal, 2, 3), (q, k, v))
    near(tiled_attention(q, k, v, keep, causal)[:, :, 1], torch.zeros(1, 2, 3), 0)


def test_gradients_of_the_log_sum_exp():
    q, k, v, _ = draw(4, 1, 2, 1, 3, 5, 2, 3)
    assert torch.autograd.gradcheck(lambda *x: attention_with_lse(*x, None, True), (q, k, v))
    assert torch.autograd.gradcheck(lambda q, k: attention_with_lse(q, k, v.detach(), None, True)[1], (q, k))


@pytest.mark.parametrize("L, S", [(0, 3), (3, 0), (0, 0)])
def test_no_queries_and_no_keys(L, S):
    q, k, v, probe = draw(5, 2, 4, 2, L, S, 3, 5)
    out, lse = attention_with_lse(q, k, v, causal=True)
    assert torch.equal(out, torch.zeros(2, 4, L, 5, dtype=torch.float64))
    assert torch.equal(lse, torch.full((2, 4, L), -math.inf, dtype=torch.float64))
    assert all((grad == 0).all() for grad in torch.autograd.grad(out, (q, k, v), probe))
    assert tiled_attention(q[:0], k[:0], v[:0]).shape == (0, 4, L, 5)


def test_more_queries_than_keys():
    """Causal is lower-right: the first two of five queries stand before the first of three keys."""
    q, k, v, probe = draw(6, 1, 2, 2, 5, 3, 2, 2)
    out = tiled_attention(q, k, v, causal=True, block_q=1)
    near(out[:, :, :2], torch.zeros(1, 2, 2, 2), 0)
    near(out[:, :, 2], v[:, :, 0], 1e-15)
    near(torch.autograd.grad(out, q, probe)[0][:, :, :2], torch.zeros(1, 2, 2, 2), 0)


def test_a_key_hidden_from_every_query_may_hold_anything():
    q, k, v, probe = draw(7, 2, 4, 2, 3, 5, 2, 3)
    keep = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    keep[1, ..., 3:] = False
    with torch.no_grad():
        k[1, :, 3], v[1, :, 4] = math.nan, math.inf
    out = tiled_attention(q, k, v, keep)
    near(out[1:], whole(q[1:], k[1:, :, :3], v[1:, :, :3]), 1e-12)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out, (q, k, v), probe))


def test_scores_of_minus_infinity_are_no_weight():
    """A key of -inf for one feature: queries that have some of it cannot see that key."""
    q, k, v, _ = draw(8, 1, 1, 1, 3, 4, 1, 2)
    k = torch.tensor([0.5, -math.inf, 1.0, 2.0], dtype=torch.float64).view(1, 1, 4, 1)
    out, lse = attention_with_lse(q.abs(), k, v)
    seen = [0, 2, 3]
    near(out, whole(q.abs(), k[:, :, seen], v[:, :, seen]), 1e-12)
    near(lse, scores_of(q.abs(), k).logsumexp(-1), 1e-12)
    out, lse = attention_with_lse(q.abs(), k[:, :, 1:2], v[:, :, 1:2])
    assert (out == 0).all() and (lse == -math.inf).all()


def test_scores_too_large_for_exp():
    q, k, v, probe = draw(9, 1, 2, 1, 5, 7, 3, 2, torch.float32, 1e4)
    out, lse = attention_with_lse(q, k, v)
    near(out, whole(q, k, v), 1e-5)
    near(lse, scores_of(q, k).logsumexp(-1), 1e-6)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out, (q, k, v), probe))


def test_half_types_are_summed_in_float32():
    """4096 equal keys: float16 would stop counting at 2048, bfloat16 at 256."""
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = torch.zeros(1, 1, 2, 3), torch.ones(1, 1, 4096, 3), torch.ones(1, 1, 4096, 2)
        out, lse = attention_with_lse(q.to(dtype), k.to(dtype), v.to(dtype))
        assert (out == 1).all() and out.dtype == dtype
        near(lse, torch.full((1, 1, 2), math.log(4096)), 1e-6)
        assert lse.dtype == torch.float32


def test_inputs_that_are_views_with_odd_strides():
    q, k, v, _ = draw(10, 2, 3, 3, 5, 7, 2, 11)
    views = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    near(tiled_attention(*views), whole(q, k, v), 1e-12)


def test_results_may_be_changed_in_place():
    """As those of PyTorch's own operations; the way back, which needs them, then says so."""
    q, k, v, probe = draw(16, 1, 2, 2, 3, 5, 2, 3)
    out, lse = attention_with_lse(q, k, v)
    lse += 1
    out += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out, q, probe)


# ------------------------------------------------------------------------------ what it costs


def largest_array(run):
    with Recorder() as recorder:
        run()
    return recorder.largest


@pytest.mark.parametrize("keep", [None, torch.ones(1, 700, dtype=torch.bool)])
def test_no_array_has_queries_times_keys_numbers(keep):
    q, k, v, probe = draw(11, 1, 2, 1, 700, 700, 3, 3, torch.float32)
    bound = 2 * 64 * 128  # heads, and the numbers of a tile; larger than 2 · 700 · 3

    def passes(f):
        return lambda: torch.autograd.grad(f(), (q, k, v), probe)

    tiled = passes(lambda: tiled_attention(q, k, v, keep, True, 64, 128))
    assert largest_array(tiled) == bound
    assert largest_array(passes(lambda: whole(q, k, v, keep, True))) >= 700 * 700


def test_future_tiles_are_not_computed():
    """Causal: half of the work and a diagonal, and NaN in a tile that is never made reaches nothing."""
    q, k, v, probe = draw(12, 1, 1, 1, 512, 512, 2, 2)
    work = {}
    for causal in (False, True):
        with Recorder() as recorder:
            torch.autograd.grad(tiled_attention(q, k, v, None, causal, 32, 32), (q, k, v), probe)
        work[causal] = recorder.total
    assert work[True] < 0.65 * work[False]
    with torch.no_grad():
        k[:, :, 320:] = math.nan
    assert tiled_attention(q, k, v, None, True, 32, 32)[:, :, :320].isfinite().all()


# ------------------------------------------------------------------------------ merge


def parts_of(q, k, v, keep, cuts):
    """(out, lse) over each range of keys."""
    ends = [0, *sorted(cuts), k.shape[2]]
    ranges = [slice(a, b) for a, b in pairwise(ends)]
    return [attention_with_lse(q, k[:, :, r], v[:, :, r], keep[..., r]) for r in ranges]


def test_merge_by_hand():
    """Keys of score 0 and log 3: weights 1/4 and 3/4, and a sum of 4."""
    out, lse = merge(torch.tensor([[4.0]]), torch.tensor([0.0]), torch.tensor([[8.0]]), torch.tensor([math.log(3)]))
    near(out, torch.tensor([[7.0]]), 1e-6)
    near(lse, torch.tensor([math.log(4)]), 1e-6)


@stable
@given(seeds, st.lists(st.integers(0, 11), min_size=3, max_size=3), st.permutations(range(4)))
def test_parts_in_any_order_make_the_whole(seed, cuts, order):
    q, k, v, _ = draw(seed, 2, 6, 3, 5, 11, 7, 3, loud=10.0)
    keep = draw_keep(seed, "(B, 1, L, S)", 2, 6, 5, 11)
    parts = [parts_of(q, k, v, keep, cuts)[i] for i in order]
    left = merge(*merge(*merge(*parts[0], *parts[1]), *parts[2]), *parts[3])
    pairs = merge(*merge(*parts[0], *parts[1]), *merge(*parts[2], *parts[3]))
    out, lse = attention_with_lse(q, k, v, keep)
    want = scores_of(q, k, keep).logsumexp(-1)
    for got_out, got_lse in (left, pairs, merge(*parts[0], *merge(*parts[1], *merge(*parts[2], *parts[3])))):
        near(got_out, whole(q, k, v, keep), 1e-12)
        assert torch.equal(got_lse == -math.inf, want == -math.inf)
        near(got_lse.nan_to_num(neginf=0), want.nan_to_num(neginf=0), 1e-12)
    near(out, whole(q, k, v, keep), 1e-12)
    near(lse.nan_to_num(neginf=0), want.nan_to_num(neginf=0), 1e-12)
    swapped = merge(*parts[1], *parts[0])
    assert all(torch.equal(a, b) for a, b in zip(merge(*parts[0], *parts[1]), swapped, strict=True))


@pytest.mark.parametrize("cuts", [(4,), (0,), (11,), (3, 7)])
def test_gradients_through_merge_are_those_of_the_whole(cuts):
    q, k, v, probe = draw(13, 2, 6, 3, 5, 11, 7, 3)
    keep = draw_keep(13, "(B, 1, L, S)", 2, 6, 5, 11)
    keep[0, :, 2], keep[1, :, 3, 4:] = False, False
    out, lse = (parts := parts_of(q, k, v, keep, cuts))[0]
    for part in parts[1:]:
        out, lse = merge(out, lse, *part)
    want = torch.autograd.grad(whole(q, k, v, keep), (q, k, v), probe)
    for got_grad, want_grad in zip(torch.autograd.grad(out, (q, k, v), probe), want, strict=True):
        near(got_grad, want_grad, 1e-12)


def test_merge_of_empty_parts():
    some, none = torch.randn(3, 2, requires_grad=True), torch.zeros(3, 2, requires_grad=True)
    lse = torch.tensor([0.0, 1e4, -1e4], requires_grad=True)
    void = torch.full((3,), -math.inf, requires_grad=True)
    for got in (merge(some, lse, none, void), merge(none, void, some, lse)):
        assert torch.equal(got[0], some) and torch.equal(got[1], lse)
        grads = torch.autograd.grad(got[0].sum() + got[1].sum(), (some, lse, none, void))
        assert [grad.sum().item() for grad in grads] == [6, 3, 0, 0]
    out, both = merge(none, void, none, void)
    assert (out == 0).all() and (both == -math.inf).all()
    assert all((grad == 0).all() for grad in torch.autograd.grad(out.sum() + both.exp().sum(), (none, void)))


def test_merge_gradients_against_finite_differences():
    q, k, v, _ = draw(14, 1, 2, 2, 3, 4, 2, 3)
    out, lse = attention_with_lse(q, k, v)
    inputs = [x.detach().requires_grad_() for x in (out, lse, out.flip(2), lse.flip(2))]
    assert torch.autograd.gradcheck(merge, inputs)


def test_merge_keeps_the_dtype_of_the_outputs():
    half, lse = torch.ones(3, 2, dtype=torch.bfloat16), torch.zeros(3)
    assert [x.dtype for x in merge(half, lse, half, lse)] == [torch.bfloat16, torch.float32]
    assert merge(half, lse, half.float(), lse)[0].dtype == torch.float32


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    "change, kind, parts",
    [
        ({"q": [[1.0]]}, TypeError, ["q: expected a torch.Tensor, got list", "as_tensor"]),
        ({"k": torch.zeros(2, 7, 5)}, ValueError, ["k: expected 4 axes", "(2, 7, 5)", "split_heads"]),
        ({"v": torch.zeros(2, 3, 7, 5, dtype=torch.float64)}, TypeError, ["v:", "float64", ".to(q.dtype)"]),
        ({"q": torch.zeros(2, 6, 4, 5, dtype=torch.int64)}, TypeError, ["q:", "int64"]),
        ({"k": torch.zeros(2, 3, 7, 4)}, ValueError, ["k: expected q's batch 2 and width 5", "(2, 3, 7, 4)"]),
        ({"k": torch.zeros(1, 3, 7, 5)}, ValueError, ["k: expected q's batch 2"]),
        ({"v": torch.zeros(2, 3, 6, 5)}, ValueError, ["v: expected k's batch, heads and tokens (2, 3, 7)"]),
        ({"q": torch.zeros(2, 4, 4, 5)}, ValueError, ["k: expected a number of heads that divides q's 4, got 3"]),
        ({"keep": torch.ones(2, 7, dtype=torch.bool)}, ValueError, ["keep: expected a shape", "[:, None, None, :]"]),
        ({"keep": torch.ones(4, 7)}, ValueError, ["keep: expected a boolean mask"]),
        ({"block_q": 0}, ValueError, ["block_q: expected 1 or more", "got 0"]),
        ({"block_k": -1}, ValueError, ["block_k: expected 1 or more", "got -1"]),
    ],
)
def test_what_does_not_fit_is_named(change, kind, parts):
    arguments = {"q": torch.zeros(2, 6, 4, 5), "k": torch.zeros(2, 3, 7, 5), "v": torch.zeros(2, 3, 7, 5)}
    tiled_attention(**arguments)
    with pytest.raises(kind, match=says(*parts)):
        tiled_attention(**arguments | change)


def test_merge_refuses_parts_of_other_queries():
    out, lse = torch.zeros(3, 2), torch.zeros(3)
    with pytest.raises(ValueError, match=says("out2: expected out1's shape (3, 2), got (4, 2)")):
        merge(out, lse, torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(ValueError, match=says("lse2: expected (3,)", "got (3, 1)")):
        merge(out, lse, out, lse[:, None])


def test_second_derivatives_are_refused_not_wrong():
    q, k, v, probe = draw(15, 1, 1, 1, 2, 3, 2, 2)
    (grad,) = torch.autograd.grad(tiled_attention(q, k, v), q, probe.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
