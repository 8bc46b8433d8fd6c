"""Each rank has some of the heads.

Heads do not meet before W_O, and there they are added: MultiHead(X) = sum over heads of O_h W_O[h].
So a rank takes the rows of W_Q, W_K, W_V that make its heads, and the columns of W_O that read
them. Its output is a part of a sum; one all-reduce adds the parts.

    forwards    X -> f -> my heads -> g -> output          g adds up the parts
    backwards   dX <- f <- my heads <- g <- d output       f adds up the gradients of X

    f   the same X for everybody forwards; backwards each rank knows only its heads' share of dX
    g   a sum forwards; backwards everybody's part has the same gradient

    x, output (B, L, E) the same on every rank;  q_proj (E / world, E), out_proj (E, E / world)

Shared key/value heads (GQA) may not divide evenly: 2 of them on 4 ranks, say. Then a rank has copies
of those that its query heads read, and the gradients of all copies of a head belong together:
`add_copies` adds them up.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3 (f and g).
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mha_lesson.pytorch.layer import MultiHeadAttention
from mha_lesson.pytorch.masks import check_keep
from mha_lesson.pytorch.parallel.traffic import count


class _Copy(torch.autograd.Function):
    """f: nothing forwards, a sum over the ranks backwards."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return _sum_over_ranks(gradient, ctx.group), None


