"""Eight checks that an attention layer has to pass before it is trusted.

    works(layer)                                             all of them, in evaluation mode
    [check.__name__ for check in CHECKS if not check(layer)] which ones it fails

A layer is called as `layer(query, key=None, value=None, keep=None, causal=False, need_weights=False)`,
has d_model, num_heads, q_proj, k_proj, v_proj and out_proj, and may share key/value heads. Most
checks need no second implementation: they say what has to hold for every right layer.
No two axes are alike: 3 sequences, 5 queries, 7 keys.
"""

import copy

import torch
from torch.nn.functional import scaled_dot_product_attention


@torch.no_grad()
def works(layer) -> bool:
    """Is this attention layer right? Dropout is for training, so a copy is asked in evaluation mode."""
    layer = copy.deepcopy(layer).cpu().eval()
    return all(check(layer) for check in CHECKS)


def weights_are_shares(layer) -> bool:
    """Each head has weights of its own, and those of one query add up to 1."""
    _, weights = layer(*inputs(layer), need_weights=True)
    fits = weights.shape == (3, layer.num_heads, 5, 7)
    return fits and bool((weights >= 0).all()) and close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def formula_holds(layer) -> bool:
    """The output is softmax(q k^T / sqrt(D)) v of the layer's own q, k and v, here by SDPA."""
    query, key, value = inputs(layer)
    q, k, v = heads(layer, layer.q_proj(query)), heads(layer, layer.k_proj(key)), heads(layer, layer.v_proj(value))
    return close(layer(query, key, value), joined(layer, scaled_dot_product_attention(q, k, v)))


def weights_make_the_output(layer) -> bool:
    """The weights that come back are those that made the output."""
    query, key, value = inputs(layer)
    output, weights = layer(query, key, value, need_weights=True)
    fits = weights.shape == (3, layer.num_heads, 5, 7)
    return fits and close(output, joined(layer, weights @ heads(layer, layer.v_proj(value))))


def order_is_free(layer) -> bool:
    """Keys may come in any order, and queries in another order give their outputs in that order."""
    query, key, value = inputs(layer)
    output = layer(query, key, value)
    return close(layer(query.flip(1), key.roll(2, 1), value.roll(2, 1)), output.flip(1))


def padding_is_hidden(layer) -> bool:
    """Whatever stands at a key that `keep` hides, the output does not move."""
    query, key, value = inputs(layer)
    keep = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]  # (3, 7)
    padding, mask = ~keep[..., None], keep[:, None, None, :]
    other = layer(query, key.masked_fill(padding, 10), value.masked_fill(padding, -10), mask)
    return close(layer(query, key, value, mask), other)


def future_is_hidden(layer) -> bool:
    """causal: a value moves the queries from its own place on, no others. The last query sees all keys."""
    query, key, value = (x[:1].expand(7, -1, -1) for x in inputs(layer))
    other = value.masked_fill(torch.eye(7, dtype=torch.bool)[..., None], 100)  # in sequence j, place j
    change = layer(query, key, other, causal=True) - layer(query, key, value, causal=True)
    moved = (change.abs() > 1e-3).any(-1).T  # (5 queries, 7 places)
    return torch.equal(moved, torch.ones(5, 7, dtype=torch.bool).tril(7 - 5))


def empty_rows_are_zero(layer) -> bool:
    """A query that may attend to nothing gets 0, then the output bias: no NaN, and no other query notices."""
    x, _, _ = inputs(layer)
    keep = torch.arange(5)[:, None] != torch.tensor([1] * 5)  # query 1 sees nothing
    expected = layer(x)
    expected[:, 1] = layer.out_proj(torch.zeros_like(x[0, 0]))
    return close(layer(x, keep=keep), expected)


def answers_stay_the_same(layer) -> bool:
    """Asked again, and asked for the weights as well, it gives the same output."""
    x, _, _ = inputs(layer)
    output = layer(x, causal=True)
    return close(output, layer(x, causal=True)) and close(output, layer(x, causal=True, need_weights=True)[0])


CHECKS = (
    weights_are_shares, formula_holds, weights_make_the_output, order_is_free,
    padding_is_hidden, future_is_hidden, empty_rows_are_zero, answers_stay_the_same,
)  # fmt: skip


def inputs(layer):
    """Query (3, 5, E), key and value (3, 7, E): always the same random numbers, and three different things."""
    draw = torch.Generator().manual_seed(8)
    return [torch.randn(3, n, layer.d_model, generator=draw).to(layer.out_proj.weight) for n in (5, 7, 7)]


def heads(layer, x):
    """(B, L, width) to (B, H, L, D); a key/value head that is shared is repeated."""
    x = x.unflatten(-1, (-1, layer.d_model // layer.num_heads)).transpose(1, 2)
    return x.repeat_interleave(layer.num_heads // x.shape[1], dim=1)


def joined(layer, context):
    """(B, H, L, D) to (B, L, E): the heads side by side, then the output projection."""
    return layer.out_proj(context.transpose(1, 2).flatten(2))


def close(a, b) -> bool:
    """Equal up to the rounding of float32. NaN is close to nothing."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)
