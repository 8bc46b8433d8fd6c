"""A real pretrained transformer around the layer of lesson 06: all-MiniLM-L6-v2, in NumPy.

Six layers, one after the other. Each lets the tokens look at each other, then thinks about each
token on its own, and each time adds what it found to what was there:

    y = LayerNorm(x + MultiHead(x))                       attention       (L, E) -> (L, E)
    z = LayerNorm(y + gelu(y W_1 + b_1) W_2 + b_2)        feed-forward    (L, E) -> (L, F) -> (L, E)

    L   tokens of the sentence, [CLS] and [SEP] among them
    E   384, the width of a token's vector        F   1536, the width inside the feed-forward part
    H   12 heads of width D = 32                  N   6 layers

`x +` is the residual connection. The LayerNorm stands after the sum ("post-norm"), as in the first
transformer; most newer models put it before the attention.

    encoder = MiniLMEncoder()
    encoding = encoder("After Maya placed the book on the table, she left.")
    encoding.weights[5, 5]                           (L, L) what head 5 of layer 5 looks at
    encoder(encoding.tokens, ablate={(5, 5)})        the same without that head
    encoder.embedding("The dog bit the man.")        (384,) one vector for the sentence

Layers and heads are counted from 0. Words: those of `load_minilm().word_pieces`.

Sources: Vaswani et al. 2017, section 3 (post-norm layers); Devlin et al. 2018, "BERT"; Wang et al.
2020, "MiniLM"; Reimers & Gurevych 2019, "Sentence-BERT" (mean pooling); Michel et al. 2019, "Are
Sixteen Heads Really Better than One?" (heads switched off in a trained model). The numbers, and
their licence: data/README.md.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mha_lesson.attention import MultiHeadAttention
from mha_lesson.data import layer_norm, load_minilm, load_minilm_layers
from mha_lesson.steps.projections import project
from mha_lesson.steps.typing import Array, Float

# ------------------------------------------------------------------------------ the parts

_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has no erf of its own: one number at a time


def gelu(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """x · Φ(x), where Φ(x) = (1 + erf(x / √2)) / 2: how often a normal number stays below x.

    A soft max(0, x): large x pass, large -x vanish, and the bend at 0 is smooth. A popular
    shortcut with tanh differs by up to 0.0005; this model was trained with the exact form.

    Source: Hendrycks & Gimpel 2016, "Gaussian Error Linear Units", section 2.
    """
    erf = np.asarray(_erf(x / math.sqrt(2)), dtype=x.dtype)  # (...), from -1 to 1
    below = (1 + erf) / 2  # (...), from 0 to 1
    return x * below


@dataclass(frozen=True, eq=False)
class EncoderLayer:
    """One layer: attention and feed-forward, each with a residual sum and a LayerNorm behind it."""

    attention: MultiHeadAttention
    attention_gain: Float[Array, "E"]
    attention_bias: Float[Array, "E"]
    w_1: Float[Array, "E F"]
    b_1: Float[Array, "F"]
    w_2: Float[Array, "F E"]
    b_2: Float[Array, "E"]
    feed_forward_gain: Float[Array, "E"]
    feed_forward_bias: Float[Array, "E"]

    def __call__(self, x: Float[Array, "L E"]) -> tuple[Float[Array, "L E"], Float[Array, "H L L"]]:
        """What goes on to the next layer, and the attention weights of each head."""
        found, weights = self.attention(x)  # (L, E), (H, L, L)
        y = layer_norm(x + found, self.attention_gain, self.attention_bias)  # (L, E)
        inner = gelu(project(y, self.w_1, self.b_1))  # (L, F)
        thought = project(inner, self.w_2, self.b_2)  # (L, E)
        return layer_norm(y + thought, self.feed_forward_gain, self.feed_forward_bias), weights

    def without(self, heads: Iterable[int]) -> "EncoderLayer":
        """The layer with some heads switched off: their outputs count as 0 where W_O reads them.

        Head h writes columns h·D to (h + 1)·D of the merged heads, and W_O reads those through
        rows h·D to (h + 1)·D. So the output O_h may be set to 0, or these rows of W_O: the
        product is the same. b_o stays. The weights of the head are still computed, and shown.
        """
        w_o = self.attention.w_o.copy()  # (E, E)
        d_head = len(w_o) // self.attention.num_heads
        for head in heads:
            w_o[head * d_head : (head + 1) * d_head] = 0
        return replace(self, attention=replace(self.attention, w_o=w_o))


@dataclass(frozen=True, eq=False)
class Encoding:
    """What the model computed for one sentence."""

    tokens: tuple[str, ...]  # L word pieces, [CLS] first and [SEP] last
    hidden: Float[Array, "M L E"]  # (7, L, 384), M = N + 1: hidden[0] the embeddings, hidden[n + 1] after layer n
    weights: Float[Array, "N H L L"]  # (6, 12, L, L): layer, head, query, key

    def __repr__(self):
        return f"Encoding({' '.join(self.tokens)!r}, {len(self.tokens)} tokens)"


# ------------------------------------------------------------------------------ the model


class MiniLMEncoder:
    """all-MiniLM-L6-v2 with the course's vocabulary. See the top of this file.

    dtype: float64, whose arrays are the loader's own (shared, read-only), or float32, which copies.
    """

    def __init__(self, dtype=np.float64):
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype: expected float32 or float64, got {self.dtype}.")
        self.entrance = load_minilm()  # words, token and position vectors
        loaded = load_minilm_layers()
        self.num_heads = loaded.num_heads
        self.layers = tuple(self._layer(params) for params in loaded.layers)

    def _layer(self, params):
        params = {name: array.astype(self.dtype, copy=False) for name, array in params.items()}
        names = [f"{kind}_{role}" for kind in "wb" for role in "qkvo"]
        attention = MultiHeadAttention.from_params({name: params.pop(name) for name in names}, self.num_heads)
        return EncoderLayer(attention, **params)

    def __repr__(self):
        return f"MiniLMEncoder({len(self.layers)} layers, {self.num_heads} heads each, {self.dtype})"

    def __call__(self, sentence: str | Sequence[str], ablate: Iterable[tuple[int, int]] = ()) -> Encoding:
        """A sentence, or its tokens, through all layers.

        sentence: text, or the tokens that tokenize() made of it, [CLS] and [SEP] included.
        ablate: the heads to switch off, as (layer, head), such as {(5, 5)}.
        """
        tokens = self.tokenize(sentence) if isinstance(sentence, str) else tuple(sentence)
        off = self._check_ablate(ablate)
        x = self.entrance.embed(tokens).astype(self.dtype)  # (L, E)
        hidden, weights = [x], []
        for number, layer in enumerate(self.layers):
            heads = [head for where, head in off if where == number]
            x, layer_weights = (layer.without(heads) if heads else layer)(x)  # (L, E), (H, L, L)
            hidden.append(x)
            weights.append(layer_weights)
        return Encoding(tokens, np.stack(hidden), np.stack(weights))

    def tokenize(self, sentence: str) -> tuple[str, ...]:
        """A sentence -> its word pieces between [CLS] and [SEP]."""
        return tuple(self.entrance.tokenize(sentence))

    def embedding(self, sentence: str | Sequence[str], ablate: Iterable[tuple[int, int]] = ()) -> Float[Array, "E"]:
        """One vector of length 1 for the sentence: the mean of its last hidden states, then scaled.

        So the product of two of them, `a @ b`, is the cosine of the angle between them: close to 1
        where two sentences mean the same. [CLS] and [SEP] belong to the mean, as the model was
        trained (Reimers & Gurevych 2019, section 3).
        """
        mean = self(sentence, ablate).hidden[-1].mean(axis=0)  # (E,)
        return mean / np.linalg.norm(mean)

    def to_torch(self):
        """The same numbers as a `torch.nn.Module`, whose layers can be trained: `MiniLMTorch`.

        ids = torch.tensor(encoder.entrance.ids(tokens))
        hidden, weights = encoder.to_torch()(ids)
        """
        from mha_lesson.models.minilm_torch import MiniLMTorch  # only here is PyTorch needed

        return MiniLMTorch(self)

    def _check_ablate(self, ablate):
        """{(layer, head), ...}, each of them there."""
        wanted = f"(layer, head) pairs, layer 0 to {len(self.layers) - 1} and head 0 to {self.num_heads - 1}"
        try:
            off = {(layer, head) for layer, head in ablate}
        except (TypeError, ValueError):
            raise TypeError(
                f"ablate: expected a set of {wanted}, got {ablate!r}. One head alone: ablate={{(5, 5)}}."
            ) from None
        for layer, head in off:
            if layer not in range(len(self.layers)) or head not in range(self.num_heads):
                raise ValueError(f"ablate: expected {wanted}, got {(layer, head)!r}.")
        return off
