"""Linear attention by chunks, as a recurrence, and in the plain form with its N × N array."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch.cores.linear import LinearState, elu_plus_one, linear_attention  # noqa: E402
from tests.pytorch.cores.helpers import Recorder, draw, near  # noqa: E402
from tests.reference import says, stable  # noqa: E402

pytestmark = pytest.mark.torch


def squared_relu(x):
    """Features of one's own: relu(x)², which is 0 for many pairs. A query with no match at all gets output 0."""
    return x.relu().square()


FEATURES = {"elu_plus_one": elu_plus_one, "squared_relu": squared_relu}


PLAIN = {"elu_plus_one": lambda x: F.elu(x) + 1, "squared_relu": lambda x: torch.where(x > 0, x * x, 0)}


chunks = st.sampled_from([1, 2, 3, 7, 1000])


def plain(q, k, v, causal, features, keep_keys=None):
    """With the N × N array, in float64: weights by rows, and rows without a weight set to 0 from outside."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    weights = torch.einsum("bhld,bhsd->bhls", PLAIN[features](q), PLAIN[features](k))
    if causal:
        weights = weights * torch.ones(weights.shape[-2:], dtype=torch.float64).tril()
    if keep_keys is not None:
        weights = weights * keep_keys[:, None, None, :]
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bhls,bhsv->bhlv", weights / torch.where(total == 0, 1, total), v)


def some_padding(seed, B, S):
    return torch.rand(B, S, generator=torch.Generator().manual_seed(seed)) < 0.6


@stable
@given(st.integers(0, 2**16), chunks, st.booleans(), st.booleans(), st.sampled_from(list(FEATURES)),
       st.sampled_from([1, 2, 3, 6]), st.permutations([2, 5, 11, 13, 17]))  # fmt: skip
def test_same_as_the_plain_form(seed, chunk, causal, padded, features, G, primes):
    B, L, S, D, V = primes
    S = L if causal else S
    q, k, v, probe = draw(seed, B, 6, G, L, S, D, V)
    keep = some_padding(seed, B, S) if padded else None
    got = linear_attention(q, k, v, causal, chunk, FEATURES[features], keep)
    want = plain(q, k, v, causal, features, keep)
    near(got, want, 1e-12)
    got_grads = torch.autograd.grad(got, (q, k, v), probe)
    for got_grad, want_grad in zip(got_grads, torch.autograd.grad(want, (q, k, v), probe), strict=True):
        near(got_grad, want_grad, 1e-10)  # squared_relu: totals may be small, and are squared here


def test_by_hand():
    """phi(0) = 1 everywhere: running means. Then one head of width 1 with phi(q) = 2, phi(k) = 1, 3."""
    zeros, v = torch.zeros(1, 1, 3, 2), torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 3, 1)
    assert linear_attention(zeros, zeros, v, chunk=2).flatten().tolist() == [1, 1.5, 3]
    assert linear_attention(zeros, zeros, v, causal=False).flatten().tolist() == [3, 3, 3]
    q, k, v = (torch.tensor(x).view(1, 1, 2, 1) for x in ([1.0, 1.0], [0.0, 2.0], [4.0, 8.0]))
    assert linear_attention(q, k, v).flatten().tolist() == [4, (1 * 4 + 3 * 8) / 4]


@pytest.mark.parametrize("G", [6, 3, 1])
@pytest.mark.parametrize("cuts", [[13], [1] * 13, [7, 1, 1, 4], [5, 8]])
def test_the_recurrence_gives_the_same(cuts, G):
    """A prompt of any length, then token after token; the state keeps its size."""
    q, k, v, probe = draw(0, 2, 6, G, 13, 13, 5, 7)
    keep = some_padding(0, 2, 13)
    state, outputs = LinearState(), []
    for parts in zip(*(x.split(cuts, dim=2) for x in (q, k, v)), keep.split(cuts, dim=1), strict=True):
        outputs.append(state.step(*parts))
        assert state.sums.shape == (2, G, 5, 8)
    got, want = torch.cat(outputs, dim=2), plain(q, k, v, True, "elu_plus_one", keep)
    near(got, want, 1e-12)
    got_grads = torch.autograd.grad(got, (q, k, v), probe)
    for got_grad, want_grad in zip(got_grads, torch.autograd.grad(want, (q, k, v), probe), strict=True):
        near(got_grad, want_grad, 1e-12)


def test_a_state_may_be_filled_and_read():
    q, k, v, _ = draw(1, 2, 6, 3, 5, 11, 7, 3)
    state = LinearState(squared_relu)
    state.add(k[:, :, :4], v[:, :, :4])
    state.add(k[:, :, 4:], v[:, :, 4:])
    near(state.read(q), plain(q, k, v, False, "squared_relu"), 1e-12)
    near(state.read(q[:, :, :2]), plain(q, k, v, False, "squared_relu")[:, :, :2], 1e-12)
    with pytest.raises(ValueError, match=says("state: expected one that has taken in keys", "add(k, v)")):
        LinearState().read(q)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_against_finite_differences(causal):
    q, k, v, _ = draw(2, 1, 2, 1, 4, 4, 2, 3)
    keep = torch.tensor([[False, True, True, False]])
    assert torch.autograd.gradcheck(lambda *x: linear_attention(*x, causal, 2, keep_keys=keep), (q, k, v))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("features", FEATURES)
def test_padding_may_hold_anything(causal, features):
    """Left and right padding, and a sequence of nothing else: outputs 0 before the first key, no NaN."""
    q, k, v, probe = draw(3, 3, 4, 2, 7, 7, 3, 2)
    keep = torch.tensor([[False, False, True, True, True, True, True], [True] * 5 + [False] * 2, [False] * 7])
    want = plain(q, k, v, causal, features, keep)
    with torch.no_grad():
        hidden = ~keep[:, None, :, None]
        k.masked_fill_(hidden, math.nan)
        v.masked_fill_(hidden, math.inf)
    got = linear_attention(q, k, v, causal, 3, FEATURES[features], keep)
    near(got, want, 1e-12)
    assert (got[2] == 0).all() and (not causal or (got[0, :, :2] == 0).all())
    for grad in torch.autograd.grad(got, (q, k, v), probe):
        assert grad.isfinite().all() and (grad[2] == 0).all()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_sums_are_kept_in_float32(dtype, tolerance):
    """1500 tokens whose sums are about 3000: float16 counts to 2048 by ones, bfloat16 to 256."""
    q, k, v, _ = draw(4, 1, 2, 1, 1500, 1500, 5, 3, dtype)
    got = linear_attention(q, k, v)
    assert got.dtype == dtype
    near(got, plain(q, k, v, True, "elu_plus_one"), tolerance)
    state = LinearState()
    state.add(k, v)
    assert state.sums.dtype == torch.float32
    near(state.sums[..., -1], PLAIN["elu_plus_one"](k.double()).sum(2), 1e-6)


def test_features_are_positive_where_float32_rounds_to_0():
    x = torch.tensor([-80.0, -20.0, -1.0, 0.0, 2.0], requires_grad=True)
    assert (F.elu(x) + 1)[1] == 0
    got = elu_plus_one(x)
    assert got.tolist() == pytest.approx([math.exp(-80), math.exp(-20), math.exp(-1), 1, 3], rel=1e-6)
    assert torch.autograd.grad(got.sum(), x)[0].tolist() == pytest.approx([*got.tolist()[:3], 1, 1])
    far = torch.full((1, 1, 2, 1), -20.0)
    assert linear_attention(far, far, torch.ones(1, 1, 2, 1)).flatten().tolist() == [1, 1]


def test_features_may_change_the_width():
    """phi(x) = [1, x, x²] says (q, k) -> 1 + q k + (q k)²."""
    q, k, v, _ = draw(5, 1, 1, 1, 4, 4, 1, 2)
    got = linear_attention(q, k, v, chunk=2, features=lambda x: torch.cat([x**0, x, x**2], dim=-1))
    product = q @ k.mT
    weights = (1 + product + product**2).tril()
    near(got, weights @ v / weights.sum(-1, keepdim=True), 1e-12)


def test_no_tokens():
    q, k, v, _ = draw(6, 2, 4, 2, 3, 0, 5, 7)
    assert torch.equal(linear_attention(q, k, v, causal=False), torch.zeros(2, 4, 3, 7, dtype=torch.float64))
    assert linear_attention(q[:, :, :0], k, v).shape == (2, 4, 0, 7)


def test_time_and_memory_grow_with_n_and_not_with_its_square():
    def cost(n):
        q, k, v, probe = draw(7, 1, 2, 2, n, n, 3, 2, torch.float32)
        with Recorder() as recorder:
            torch.autograd.grad(linear_attention(q, k, v, chunk=16), (q, k, v), probe)
        return recorder

    short, long = cost(320), cost(1280)
    assert long.total < 4.2 * short.total
    assert long.largest < 4.2 * short.largest
    assert long.largest < 1280 * 1280 / 20


@pytest.mark.parametrize(
    "change, kind, parts",
    [
        ({"q": torch.zeros(2, 6, 4, 5)}, ValueError, ["L = 4 queries", "S = 7 keys", "LinearState"]),
        ({"chunk": 0}, ValueError, ["chunk: expected a whole number of tokens from 1 on, got 0"]),
        ({"chunk": 1.5}, ValueError, ["chunk:", "1.5"]),
        ({"keep_keys": [True]}, TypeError, ["keep_keys: expected a boolean torch.Tensor", "list"]),
        ({"keep_keys": torch.ones(2, 7)}, ValueError, ["keep_keys: expected booleans", "float32", ".bool()"]),
        ({"keep_keys": torch.ones(7, 7, dtype=torch.bool)}, ValueError, ["(2, 7), got (7, 7)", "not from some"]),
        ({"v": torch.zeros(2, 3, 6, 5)}, ValueError, ["v: expected k's batch, heads and tokens"]),
    ],
)
def test_what_does_not_fit_is_named(change, kind, parts):
    arguments = {"q": torch.zeros(2, 6, 7, 5), "k": torch.zeros(2, 3, 7, 5), "v": torch.zeros(2, 3, 7, 5)}
    linear_attention(**arguments)
    with pytest.raises(kind, match=says(*parts)):
        linear_attention(**arguments | change)
    if "q" in change:
        linear_attention(**arguments | change, causal=False)
        with pytest.raises(kind, match=says(*parts)):
            LinearState().step(**arguments | change)
