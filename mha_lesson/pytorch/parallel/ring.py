"""Each rank has a piece of the tokens; keys and values travel round a ring.

    step 0    rank r has the queries of piece r, and its keys and values
    step s    it has those of piece r - s (mod world), which the rank before it has sent on

In each step a rank computes attention of its queries over the keys it holds: an answer and its
log-sum-exp. The answers are merged (`mha_lesson.pytorch.cores.tiled.merge`). While it computes, the keys
are on their way already. After `world` steps every query has met every key, and no rank ever held
more than two pieces of them: the length of the text is limited by all memories together.

Causal: a piece that lies in the future is skipped, the rank's own gets the triangle. So the last
rank computes over `world` pieces where the first one has 1, and all wait for it: give each rank a
piece from the front and one from the back ("zig-zag"), and all have the same. `ring_work` counts.

    q (B, H, n, D), k and v (B, G, n, D)     n tokens a rank, the same for all

Source: Liu, Zaharia & Abbeel 2023, "Ring Attention with Blockwise Transformers".
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from mha_lesson.pytorch.cores.core import COURSE, Core, core_of
from mha_lesson.pytorch.cores.tiled import attention_with_lse, merge
from mha_lesson.pytorch.parallel.traffic import count

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def ring_attention(
    q: Float[Tensor, "B H n D"],
    k: Float[Tensor, "B G n D"],
    v: Float[Tensor, "B G n D"],
    causal: bool = False,
    group=None,
) -> Float[Tensor, "B H n D"]:
    """This rank's rows of attention over the tokens of all ranks, in the order of the ranks.

    Without gradients: for training the keys would have to travel once more.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    _check(q, k, v, causal, world, group)
    held = torch.stack([k, v]).contiguous()  # (2, B, G, n, D), sent as one
    wide = torch.promote_types(q.dtype, torch.float32)  # half types travel as they are; rounded once, at the end
    answer = None
    for step in range(world):
        source = (rank - step) % world  # whose keys these are
        on_their_way = _pass_on(held, rank, world, group) if step + 1 < world else None
        if source <= rank or not causal:
            part = attention_with_lse(q.to(wide), *held.to(wide), causal=causal and source == rank)
            answer = part if answer is None else merge(*answer, *part)
        if on_their_way is not None:
            held, requests = on_their_way
            for request in requests:
                request.wait()
    return answer[0].to(q.dtype)


def _pass_on(held: Tensor, rank: int, world: int, group) -> tuple[Tensor, list]:
    """Begin to send to the next rank and to receive from the one before: (what will arrive, requests)."""
    arriving = torch.empty_like(held)
    after, before = (dist.get_global_rank(group or dist.group.WORLD, r % world) for r in (rank + 1, rank - 1))
    send = dist.P2POp(dist.isend, count("send", held), after, group)
    receive = dist.P2POp(dist.irecv, arriving, before, group)
    return arriving, dist.batch_isend_irecv([send, receive])


def _check(q, k, v, causal, world, group) -> None:
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise ValueError("q, k, v: expected tensors without gradients (call it under torch.no_grad()): they stop here.")
    if any(x.dim() != 4 for x in (q, k, v)) or k.shape != v.shape or q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q, k, v: expected four axes (batch, heads, tokens, width), k and v of one shape, and as many tokens in "
            f"each, got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}."
        )
    if q.dtype not in FLOATS or not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k, v: expected one of {FLOATS} for all three, got {q.dtype}, {k.dtype}, {v.dtype}.")
    # All ranks compare the same list, so all of them raise, and none waits for ever.
    mine = torch.tensor([*q.shape, *k.shape, FLOATS.index(q.dtype), causal], device=q.device)
    sizes = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(sizes, mine, group=group)
    if any(not torch.equal(sizes[0], other) for other in sizes):
        tokens = [int(size[2]) for size in sizes]
        if len(set(tokens)) > 1:
            raise ValueError(
                f"q, k, v: expected pieces of one size on all ranks, got {tokens} tokens. Under causal, pad the last "
                f"piece and drop the rows of the padding. Else start a number of ranks that divides the tokens."
            )
        raise ValueError(
            f"q, k, v: expected the same shapes, dtype and causal on all ranks, got {tuple(q.shape)}, "
            f"{tuple(k.shape)}, {q.dtype}, causal={causal} on this one, and something else on another."
        )


def ring_work(world_size: int, order: str = "plain") -> list[int]:
    """Blocks of scores that each rank computes under causal, when the tokens are cut into 2·world blocks.

    order: "plain" gives rank r the blocks 2r and 2r + 1; "zigzag" gives it r and 2·world - 1 - r.
    """
    if order not in ("plain", "zigzag"):
        raise ValueError(f'order: expected "plain" or "zigzag", got {order!r}.')
    mine = {"plain": lambda r: (2 * r, 2 * r + 1), "zigzag": lambda r: (r, 2 * world_size - 1 - r)}[order]
    return [sum(block + 1 for block in mine(rank)) for rank in range(world_size)]


@core_of(ring_attention)
class RingCore(Core):
    """`ring_attention`: the layer is given this rank's piece of the tokens, and gives their outputs.

    layer = MultiHeadAttention(64, 8, core=RingCore())          the same weights on every rank
    with torch.no_grad(): output = layer(my_piece, causal=True)

    Rotary positions go on where the pieces of the ranks before end.
    """

    name, can = "ring", COURSE["ring"]

    def __init__(self, group=None):
        self.group = group

    @torch.compiler.disable
    def attend(self, q, k, v, *, keep, causal, dropout):
        return ring_attention(q, k, v, causal, self.group)

    def positions(self, L, device=None):
        return dist.get_rank(self.group) * L + torch.arange(L, device=device)
