"""One suite for every core: what it declares it can do is right, and what it cannot do is refused first.

The oracle is the formula in float64, written out with plain operations and differentiated by autograd.
No two sizes are alike: B = 2, H = 6 or 3, L = 5, S = 7, D = 11.
"""

import copy
import math
import pickle
import re

import pytest

from tests.reference import says

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from mha_lesson.pytorch.cache import KVCache  # noqa: E402
from mha_lesson.pytorch.cores import (  # noqa: E402
    FlashCore,
    LinearCore,
    RingCore,
    SDPACore,
    TiledCore,
    WindowCore,
)
from mha_lesson.pytorch.cores.core import COURSE, MASKS  # noqa: E402
from tests.pytorch.cores.oracle import close, draw, exactest, layer_with  # noqa: E402

pytestmark = pytest.mark.torch

# Small tiles, chunks and windows, so that five queries need several of them.
MAKE = {
    "sdpa": SDPACore,
    "tiled": lambda: TiledCore(block_q=2, block_k=3),
    "flash": FlashCore,
    "window": lambda: WindowCore(3, chunk=2),
    "window of one": lambda: WindowCore(1),
    "window with sinks": lambda: WindowCore(2, chunk=2, sinks=2),
    "linear": lambda: LinearCore(chunk=2),
}
NAMES = list(MAKE)


def names_that(can):
    return [name for name in NAMES if can(MAKE[name]().can)]


def inputs(core, B=2, H=6, G=2, L=5, S=7, D=11, seed=0, dtype=None):
    """q, k, v; with as many keys as queries where the core, or causal linear attention, wants that."""
    dtype = exactest(core) if dtype is None else dtype
    return [draw(B, *shape, seed=seed + i, dtype=dtype) for i, shape in enumerate([(H, L, D), (G, S, D), (G, S, D)])]


def shares(core, q, k, keep, causal):
    """The weights (B, H, L, S) by the formula, in float64."""
    q, k = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    L, S = q.shape[2], k.shape[2]
    place, key = torch.arange(L)[:, None] + S - L, torch.arange(S)
    seen = torch.ones(L, S, dtype=torch.bool)
    if causal:
        seen = key <= place
    if isinstance(core, WindowCore):
        seen = (key <= place) & ((key > place - core.width) | (key < core.sinks))
    if keep is not None:
        seen = seen & keep
    if isinstance(core, LinearCore):
        phi = lambda x: torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # noqa: E731
        parts = torch.where(seen, phi(q) @ phi(k).mT, 0.0)
    else:
        scores = q @ k.mT / math.sqrt(q.shape[3])
        highest = scores.masked_fill(~seen, -1e300).amax(-1, keepdim=True).detach()
        parts = torch.where(seen, (scores - highest).clamp(max=0).exp(), 0.0)
    total = parts.sum(-1, keepdim=True)
    return parts / torch.where(total == 0, 1.0, total)


def by_formula(core, q, k, v, keep=None, causal=False):
    return shares(core, q, k, keep, causal) @ v.double().repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def masks(core, B, H, L, S):
    """Of each kind that the core takes one mask, and two where a mask may be for all sequences or for each."""
    padding = torch.arange(S) < torch.tensor([S, S - 3])[:, None]  # (2, S)
    known = {
        "none": [None],
        "lengths": [padding[:, None, None], torch.arange(S)[None] < S - 2],
        "keys": [torch.arange(B * S).view(B, 1, 1, S) % 3 > 0],
        "heads": [
            torch.rand(B, H, L, S, generator=torch.Generator().manual_seed(7)) < 0.5,
            torch.ones(L, S).tril() > 0,
        ],
    }
    kinds = list(MASKS)[: list(MASKS).index(core.can.masks) + 1]
    return [mask for kind in kinds for mask in known[kind]]


def situations(core, L=5, S=7):
    """Every combination of mask, causal and shape that the core can do: (keep, causal, S)."""
    for causal in core.can.causal:
        for keys in (S, L):
            if causal and isinstance(core, LinearCore) and keys != L:
                continue
            for keep in masks(core, 2, 6, L, keys):
                yield keep, causal, keys


