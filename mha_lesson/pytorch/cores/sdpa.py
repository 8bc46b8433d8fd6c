"""The default core: PyTorch's `scaled_dot_product_attention` ("SDPA"), made safe.

    q (B, H, L, D)   k (B, G, S, D)   v (B, G, S, V)   ->   context (B, H, L, V)
    keep (L, S) or (B, 1 or H, L, S), True = may attend;  weights (B, H, L, S), computed beside it

It never builds the weights (B, H, L, S). Rows that allow nothing give 0, and NaN at a hidden key
reaches no query that may not see it.

Sources: Vaswani et al. 2017, equation 1; Dao et al. 2022 (FlashAttention), what SDPA runs.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mha_lesson.pytorch.cores.core import COURSE, Core, core_of, in_own_precision
from mha_lesson.pytorch.heads import share_heads
from mha_lesson.pytorch.masks import joint_mask, open_empty_rows


def attention(
    q: Float[Tensor, "B H L D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S V"],
    keep=None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "B H L V"]:
    """softmax(Q K^T / sqrt(D), keep and causal) V, without the weights. Empty rows give 0.

    `dropout` is applied as given, in evaluation too, as SDPA does (pytorch/pytorch#124464): the
    layer passes 0 then.
    """
    context = fused_attention(q, k, v, keep, causal, dropout)  # (B, H, L, D)
    if (causal or keep is not None) and has_nan(context):
        return shielded_attention(context, q, k, v, keep, causal, dropout)
    return context


def fused_attention(q, k, v, keep, causal, dropout) -> Float[Tensor, "B H L D"]:
    """One call of SDPA. Causal, square and without `keep`, it builds no mask at all: the fast path."""
    L, S = q.shape[-2], k.shape[-2]
    options = {"dropout_p": dropout, "enable_gqa": q.shape[1] != k.shape[1]}
    if causal and keep is None and L == S:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)  # (B, H, L, D)
    mask = joint_mask(keep, causal, L, S, q.device)
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, **options)  # (B, H, L, D)
    mask, empty = open_empty_rows(mask)
    context = F.scaled_dot_product_attention(q, k, v, mask, **options)  # (B, H, L, D)
    return context.masked_fill(empty, 0)


def has_nan(context: Tensor) -> bool:
    """Whether a sum over what came out is NaN: then something not finite came in.

    0 * NaN and 0 * inf are NaN, so poison from a forbidden place always shows. Looking costs one
    pass over the output. Only the CPU looks, uncompiled: elsewhere a program would have to wait.
    """
    if context.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return bool(context.detach().sum().isnan())
    except RuntimeError:  # there is no value to look at: inside torch.func.vmap, for one
        return False


def shielded_attention(context, q, k, v, keep, causal, dropout) -> Float[Tensor, "B H L D"]:
    """`context`, mended for the queries that may not attend to the keys that hold NaN or inf.

    Needed where a key is forbidden to some queries only: the future, under `causal`. What a query
    may attend to is never hidden: its row stays as it came out.
    """
    broken = ~(k.isfinite().all(-1) & v.isfinite().all(-1))[..., None]  # (B, G, S, 1)
    if not broken.any():  # then it is a query that holds NaN
        return context
    mended = fused_attention(q, k.masked_fill(broken, 0), v.masked_fill(broken, 0), keep, causal, dropout)
    mask = joint_mask(keep, causal, q.shape[-2], k.shape[-2], q.device)
    if mask is None:
        return context
    seen = mask.to(q.dtype) @ share_heads(broken, q.shape[1]).to(q.dtype)  # (B, H, L, 1), how many of them
    return torch.where(seen > 0, context.detach(), mended)


def attention_weights(
    q: Float[Tensor, "B H L D"], k: Float[Tensor, "B G S D"], keep=None, causal: bool = False
) -> Float[Tensor, "B H L S"]:
    """softmax(Q K^T / sqrt(D), keep and causal): rows add up to 1, or to 0 where nothing is allowed.

    Forbidden scores become -inf, whatever stood there: a finite stand-in such as -1e4 can win,
    and -1e9 does not fit into float16 (NVIDIA/apex#1105). Half types are computed in float32.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    with in_own_precision(q):
        scores = q.to(wide) / math.sqrt(q.shape[-1]) @ share_heads(k, q.shape[1]).to(wide).mT  # (B, H, L, S)
    mask = joint_mask(keep, causal, *scores.shape[-2:], q.device)
    if mask is None:
        return scores.softmax(dim=-1).to(q.dtype)
    mask, empty = open_empty_rows(mask)
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return weights.masked_fill(empty, 0).to(q.dtype)


class ExactCore(Core):
    """What the exact cores share: whichever way the context came about, these are the weights behind it."""

    def weights(self, q, k, *, keep, causal):
        return attention_weights(q, k, keep, causal)


@core_of(attention)
class SDPACore(ExactCore):
    """softmax(Q K^T / sqrt(D)) V by whichever of PyTorch's kernels fits: the default."""

    name, can = "sdpa", COURSE["sdpa"]

    def attend(self, q, k, v, *, keep, causal, dropout):
        return attention(q, k, v, keep, causal, dropout)
