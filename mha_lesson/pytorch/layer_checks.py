"""Eight checks that an attention layer has to pass before it is trusted.

    works(layer)                                             all of them, in evaluation mode
    [check.__name__ for check in CHECKS if not check(layer)] which ones it fails

A layer is called as `layer(query, key=None, value=None, keep=None, causal=False, need_weights=False)`,
has d_model, num_heads, q_proj, k_proj, v_proj and out_proj, and may share key/value heads. Most
checks need no second implementation: they say what has to hold for every right layer.
No two axes are alike: 3 sequences, 5 queries, 7 keys.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

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
    """The output is softmax(q k^T / sqrt(D)) v of the layer's own q, k and v, here by SDPA; with keep, too."""
    query, key, value = inputs(layer)
    q, k, v = heads(layer, layer.q_proj(query)), heads(layer, layer.k_proj(key)), heads(layer, layer.v_proj(value))
    keep = torch.rand(3, layer.num_heads, 5, 7, generator=torch.Generator().manual_seed(8)) < 0.5
    keep[..., 0] = True  # no empty row
    results = ((layer(query, key, value, mask), scaled_dot_product_attention(q, k, v, mask)) for mask in (None, keep))
    return all(close(output, joined(layer, context)) for output, context in results)


def weights_make_the_output(layer) -> bool:
    """The weights that come back are those that made the output, causal or not."""
    query, key, value = inputs(layer)
    v, shape = heads(layer, layer.v_proj(value)), (3, layer.num_heads, 5, 7)
    for causal in (False, True):
        output, weights = layer(query, key, value, causal=causal, need_weights=True)
        if weights.shape != shape or not close(output, joined(layer, weights @ v)):
            return False
    return True


def order_is_free(layer) -> bool:
    """Keys may come in any order, and queries in another order give their outputs in that order."""
    query, key, value = inputs(layer)
    output = layer(query, key, value)
    return close(layer(query.flip(1), key.roll(2, 1), value.roll(2, 1)), output.flip(1))


def padding_is_hidden(layer) -> bool:
    """Whatever stands at a key that `keep` hides, nothing moves: causal or not, asked for weights or not."""
    query, key, value = inputs(layer)
    keep = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]  # (3, 7)
    padding, mask = ~keep[..., None], keep[:, None, None, :]
    one, other = (query, key, value, mask), (query, key.masked_fill(padding, 10), value.masked_fill(padding, -10), mask)
    return all(
        close(layer(*one, causal), layer(*other, causal))
        and all(map(close, layer(*one, causal, True), layer(*other, causal, True)))
        for causal in (False, True)
    )


def future_is_hidden(layer) -> bool:
    """causal: a value moves the queries from its own place on, no others. The last query sees all keys.

    So it is beside a `keep` that hides nothing.
    """
    query, key, value = (x[:1].expand(7, -1, -1) for x in inputs(layer))
    other = value.masked_fill(torch.eye(7, dtype=torch.bool)[..., None], 100)  # in sequence j, place j
    open_to_all = torch.ones(5, 7, dtype=torch.bool)
    for keep in (None, open_to_all):
        change = layer(query, key, other, keep, causal=True) - layer(query, key, value, keep, causal=True)
        moved = (change.abs() > 1e-3).any(-1).T  # (5 queries, 7 places)
        if not torch.equal(moved, open_to_all.tril(7 - 5)):
            return False
    return True


def empty_rows_are_zero(layer) -> bool:
    """A query that may attend to nothing gets 0, then the output bias, and no other query notices.

    There is no NaN, in the gradient neither: training would spread it over all weights.
    """
    x, _, _ = inputs(layer)
    keep = torch.arange(5)[:, None] != torch.tensor([1] * 5)  # query 1 sees nothing
    expected = layer(x)
    expected[:, 1] = layer.out_proj(torch.zeros_like(x[0, 0]))
    with torch.enable_grad():
        output, (asked, weights) = layer(x.requires_grad_(), keep=keep), layer(x, keep=keep, need_weights=True)
        (slope,) = torch.autograd.grad(output.sum() + asked.sum() + weights.sum(), x)
    return close(output, expected) and close(asked, expected) and not slope.isnan().any()


def answers_stay_the_same(layer) -> bool:
    """Asked again, asked for the weights as well, or about sequence 1 alone, it gives the same output."""
    x, _, _ = inputs(layer)
    for way in ({}, {"causal": True}, {"causal": True, "keep": torch.ones(5, 5, dtype=torch.bool)}):
        output, again, asked = layer(x, **way), layer(x, **way), layer(x, **way, need_weights=True)[0]
        alike = close(output, again) and close(output, asked) and close(output[1:2], layer(x[1:2], **way))
        if not alike:
            return False
    return True


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