@pytest.fixture(params=NAMES)
def core(request):
    return MAKE[request.param]()


# ------------------------------------------------------------------------------ it computes what it should


def test_forwards_and_backwards_are_the_formula(core):
    for seed, (keep, causal, S) in enumerate(situations(core)):
        leaves = [x.requires_grad_() for x in inputs(core, S=S, seed=seed)]
        probe = draw(2, 6, 5, 11, seed=99)
        context = core(*leaves, keep=keep, causal=causal)
        want = by_formula(core, *leaves, keep, causal)
        close(context, want)
        have = torch.autograd.grad((context.double() * probe).sum(), leaves)
        for mine, true in zip(have, torch.autograd.grad((want * probe).sum(), leaves), strict=True):
            close(mine, true, factor=4)


def test_the_formula_tells_the_cores_apart():
    """A control: the oracle of one core is not that of another, so that a core that ignores its options is seen."""
    q, k, v = draw(2, 6, 5, 11), draw(2, 2, 5, 11, seed=1), draw(2, 2, 5, 11, seed=2)
    results = [by_formula(MAKE[name](), q, k, v, None, True) for name in NAMES if name not in ("tiled", "flash")]
    for i, one in enumerate(results):
        for other in results[i + 1 :]:
            assert (one - other).abs().max() > 1e-2


def test_what_is_declared_about_causal_and_exact_holds(core):
    """Not causal, the first query sees the last key; causal, it does not. Exact cores have one another's numbers."""
    q, k, v = inputs(core, S=5)
    other = v.clone()
    other[:, :, -1] += 10
    for causal in core.can.causal:
        moved = (core(q, k, other, causal=causal) - core(q, k, v, causal=causal))[:, :, 0].abs().max() > 1e-3
        assert moved == (not causal), causal
        near = (core(q, k, v, causal=causal) - SDPACore()(q, k, v, causal=causal)).abs().max() < 1e-4
        assert near == core.can.exact, causal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_half_types_keep_their_type_and_are_near(core, dtype):
    for keep, causal, S in situations(core):
        q, k, v = inputs(core, S=S, dtype=dtype)
        context = core(q, k, v, keep=keep, causal=causal)
        assert context.dtype == dtype
        close(context, by_formula(core, q, k, v, keep, causal))


def test_large_scores_neither_overflow_nor_vanish(core):
    """Softmax needs its shift; scores of 1000 are beyond exp in float64. Linear attention has sums instead."""
    q, k, v = inputs(core, S=5)
    q = q * 300
    causal = core.can.causal[-1]
    context = core(q, k, v, causal=causal)
    assert context.isfinite().all()
    close(context, by_formula(core, q, k, v, None, causal), torch.float32, factor=10)


def test_what_stands_at_a_hidden_key_counts_for_nothing(core):
    for keep, causal, S in situations(core):
        if keep is None:
            continue
        hidden = ~keep.expand(2, 6, 5, S).any(dim=2).any(dim=1)  # (2, S): from every query of every head
        for poison in (float("nan"), float("inf"), 1e30):
            q, k, v = inputs(core, S=S)
            want = by_formula(core, q, k, v, keep, causal)
            k, v = (x.masked_fill(hidden[:, None, :, None], poison).requires_grad_() for x in (k, v))
            q.requires_grad_()
            layer_like = k.masked_fill(hidden[:, None, :, None], 0), v.masked_fill(hidden[:, None, :, None], 0)
            context = core(q, *layer_like, keep=keep, causal=causal)  # the layer clears them before its projections
            close(context, want)
            for slope in torch.autograd.grad(context.sum(), [q, k, v]):
                assert slope.isfinite().all()


