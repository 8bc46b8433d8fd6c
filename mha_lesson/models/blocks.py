"""What the small models are built from: a transformer block around the course's own layer.

    x = x + Attention(LayerNorm(x))                     self-attention       (B, L, E) -> (B, L, E)
    x = x + Attention(LayerNorm(x), memory)             cross-attention, if asked for
    x = x + W_2 gelu(W_1 LayerNorm(x) + b_1) + b_2      feed-forward, each token on its own

    x        (B, L, E)      B batch, L tokens, E = d_model
    memory   (B, S, E)      what an encoder made of S other tokens
    weights  (B, H, L, S)   each head's own

The LayerNorm stands before each part ("pre-norm"): small models train well with it, without care.

Two tools look inside any model made of these parts, and one takes something away:

    with recording(model) as maps: model(x)             maps["blocks.0.attention"] (B, H, L, S)
    with heads_off(model.blocks[0].attention, [1]): ...

Sources: Vaswani et al. 2017, section 3; Xiong et al. 2020, "On Layer Normalization in the
Transformer Architecture" (pre-norm); Michel et al. 2019 (heads switched off).
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mha_lesson.pytorch import MultiHeadAttention
from mha_lesson.pytorch.cores import LinearCore, SDPACore, WindowCore
from mha_lesson.pytorch.masks import joint_mask


class UniformAttention(nn.Module):
    """Attention that cannot choose: each key that is allowed gets the same weight.

        output = mean of (M W_V + b_V) over the allowed keys, times W_O, plus b_O

    The honest rival of attention: the same values and the same output map, but no queries, keys,
    scores. Where a model does as well with it, looking around was not what helped.
    Called like `MultiHeadAttention`; its weights have one head, (B, 1, L, S).
    """

    num_heads = 1

    def __init__(self, d_model: int, dropout: float = 0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        for linear in (self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, query, key=None, value=None, keep=None, causal=False, need_weights=False):
        key = query if key is None else key  # (B, S, E)
        value = key if value is None else value
        B, L, S = *query.shape[:2], key.shape[1]
        mask = joint_mask(keep, causal, L, S, query.device)
        if mask is None:
            mask = torch.ones(L, S, dtype=torch.bool, device=query.device)  # (L, S)
        allowed = mask.to(query.dtype).expand(B, 1, L, S)  # (B, 1, L, S)
        weights = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
        context = self.dropout(weights[:, 0]) @ self.v_proj(value)  # (B, L, E)
        output = self.out_proj(context)
        return (output, weights) if need_weights else output


# The middle of the layer for each way to mix; all else, and the names of the weights, is the same.
CORES = {"attention": lambda _: SDPACore(), "window": WindowCore, "linear": lambda _: LinearCore()}


def make_attention(d_model, num_heads, num_kv_heads=None, *, mixing="attention", dropout=0.0, window=None) -> nn.Module:
    """The layer that mixes tokens: mixing "attention", or "uniform" for its rival.

    For causal self-attention also "window", with window = how many tokens each one sees, and "linear".
    """
    if window is not None and mixing != "window":
        raise ValueError(f'window: expected None unless mixing is "window", got {window!r} with {mixing!r}.')
    if mixing == "window" and not (isinstance(window, int) and window >= 1):
        raise ValueError(f"window: expected how many tokens each one sees, a whole number from 1, got {window!r}.")
    if mixing == "uniform":
        return UniformAttention(d_model, dropout)
    if mixing not in CORES:
        raise ValueError(
            f'mixing: expected "attention" or "uniform", or for causal self-attention "window" or "linear", '
            f"got {mixing!r}."
        )
    return MultiHeadAttention(d_model, num_heads, num_kv_heads, dropout=dropout, core=CORES[mixing](window))


class Block(nn.Module):
    """One layer of a transformer. `cross` adds cross-attention; feed_forward=0 leaves that part out.

    num_heads, num_kv_heads, mixing, window: the attention in it. feed_forward: width inside, default 2·E.
    """

    def __init__(
        self,
        d_model,
        num_heads,
        num_kv_heads=None,
        *,
        cross=False,
        feed_forward=None,
        dropout=0.0,
        mixing="attention",
        window=None,
    ):
        super().__init__()
        inner = 2 * d_model if feed_forward is None else feed_forward

        def attention(mixing):
            width = window if mixing == "window" else None
            return make_attention(d_model, num_heads, num_kv_heads, mixing=mixing, dropout=dropout, window=width)

        self.norm = nn.LayerNorm(d_model)
        self.attention = attention("attention" if cross else mixing)  # with `cross`, mixing is that of cross-attention
        self.cross_norm = nn.LayerNorm(d_model) if cross else None
        self.cross_attention = attention(mixing) if cross else None
        self.feed_norm = nn.LayerNorm(d_model) if inner else None
        self.feed_forward = (
            nn.Sequential(nn.Linear(d_model, inner), nn.GELU(), nn.Linear(inner, d_model)) if inner else None
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory=None, *, keep=None, memory_keep=None, causal=False, cache=None, lengths=None) -> Tensor:
        """x (B, L, E) after the block. keep masks x, memory_keep masks memory; True = may attend.

        With a cache (a KVCache of this block alone), x holds new tokens; lengths (B,) of them are real.
        """
        serving = {} if cache is None else {"cache": cache, "lengths": lengths}
        x = x + self.dropout(self.attention(self.norm(x), keep=keep, causal=causal, **serving))
        if self.cross_attention is not None:
            x = x + self.dropout(self.cross_attention(self.cross_norm(x), memory, keep=memory_keep))
        if self.feed_forward is not None:
            x = x + self.dropout(self.feed_forward(self.feed_norm(x)))
        return x


def embedding(count: int, d_model: int, std: float = 0.02) -> nn.Embedding:
    """A table of `count` vectors, small at first, so that LayerNorm and training decide their size."""
    table = nn.Embedding(count, d_model)
    nn.init.normal_(table.weight, std=std)
    return table


def start_small(model: nn.Module, std: float = 0.02) -> None:
    """Every matrix of the model becomes small random numbers, as in GPT-2.

    Then each block at first adds next to nothing to its input, and the tokens stay what they are.
    """
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=std)


def real_tokens(ids: Tensor, padding: int = 0) -> Tensor:
    """keep (B, 1, 1, S): True where ids (B, S) holds a token, False where it holds padding."""
    return (ids != padding)[:, None, None, :]


# ------------------------------------------------------------------------------ looking inside


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """All attention layers of a model by name, in order: {"blocks.0.attention": ...}."""
    kinds = (MultiHeadAttention, UniformAttention)
    return {name: part for name, part in model.named_modules() if isinstance(part, kinds)}


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within it, each attention layer writes down the weights of its last call, (B, H, L, S).

    The model's output stays what it was: asking the layer for its weights never changes it.
    """
    maps: dict[str, Tensor] = {}
    layers = attention_layers(model)
    before = {name: vars(layer).get("forward") for name, layer in layers.items()}  # of a recording around this one
    for name, layer in layers.items():
        layer.forward = _writing_down(layer.forward, maps, name)
    try:
        yield maps
    finally:
        for name, layer in layers.items():
            if before[name] is None:
                del layer.forward  # the method of its class again
            else:
                layer.forward = before[name]


def _writing_down(forward, maps, name):
    """The layer's forward, asked for the weights each time; the caller gets what the caller asked for."""

    def asked(query, key=None, value=None, keep=None, causal=False, need_weights=False, **serving):
        output, weights = forward(query, key, value, keep, causal, need_weights=True, **serving)
        maps[name] = weights.detach()
        return (output, weights) if need_weights else output

    return asked


@contextmanager
def heads_off(layer: MultiHeadAttention, heads: Iterable[int]) -> Iterator[None]:
    """Within it, these heads of the layer add nothing to its output; afterwards all is as before.

    Head h reaches the output only through the columns h·D to (h + 1)·D of `out_proj.weight` (E, E);
    they become 0. The bias stays: it belongs to no head.
    """
    heads = sorted(set(heads))
    wrong = [h for h in heads if not 0 <= h < layer.num_heads]
    if wrong:
        raise ValueError(f"heads: expected numbers from 0 to {layer.num_heads - 1}, got {wrong}.")
    weight = layer.out_proj.weight
    width = weight.shape[1] // layer.num_heads  # D
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            for h in heads:
                weight[:, h * width : (h + 1) * width] = 0
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)
