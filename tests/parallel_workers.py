"""What the ranks of test_parallel.py do. New processes import this file."""

import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from mha_lesson.pytorch import MultiHeadAttention
from mha_lesson.pytorch.parallel import (
    HeadParallelAttention,
    Traffic,
    head_parallel_bytes,
    parallelize,
    ring_attention,
    ring_bytes,
)


def error_of(action):
    """What an action that must fail says."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def far(a, b):
    return (a - b).abs().max().item()


def layer_and_inputs(dtype, num_heads=4, num_kv_heads=4, seed=0):
    torch.manual_seed(seed)
    layer = MultiHeadAttention(24, num_heads, num_kv_heads, kdim=10, vdim=14, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.normal_()  # biases that would show if they were added once a rank
    x, key, value = (torch.randn(3, n, width, dtype=dtype) for n, width in ((5, 24), (7, 10), (7, 14)))
    return layer, x, key, value, torch.randn(3, 5, 24, dtype=dtype)


def one_layer(rank, world, dtype, num_kv_heads):
    """Distances of output, input gradients and weight gradients from one process, and the bytes."""
    layer, x, key, value, probe = layer_and_inputs(dtype, num_kv_heads=num_kv_heads)
    keep = torch.rand(3, 1, 5, 7, generator=torch.Generator().manual_seed(1)) > 0.3
    inputs = [t.requires_grad_() for t in (x, key, value)]
    whole = layer(*inputs, keep=keep, causal=True)
    mine = HeadParallelAttention.from_layer(layer)
    with Traffic() as traffic:
        part = mine(*inputs, keep=keep, causal=True)
    weights = [layer.q_proj.weight, layer.out_proj.weight, layer.out_proj.bias, layer.k_proj.weight]
    want = torch.autograd.grad(whole, [*inputs, *weights], probe)
    local = mine.local
    got = torch.autograd.grad(
        part, [*inputs, local.q_proj.weight, local.out_proj.weight, mine.out_bias, local.k_proj.weight], probe
    )
    rows = slice(24 // world * rank, 24 // world * (rank + 1))
    gradients = [far(a, b) for a, b in zip(got[:3], want[:3], strict=True)]
    gradients += [far(got[3], want[3][rows]), far(got[4], want[4][:, rows]), far(got[5], want[5])]
    if num_kv_heads == 4:
        gradients.append(far(got[6], want[6][rows]))
    else:  # copies of one head: their gradients add up
        total = got[6].clone()
        dist.all_reduce(total)
        gradients.append(far(total, want[6]) if num_kv_heads == 1 else 0.0)
    same = part.detach().clone()
    dist.broadcast(same, 0)
    return {
        "output": far(part, whole), "gradients": max(gradients), "same everywhere": far(part, same),
        "bytes": traffic.bytes, "predicted": head_parallel_bytes(3, 5, 24, x.element_size()),
        "calls": traffic.calls,
    }  # fmt: skip


def backward_bytes(rank, world):
    """Self-attention: one all-reduce forwards, one backwards."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 4)
    x = torch.randn(2, 7, 16).requires_grad_()
    with Traffic() as traffic:
        HeadParallelAttention.from_layer(layer)(x, causal=True).sum().backward()
    return traffic.bytes, head_parallel_bytes(2, 7, 16, backward=True), traffic.calls


def dtensor(rank, world):
    """PyTorch's own tools give the same, gradients too."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, 4, dtype=torch.float64)
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    probe = torch.randn(2, 5, 24, dtype=torch.float64)
    a = x.clone().requires_grad_()
    whole = layer(a, causal=True)
    (want,) = torch.autograd.grad(whole, a, probe)
    cut = parallelize(layer, init_device_mesh("cpu", (world,)))
    b = x.clone().requires_grad_()
    output = cut(b, causal=True)
    (got,) = torch.autograd.grad(output, b, probe)
    return far(output, whole), far(got, want)


def one_ring(rank, world, dtype, causal, heads=6, kv_heads=3, tokens=5):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, h, tokens * world, 7) for h in (heads, kv_heads, kv_heads)]
    q, k, v = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    piece = slice(tokens * rank, tokens * (rank + 1))
    with Traffic() as traffic:
        mine = ring_attention(*(x[:, :, piece] for x in (q, k, v)), causal=causal)
    predicted = ring_bytes(2, kv_heads, tokens, 7, world, k.element_size())
    return {"output": far(mine, whole[:, :, piece]), "bytes": traffic.bytes, "predicted": predicted}


def everything(rank, world):
    """All that can be looked at in one start of the processes."""
    layers = {
        f"{str(dtype)[6:]}, {kv} kv heads": one_layer(rank, world, dtype, kv)
        for dtype in (torch.float64, torch.float32)
        for kv in (4, 2, 1)
    }
    rings = {
        f"{str(dtype)[6:]}, causal {causal}": one_ring(rank, world, dtype, causal)
        for dtype in (torch.float64, torch.float32)
        for causal in (False, True)
    }
    x = torch.ones(1, 2, 3, 4)
    refused = {
        "heads": error_of(lambda: HeadParallelAttention.from_layer(MultiHeadAttention(21, 3))),
        "gradients": error_of(lambda: ring_attention(x.clone().requires_grad_(), x, x)),
        "pieces": error_of(lambda: ring_attention(*(torch.ones(1, 2, 3 + rank, 4),) * 3)),
        "tokens": error_of(lambda: ring_attention(x, x[:, :, :2], x[:, :, :2])),
    }
    found = {"layers": layers, "rings": rings, "refused": refused, "backward": backward_bytes(rank, world)}
    if world == 2:
        found["dtensor"] = dtensor(rank, world)
    return found


def returns(rank, world, a, b):
    return {"rank": rank, "sum": a + b, "array": np.full(3, rank), "tensor": torch.full((2,), rank)}


def raises(rank, world):
    if rank == 1:
        raise KeyError("the second rank cannot go on")
    dist.barrier()


def is_killed(rank, world):
    if rank == 0:
        os.kill(os.getpid(), 9)
    dist.barrier()


def sleeps(rank, world):
    time.sleep(600)