def test_a_query_that_may_attend_to_nothing_gets_zero(core):
    """Queries before the first key, sequences without a real key, and rows that a mask empties."""
    cases = []
    if core.can.cross and True in core.can.causal and not isinstance(core, LinearCore):
        cases.append(({"L": 7, "S": 5}, None, True, (slice(None), slice(None), slice(0, 2))))
    if core.can.masks != "none":
        keep = torch.tensor([True, False])[:, None, None, None].expand(2, 1, 1, 7)
        cases.append(({"L": 5, "S": 7}, keep, core.can.causal[0], (1,)))
    if core.can.masks == "heads":
        keep = torch.ones(5, 7, dtype=torch.bool)
        keep[3] = False
        cases.append(({"L": 5, "S": 7}, keep, False, (slice(None), slice(None), 3)))
    assert cases, "each core can be asked for an empty row in some way"
    for sizes, keep, causal, empty in cases:
        leaves = [x.requires_grad_() for x in inputs(core, **sizes)]
        context = core(*leaves, keep=keep, causal=causal)
        assert (context[empty] == 0).all()
        close(context, by_formula(core, *leaves, keep, causal))
        for slope in torch.autograd.grad(context.sum(), leaves):
            assert slope.isfinite().all()


@pytest.mark.parametrize(
    ("B", "H", "G", "L", "D"), [(0, 3, 3, 5, 11), (2, 3, 3, 0, 11), (2, 1, 1, 1, 1), (1, 1, 1, 1, 2)]
)
def test_nothing_and_almost_nothing(core, B, H, G, L, D):
    causal = core.can.causal[-1]
    leaves = [x.requires_grad_() for x in inputs(core, B, H, G, L, L, D)]
    context = core(*leaves, causal=causal)
    assert context.shape == (B, H, L, D)
    close(context, by_formula(core, *leaves, None, causal) if L else torch.zeros(B, H, L, D))
    for slope, leaf in zip(torch.autograd.grad(context.sum(), leaves), leaves, strict=True):
        assert slope.shape == leaf.shape and slope.isfinite().all()


@pytest.mark.parametrize("name", names_that(lambda can: can.cross and False in can.causal))
def test_no_key_at_all(name):
    core = MAKE[name]()
    q, k, v = inputs(core, S=0)
    assert (core(q, k, v) == 0).all()


@pytest.mark.parametrize(("H", "G"), [(3, 1), (3, 3), (6, 2), (1, 1)])
def test_key_heads_may_be_shared(core, H, G):
    causal = core.can.causal[-1]
    q, k, v = inputs(core, H=H, G=G, S=5)
    close(core(q, k, v, causal=causal), by_formula(core, q, k, v, None, causal))


def test_tensors_need_not_be_in_one_piece(core):
    causal = core.can.causal[-1]
    q, k, v = inputs(core, S=5)
    want = core(q, k, v, causal=causal)
    scattered = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]  # as a layer makes them
    strided = [torch.stack([x, x], dim=-1)[..., 0] for x in (q, k, v)]
    turned = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
    for other in (scattered, strided, turned):
        assert not any(x.is_contiguous() for x in other)
        close(core(*other, causal=causal), want)


def test_inputs_are_left_alone(core):
    causal = core.can.causal[-1]
    given = inputs(core, S=5)
    before = [x.clone() for x in given]
    core(*given, causal=causal)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_the_weights_are_those_that_make_the_context(core):
    for keep, causal, S in situations(core):
        q, k, v = inputs(core, S=S)
        weights = core.weights(q, k, keep=keep, causal=causal)
        assert weights.shape == (2, 6, 5, S)
        close(weights, shares(core, q, k, keep, causal))
        close(weights.double() @ v.double().repeat_interleave(3, 1), core(q, k, v, keep=keep, causal=causal), q.dtype)


