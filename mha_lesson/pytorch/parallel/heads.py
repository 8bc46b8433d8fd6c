"""Each rank has some of the heads.

Heads do not meet before W_O, and there they are added: MultiHead(X) = sum over heads of O_h W_O[h].
So a rank takes the rows of W_Q, W_K, W_V that make its heads, and the columns of W_O that read
them. Its output is a part of a sum; one all-reduce adds the parts.

    forwards    X -> f -> my heads -> g -> output          g adds up the parts
    backwards   dX <- f <- my heads <- g <- d output       f adds up the gradients of X

    f   the same X for everybody forwards; backwards each rank knows only its heads' share of dX
    g   a sum forwards; backwards everybody's part has the same gradient

    x, output (B, L, E) the same on every rank;  q_proj (E / world, E), out_proj (E, E / world)

Source: Shoeybi et al. 2019, "Megatron-LM", section 3 (f and g).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mha_lesson.pytorch.module import MultiHeadAttention
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
    """

    def __init__(self, local: MultiHeadAttention, out_bias: nn.Parameter | None, group=None):
        super().__init__()
        self.local, self.out_bias, self.group = local, out_bias, group

    @classmethod
    def from_layer(cls, layer: MultiHeadAttention, group=None) -> "HeadParallelAttention":
        """This rank's heads of `layer`, whose weights must be the same on every rank.

        Fewer key/value heads than ranks: a head is kept by each rank that has one of its query heads,
        and the gradients of its copies must be added up.
        """
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        if layer.num_heads % world:
            raise ValueError(
                f"layer: expected a number of heads that {world} ranks can share evenly, got {layer.num_heads}."
            )
        heads = layer.num_heads // world
        my_heads = range(rank * heads, (rank + 1) * heads)
        mine = sorted({h * layer.num_kv_heads // layer.num_heads for h in my_heads})  # key/value heads they read
        if heads % len(mine):
            raise ValueError(
                f"layer: expected key/value heads that the {heads} heads of a rank share evenly, got "
                f"{layer.num_kv_heads} for {layer.num_heads} heads on {world} ranks."
            )
        return cls(_some_heads(layer, my_heads, mine), _copy_of(layer.out_proj.bias), group)

    def forward(self, query, key=None, value=None, keep=None, causal: bool = False) -> Tensor:
        """The layer's output (B, L, E), the same on every rank. keep of one head or of none: (L, S), (B, 1, L, S)."""
        seen: dict[int, Tensor] = {}  # the same tensor as query and key is one input, and one sum backwards

        def shared(x):
            return None if x is None else seen.setdefault(id(x), _Copy.apply(x, self.group))

        part = self.local(shared(query), shared(key), shared(value), keep=keep, causal=causal)  # (B, L, E)
        output = _Sum.apply(part, self.group)
        return output if self.out_bias is None else output + self.out_bias  # once, not once a rank


def _some_heads(layer: MultiHeadAttention, heads: range, kv_heads: list[int]) -> MultiHeadAttention:
    """A layer with these heads alone. Its d_model is that of the whole, the width inside is smaller."""
    D = layer.d_model // layer.num_heads
    rows = _features(heads, D)
    kv_rows = _features(kv_heads, D)
    local = MultiHeadAttention(
        layer.d_model, layer.num_heads, layer.num_kv_heads, bias=layer.q_proj.bias is not None,
        dropout=layer.dropout, kdim=layer.kdim, vdim=layer.vdim, device="meta",
    )  # fmt: skip
    local.num_heads, local.num_kv_heads = len(heads), len(kv_heads)
    local.q_proj = _linear(layer.q_proj.weight[rows], _part(layer.q_proj.bias, rows))
    local.k_proj = _linear(layer.k_proj.weight[kv_rows], _part(layer.k_proj.bias, kv_rows))
    local.v_proj = _linear(layer.v_proj.weight[kv_rows], _part(layer.v_proj.bias, kv_rows))
    local.out_proj = _linear(layer.out_proj.weight[:, rows], None)
    return local.train(layer.training)


def _features(heads, D: int) -> Tensor:
    """The features that belong to these heads: h·D to (h + 1)·D of each."""
    return torch.cat([torch.arange(h * D, (h + 1) * D) for h in heads])


def _part(bias, rows):
    return None if bias is None else bias[rows]


def _copy_of(parameter):
    return None if parameter is None else nn.Parameter(parameter.detach().clone())


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear map with copies of these weights."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().clone())
    return made


def parallelize(layer: MultiHeadAttention, mesh) -> MultiHeadAttention:
    """The same by PyTorch's own tools: DTensor cuts the weights, and sends what has to be sent.

        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))

    Changes the layer in place. Needs num_heads and num_kv_heads that the ranks can share evenly.
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
