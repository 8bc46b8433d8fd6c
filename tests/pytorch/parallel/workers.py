"""What the ranks do. New processes import this file."""

import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from mha_lesson.pytorch import MultiHeadAttention
from mha_lesson.pytorch.cores import RingCore
from mha_lesson.pytorch.parallel import (
    HeadParallelAttention,
    Traffic,
    head_parallel_bytes,
    heads,
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


def layers_of_all_kinds(rank, world):
    return {
        f"{str(dtype)[6:]}, {kv} kv heads": one_layer(rank, world, dtype, kv)
        for dtype in (torch.float64, torch.float32)
        for kv in (4, 2, 1)
    }


def rings_of_all_kinds(rank, world):
    return {
        f"{str(dtype)[6:]}, causal {causal}": one_ring(rank, world, dtype, causal)
        for dtype in (torch.float64, torch.float32)
        for causal in (False, True)
    }


def refused_by_all(rank, world):
    x = torch.ones(1, 2, 3, 4)
    return {
        "heads": error_of(lambda: HeadParallelAttention.from_layer(MultiHeadAttention(21, 3))),
        "gradients": error_of(lambda: ring_attention(x.clone().requires_grad_(), x, x)),
        "pieces": error_of(lambda: ring_attention(*(torch.ones(1, 2, 3 + rank, 4),) * 3)),
        "tokens": error_of(lambda: ring_attention(x, x[:, :, :2], x[:, :, :2])),
    }


def features(heads, D):
    return [h * D + i for h in heads for i in range(D)]


def uneven_heads(rank, world, num_heads, num_kv_heads, rotary_base=None):
    """Distances from one process when key/value heads have copies, each query head with a mask of its own."""
    torch.manual_seed(0)
    D, dtype = 4, torch.float64
    layer = MultiHeadAttention(num_heads * D, num_heads, num_kv_heads, rotary_base=rotary_base, dtype=dtype)
    torch.nn.init.normal_(layer.k_proj.bias)
    torch.nn.init.normal_(layer.v_proj.bias)
    layer.out_proj.bias.requires_grad_(False)
    x, probe = (torch.randn(2, 5, num_heads * D, dtype=dtype) for _ in range(2))
    keep = torch.rand(2, num_heads, 5, 5) > 0.4
    keep[1, :, 2] = False  # a query that may attend to nothing
    mine = HeadParallelAttention.from_layer(layer)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    whole, output = layer(a, keep=keep), mine(b, keep=keep)
    whole.backward(probe)
    output.backward(probe)
    mine.add_copies()
    rows, kv_rows = features(mine.heads, D), features(mine.kv_heads, D)
    pairs = {"output": (output, whole), "input": (b.grad, a.grad)}
    pairs["one sequence"] = mine(x[0], causal=True), layer(x[0], causal=True)
    pairs["one sequence, masks"] = mine(x[1], keep=keep[1]), layer(x[1], keep=keep[1])
    for name in ("q_proj", "k_proj", "v_proj"):
        for part in ("weight", "bias"):
            got, want = (getattr(getattr(l, name), part).grad for l in (mine.local, layer))
            pairs[f"{name}.{part}"] = got, want[rows if name == "q_proj" else kv_rows]
    pairs["out_proj.weight"] = mine.local.out_proj.weight.grad, layer.out_proj.weight.grad[:, rows]
    distances = {name: far(*pair) for name, pair in pairs.items()}
    return distances, mine.kv_heads, mine.out_bias.requires_grad


def rounded_once(rank, world, dtype):
    """Whether a ring in half precision is as exact as one rounding at the end."""
    rng = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 3, 5 * world, 7, generator=rng).to(dtype) for _ in range(3))
    mine = slice(5 * rank, 5 * (rank + 1))
    output = ring_attention(*(x[:, :, mine] for x in (q, k, v)), causal=True)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)[:, :, mine]
    half_a_digit = torch.finfo(dtype).eps / 2
    return output.dtype == dtype and bool(((output - exact).abs() <= exact.abs() * half_a_digit + 1e-6).all())


def bytes_seen(rank, world):
    """(what Traffic counted, what torch.distributed was handed) for both ways, seen from outside."""
    seen = {"bytes": 0}
    all_reduce, batch = dist.all_reduce, dist.batch_isend_irecv

    def watched_reduce(tensor, *args, **kwargs):
        seen["bytes"] += tensor.nbytes
        return all_reduce(tensor, *args, **kwargs)

    def watched_batch(operations):
        seen["bytes"] += sum(one.tensor.nbytes for one in operations if one.op is dist.isend)
        return batch(operations)

    found = []
    dist.all_reduce, dist.batch_isend_irecv = watched_reduce, watched_batch
    try:
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            with Traffic() as outer, Traffic() as inner:
                layer = MultiHeadAttention(20, 4, dtype=dtype)
                HeadParallelAttention.from_layer(layer)(torch.ones(2, 5, 20, dtype=dtype))
                ring_attention(*(torch.ones(2, h, 5, 7, dtype=dtype) for h in (6, 2, 2)))
            found.append((outer.bytes, inner.bytes, seen["bytes"]))
            seen["bytes"] = 0
    finally:
        dist.all_reduce, dist.batch_isend_irecv = all_reduce, batch
    ring_attention(*torch.ones(3, 1, 2, 3, 4))  # after it was closed
    return found, outer.bytes