def test_the_layer_is_projections_around_its_core(core):
    layer, causal = layer_with(core), core.can.causal[-1]
    x = draw(2, 5, 33, dtype=exactest(core))
    q, k, v = (proj(x).unflatten(-1, (3, 11)).transpose(1, 2) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
    want = layer.out_proj(by_formula(core, q, k, v, None, causal).to(x.dtype).transpose(1, 2).flatten(2))
    output = layer(x, causal=causal)
    close(output, want)
    slopes = torch.autograd.grad(output.square().sum(), list(layer.parameters()))
    for mine, true in zip(slopes, torch.autograd.grad(want.square().sum(), list(layer.parameters())), strict=True):
        close(mine, true, factor=30)


def test_asking_for_weights_changes_not_one_bit(core):
    layer, causal = layer_with(core).eval(), core.can.causal[-1]
    x = draw(2, 5, 33, dtype=exactest(core))
    output, weights = layer(x, causal=causal, need_weights=True)
    assert torch.equal(output, layer(x, causal=causal)) and weights.shape == (2, 3, 5, 5)
    alone, its_weights = layer(x[1], causal=causal, need_weights=True)
    close(alone, output[1])
    close(its_weights, weights[1])


@pytest.mark.parametrize("name", names_that(lambda can: can.masks != "none"))
def test_poisoned_padding_through_the_layer(name):
    """A core without masks has the next test: causality hides padding on the right."""
    core = MAKE[name]()
    layer = layer_with(core)
    keep = (torch.arange(7) < torch.tensor([7, 4])[:, None])[:, None, None]
    query, memory = draw(2, 7, 33, dtype=exactest(core)), draw(2, 7, 33, seed=1, dtype=exactest(core))
    want = layer(query, memory, keep=keep, causal=False)
    memory[1, 4:] = float("nan")
    output = layer(query, memory, keep=keep, causal=False)
    assert torch.equal(output, want)
    for slope in torch.autograd.grad(output.sum(), list(layer.parameters())):
        assert slope.isfinite().all()


def test_padding_on_the_right_needs_no_mask_when_causal(core):
    layer = layer_with(core)
    x = draw(2, 7, 33, dtype=exactest(core))
    want = layer(x[:, :4], causal=True)
    x[:, 4:] = 1e3
    close(layer(x, causal=True)[:, :4], want)


def test_weights_of_one_layer_serve_every_core(core):
    """The names and shapes of the state do not depend on the core; and a trained layer may change its core."""
    layer, causal = layer_with(core), core.can.causal[-1]
    plain = MultiHeadAttention(33, 3).to(exactest(core))
    plain.load_state_dict(layer.state_dict())
    x = draw(2, 5, 33, dtype=exactest(core))
    want = layer(x, causal=causal)
    plain.core = core
    assert torch.equal(plain(x, causal=causal), want)
    assert repr(core) in repr(plain) or isinstance(core, SDPACore)


def test_copies_and_pickles(core):
    layer, causal = layer_with(core), core.can.causal[-1]
    x = draw(2, 5, 33, dtype=exactest(core))
    want = layer(x, causal=causal)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x, causal=causal), want)
        assert other.core is not layer.core and vars(other.core).keys() == vars(layer.core).keys()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast(core, half):
    layer, causal = layer_with(core, torch.float32), core.can.causal[-1]
    x = draw(2, 5, 33, dtype=torch.float32)
    with torch.autocast("cpu", dtype=half):
        output, weights = layer(x, causal=causal, need_weights=True)
        assert output.dtype == half
        output.float().square().sum().backward()
    close(output, layer(x, causal=causal), half, factor=4)
    close(weights.sum(-1), torch.ones(2, 3, 5), half)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.filterwarnings("ignore")  # the compiler's own, on machines that it finds unusual
