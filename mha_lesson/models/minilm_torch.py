"""all-MiniLM-L6-v2 in PyTorch: the model of `minilm.py`, around the layer of lesson 07.

    y = LayerNorm(x + MultiHead(x))
    z = LayerNorm(y + gelu(y W_1 + b_1) W_2 + b_2)

    ids      (B, L)              tokens as numbers, or (L,) without a batch
    keep     (B, 1, 1, L)        boolean, True = a token, False = padding
    hidden   (M, B, L, E)        the embeddings, then each layer's output: M = N + 1
    weights  (N, B, H, L, L)     layer, sequence, head, query, key

Here sentences may be batched, and gradients flow. Make one with `MiniLMEncoder().to_torch()`.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lesson.pytorch import MultiHeadAttention

EPS = 1e-12  # BERT's; PyTorch's own default is 1e-5


class EncoderLayer(nn.Module):
    """One layer, from the numbers of `minilm.EncoderLayer`."""

    def __init__(self, layer):
        super().__init__()
        self.attention = MultiHeadAttention.from_numpy(layer.attention)
        self.attention_norm = _norm(layer.attention_gain, layer.attention_bias)
        self.linear_1 = _linear(layer.w_1, layer.b_1)
        self.linear_2 = _linear(layer.w_2, layer.b_2)
        self.feed_forward_norm = _norm(layer.feed_forward_gain, layer.feed_forward_bias)

    def forward(
        self, x: Float[Tensor, "*B L E"], keep=None
    ) -> tuple[Float[Tensor, "*B L E"], Float[Tensor, "*B H L L"]]:
        found, weights = self.attention(x, keep=keep, need_weights=True)  # (B, L, E), (B, H, L, L)
        y = self.attention_norm(x + found)  # (B, L, E)
        thought = self.linear_2(F.gelu(self.linear_1(y)))  # (B, L, F), then (B, L, E)
        return self.feed_forward_norm(y + thought), weights


class MiniLMTorch(nn.Module):
    """A copy of a `MiniLMEncoder`, in its dtype."""

    def __init__(self, encoder):
        super().__init__()
        entrance = encoder.entrance
        tables = (entrance.token_table, entrance.position_table, entrance.type_vector)
        token, position, kind = (torch.tensor(table.astype(encoder.dtype)) for table in tables)
        self.token = nn.Embedding.from_pretrained(token, freeze=False)  # (V, E)
        self.position = nn.Parameter(position)  # (32, E)
        self.kind = nn.Parameter(kind)  # (E,)
        gain, bias = (part.astype(encoder.dtype) for part in (entrance.embedding_gain, entrance.embedding_bias))
        self.norm = _norm(gain, bias)
        self.layers = nn.ModuleList(EncoderLayer(layer) for layer in encoder.layers)

    def forward(
        self, ids: Int[Tensor, "*B L"], keep: Bool[Tensor, "..."] | None = None
    ) -> tuple[Float[Tensor, "M *B L E"], Float[Tensor, "N *B H L L"]]:
        """(hidden, weights). Pad shorter sentences with 0, [PAD], and hide those places with keep."""
        L = ids.shape[-1]
        if len(self.position) < L:
            raise ValueError(f"ids: got {L} tokens, but there are only {len(self.position)} position vectors.")
        x = self.norm(self.token(ids) + self.position[:L] + self.kind)  # (B, L, E)
        hidden, weights = [x], []
        for layer in self.layers:
            x, layer_weights = layer(x, keep)  # (B, L, E), (B, H, L, L)
            hidden.append(x)
            weights.append(layer_weights)
        return torch.stack(hidden), torch.stack(weights)


def _linear(w, b):
    """nn.Linear with copies of NumPy's w (in, out) and b; its weight is (out, in)."""
    linear = nn.Linear(*w.shape, dtype=torch.tensor(w[:1]).dtype)
    return _fill(linear, w.T, b)


def _norm(gain, bias):
    return _fill(nn.LayerNorm(len(gain), eps=EPS, dtype=torch.tensor(gain).dtype), gain, bias)


@torch.no_grad()
def _fill(module, weight, bias):
    module.weight.copy_(torch.tensor(weight))
    module.bias.copy_(torch.tensor(bias))
    return module
