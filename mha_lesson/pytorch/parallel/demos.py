"""What the ranks do in lesson 13, and under torchrun: compute together, compare with one process."""

import os

import torch
import torch.distributed as dist
from torch.nn import functional as F

from mha_lesson.pytorch.layer import MultiHeadAttention
from mha_lesson.pytorch.parallel.heads import HeadParallelAttention
from mha_lesson.pytorch.parallel.ring import ring_attention
from mha_lesson.pytorch.parallel.traffic import Traffic


def heads_demo(rank: int, world: int, device="cpu", dtype=torch.float32) -> dict:
    """A layer of 8 heads, its heads shared out: how far from one process, and how many bytes were handed over."""
    torch.manual_seed(0)  # the same layer and the same tokens on each rank
    layer = MultiHeadAttention(64, 8, num_kv_heads=4, dtype=dtype)
    for bias in (p for p in layer.parameters() if p.dim() == 1):
        torch.nn.init.normal_(bias)  # a new layer's are 0, and then nothing shows whether they are added once
    layer = layer.to(device)
    x = torch.randn(2, 23, 64, dtype=dtype).to(device).requires_grad_()
    probe = torch.randn(2, 23, 64, dtype=dtype).to(device)
    whole = layer(x, causal=True)
    (whole_gradient,) = torch.autograd.grad(whole, x, probe)
    mine = HeadParallelAttention.from_layer(layer)
    with Traffic() as traffic:
        output = mine(x, causal=True)
        (gradient,) = torch.autograd.grad(output, x, probe)
    return {
        "error": (output - whole).abs().max().item(),
        "gradient error": (gradient - whole_gradient).abs().max().item(),
        "bytes": traffic.bytes,
        "weights": sum(p.numel() for p in mine.parameters()),
    }


def ring_demo(rank: int, world: int, device="cpu", dtype=torch.float32) -> dict:
    """24 tokens a rank, causal, the keys travelling: how far from one process, and how many bytes were handed over."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 24 * world, 16, generator=generator, dtype=dtype) for heads in (6, 3, 3))
    q, k, v = (x.to(device) for x in (q, k, v))
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    piece = slice(24 * rank, 24 * (rank + 1))
    with Traffic() as traffic:
        mine = ring_attention(*(x[:, :, piece] for x in (q, k, v)), causal=True)
    return {"error": (mine - whole[:, :, piece]).abs().max().item(), "bytes": traffic.bytes}


def dying_demo(rank: int, world: int) -> None:
    """The last rank is killed; the others wait for it in vain."""
    if rank == world - 1:
        os._exit(7)
    dist.barrier()