def test_torch_compile(core):
    """By a back end that needs no C++ compiler. (The real one: tests/pytorch/test_layer_as_module.py.)"""
    torch.compiler.reset()
    layer, causal = layer_with(core, torch.float32), core.can.causal[-1]
    x = draw(2, 5, 33, dtype=torch.float32)
    run = torch.compile(layer, backend="eager")
    close(run(x, causal=causal), layer(x, causal=causal))
    have = torch.autograd.grad(run(x, causal=causal).square().sum(), list(layer.parameters()))
    want = torch.autograd.grad(layer(x, causal=causal).square().sum(), list(layer.parameters()))
    for mine, true in zip(have, want, strict=True):
        close(mine, true, factor=10)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_gradients_of_each_sample_by_torch_func(core):
    layer, causal = layer_with(core), core.can.causal[-1]
    x = draw(3, 5, 33, dtype=exactest(core))
    parameters = dict(layer.named_parameters())

    def loss(parameters, one):
        return torch.func.functional_call(layer, parameters, (one,), {"causal": causal}).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    if not core.can.transforms:
        with pytest.raises(ValueError, match=says("query: expected a call outside of torch.func")):
            per_sample(parameters, x)
        return
    slopes = per_sample(parameters, x)
    for i in range(3):
        alone = torch.autograd.grad(loss(parameters, x[i]), list(parameters.values()))
        for name, true in zip(parameters, alone, strict=True):
            close(slopes[name][i], true, factor=30)


