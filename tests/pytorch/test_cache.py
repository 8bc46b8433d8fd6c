"""The cache: against a model of it in Python lists, whole runs without one, and public reports.

The rule of every comparison: chunked = serial = full. Windows are those of the NumPy step, and
sequences of unequal length are compared with each one alone.
"""

import copy
import math
import random

import numpy as np
import pytest

from mha_lesson.steps.masks import window_mask
from tests.reference import g, loop_attention, says
from tests.reports import reported

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402
from mha_lesson.pytorch import cache as cache_file  # noqa: E402
from mha_lesson.pytorch.cache import KVCache, fold_groups, grouped_attention, unfold_groups  # noqa: E402
from mha_lesson.pytorch.cores.sdpa import attention, attention_weights  # noqa: E402

pytestmark = pytest.mark.torch


NAN = math.nan


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(got, want, atol=1e-12):
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=got.dtype), rtol=0, atol=atol)


def report(*args):
    """The numbers of the public reports."""
    return torch.from_numpy(g(*args))


def snapshot(cache):
    """All that a cache holds, to see whether a refusal changed anything."""
    return copy.deepcopy(vars(cache))


def same_state(a, b):
    assert a.keys() == b.keys()
    return all(torch.equal(a[n], b[n]) if isinstance(a[n], torch.Tensor) else a[n] == b[n] for n in a)


# ---------------------------------------------------------------------------- shared heads


