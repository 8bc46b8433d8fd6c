"""The command `layers`: whole layers in PyTorch, with the same weights on one causal sequence.

    x  (1, N, E)   ->   (1, N, E)       N tokens, E = H·D features, H heads of width D

Forwards, and with the gradients of the input and of all weights.
"""

from collections.abc import Callable

from mha_lesson.benchmark.comparison import Comparison, needs_torch, report


def layer_forms(n: int, heads: int, d_head: int, dtype: str, backward: bool) -> dict[str, Callable]:
    """Whole layers with the same weights on one causal sequence: the output, or the input's gradient.

    Backwards, the gradients of the weights are computed too. `nn.MultiheadAttention` stays in
    training mode, where it uses SDPA; its way for evaluation builds the N×N array.
    """
    import torch

    from mha_lesson.pytorch import MultiHeadAttention

    theirs, x, probe = _layer_inputs(n, heads, d_head, dtype)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    ours = MultiHeadAttention.from_torch(theirs)
    bare = {"qkv": torch.nn.Linear(x.shape[-1], 3 * x.shape[-1], dtype=x.dtype), "out": theirs.out_proj}
    bare["qkv"].load_state_dict({"weight": theirs.in_proj_weight, "bias": theirs.in_proj_bias})
    calls = {
        "bare SDPA layer": (bare.values(), lambda x: bare_layer(x, bare["qkv"], bare["out"], heads)),
        "nn.MultiheadAttention": (
            [theirs],
            lambda x: theirs(x, x, x, attn_mask=future, is_causal=True, need_weights=False)[0],
        ),
        "mha_lesson.pytorch": ([ours], lambda x: ours(x, causal=True)),
    }
    return {
        name: _one_pass(call, [p for module in modules for p in module.parameters()], x, probe, backward)
        for name, (modules, call) in calls.items()
    }


def bare_layer(x, qkv, out, heads):
    """The least that a layer can do: one matrix for Q, K and V, SDPA, one matrix after it."""
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv(x).chunk(3, dim=-1))
    return out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def _layer_inputs(n, heads, d_head, dtype):
    """A layer with its weights, one sequence, and the gradient that comes back to its output."""
    import torch

    torch.manual_seed(n)
    dtype, width = getattr(torch, dtype), heads * d_head
    layer = torch.nn.MultiheadAttention(width, heads, batch_first=True, dtype=dtype)
    return layer, torch.randn(1, n, width, dtype=dtype), torch.randn(1, n, width, dtype=dtype)


def _one_pass(call, parameters, x, probe, backward):
    import torch

    def forwards():
        with torch.no_grad():
            return call(x)

    def both():
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(call(leaf), [leaf, *parameters], probe)[0]

    return both if backward else forwards


def layer_reference(n, heads, d_head, dtype, backward):
    """`nn.MultiheadAttention` in float64, asked for its weights: then it builds the N×N array."""
    import torch

    layer, x, probe = _layer_inputs(n, heads, d_head, dtype)
    layer, future = layer.double(), torch.ones(n, n, dtype=torch.bool).triu(1)

    def call(x):
        return layer(x, x, x, attn_mask=future)[0]

    return _one_pass(call, [], x.double(), probe.double(), backward)().numpy()


def run_layers(options) -> int:
    if needs_torch("layers"):
        return 1
    comparison = Comparison(
        "mha_lesson.benchmark:layer_forms",
        layer_reference,
        ("bare SDPA layer",),
        lambda name, n, heads, itemsize: n * n * (name == "nn.MultiheadAttention"),  # its mask
        ({"backward": False}, {"backward": True}),
    )
    return report(comparison, "causal layers in PyTorch", options)
