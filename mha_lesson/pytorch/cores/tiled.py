"""Exact attention in one pass over tiles: never an (L, S) array, forwards or backwards.

A softmax seems to need the whole row first: its largest score, and its sum. It does not. Keep
three numbers a row (the last one is a vector) and shrink them when a later tile has a larger score:

    m   the largest score so far           new  = max(m, max of the tile)
    l   the sum of exp(score - m)          l    = l   exp(m - new) + sum of exp(S_tile - new)
    o   the sum of exp(score - m) · v      o    = o   exp(m - new) + exp(S_tile - new) V_tile

At the end the output is O = o / l, and the log-sum-exp of the row is lse = m + log l. That one
number a row is all that the way back needs: it gives any weight again, P = exp(S - lse).

Backwards, with dO the gradient of the output, and row i, key j:

    O_i = sum_j P_ij v_j          dV_j  = sum_i P_ij dO_i           dP_ij = dO_i · v_j
    P_i = softmax(S_i)            dS_ij = P_ij (dP_ij - delta_i)    delta_i = sum_j P_ij dP_ij
    S = Q K^T / sqrt(D)           dQ = dS K / sqrt(D)               dK = dS^T Q / sqrt(D)

delta_i needs the whole row, but sum_j P_ij (dO_i · v_j) = dO_i · sum_j P_ij v_j = dO_i · O_i:
a product of two vectors that are there already. So each tile of P can be made, used and dropped.
If lse has a gradient too (its derivative is P), delta_i becomes delta_i - dlse_i.

Two answers over different keys can be joined, because lse says how much each one weighs:

    lse = log(exp(lse1) + exp(lse2))          O = exp(lse1 - lse) O1 + exp(lse2 - lse) O2

    q     (B, H, L, D)   B batch, H query heads, L queries, D head width
    k, v  (B, G, S, D)   G key/value heads, S keys; v may have another width V; R = H / G
    keep  (L, S) or (B, 1 or H, L, S)        boolean, True = may attend
    out   (B, H, L, V)   lse (B, H, L)       0 and -inf for a query that may attend to nothing

Sources: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3; Dao
et al. 2022, "FlashAttention", algorithms 1, 2 and 4; Dao 2023, "FlashAttention-2", section 3.1
(one lse instead of m and l); Liu et al. 2023, "Ring Attention" (what `merge` is for).
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import math
from functools import wraps

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mha_lesson.pytorch.cores.core import COURSE, core_of, in_own_precision
from mha_lesson.pytorch.cores.sdpa import ExactCore
from mha_lesson.pytorch.masks import check_keep

# ------------------------------------------------------------------------------ what you call


def tiled_attention(
    q: Float[Tensor, "B H L D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S V"],
    keep=None,
    causal: bool = False,
    block_q: int = 128,
    block_k: int = 512,
) -> Float[Tensor, "B H L V"]:
    """softmax(Q K^T / sqrt(D), keep and causal) V, by tiles of block_q queries and block_k keys.

    Scores in memory: B · H · block_q · block_k, twice that backwards. Half types are computed in
    float32. NaN or inf at a key that `keep` hides from every query counts for nothing.
    """
    return attend_by_tiles(q, k, v, keep, causal, block_q, block_k)[0]


def attention_with_lse(
    q: Float[Tensor, "B H L D"], k: Float[Tensor, "B G S D"], v: Float[Tensor, "B G S V"], keep=None, causal=False
) -> tuple[Float[Tensor, "B H L V"], Float[Tensor, "B H L"]]:
    """The same, and log(sum of exp(scores)) of each row: float32 at least, -inf where no key is allowed.

    Both may be differentiated. `merge` joins two of these pairs.
    """
    return attend_by_tiles(q, k, v, keep, causal)


def merge(
    out1: Float[Tensor, "*B L V"],
    lse1: Float[Tensor, "*B L"],
    out2: Float[Tensor, "*B L V"],
    lse2: Float[Tensor, "*B L"],
) -> tuple[Float[Tensor, "*B L V"], Float[Tensor, "*B L"]]:
    """The answer over two sets of keys from the answers over each: (out, lse).

    A part that saw no key has lse -inf and weighs nothing; if neither saw one, the answer is
    (0, -inf). The order of several merges does not matter, up to rounding. To merge many half-type
    parts, pass out.float(): out is rounded to its own type at each merge.
    """
    check_parts(out1, lse1, out2, lse2)
    # A shift, so that exp cannot overflow. It cancels, so it needs no gradient.
    shift = finite_shift(torch.maximum(lse1, lse2).detach())  # (*B, L)
    weight1, weight2 = (lse1 - shift).exp(), (lse2 - shift).exp()  # (*B, L), exp(-inf) = 0
    total = weight1 + weight2
    empty = total == 0
    total = total.masked_fill(empty, 1)  # before it is divided by and logged: a NaN never arises
    out = (weight1 / total)[..., None] * out1 + (weight2 / total)[..., None] * out2  # (*B, L, V)
    lse = (total.log() + shift).masked_fill(empty, -math.inf)  # (*B, L)
    return out.to(torch.promote_types(out1.dtype, out2.dtype)), lse


# ------------------------------------------------------------------------------ who sees what


def blocks(q, k, keep, causal: bool, block_q: int, block_k: int):
    """For each block of queries its rows, and its tiles: pairs (keys, what is hidden there).

    q (B, H, L, D) and k (B, G, S, D) are read for their sizes. Query i has the rows i·R to
    (i + 1)·R. It stands at key i + S - L, so with `causal` no tile behind a block's last query is
    made, and only the columns behind its first query need a mask.
    """
    L, S, R = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    for a in range(0, L, block_q):
        b = min(a + block_q, L)
        first, last = a + S - L, b - 1 + S - L  # the places of this block's queries among the keys
        seen = max(last + 1, 0) if causal else S
        tiles = []
        for c in range(0, seen, block_k):
            keys = slice(c, min(c + block_k, seen))
            hidden = []
            if causal and keys.stop - 1 > first:
                corner = slice(max(first + 1, c), keys.stop)
                hidden.append((slice(corner.start - c, None), future(first, last, corner, q.device)))
            if keep is not None:
                queries = slice(a, b) if keep.shape[2] > 1 else slice(None)
                hidden.append((slice(None), ~keep[:, :, queries, :, keys]))  # (B, G, n, R, s), each of them or 1
            tiles.append((keys, hidden))
        yield slice(a * R, b * R), tiles


def future(first: int, last: int, keys: slice, device) -> Bool[Tensor, "n 1 s"]:
    """True where a key comes after a query that stands at `first`, ..., `last`."""
    key = torch.arange(keys.start, keys.stop, device=device)  # (s,)
    return key > torch.arange(first, last + 1, device=device)[:, None, None]  # (n, 1, s), 1 for the R heads


def hide(scores: Float[Tensor, "BG nR s"], hidden: list, q, k) -> Float[Tensor, "BG nR s"]:
    """-inf, in place, in the columns and places that `blocks` named."""
    (B, H), G = q.shape[:2], k.shape[1]
    R = H // G
    for columns, mask in hidden:
        heads = scores.view(B, G, scores.shape[1] // R, R, scores.shape[2])  # (B, G, n, R, s)
        heads[..., columns].masked_fill_(mask, -math.inf)
    return scores


# ------------------------------------------------------------------------------ forwards and backwards


def attend_by_tiles(q, k, v, keep, causal: bool, block_q: int = 128, block_k: int = 512):
    """(out, lse); what comes in is checked, and `keep` becomes (B, G, L, R, S), each of them or 1."""
    check_inputs(q, k, v)
    for name, size in (("block_q", block_q), ("block_k", block_k)):
        if size < 1:
            raise ValueError(f"{name}: expected 1 or more at a time, got {size}.")
    B, H, L, _ = q.shape
    G, S = k.shape[1:3]
    keep = check_keep(keep, (B, H, L, S), q.device)
    if keep is not None:
        keep = keep[(None,) * (4 - keep.dim())]  # (B or 1, H or 1, L or 1, S)
        unseen = ~keep.any(dim=(1, 2))[:, None, :, None]  # (B or 1, 1, S, 1)
        k, v = k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)  # 0 · NaN is NaN: see `clear_padding`
        shared = keep[:, :, None] if keep.shape[1] == 1 else keep.unflatten(1, (G, H // G))  # (B, G, R, L, S) or 1s
        keep = shared.transpose(2, 3)  # (B or 1, G or 1, L or 1, R or 1, S)
    return TiledAttention.apply(q, k, v, keep, causal, block_q, block_k)


def wide_under_autocast(function):
    """The function, its first argument a tensor, as it is written: autocast makes no product of it narrower."""

    @wraps(function)
    def exactly(q, *rest):
        with in_own_precision(q):
            return function(q, *rest)

    return exactly


class TiledAttention(torch.autograd.Function):
    """The formulas at the top of this file. Inside, arrays have three axes: see `fold`."""

    @staticmethod
    @wide_under_autocast
    def forward(q, k, v, keep, causal, block_q, block_k):
        queries, keys, values = prepare(q, k, v)
        out = queries.new_empty((*queries.shape[:2], v.shape[3]))  # (B·G, L·R, V)
        lse = queries.new_empty((*queries.shape[:2], 1))  # (B·G, L·R, 1)
        for rows, tiles in blocks(q, k, keep, causal, block_q, block_k):
            peak = torch.full_like(lse[:, rows], -math.inf)  # m, (B·G, n·R, 1)
            total = torch.zeros_like(peak)  # l
            mix = torch.zeros_like(out[:, rows])  # o, (B·G, n·R, V)
            for cols, hidden in tiles:
                scores = hide(queries[:, rows] @ keys[:, cols].mT, hidden, q, k)  # (B·G, n·R, s)
                higher = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
                shift = finite_shift(higher)
                parts = scores.sub_(shift).exp_()  # exp(S - m), in the same place
                shrink = (peak - shift).exp_()
                total.mul_(shrink).add_(parts.sum(dim=-1, keepdim=True))
                mix.mul_(shrink).baddbmm_(parts, values[:, cols])
                peak = higher
            empty = total == 0
            lse[:, rows] = peak + total.masked_fill_(empty, 1).log()
            torch.div(mix, total, out=out[:, rows])
        # Copies: autograd lets nobody change a result in place (out += x) that is a view of something.
        return unfold(out, q).to(q.dtype, copy=True), unfold(lse, q)[..., 0].clone()  # (B, H, L, V), (B, H, L)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """What the way back needs. Apart from `forward`, so that torch.func.grad works, too."""
        q, k, v, keep, *options = inputs
        ctx.save_for_backward(q, k, v, keep, *output)
        ctx.options = options
        ctx.set_materialize_grads(False)

    @staticmethod
    def vmap(info, in_dims, q, k, v, keep, *options):
        """Under torch.func.vmap: the mapped axis becomes a part of the batch, (N·B, H, L, D)."""
        N = info.batch_size
        q, k, v = (in_front(x, dim, N).flatten(0, 1) for x, dim in zip((q, k, v), in_dims, strict=False))
        if keep is not None:
            keep = in_front(keep, in_dims[3], N)  # (N, B or 1, G or 1, L or 1, R or 1, S)
            keep = keep.expand(-1, q.shape[0] // N, *[-1] * 4).flatten(0, 1)
        out, lse = TiledAttention.apply(q, k, v, keep, *options)
        return (out.unflatten(0, (N, -1)), lse.unflatten(0, (N, -1))), (0, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_lse):
        return TiledAttention.slopes(*ctx.saved_tensors, grad_out, grad_lse, ctx.options)

    @staticmethod
    @wide_under_autocast
    def slopes(q, k, v, keep, out, lse, grad_out, grad_lse, options):
        queries, keys, values = prepare(q, k, v)
        G, wide = k.shape[1], queries.dtype
        grads = torch.zeros_like(out) if grad_out is None else grad_out
        delta = (grads.to(wide) * out).sum(dim=-1)  # (B, H, L)
        delta = delta if grad_lse is None else delta - grad_lse
        lse = lse.masked_fill(lse == -math.inf, math.inf)  # an empty row: P = exp(S - inf) = 0
        grads, delta, lse = (fold(x, G, wide) for x in (grads, delta[..., None], lse[..., None]))  # (B·G, L·R, V or 1)
        grad_q, grad_k, grad_v = torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        for rows, tiles in blocks(q, k, keep, *options):
            for cols, hidden in tiles:
                scores = hide(queries[:, rows] @ keys[:, cols].mT, hidden, q, k)  # (B·G, n·R, s)
                weights = scores.sub_(lse[:, rows]).exp_()  # P, in the same place
                grad_v[:, cols].baddbmm_(weights.mT, grads[:, rows])
                grad_weights = grads[:, rows] @ values[:, cols].mT  # dP, (B·G, n·R, s)
                grad_scores = grad_weights.sub_(delta[:, rows]).mul_(weights)  # dS
                grad_q[:, rows].baddbmm_(grad_scores, keys[:, cols])
                grad_k[:, cols].baddbmm_(grad_scores.mT, queries[:, rows])
        grad_q = grad_q.mul_(1 / math.sqrt(q.shape[3]))
        return *(unfold(grad, x).to(x.dtype) for grad, x in ((grad_q, q), (grad_k, k), (grad_v, v))), *[None] * 4


def in_front(x: Tensor, dim: int | None, N: int) -> Tensor:
    """x with the mapped axis first; one that is not mapped is the same for all N."""
    return x.expand(N, *x.shape) if dim is None else x.movedim(dim, 0)


def prepare(q, k, v):
    """The three of them folded, in float32 at least; the queries are scaled.

    The scale goes to the L·D numbers of the queries: the scores have L·S.
    """
    G, wide = k.shape[1], torch.promote_types(q.dtype, torch.float32)
    queries = fold(q, G, wide) * (1 / math.sqrt(q.shape[3]))  # (B·G, L·R, D)
    return queries, fold(k, G, wide), fold(v, G, wide)  # (B·G, S, D), (B·G, S, V)


def fold(x: Float[Tensor, "B H L D"], G: int, dtype) -> Float[Tensor, "BG LR D"]:
    """(B·G, L·R, D): the R query heads that share a key head become further rows of its queries.

    For keys and values R is 1. So every product is one of plain matrices, whatever the heads share.
    """
    B, H, L, D = x.shape
    return x.reshape(B, G, H // G, L, D).transpose(2, 3).reshape(B * G, L * (H // G), D).to(dtype)


def unfold(x: Float[Tensor, "BG LR D"], like: Float[Tensor, "B H L _"]) -> Float[Tensor, "B H L D"]:
    """Back to the axes of `like`."""
    B, H, L, _ = like.shape
    R = x.shape[1] // L if L else 1
    return x.reshape(B, H // R, L, R, x.shape[2]).transpose(2, 3).reshape(B, H, L, x.shape[2])


def finite_shift(peak: Tensor) -> Tensor:
    """The largest score to take off; 0 where it is -inf, because -inf - -inf would be NaN."""
    return peak.masked_fill(peak == -math.inf, 0)


# ------------------------------------------------------------------------------ what is refused


def check_inputs(q, k, v):
    """An error that names what does not fit in q (B, H, L, D), k (B, G, S, D), v (B, G, S, V)."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}. Pass torch.as_tensor({name}).")
        if x.dim() != 4:
            raise ValueError(
                f"{name}: expected 4 axes (batch, heads, tokens, width), got {tuple(x.shape)}. "
                f"`split_heads` of mha_lesson.pytorch.layer makes them from (batch, tokens, features)."
            )
        if not x.is_floating_point() or x.dtype != q.dtype:
            raise TypeError(f"{name}: expected q's float type, got {x.dtype} (q {q.dtype}). Pass {name}.to(q.dtype).")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"k: expected q's batch {q.shape[0]} and width {q.shape[3]}, got {tuple(k.shape)} (q {tuple(q.shape)})."
        )
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v: expected k's batch, heads and tokens {tuple(k.shape[:3])}, got {tuple(v.shape)}.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"k: expected a number of heads that divides q's {q.shape[1]}, got {k.shape[1]}: "
            f"each key/value head serves the same number of query heads."
        )


def check_parts(out1, lse1, out2, lse2):
    """An error if the two pairs are not about the same queries."""
    for name, out, lse in (("1", out1, lse1), ("2", out2, lse2)):
        if out.shape != out1.shape:
            raise ValueError(f"out{name}: expected out1's shape {tuple(out1.shape)}, got {tuple(out.shape)}.")
        if lse.shape != out1.shape[:-1]:
            raise ValueError(
                f"lse{name}: expected {tuple(out1.shape[:-1])}, one number for each row of out, got {tuple(lse.shape)}."
            )


# ------------------------------------------------------------------------------ in the layer


@core_of(tiled_attention)
class TiledCore(ExactCore):
    """`tiled_attention`, by tiles of block_q queries and block_k keys. Exact; memory grows with L, not with L · S."""

    name, can = "tiled", COURSE["tiled"]

    def __init__(self, block_q: int = 128, block_k: int = 512):
        self.block_q, self.block_k = block_q, block_k

    @torch.compiler.disable  # a compiler would write the loop over the tiles out, and hold them all
    def attend(self, q, k, v, *, keep, causal, dropout):
        return tiled_attention(q, k, v, keep, causal, self.block_q, self.block_k)
