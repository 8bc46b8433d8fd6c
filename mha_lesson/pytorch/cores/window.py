"""Attention in a sliding window: each query sees itself and the width - 1 keys before it.

    may attend (i, j):   i - width < j <= i          i, j places among the keys, i = query + S - L
                         or j < sinks and j <= i     the first keys, if asked for

A dense mask (`steps.masks.window_mask`) gives the right numbers, and computes N scores a query to
throw away all but `width`. Here the queries go in chunks, and the queries at the places a, ..., b
meet the keys a - width + 1, ..., b only: less than chunk + width scores a query, so O(N · width) in
time, and no more scores in memory than those of one chunk. Two corners of each need a mask:

                keys   a - width + 1  ...  a  ...  b
    query a            x  x  x  x  x  x  x  .  .  .           x  sees
    query ...          .  x  x  x  x  x  x  x  .  .           .  hidden
    query b            .  .  .  x  x  x  x  x  x  x

It is exact for the window, and the window is an approximation of full attention: what is further
away than `width` is reached through further layers only, width - 1 steps back with each.

A model trained on full attention puts much weight on its first tokens: a softmax must spend a sum
of 1 somewhere. When the window leaves them behind, such a model breaks down; with a few of them
kept visible (`sinks`; 4 in the paper) it runs on.

    q (B, H, L, D)   k (B, G, S, D)   v (B, G, S, V)  ->  (B, H, L, V)
    B batch, H query heads, G key/value heads, L queries, S keys, D and V head widths

Sources: Beltagy et al. 2020, "Longformer", section 3.1 (the window); Jiang et al. 2023, "Mistral
7B", section 2 (the same, causal); Xiao et al. 2023, "Efficient Streaming Language Models with
Attention Sinks" (StreamingLLM), section 3.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from collections.abc import Callable
from numbers import Integral

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mha_lesson.pytorch.cores.core import COURSE, Core, core_of
from mha_lesson.pytorch.cores.sdpa import attention, attention_weights, has_nan
from mha_lesson.pytorch.cores.tiled import check_inputs
from mha_lesson.pytorch.masks import causal_mask

CHUNK = 64  # small, for the two corners that are masked away grow with it; not too small for matrix products


def window_attention(
    q: Float[Tensor, "B H L D"],
    k: Float[Tensor, "B G S D"],
    v: Float[Tensor, "B G S V"],
    width: int,
    chunk: int | None = None,
    sinks: int = 0,
) -> Float[Tensor, "B H L V"]:
    """softmax(Q K^T / sqrt(D)) V over each query's window; causal, the last query stands at the last key.

    chunk: queries at a time, None = a good number; the answer does not depend on it.
    sinks: so many of the first keys stay visible to all queries that come after them.
    A query that stands before the first key (where L > S) gets 0.
    """
    chunk = CHUNK if chunk is None else chunk
    check_inputs(q, k, v)
    check_numbers(width=(width, 1), chunk=(chunk, 1), sinks=(sinks, 0))
    if width >= k.shape[2]:
        return attention(q, k, v, causal=True)  # (B, H, L, V)
    output = by_chunks(plain, q, k, v, width, chunk, sinks)
    if has_nan(output):  # if it came from a key that is hidden from a query, that query must not see it
        output = by_chunks(attention, q, k, v, width, chunk, sinks)
    return output


def plain(q, k, v, keep) -> Float[Tensor, "B H L V"]:
    """SDPA as it is: each query of a window sees itself, so that no row is empty."""
    return F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=q.shape[1] != k.shape[1])


def by_chunks(attend: Callable, q, k, v, width: int, chunk: int, sinks: int) -> Float[Tensor, "B H L V"]:
    """attend(query, keys, values, keep) for each chunk of queries, the outputs one after the other."""
    L, S = q.shape[2], k.shape[2]
    sinks = min(sinks, S)
    early = max(L - S, 0)  # queries that stand before the first key
    queries = q[:, :, early:].split(chunk, dim=2)  # of (B, H, chunk, D), the last one may be shorter
    starts = [max(S - L, 0) + i * chunk for i in range(len(queries))]  # the place of each one's first query
    key_parts, value_parts = (cut(x, starts, chunk, width) for x in (k, v))
    first_keys, first_values = k[:, :, :sinks], v[:, :, :sinks]  # (B, G, sinks, D), (B, G, sinks, V)
    masks, outputs = {}, []
    for start, query, keys, values in zip(starts, queries, key_parts, value_parts, strict=True):
        # Once the window has left the sinks behind, the mask is the same wherever it stands.
        place = min(start, width + sinks), query.shape[2]
        if place not in masks:
            masks[place] = window_of(*place, chunk, width, sinks, q.device)
        if sinks:
            keys = torch.cat([first_keys, keys], dim=2)  # (B, G, sinks + width - 1 + chunk, D)
            values = torch.cat([first_values, values], dim=2)  # (B, G, sinks + width - 1 + chunk, V)
        outputs.append(attend(query, keys, values, masks[place]))  # (B, H, chunk, V)
    return F.pad(torch.cat(outputs, dim=2), (0, 0, early, 0))  # (B, H, L, V)


def cut(x: Float[Tensor, "B G S D"], starts: list[int], chunk: int, width: int) -> tuple[Tensor, ...]:
    """For each chunk of queries the keys at the places start - width + 1 to start + chunk - 1.

    Neighbours overlap, and are views of one padded copy. Slices would give the same numbers; but
    the gradient of each slice is an array as long as x, so that backwards takes O(N²) again.
    """
    first, last = starts[0] - width + 1, starts[-1] + chunk
    x = x[:, :, max(first, 0) :]
    x = F.pad(x, (0, 0, max(-first, 0), last - max(first, 0) - x.shape[2]))  # (B, G, width - 1 + n·chunk, D)
    parts = x.unfold(2, width - 1 + chunk, chunk).mT  # (B, G, n, width - 1 + chunk, D)
    return parts.unbind(dim=2)


def window_of(start: int, n: int, chunk: int, width: int, sinks: int, device) -> Bool[Tensor, "n s"]:
    """What the queries at `start`, ... may see: of the sinks, and of the keys that `cut` gave them."""
    query = torch.arange(start, start + n, device=device)[:, None]  # (n, 1)
    key = torch.arange(start - width + 1, start + chunk, device=device)  # (width - 1 + chunk,)
    window = (key <= query) & (key > query - width) & (key >= 0)  # (n, width - 1 + chunk)
    sink = torch.arange(sinks, device=device) <= query - width  # (n, sinks), once the window left it behind
    return torch.cat([sink, window], dim=1)  # (n, sinks + width - 1 + chunk)


def check_numbers(**numbers: tuple[int, int]):
    """An error for a number below its least."""
    for name, (number, least) in numbers.items():
        if not isinstance(number, Integral) or number < least:
            raise ValueError(f"{name}: expected a whole number from {least} on, got {number!r}.")


# ------------------------------------------------------------------------------ in the layer


@core_of(window_attention)
class WindowCore(Core):
    """`window_attention`: causal, each query sees the last `width` keys, and the first `sinks`.

    Padding on the right needs no mask: it lies in the future of every real token. Served from a
    cache, the layer needs one that forgets in the same way: KVCache(window=width).
    """

    name, can = "window", COURSE["window"]

    def __init__(self, width: int, chunk: int | None = None, sinks: int = 0):
        check_numbers(width=(width, 1), chunk=(CHUNK if chunk is None else chunk, 1), sinks=(sinks, 0))
        self.width, self.chunk, self.sinks = width, chunk, sinks

    def attend(self, q, k, v, *, keep, causal, dropout):
        return window_attention(q, k, v, self.width, self.chunk, self.sinks)

    def weights(self, q, k, *, keep, causal):
        L, S = q.shape[2], k.shape[2]
        near = ~causal_mask(L, S, q.device).tril(S - L - self.width)  # (L, S), False at those too far back
        near[:, : self.sinks] = True
        return attention_weights(q, k, near, causal=True)

    def check_cache(self, cache):
        if self.sinks:
            raise ValueError(f"cache: expected None with a window that keeps {self.sinks} sinks. Leave the cache out.")
        if cache.window != self.width:
            raise ValueError(
                f"cache: expected KVCache(window={self.width}), which forgets as this layer's core does, "
                f"got window={cache.window}."
            )