class _Sum(torch.autograd.Function):
    """g: a sum over the ranks forwards, nothing backwards."""

    @staticmethod
    def forward(ctx, x, group):
        return _sum_over_ranks(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def _sum_over_ranks(x: Tensor, group) -> Tensor:
    x = x.contiguous().clone()  # all_reduce writes into what it is given
    dist.all_reduce(count("all_reduce", x), group=group)
    return x


class HeadParallelAttention(nn.Module):
    """The heads of one rank, of a layer whose output all ranks get. Called like the layer itself.

        mine = HeadParallelAttention.from_layer(layer)      on every rank, with the same layer
        output = mine(x, causal=True)                       with the same x

    heads, kv_heads: which of the layer's heads are here; a key/value head may be here more than once.
    Dropout in training: give each rank another seed after this, or all drop in the same places.
    """

    def __init__(self, layer: MultiHeadAttention, heads: list[int], kv_heads: list[int], group=None):
        super().__init__()
        self.heads, self.kv_heads, self.group = heads, kv_heads, group
        self.num_heads, self.num_kv_heads = layer.num_heads, layer.num_kv_heads  # of the whole
        self.local = _some_heads(layer, heads, kv_heads)
        self.out_bias = _copy_of(layer.out_proj.bias)

    @classmethod
    def from_layer(cls, layer: MultiHeadAttention, group=None) -> "HeadParallelAttention":
        """This rank's heads of `layer`, whose weights must be the same on every rank."""
        if not isinstance(layer, MultiHeadAttention):
            raise TypeError(f"layer: expected a mha_lesson.pytorch.MultiHeadAttention, got {type(layer).__name__}.")
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        if layer.num_heads % world:
            raise ValueError(
                f"layer: expected a number of heads that {world} ranks can share evenly, got {layer.num_heads}. "
                f"Start a number of ranks that divides it."
            )
        n = layer.num_heads // world
        heads = list(range(rank * n, (rank + 1) * n))
        return cls(layer, heads, _heads_they_read(heads, layer), group)

    def forward(self, query, key=None, value=None, keep=None, causal: bool = False) -> Tensor:
        """The layer's output (B, L, E), the same on every rank. keep is that of the layer, for all its heads."""
        key = query if key is None else key
        value = key if value is None else value
        if keep is not None:
            shape = (*query.shape[:-2], self.num_heads, query.shape[-2], key.shape[-2])  # (*B, H, L, S)
            keep = self._my_keep(check_keep(keep, shape, query.device))
        # The same tensor as query and key is one input, and one sum backwards.
        shared = {id(x): _Copy.apply(x, self.group) for x in {id(x): x for x in (query, key, value)}.values()}
        query, key, value = (shared[id(x)] for x in (query, key, value))
        part = self.local(query, key, value, keep=keep, causal=causal)  # (B, L, E)
        output = _Sum.apply(part, self.group)
        return output if self.out_bias is None else output + self.out_bias  # once, not once a rank

    def _my_keep(self, keep):
        """The rows of a mask (..., H, L, S) that belong to this rank's heads; one for all heads stays."""
        if keep.dim() < 3 or keep.shape[-3] == 1:
            return keep
        return keep[..., self.heads, :, :]  # (..., H / world, L, S)

    @torch.no_grad()
    def add_copies(self) -> None:
        """Between backward and the optimizer's step, on all ranks: every copy of a head gets the whole gradient.

        Needed only if some key/value head has copies; without any it is right, too, and sends for nothing.
        """
        for linear in (self.local.k_proj, self.local.v_proj):
            for parameter in (p for p in linear.parameters() if p.requires_grad):
                if parameter.grad is None:  # this rank's loss did not need it; the others wait for us all the same
                    parameter.grad = torch.zeros_like(parameter)
                mine = parameter.grad.unflatten(0, (len(self.kv_heads), -1))  # (copies, D, ...)
                place = torch.tensor(self.kv_heads, device=mine.device)
                whole = mine.new_zeros((self.num_kv_heads, *mine.shape[1:])).index_add_(0, place, mine)  # (G, D, ...)
                mine.copy_(_sum_over_ranks(whole, self.group)[place])


def _heads_they_read(heads: list[int], layer: MultiHeadAttention) -> list[int]:
    """The key/value heads for these query heads: each once if they share evenly, else one for each query head.

    12 heads that share 6, on 4 ranks: the first has heads 0 1 2, which read 0 0 1. Of 12 that share 4,
    on 3 ranks, it has 0 1 2 3, which read 0 0 0 1: with two key/value heads a layer would read 0 0 1 1.
    """
    read = [h * layer.num_kv_heads // layer.num_heads for h in heads]
    once = sorted(set(read))
    even = len(read) % len(once) == 0 and read == [g for g in once for _ in range(len(read) // len(once))]
    return once if even else read


def _some_heads(layer: MultiHeadAttention, heads: list[int], kv_heads: list[int]) -> MultiHeadAttention:
    """A layer with these heads alone. Its d_model is that of the whole, the width inside is smaller."""
    D = layer.d_model // layer.num_heads
    rows, kv_rows = _features(heads, D), _features(kv_heads, D)
    local = copy.deepcopy(layer)  # with all its settings, rotary positions too
    local.num_heads, local.num_kv_heads = len(heads), len(kv_heads)
    local.q_proj = _rows_of(layer.q_proj, rows)
    local.k_proj = _rows_of(layer.k_proj, kv_rows)
    local.v_proj = _rows_of(layer.v_proj, kv_rows)
    local.out_proj = _linear(_copy_of(layer.out_proj.weight, (slice(None), rows)), None)  # (E, E / world)
    return local


def _features(heads: list[int], D: int) -> list[int]:
    """The features that belong to these heads: h·D to (h + 1)·D of each."""
    return [feature for h in heads for feature in range(h * D, (h + 1) * D)]


def _rows_of(linear: nn.Linear, rows: list[int]) -> nn.Linear:
    return _linear(_copy_of(linear.weight, rows), _copy_of(linear.bias, rows))


def _copy_of(parameter, part=...):
    """A parameter of its own with a copy of that part; frozen if that one is."""
    if parameter is None:
        return None
    return nn.Parameter(parameter.detach()[part].clone(), requires_grad=parameter.requires_grad)


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    """A linear map with these weights."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight, made.bias = weight, bias
    return made


def parallelize(layer: MultiHeadAttention, mesh) -> MultiHeadAttention:
    """The same by PyTorch's own tools: DTensor cuts the weights, and sends what has to be sent.

        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))

    Changes the layer in place: rank 0's weights are sent to all. Needs num_heads and num_kv_heads that
    the ranks can share evenly, and a mask that is one for all heads. `Traffic` does not see what it sends.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    world = mesh.size()
    for name in ("num_heads", "num_kv_heads"):
        if getattr(layer, name) % world:
            raise ValueError(f"layer: expected {name} that {world} ranks share evenly, got {getattr(layer, name)}.")
    plan = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")} | {"out_proj": RowwiseParallel()}
    layer = parallelize_module(layer, mesh, plan)
    layer.num_heads, layer.num_kv_heads = layer.num_heads // world, layer.num_kv_heads // world
    return layer