def test_training_learns(core):
    """A layer finds a rule that needs its attention: the answer is the first number that it may see."""
    torch.manual_seed(0)
    layer, causal = layer_with(core, torch.float32), core.can.causal[-1]
    x = draw(8, 5, 33, dtype=torch.float32)
    with torch.no_grad():
        target = layer(x, causal=causal)
        layer.reset_parameters()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (layer(x, causal=causal) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


# ------------------------------------------------------------------------------ served from a cache


def cache_for(core):
    return KVCache(window=core.width) if isinstance(core, WindowCore) else KVCache()


@pytest.mark.parametrize("rotary_base", [None, 100.0])
def test_chunked_is_serial_is_full(core, rotary_base):
    options = {} if rotary_base is None else {"rotary_base": rotary_base}
    layer = MultiHeadAttention(24, 3, core=core, **options).to(exactest(core)).eval()
    x = draw(2, 7, 24, dtype=exactest(core))
    if not core.can.cache or getattr(core, "sinks", 0):
        with torch.no_grad(), pytest.raises(ValueError, match=says("cache: expected None with")):
            layer(x, cache=cache_for(core) if core.can.cache else KVCache())
        return
    with torch.no_grad():
        full = layer(x, causal=True)
        for sizes in ([1] * 7, [3, 1, 3], [7]):
            cache = cache_for(core)
            close(torch.cat([layer(piece, cache=cache) for piece in x.split(sizes, dim=1)], dim=1), full)


def test_a_cache_that_remembers_otherwise_is_refused():
    layer = layer_with(WindowCore(3)).eval()
    x = draw(2, 5, 33)
    for cache, got in ((KVCache(), "window=None"), (KVCache(window=4), "window=4")):
        with torch.no_grad(), pytest.raises(ValueError, match=says("cache: expected KVCache(window=3)")) as error:
            layer(x, cache=cache)
        assert got in str(error.value)
        assert cache.length.numel() == 0, "nothing was kept of a call that was refused"


# ------------------------------------------------------------------------------ what it cannot do

KEYS = torch.ones(2, 1, 1, 5, dtype=torch.bool)
GAPS = torch.tensor([True, False, True, True, False]).expand(2, 1, 1, 5)
REQUESTS = {
    "a mask for pairs": ("keep", lambda can: can.masks == "heads", {"keep": torch.ones(5, 5, dtype=torch.bool)}),
    "a mask for a head": (
        "keep",
        lambda can: can.masks == "heads",
        {"keep": torch.ones(2, 3, 1, 5, dtype=torch.bool)},
    ),
    "a mask with gaps": ("keep", lambda can: can.masks in ("heads", "keys"), {"keep": GAPS}),
    "a mask of lengths": ("keep", lambda can: can.masks != "none", {"keep": KEYS}),
    "causal": ("causal", lambda can: True in can.causal, {"causal": True}),
    "not causal": ("causal", lambda can: False in can.causal, {"causal": False}),
    "weights": ("need_weights", lambda can: can.weights, {"need_weights": True}),
    "other keys": ("key", lambda can: can.cross, {"key": draw(2, 7, 33, dtype=torch.float32)}),
    "float64": ("query", lambda can: torch.float64 in can.dtypes, {"double": True}),
    "gradients": ("query", lambda can: can.gradients, {"grad": True}),
}
TABLE = [(name, request) for name in COURSE for request in REQUESTS]


class Untouched(torch.nn.Linear):
    def forward(self, x):
        raise AssertionError("something was computed before the refusal")


def made(name):
    return {"window": lambda: WindowCore(3), "ring": RingCore}.get(name, MAKE.get(name))()


@pytest.mark.parametrize(("name", "request_name"), TABLE)
def test_what_a_core_cannot_do_is_refused_before_anything_is_computed(name, request_name):
    core = made(name)
    argument, can_do, options = REQUESTS[request_name]
    causal = core.can.causal[-1] and not ("key" in options and name == "linear")
    options = {"causal": causal, **options}
    double, grad = options.pop("double", False), options.pop("grad", False)
    dtype = torch.float64 if double else torch.float32
    layer = layer_with(core, dtype)
    x = draw(2, 5, 33, dtype=dtype)
    if can_do(core.can):
        if name != "ring":  # which needs other processes: tests/pytorch/parallel
            layer(x, **options)
        return
    layer.q_proj = layer.k_proj = layer.v_proj = Untouched(33, 33).to(dtype)
    with torch.set_grad_enabled(grad), pytest.raises(ValueError) as error:
        layer(x, **options)
    said = str(error.value)
    assert re.match(rf"{argument}: expected .+ with the core '{name}', got .+\. A core that can: .+\.", said), said
    able = re.search(r"A core that can: (.+)\.", said)[1].split(", ")
    assert able == [other for other, can in COURSE.items() if can_do(can)]


def test_the_table_is_the_truth_about_each_core():
    for name, can in COURSE.items():
        assert made(name).can is can and made(name).name == name


@pytest.mark.parametrize("name", COURSE)
def test_a_layer_that_would_drop_is_refused_when_it_is_made(name):
    if COURSE[name].dropout:
        assert MultiHeadAttention(6, 2, dropout=0.1, core=made(name)).dropout == 0.1
        return
    with pytest.raises(
        ValueError, match=says(f"dropout: expected 0 with the core '{name}', got 0.1. A core that can: sdpa.")
    ):
        MultiHeadAttention(6, 2, dropout=0.1, core=made(name))
    layer = MultiHeadAttention(6, 2, dropout=0.1)
    layer.core = made(name)
    x = torch.zeros(1, 2, 6)
    with torch.no_grad(), pytest.raises(ValueError, match=says("dropout: expected 0")):
        layer(x, causal=True)
    if name != "ring":
        layer.eval()(x, causal=True)


def test_causal_linear_attention_wants_the_same_tokens():
    layer, x = layer_with(LinearCore(), torch.float32), draw(2, 5, 33, dtype=torch.float32)
    with pytest.raises(ValueError, match=says("key: expected as many keys as queries with causal=True")):
        layer(x, draw(2, 7, 33, dtype=torch.float32), causal=True)


@pytest.mark.parametrize("name", COURSE)
def test_only_exact_cores_become_numpy(name):
    layer = MultiHeadAttention(6, 2, core=made(name))
    if COURSE[name].exact:
        assert layer.to_numpy().num_heads == 2
        return
    with pytest.raises(
        ValueError, match=says(f"core: expected full attention, all that the NumPy layer does, got the core '{name}'")
    ):
        layer.to_numpy()


def test_called_by_itself_a_core_refuses_as_well():
    q, k, v = inputs(FlashCore(), S=5)
    with pytest.raises(ValueError, match=says("keep: expected None with the core 'window', got one for keys, (1, 5)")):
        WindowCore(3)(q, k, v, keep=torch.ones(1, 5, dtype=torch.bool), causal=True)
    with pytest.raises(ValueError, match=says("query: expected float32 or float16 or bfloat16 with the core 'flash'")):
        FlashCore()(q.double(), k.double(), v.double())