def by_loops(q, k, v, keep):
    """(B, H, L, V): head after head, head h reads key head h // R, found by counting."""
    B, H, R = *q.shape[:2], q.shape[1] // k.shape[1]
    out = [
        [loop_attention(q[b, h].tolist(), k[b, h // R].tolist(), v[b, h // R].tolist(), keep[b, h].tolist())[0]
         for h in range(H)]
        for b in range(B)
    ]  # fmt: skip
    return torch.tensor(out, dtype=q.dtype)


@reported("onnx/onnx#7274")
def test_query_heads_that_are_neighbours_share():
    """Tiled heads give [1.592634, 12.864542, 1.592634, 12.864542]."""
    q, k = torch.ones(1, 4, 1, 2, dtype=torch.float64), report((1, 2, 2, 2))
    v = torch.tensor([[1.0, 2], [10, 20]], dtype=torch.float64)[None, :, :, None]
    want = [1.592634, 1.592634, 12.864542, 12.864542]
    close(grouped_attention(q, k, v).flatten(), want, atol=1e-6)
    context, _ = KVCache().attend(q.expand(1, 4, 2, 2), k, v)
    close(context[0, :, 1, 0], want, atol=1e-6)


def test_folding_moves_nothing_and_comes_back():
    q = numbers(2, 6, 5, 7)
    folded = fold_groups(q, 3)
    assert folded.shape == (2, 3, 10, 7)
    assert folded.data_ptr() == q.data_ptr()
    for head in range(6):
        for i in range(5):
            assert torch.equal(folded[:, head // 2, head % 2 * 5 + i], q[:, head, i])
    assert torch.equal(unfold_groups(folded, 6), q)
    assert torch.equal(fold_groups(q, 6), q)
    assert fold_groups(q, 1).shape == (2, 1, 30, 7)


@pytest.mark.parametrize("num_kv_heads", [6, 3, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L", [1, 3])
@pytest.mark.parametrize(
    "mask", [None, "(L, S)", "(1, S)", "(S,)", "(B, 1, L, S)", "(B, 1, 1, S)", "(B, H, L, S)", "(1, H, 1, S)"]
)  # fmt: skip
def test_grouped_attention(num_kv_heads, causal, L, mask):
    B, H, S, D, V = 2, 6, 5, 4, 7
    q, k, v = (
        numbers(B, H, L, D),
        numbers(B, num_kv_heads, S, D, seed=1),
        numbers(B, num_kv_heads, S, V, seed=2),
    )  # fmt: skip
    keep = None
    if mask:
        sizes = {"B": B, "H": H, "L": L, "S": S, "1": 1}
        keep = numbers(*(sizes[n] for n in mask.strip("(),").replace(",", "").split()), seed=3) > -0.2
        keep[..., 0] = False
        keep.view(-1, S)[0] = False  # a query that may attend to nothing
    allowed = torch.ones(B, H, L, S, dtype=torch.bool) if keep is None else keep.expand(B, H, L, S)
    if causal:
        allowed = allowed & torch.tensor([[j <= i + S - L for j in range(S)] for i in range(L)])
    close(grouped_attention(q, k, v, keep, causal), by_loops(q, k, v, allowed))


def test_folding_refuses_what_does_not_divide():
    with pytest.raises(ValueError, match=says("q: expected (B, H, L, D)", "multiple of the 4", "(1, 6, 2, 3)")):
        fold_groups(numbers(1, 6, 2, 3), 4)
    with pytest.raises(ValueError, match=says("q: ", "(6, 2, 3)")):
        fold_groups(numbers(6, 2, 3), 2)
    with pytest.raises(ValueError, match=says("q: ", "multiple of the 3")):
        grouped_attention(numbers(1, 4, 1, 2), numbers(1, 3, 2, 2), numbers(1, 3, 2, 2))
    for heads in (5, 8):  # no multiple of 2; 4 heads for each cannot cut 6 rows
        with pytest.raises(ValueError, match=says("num_heads: expected a multiple of the 2", f"got {heads}")):
            unfold_groups(numbers(1, 2, 6, 3), heads)


# ---------------------------------------------------------------------------- one append


@reported("pytorch/pytorch#103082")
def test_the_triangle_of_new_tokens_is_in_the_lower_right():
    """The other corner gives 1, and [1, 1.584771]."""
    q, k = torch.tensor([[[[1.0, 0]]]], dtype=torch.float64), report((1, 1, 4, 2))
    v = torch.tensor([1.0, 2, 4, 8], dtype=torch.float64)[None, None, :, None]
    cache = KVCache()
    cache.append(k[:, :, :3], v[:, :, :3])
    keys, values, keep = cache.append(k[:, :, 3:], v[:, :, 3:])
    assert keep is None
    close(F.scaled_dot_product_attention(q, keys, values).flatten(), [2.801998], atol=1e-6)

    q, k = report((1, 1, 2, 2), 0.5, 0.2), report((1, 1, 5, 2))
    v = torch.tensor([1.0, 2, 4, 8, 16], dtype=torch.float64)[None, None, :, None]
    cache = KVCache()
    cache.append(k[:, :, :3], v[:, :, :3])
    close(cache.attend(q, k[:, :, 3:], v[:, :, 3:])[0].flatten(), [2.786643, 4.006895], atol=1e-6)


@reported("hyprstream/hyprstream#1521")
@pytest.mark.parametrize("options", [{}, {"window": 5}, {"window": 7, "chunk": 2}, {"capacity": 5}, {"chunk": 1}])
def test_a_chunk_of_two_new_tokens(options):
    """Rows 3 and 4 of the full run; without a mask the last is right alone."""
    q, k = report((1, 1, 5, 2)), report((1, 1, 5, 2), 0.9, 0.1)
    v = torch.tensor([1.0, 2, 4, 8, 16], dtype=torch.float64)[None, None, :, None]
    cache = KVCache(**options)
    cache.attend(q[:, :, :3], k[:, :, :3], v[:, :, :3])
    found = cache.attend(q[:, :, 3:], k[:, :, 3:], v[:, :, 3:])[0]
    close(found.flatten(), [4.688096, 6.239676], atol=1e-6)
    close(found, F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, 3:])


def test_what_append_gives_back():
    cache, k, v = KVCache(), numbers(2, 3, 9, 5), numbers(2, 3, 9, 4, seed=1)
    assert cache.length.shape == (0,)
    assert (cache.nbytes, cache.capacity) == (0, 0)
    assert cache.positions(2).tolist() == [0, 1]
    keys, values, keep = cache.append(k[:, :, :4], v[:, :, :4])
    assert torch.equal(keys, k[:, :, :4])
    assert torch.equal(values, v[:, :, :4])
    assert keep.tolist() == np.tril(np.ones((4, 4), bool)).tolist()
    assert cache.positions(3).tolist() == [4, 5, 6]
    keys, values, keep = cache.append(k[:, :, 4:5], v[:, :, 4:5])
    assert keep is None
    assert torch.equal(keys, k[:, :, :5])
    keys, values, keep = cache.append(k[:, :, 5:8], v[:, :, 5:8])
    assert keep.tolist() == [[j <= i + 5 for j in range(8)] for i in range(3)]
    assert torch.equal(values, v[:, :, :8])
    assert cache.length.tolist() == [8, 8]


def test_unequal_lengths_by_hand():
    """Two prompts of 1 and 3 tokens, one new token each: it stands right after the last real one."""
    cache, k = KVCache(), torch.arange(1.0, 9).view(2, 1, 4, 1)
    keys, _, keep = cache.append(k[:, :, :3], k[:, :, :3], lengths=torch.tensor([1, 3]))
    assert keys[:, 0, :, 0].tolist() == [[1, 0, 0], [5, 6, 7]]
    padding = [False] * 3
    assert keep[0, 0].tolist() == [[True, False, False], padding, padding]
    assert keep[1, 0].tolist() == np.tril(np.ones((3, 3), bool)).tolist()
    assert cache.length.tolist() == [1, 3]
    assert cache.positions(2).tolist() == [[1, 2], [3, 4]]
    keys, _, keep = cache.append(k[:, :, 3:], k[:, :, 3:])
    assert keys[:, 0, :, 0].tolist() == [[1, 4, 0, 0], [5, 6, 7, 8]]
    assert keep[:, 0].tolist() == [[[True, True, False, False]], [[True] * 4]]
    cache.append(k[:, :, :1], k[:, :, :1], lengths=[0, 1])  # one of them is finished
    assert cache.length.tolist() == [2, 5]


def test_a_window_of_three_by_hand():
    """Four slots for a window of 3 and chunks of 2: token 4 is written over token 0."""
    cache, k = KVCache(window=3, chunk=2), torch.arange(1.0, 9).view(1, 1, 8, 1)
    for start in (0, 2):
        cache.append(k[:, :, start : start + 2], k[:, :, start : start + 2])
    keys, _, keep = cache.append(k[:, :, 4:6], k[:, :, 4:6])
    assert cache.capacity == 4
    assert keys.flatten().tolist() == [5, 6, 3, 4]
    assert keep.tolist() == [[True, False, True, True], [True, True, False, True]]
    ring = KVCache(window=3, chunk=1)
    for t in range(7):
        keys, _, keep = ring.append(k[:, :, t : t + 1], k[:, :, t : t + 1])
        assert keep is None
        assert sorted(keys.flatten().tolist()) == list(range(max(1, t - 1), t + 2))


# ---------------------------------------------------------------------------- against a model of it


class Lists:
    """The cache as Python lists: each sequence keeps all of its (key, value), and truncates by cutting."""

    def __init__(self, batch, window):
        self.rows, self.window = [[] for _ in range(batch)], window

    def attend(self, q, k, v, lengths):
        """(B, H, n, V) and (B, H, n, most tokens), with loops over everything."""
        B, H, n, _ = q.shape
        R = H // k.shape[1]
        starts = [len(row) for row in self.rows]
        for b, row in enumerate(self.rows):
            row += [(k[b, :, t], v[b, :, t]) for t in range(lengths[b])]
        context = torch.zeros(B, H, n, v.shape[-1], dtype=q.dtype)
        weights = torch.zeros(B, H, n, max(len(row) for row in self.rows), dtype=q.dtype)
        for b, row in enumerate(self.rows):
            for t in range(lengths[b]):
                place = starts[b] + t
                first = 0 if self.window is None else max(0, place - self.window + 1)
                for h in range(H):
                    keys = torch.stack([key[h // R] for key, _ in row[first : place + 1]])
                    share = (keys @ q[b, h, t] / math.sqrt(q.shape[-1])).softmax(0)
                    weights[b, h, t, first : place + 1] = share
                    context[b, h, t] = share @ torch.stack([value[h // R] for _, value in row[first : place + 1]])
        return context, weights


OPTIONS = [
    {}, {"capacity": 60}, {"chunk": 2},
    {"window": 1}, {"window": 4}, {"window": 4, "chunk": 1}, {"window": 4, "chunk": 3}, {"window": 3, "capacity": 11},
    {"window": 50}, {"window": 5, "chunk": 2, "capacity": 9},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_any_history(options, seed):
    """Steps of any kind, in any order. Each output, each weight and each length is that of plain lists."""
    dice = random.Random(seed)
    B, (G, H) = dice.choice([1, 2, 3]), dice.choice([(1, 3), (2, 4), (3, 3)])
    cache, lists, even = KVCache(**options), Lists(B, options.get("window")), seed % 2 == 0
    for step in range(14):
        n, B = dice.choice([1, 1, 1, 2, 3, 7]), len(lists.rows)
        q, k, v = (numbers(B, heads, n, 5, seed=100 * step + i) for i, heads in enumerate((H, G, G)))
        lengths = None if even or dice.random() < 0.4 else [dice.randint(0, n) for _ in range(B)]
        for b, real in enumerate(lengths or []):
            for x in (q, k, v):
                x[b, :, real:] = NAN
        if max(map(len, lists.rows)) + n > 50:
            break
        starts = [len(row) for row in lists.rows]
        asked = cache.positions(n).expand(B, n)
        assert asked.tolist() == [[start + t for t in range(n)] for start in starts]
        given = lengths if lengths is None or dice.random() < 0.5 else torch.tensor(lengths)
        context, weights = cache.attend(q, k, v, given, need_weights=True)
        want, want_weights = lists.attend(q, k, v, [n] * B if lengths is None else lengths)
        close(context, want)
        close(weights, want_weights)

        what = dice.random()
        counts = [len(row) for row in lists.rows]
        if what < 0.25:
            back = 2 if "window" not in options else min(2, cache.chunk)
            remain = [count - min(count, dice.randint(0, back)) for count in counts]
            if even:
                remain = [min(remain)] * B
            cache.truncate(remain)
            lists.rows = [row[:stop] for row, stop in zip(lists.rows, remain, strict=True)]
            for again in range(2 if "window" in options else 0):  # more can be taken back only after as many new ones
                q, k, v = (
                    numbers(B, heads, 1, 5, seed=7000 + 9 * step + 3 * again + i) for i, heads in enumerate((H, G, G))
                )
                for got, right in zip(
                    cache.attend(q, k, v, need_weights=True), lists.attend(q, k, v, [1] * B), strict=True
                ):
                    close(got, right)
        elif what < 0.4:
            rows = [dice.randrange(B) for _ in range(dice.choice([B, 1, B + 1]))]
            cache.select(rows if what < 0.3 else torch.tensor(rows))
            lists.rows = [list(lists.rows[b]) for b in rows]
        assert cache.length.tolist() == [len(row) for row in lists.rows]


# ---------------------------------------------------------------------------- in the layer


def layer_of(num_kv_heads=6, dtype=torch.float64, **options):
    torch.manual_seed(1)
    layer = MultiHeadAttention(24, 6, num_kv_heads, **options).to(dtype).eval()
    for linear in layer.projections():
        nn.init.normal_(linear.bias)
    return layer


def full_run(layer, x, window):
    n = x.shape[-2]
    keep = None if window is None else torch.from_numpy(window_mask(n, n, window))
    return layer(x, causal=True, keep=keep, need_weights=True)


@pytest.mark.parametrize("num_kv_heads", [6, 2, 1])
@pytest.mark.parametrize("rotary_base", [None, 100.0])
@pytest.mark.parametrize("window", [None, 1, 4, 30])
@torch.no_grad()
def test_chunked_is_serial_is_full(num_kv_heads, rotary_base, window):
    layer, x = layer_of(num_kv_heads, rotary_base=rotary_base), numbers(2, 13, 24)
    want, want_weights = full_run(layer, x, window)
    for chunk, options in [(1, {}), (2, {}), (3, {}), (7, {}), (13, {}), (7, {"chunk": 2}), (3, {"capacity": 70})]:
        cache = KVCache(window=window, **options)
        for start in range(0, 13, chunk):
            piece = slice(start, min(start + chunk, 13))
            twin = copy.deepcopy(cache) if chunk == 3 else None
            output, weights = layer(x[:, piece], cache=cache, need_weights=True)
            close(output, want[:, piece])
            close(weights, want_weights[:, :, piece, : piece.stop])
            if chunk == 3:  # asking for the weights changes nothing
                assert torch.equal(layer(x[:, piece], cache=twin), output)


@pytest.mark.parametrize("num_kv_heads", [6, 2, 1])
@pytest.mark.parametrize("rotary_base", [None, 100.0])
@pytest.mark.parametrize("options", [{}, {"window": 4}, {"window": 4, "chunk": 2}, {"chunk": 2, "capacity": 16}])
@torch.no_grad()
def test_prompts_of_unequal_length(num_kv_heads, rotary_base, options):
    """Each sequence as if it were alone: whatever stands in the padding, NaN too."""
    layer, x, lengths = layer_of(num_kv_heads, rotary_base=rotary_base), numbers(3, 16, 24), [5, 9, 1]
    cache, prompt = KVCache(**options), x[:, :9].clone()
    for b, n in enumerate(lengths):
        prompt[b, n:] = NAN
    first, weights = layer(prompt, cache=cache, lengths=torch.tensor(lengths), need_weights=True)
    later = torch.cat([layer(x[:, t : t + n], cache=cache) for t, n in ((9, 1), (10, 3), (13, 1))], dim=1)
    for b, n in enumerate(lengths):
        alone, shares = full_run(layer, torch.cat([x[b, :n], x[b, 9:14]]), options.get("window"))
        close(first[b, :n], alone[:n])
        close(first[b, n:], layer.out_proj.bias.expand(9 - n, 24))
        close(weights[b, :, :n, :n], shares[:, :n, :n])
        assert weights[b, :, n:].eq(0).all()
        close(later[b], alone[n:])
    assert cache.length.tolist() == [n + 5 for n in lengths]


@torch.no_grad()
def test_one_sequence_without_a_batch():
    layer, x, cache = layer_of(2, rotary_base=100.0), numbers(7, 24), KVCache()
    want, shares = full_run(layer, x, None)
    output, weights = layer(x[:4], cache=cache, need_weights=True)
    close(output, want[:4])
    close(weights, shares[:, :4, :4])
    padded = torch.cat([x[4:], torch.full((2, 24), NAN, dtype=torch.float64)])
    close(layer(padded, cache=cache, lengths=[3])[:3], want[4:])


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-5), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)]
)  # fmt: skip
@pytest.mark.parametrize("window", [None, 4])
@torch.no_grad()
def test_narrow_types(dtype, atol, window):
    layer, x = layer_of(2, rotary_base=100.0), numbers(2, 9, 24)
    want, _ = full_run(layer, x, window)
    layer, cache = layer.to(dtype), KVCache(window=window)
    made = [layer(x[:, t : t + n].to(dtype), cache=cache) for t, n in ((0, 4), (4, 1), (5, 1), (6, 3))]
    assert made[0].dtype == dtype
    close(torch.cat(made, 1).double(), want, atol)
    assert cache.nbytes == 2 * 2 * 2 * cache.capacity * 4 * torch.finfo(dtype).bits // 8


@torch.no_grad()
def test_speculative_decoding():
    """Four guessed tokens at once, three of them wrong: taken back, nothing of them remains."""
    layer, x, wrong = layer_of(2, rotary_base=100.0), numbers(2, 12, 24), numbers(2, 4, 24, seed=9)
    wrong[:, 3] = NAN
    for options in ({}, {"window": 5, "chunk": 4}):
        want, _ = full_run(layer, x, options.get("window"))
        cache = KVCache(**options)
        layer(x[:, :6], cache=cache)
        guess = torch.cat([x[:, 6:7], wrong[:, 1:]], dim=1)
        close(layer(guess, cache=cache)[:, 0], want[:, 6])
        cache.truncate(7)
        keys, values, _ = copy.deepcopy(cache).append(*(numbers(2, 2, 1, 4),) * 2)
        assert keys.isfinite().all() and values.isfinite().all()
        assert cache.length.tolist() == [7, 7]
        close(layer(x[:, 7:9], cache=cache), want[:, 7:9])
        close(torch.cat([layer(x[:, t : t + 1], cache=cache) for t in (9, 10, 11)], 1), want[:, 9:])


@torch.no_grad()
def test_beam_search():
    layer, x, cache = layer_of(2), numbers(3, 9, 24), KVCache()
    layer(x[:, :5], cache=cache)
    cache.select([2, 0, 0, 1])
    after = numbers(4, 3, 24, seed=5)
    got = torch.cat([layer(after[:, :1], cache=cache), layer(after[:, 1:], cache=cache)], dim=1)
    for b, old in enumerate([2, 0, 0, 1]):
        want = full_run(layer, torch.cat([x[old, :5], after[b]]), None)[0]
        close(got[b], want[5:])
    uneven = filled()
    before = [uneven.append(*(numbers(2, 3, 1, 5),) * 2)[0][b, :, :n].clone() for b, n in ((0, 5), (1, 3))]
    uneven.truncate([4, 2])
    uneven.select([1, 0, 1])
    assert uneven.length.tolist() == [2, 4, 2]
    assert uneven.positions(1).tolist() == [[2], [4], [2]]
    keys, _, keep = uneven.append(*(numbers(2, 3, 1, 5)[[1, 0, 1]],) * 2)
    for b, (old, n) in enumerate(((1, 3), (0, 5), (1, 3))):
        assert torch.equal(keys[b, :, :n], before[old])
        assert keep[b, 0, 0].tolist() == [t < n for t in range(5)]


@torch.no_grad()
def test_no_token_may_be_new():
    layer, cache = layer_of(2), KVCache()
    assert layer(numbers(2, 0, 24), cache=cache).shape == (2, 0, 24)
    want = full_run(layer, numbers(2, 3, 24), None)[0]
    close(layer(numbers(2, 3, 24), cache=cache), want)
    assert layer(numbers(2, 0, 24), cache=cache).shape == (2, 0, 24)
    assert layer(numbers(2, 2, 24), cache=cache, lengths=[0, 0]).shape == (2, 2, 24)
    assert cache.length.tolist() == [3, 3]


# ---------------------------------------------------------------------------- memory


def test_memory_doubles_and_is_what_the_formula_says():
    cache, kv = KVCache(), numbers(2, 3, 60, 5)
    capacities = []
    for t in range(60):
        cache.append(kv[:, :, t : t + 1], kv[:, :, t : t + 1])
        capacities.append(cache.capacity)
    assert sorted(set(capacities)) == [1, 2, 4, 8, 16, 32, 64]
    assert cache.nbytes == 2 * 2 * 3 * 64 * 5 * 8
    assert torch.equal(cache.append(kv[:, :, :1], kv[:, :, :1])[0][:, :, :60], kv)
    cache.append(numbers(2, 3, 200, 5), numbers(2, 3, 200, 5))
    assert cache.capacity == 261, "one long piece: just as much as it needs"


def test_memory_that_is_taken_at_once_stays_where_it_is():
    cache, kv = KVCache(capacity=8), numbers(1, 2, 8, 3)
    assert cache.capacity == 8
    places = set()
    for t in range(8):
        keys, values, _ = cache.append(kv[:, :, t : t + 1], kv[:, :, t : t + 1])
        places.add((keys.data_ptr(), values.data_ptr()))
        assert cache.nbytes == 2 * 1 * 2 * 8 * 3 * 8
    assert len(places) == 1


def test_a_window_never_grows():
    """The context is endless, the memory is not."""
    cache, kv = KVCache(window=5), numbers(1, 2, 3, 3)
    sizes = set()
    for _ in range(60):
        cache.append(kv, kv)
        sizes.add((cache.nbytes, cache.capacity))
    assert sizes == {(2 * 2 * 9 * 3 * 8, 9)}
    assert cache.length.tolist() == [180]
    assert KVCache(window=1000).capacity == 1000 + 64 - 1
    assert KVCache(window=4, capacity=10).chunk == 7


def test_no_memory_is_used_before_it_is_written():
    """PyTorch fills new memory with NaN in this mode: none may be seen through a mask."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        for options in ({}, {"window": 8}, {"capacity": 32}):
            cache, kv = KVCache(**options), numbers(2, 1, 3, 2)
            for lengths in ([1, 3], [3, 0], [1, 1]):
                keys, values, _ = cache.append(kv, kv, lengths)
                assert keys.isfinite().all() and values.isfinite().all()
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def test_clear_makes_room_for_another_batch():
    cache = KVCache(window=3)
    cache.append(numbers(2, 3, 2, 5), numbers(2, 3, 2, 5))
    cache.clear()
    assert (cache.nbytes, cache.length.tolist(), cache.positions(1).tolist()) == (0, [], [0])
    q, k = numbers(1, 2, 2, 4, dtype=torch.float32), numbers(1, 1, 2, 4, seed=1, dtype=torch.float32)
    context, _ = cache.attend(q, k, k)
    close(context, attention(q, k, k, causal=True), 1e-6)


def test_repr():
    cache = KVCache(window=3, chunk=2)
    cache.append(*(numbers(2, 1, 2, 4),) * 2, lengths=[1, 2])
    assert repr(cache) == "KVCache(length=[1, 2], capacity=4, window=3, chunk=2)"
    assert repr(KVCache()) == "KVCache(length=[], capacity=0)"


# ---------------------------------------------------------------------------- what it refuses


def filled(**options):
    cache = KVCache(**options)
    cache.append(numbers(2, 3, 4, 5), numbers(2, 3, 4, 5), lengths=[4, 2])
    return cache


@pytest.mark.parametrize("how", ["append", "attend"])
@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda k: k[:1], ("k: expected (2, 3, new tokens, 5) as before, got (1, 3, 2, 5)", "clear()")),
        (lambda k: k[:, :1], ("k: expected (2, 3, new tokens, 5) as before, got (2, 1, 2, 5)",)),
        (lambda k: k[..., :4], ("k: expected (2, 3, new tokens, 5) as before, got (2, 3, 2, 4)",)),
        (lambda k: k.float(), ("k: expected torch.float64 on cpu", "torch.float32", "k.to(torch.float64)")),
        (lambda k: k.to("meta"), ("k: expected torch.float64 on cpu", "on meta")),
        (lambda k: k.long(), ("k: expected floats (B, G, n, D), got torch.int64",)),
        (lambda k: k[0], ("k: expected floats (B, G, n, D)", "(3, 2, 5)")),
        (lambda k: k.clone().requires_grad_(), ("k: expected no gradient", "torch.no_grad()")),
    ],
)
def test_keys_that_do_not_fit_change_nothing(how, change, parts):
    cache = filled()
    before = snapshot(cache)
    k = change(numbers(2, 3, 2, 5, seed=1))
    given = (k, k) if how == "append" else (k.detach(), k, k)
    with pytest.raises(ValueError, match=says(*parts)):
        getattr(cache, how)(*given)
    assert same_state(snapshot(cache), before)


def test_values_are_checked_too():
    cache, k = filled(), numbers(2, 3, 2, 5)
    before = snapshot(cache)
    for v, part in (
        (k[:, :, :1], "v: expected batch, heads and tokens of k (2, 3, 2, 5), got (2, 3, 1, 5)"),
        (k[..., :3], "v: expected (2, 3, new tokens, 5) as before, got (2, 3, 2, 3)"),
        (k.float(), "v: expected torch.float64"),
        (k.clone().requires_grad_(), "v: expected no gradient"),
    ):
        with pytest.raises(ValueError, match=says(part)):
            cache.append(k, v)
    with pytest.raises(TypeError, match=says("v: expected a torch.Tensor, got list")):
        cache.append(k, k.tolist())
    assert same_state(snapshot(cache), before)
    with pytest.raises(ValueError, match=says("v: expected torch.float64")):
        KVCache().append(k, k.float())
    with pytest.raises(ValueError, match=says("k: expected at least one sequence", "(0, 3, 2, 5)")):
        KVCache().append(k[:0], k[:0])


@pytest.mark.parametrize(
    "q",
    [numbers(1, 3, 2, 5), numbers(2, 3, 1, 5), numbers(2, 4, 2, 5), numbers(2, 3, 2, 4), numbers(3, 2, 5),
     numbers(2, 3, 2, 5).float(), numbers(2, 3, 2, 5).requires_grad_()],
    ids=["batch", "tokens", "heads", "width", "axes", "dtype", "gradient"],
)  # fmt: skip
def test_queries_that_do_not_fit_change_nothing(q):
    cache, k = filled(), numbers(2, 3, 2, 5)
    before = snapshot(cache)
    with pytest.raises(ValueError, match=says("q: expected")):
        cache.attend(q, k, k)
    assert same_state(snapshot(cache), before)


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([1, 3], ("lengths: expected from 0 to the new tokens, [2, 2], got [1, 3]",)),
        ([-1, 1], ("lengths: expected from 0", "[-1, 1]")),
        ([1], ("lengths: expected 2 whole numbers", "(1,)")),
        (2, ("lengths: expected 2 whole numbers", "()")),
        ([1.0, 2.0], ("lengths: expected 2 whole numbers", "torch.float32")),
        (torch.tensor([True, False]), ("lengths: expected 2 whole numbers", "torch.bool")),
    ],
)
def test_lengths_that_do_not_fit_change_nothing(lengths, parts):
    cache, k = filled(), numbers(2, 3, 2, 5)
    before = snapshot(cache)
    for call in (cache.append, lambda *given: cache.attend(k, *given)):
        with pytest.raises(ValueError, match=says(*parts)):
            call(k, k, lengths)
    assert same_state(snapshot(cache), before)


def test_a_full_cache_says_so():
    cache, k = KVCache(capacity=5, chunk=2), numbers(1, 1, 4, 2)
    cache.attend(k, k, k)
    before = snapshot(cache)
    with pytest.raises(ValueError, match=says("k: expected at most capacity = 5", "got 8", "KVCache(capacity=8)")):
        cache.attend(k, k, k)  # its first piece would fit partly
    assert same_state(snapshot(cache), before)
    cache.append(k[:, :, :2], k[:, :, :2], lengths=[1])
    with pytest.raises(ValueError, match=says("capacity = 5")):
        cache.append(k[:, :, :1], k[:, :, :1])
    with pytest.raises(ValueError, match=says("capacity = 3", "got 4")):
        KVCache(capacity=3).append(k, k)


def test_a_chunk_too_long_says_so():
    for cache in (KVCache(window=4, chunk=2), KVCache(chunk=2)):
        k = numbers(1, 1, 3, 2)
        with pytest.raises(ValueError, match=says("k: expected at most chunk = 2", "got 3", "attend", "chunk=3")):
            cache.append(k, k)
        assert cache.nbytes == 0
        assert cache.attend(k, k, k)[0].shape == (1, 1, 3, 2)


def test_sizes_are_checked():
    for name in ("capacity", "window", "chunk"):
        for size in (0, -1, 2.0, True, "4"):
            with pytest.raises(ValueError, match=says(f"{name}: expected a whole number from 1 on")):
                KVCache(**{name: size})
    with pytest.raises(ValueError, match=says("capacity: expected window + chunk - 1 = 6 slots", "got 5")):
        KVCache(window=4, chunk=3, capacity=5)
    with pytest.raises(ValueError, match=says("capacity: expected window + chunk - 1 = 4 slots", "got 3")):
        KVCache(window=4, capacity=3)
    assert KVCache(window=4, chunk=3, capacity=6).capacity == 6
    assert KVCache(capacity=np.int64(3)).capacity == 3


def test_what_cannot_be_taken_back():
    cache = filled()
    before = snapshot(cache)
    for lengths, part in (
        ([4, 3], "the tokens so far, [4, 2], got [4, 3]"),
        (3, "[3, 3]"),
        (-1, "[-1, -1]"),
        ([1], "2 whole numbers"),
        ([1.0, 1.0], "torch.float32"),
    ):
        with pytest.raises(ValueError, match=says("lengths: expected", part)):
            cache.truncate(lengths)
    assert same_state(snapshot(cache), before)
    with pytest.raises(ValueError, match=says("lengths: nothing was appended yet")):
        KVCache().truncate(0)
    ring, k = KVCache(window=4, chunk=2), numbers(1, 1, 2, 2)
    for _ in range(4):
        ring.append(k, k)
    before = snapshot(ring)
    with pytest.raises(ValueError, match=says("lengths: expected to take back at most chunk = 2", "[5] of [8]")):
        ring.truncate([5])
    assert same_state(snapshot(ring), before)
    ring.truncate(6)
    with pytest.raises(ValueError, match=says("chunk = 2", "[5] of [6]")):
        ring.truncate(5)
    young = KVCache(window=4, chunk=2)
    young.append(k, k)
    young.append(k, k)
    young.truncate(0)
    assert young.length.tolist() == [0]


def test_sequences_that_are_not_there():
    cache = filled()
    before = snapshot(cache)
    for rows in ([2], [-1], [], [0.0], [[0, 1]], 1, torch.tensor([True, False])):
        with pytest.raises(ValueError, match=says("rows: expected numbers of sequences from 0 to 1")):
            cache.select(rows)
    assert same_state(snapshot(cache), before)
    with pytest.raises(ValueError, match=says("rows: ", "Nothing was appended yet")):
        KVCache().select([0])


def test_gradients_are_refused_and_inference_mode_may_come_and_go():
    layer, x, cache = layer_of(2), numbers(1, 6, 24), KVCache(capacity=6)
    with pytest.raises(ValueError, match=says("k: expected no gradient", "torch.no_grad()")):
        layer(x, cache=cache)
    with torch.no_grad():
        want, _ = full_run(layer, x, None)
    with torch.inference_mode():
        made = [layer(x[:, :2], cache=cache)]
    with torch.no_grad():
        made.append(layer(x[:, 2:3], cache=cache))
        cache.truncate(2)
    with torch.inference_mode():
        cache.select([0])
        made[1] = layer(x[:, 2:3], cache=cache)
    frozen = copy.deepcopy(layer).requires_grad_(False)
    made.append(frozen(x[:, 3:], cache=cache))  # nothing requires a gradient
    close(torch.cat([m.clone() for m in made], 1), want)


def test_what_the_layer_refuses():
    layer, x, cache = layer_of(2).requires_grad_(False), numbers(2, 3, 24), KVCache()
    layer(x, cache=cache)
    before = snapshot(cache)
    for call, parts in (
        (lambda: layer(x, x.clone(), cache=cache), ("cache: expected self-attention",)),
        (lambda: layer(x, x, x.clone(), cache=cache), ("cache: expected self-attention",)),
        (lambda: layer(x, keep=torch.ones(3, 3, dtype=torch.bool), cache=cache), ("keep: expected None", "lengths")),
        (lambda: layer(x, lengths=[3, 2]), ("lengths: came without a cache",)),
        (lambda: layer(x, cache=cache, lengths=[3]), ("lengths: expected 2 whole numbers",)),
        (lambda: layer(x, cache=cache, lengths=[3, 4]), ("lengths: expected from 0 to the new tokens",)),
        (lambda: layer(x[..., :5], cache=cache), ("query: expected (batch, tokens, 24)",)),
        (lambda: layer(x[:1], cache=cache), ("k: expected (2, 2, new tokens, 4) as before",)),
        (lambda: MultiHeadAttention(24, 6, kdim=5)(x, cache=cache), ("cache: expected kdim = vdim",)),
        (lambda: MultiHeadAttention(24, 6, dropout=0.1)(x, cache=cache), ("cache: expected evaluation", ".eval()")),
    ):
        with pytest.raises(ValueError, match=says(*parts)):
            call()
    for wrong in ({}, [cache], "yes"):
        with pytest.raises(TypeError, match=says("cache: expected a mha_lesson.pytorch.cache.KVCache")):
            layer(x, cache=wrong)
    with pytest.raises(TypeError, match=says("query: expected a torch.Tensor")):
        layer(x.tolist(), cache=cache)
    assert same_state(snapshot(cache), before)
    assert layer(x, x, x, causal=True, cache=cache).shape == (2, 3, 24)  # the same tensor is self-attention


def test_few_queries_are_folded_and_many_use_the_triangle(monkeypatch):
    """The numbers are the same either way: only the time is not."""
    calls = []

    def spy(name):
        real = getattr(cache_file, name)
        monkeypatch.setattr(cache_file, name, lambda *a, **o: (calls.append((name, o)), real(*a, **o))[1])

    spy("grouped_attention")
    spy("attention")
    q, k, cache = numbers(1, 4, 20, 3), numbers(1, 2, 20, 3), KVCache()
    cache.attend(q, k, k)
    assert calls == [("attention", {"causal": True})]
    calls.clear()
    cache.attend(q[:, :, :1], k[:, :, :1], k[:, :, :1])
    assert calls[0][0] == "grouped_attention"
    calls.clear()
    KVCache().attend(q[:, :2, :1], k[:, :, :1], k[:, :, :1])
    assert [name for name, _ in calls] == ["attention"]


def test_weights_are_those_of_the_layer_without_a_window():
    q, k = numbers(2, 4, 3, 5), numbers(2, 2, 3, 5, seed=1)
    close(KVCache().attend(q, k, k, need_weights=True)[1], attention_weights(q, k, causal=True))
    assert KVCache().attend(q, k, k)[1] is None