def sums(rank, world):
    """What f and g make of a tensor of ones, both ways, and whether that tensor is still what it was."""
    found = {}
    for name, function in (("f", heads._Copy), ("g", heads._Sum)):
        x, gradient = torch.ones(3, requires_grad=True), torch.ones(3)
        forwards = function.apply(x, None)
        (backwards,) = torch.autograd.grad(forwards, x, gradient)
        untouched = bool((x == 1).all() and (gradient == 1).all())
        found[name] = forwards[0].item(), backwards[0].item(), untouched
    return found


def in_a_group(rank, world):
    """Ranks 1 and 3 alone share a layer and a text; the others have nothing to do with it."""
    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        return None
    place = dist.get_rank(group)  # 0 or 1
    torch.manual_seed(3)
    layer, x = MultiHeadAttention(8, 2, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    q, k, v = torch.randn(3, 2, 3, 10, 4, dtype=torch.float64)
    piece = slice(5 * place, 5 * (place + 1))
    ring = ring_attention(*(t[:, :, piece] for t in (q, k, v)), causal=True, group=group)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, piece]
    mine = HeadParallelAttention.from_layer(layer, group)
    return far(mine(x), layer(x)), far(ring, whole), mine.heads


def refused_by_four(rank, world):
    x = torch.ones(1, 2, 3, 4)
    layer = HeadParallelAttention.from_layer(MultiHeadAttention(20, 4))
    tokens = torch.ones(2, 5, 20)
    half = torch.float16 if rank else torch.bfloat16  # as many bytes

    def says_of(action):
        try:
            action()
        except (ValueError, TypeError) as error:
            return f"{type(error).__name__} {error}"
        return "nothing was raised"

    return {
        "not all causal": says_of(lambda: ring_attention(x, x, x, causal=rank == 1)),
        "two formats": says_of(lambda: ring_attention(*(x.to(half),) * 3)),
        "three axes": says_of(lambda: ring_attention(x[0], x[0], x[0])),
        "whole numbers": says_of(lambda: ring_attention(*(x.long(),) * 3)),
        "my heads only": says_of(lambda: layer(tokens, keep=torch.ones(2, 3, 5, 5, dtype=torch.bool))),
        "numbers": says_of(lambda: layer(tokens, keep=torch.ones(5, 5))),
        "another layer": says_of(lambda: HeadParallelAttention.from_layer(torch.nn.MultiheadAttention(12, 3))),
    }


# (heads, key/value heads, base of rotary positions): the key/value heads that each of 4 ranks holds
UNEVEN = {
    (12, 3, None): [[0], [0, 1, 1], [1, 1, 2], [2]],
    (12, 6, None): [[0, 0, 1], [1, 2, 2], [3, 3, 4], [4, 5, 5]],
    (24, 6, None): [[0, 0, 0, 0, 1, 1], [1, 1, 2, 2, 2, 2], [3, 3, 3, 3, 4, 4], [4, 4, 5, 5, 5, 5]],
    (4, 1, None): [[0], [0], [0], [0]],
    (8, 4, 100.0): [[0], [1], [2], [3]],
}


def layer_on_a_ring(rank, world, causal, rotary_base, tokens=5):
    """How far a layer with RingCore, given its piece of the tokens, is from the same layer over all of them."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(24, 6, 3, rotary_base=rotary_base).double().eval()
    x = torch.randn(2, world * tokens, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mine = slice(rank * tokens, (rank + 1) * tokens)
    with torch.no_grad():
        whole = layer(x, causal=causal)[:, mine]
        alone = layer(x[:, mine], causal=causal)
        layer.core = RingCore()
        return {"ring": far(layer(x[:, mine], causal=causal), whole), "without a ring": far(alone, whole)}


def layers_on_rings(rank, world):
    cases = [(causal, base) for causal in (False, True) for base in (None, 100.0)]
    found = {str(case): layer_on_a_ring(rank, world, *case) for case in cases}
    x = torch.zeros(1, 2, 6)
    layer = MultiHeadAttention(6, 2, core=RingCore())
    found["refused"] = error_of(lambda: layer(x))
    return found


def all_of_it(rank, world):
    """All that the tests look at, in one start of the processes."""
    found = {
        "layers": layers_of_all_kinds(rank, world),
        "rings": rings_of_all_kinds(rank, world),
        "refused": refused_by_all(rank, world),
        "backward": backward_bytes(rank, world),
        "layers on rings": layers_on_rings(rank, world),
    }
    if world == 2:
        return found | {"dtensor": dtensor(rank, world)}
    return found | {
        "uneven": {case: uneven_heads(rank, world, *case) for case in UNEVEN},
        "halves": {str(dtype): rounded_once(rank, world, dtype) for dtype in (torch.float16, torch.bfloat16)},
        "bytes": bytes_seen(rank, world),
        "sums": sums(rank, world),
        "group": in_a_group(rank, world),
        "disagree": refused_by_four(rank, world),
    }


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


def adds_in_place(rank, world, numbers):
    numbers += rank
    return numbers


def one_sleeps(rank, world):
    if rank == 1:
        raise ValueError("before the other is done")
    time.sleep(600)


def waits(rank, world):
    print("working", flush=True)
    time.sleep(600)
