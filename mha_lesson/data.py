"""The real data of the course: a part of a pretrained language model, and a novel.

    model = load_minilm()
    tokens = model.tokenize(SENTENCE)   # ['[CLS]', 'after', 'maya', ..., '[SEP]']
    x = model.embed(tokens)             # (14, 384), what the model's first layer reads

The model is all-MiniLM-L6-v2, a small BERT. load_minilm() is its entrance only: embeddings, and
the attention sub-layer of its first layer. load_minilm_layers() has all six layers, for
`mha_lesson.models.minilm`. data/README.md says where the files come from, under which licences,
and how they were made.

What is loaded is kept and shared by everyone who asks, so its arrays are read-only: writing
into one raises an error. Take a copy to change it: `w_q = model.params["w_q"].copy()`.
"""

import difflib
import hashlib
import io
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

SENTENCE = "After Maya placed the book on the table, she left."

FOLDER = Path(__file__).resolve().parent.parent / "data"

# The files' fingerprints: a damaged file is noticed here, not as odd numbers in a lesson.
SHA256 = {
    "minilm_encoder.npz": "0c13ea0958c89a03f6de2333858c350f6d75e9495979cd11af9749db2df71b6f",
    "minilm_layer0.npz": "98305bbe50c439a14276f641312c2b3af8a8d86145eb1546420ccc0bdc526fe4",
    "moby_dick.txt": "f482b37cb9b73599ff4d3ca4f5ee83186407ce05ef9444dd52c4053e142e3661",
}


def layer_norm(x, gain, bias, eps=1e-12):
    """Each row of x (..., E) moved to mean 0 and variance 1, then times gain, plus bias (E,)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * gain + bias


@dataclass(frozen=True, eq=False)
class Reference:
    """What the full model computes in its first layer for one sentence of L tokens."""

    tokens: tuple  # L word pieces
    x: np.ndarray  # (L, 384) the layer's input
    weights: np.ndarray  # (12, L, L) attention weights: head, query, key
    output: np.ndarray  # (L, 384) after W_O and its bias, before the residual sum
    normed: np.ndarray  # (L, 384) LayerNorm(x + output)

    def __repr__(self):
        return f"Reference({' '.join(self.tokens)!r}, {len(self.tokens)} tokens)"


@dataclass(frozen=True, eq=False)
class MiniLM:
    """The first attention layer of all-MiniLM-L6-v2 and the embeddings that feed it.

    All numbers are float64 and read-only (see the top of this file). V = 560 tokens.
    Matrices are (in, out): a row of x is projected by `x @ params["w_q"] + params["b_q"]`.
    """

    vocabulary: tuple  # V word pieces; a token's place here is its id and its row in the table
    word_pieces: dict  # each known word -> its word pieces, nearly always just itself
    token_table: np.ndarray  # (V, 384)
    position_table: np.ndarray  # (32, 384) learned position vectors
    type_vector: np.ndarray  # (384,) added to every token ("first sentence")
    embedding_gain: np.ndarray  # (384,) the LayerNorm after the embeddings
    embedding_bias: np.ndarray  # (384,)
    params: dict  # w_q, w_k, w_v, w_o (384, 384); b_q, b_k, b_v, b_o (384,)
    output_gain: np.ndarray  # (384,) the LayerNorm after the attention sub-layer
    output_bias: np.ndarray  # (384,)
    sentences: tuple  # sentences made for the lessons; all of their words are known
    references: dict  # a few of the sentences -> Reference
    num_heads: int = 12
    d_model: int = 384
    d_head: int = 32

    def __repr__(self):
        return f"MiniLM({len(self.vocabulary)} tokens, d_model={self.d_model}, {self.num_heads} heads of {self.d_head})"

    def tokenize(self, sentence):
        """A sentence -> its word pieces, lower case, between [CLS] and [SEP].

        "She left." -> ['[CLS]', 'she', 'left', '.', '[SEP]']
        """
        if not isinstance(sentence, str):
            raise TypeError(
                f"sentence: expected a string, got {type(sentence).__name__}; tokenize one sentence at a time."
            )
        pieces = [piece for word in split_words(sentence) for piece in self._pieces(word)]
        return ["[CLS]", *pieces, "[SEP]"]

    def ids(self, tokens):
        """L tokens -> their rows in token_table, int64 (L,)."""
        if isinstance(tokens, str):
            raise TypeError("tokens: expected a list, got a string; use tokenize(sentence) first.")
        rows = {token: row for row, token in enumerate(self.vocabulary)}
        unknown = [token for token in tokens if token not in rows]
        if unknown:
            raise ValueError(
                f"tokens: {unknown[0]!r} is not in the vocabulary. "
                "Tokens are lower case; tokenize(sentence) makes them."
            )
        return np.array([rows[token] for token in tokens], dtype=np.int64)

    def embed(self, tokens, positions=True):
        """L tokens -> (L, 384), the real input of the model's first layer.

        Token vector + position vector + type vector, then LayerNorm. positions=False leaves
        the position vectors out, to see what they are for.
        """
        ids = self.ids(tokens)
        longest = len(self.position_table)
        if positions and len(ids) > longest:
            raise ValueError(f"tokens: got {len(ids)}, but there are only {longest} position vectors.")
        x = self.token_table[ids] + self.type_vector
        if positions:
            x = x + self.position_table[: len(ids)]
        return layer_norm(x, self.embedding_gain, self.embedding_bias)

    def _pieces(self, word):
        """One lower-case word -> its word pieces; an unknown word is an error, not [UNK]."""
        if word not in self.word_pieces:
            close = difflib.get_close_matches(word, self.word_pieces, n=4, cutoff=0.7)
            raise ValueError(
                f"sentence: the word {word!r} is not among the {len(self.word_pieces)} words "
                "that the course's extract of the model holds."
                + (f" Close to it: {', '.join(close)}." if close else "")
                + " See them all with sorted(load_minilm().word_pieces)."
            )
        return self.word_pieces[word]


def split_words(sentence):
    """Lower case; words of letters and digits; every other mark is a word of its own."""
    return re.findall(r"[^\W_]+|[^\w\s]|_", sentence.lower())


@cache
def load_minilm() -> MiniLM:
    """The course's part of the model, read once and then shared (so its arrays are read-only)."""
    with np.load(io.BytesIO(_read("minilm_layer0.npz")), allow_pickle=False) as file:
        stored = {name: _frozen(file[name]) for name in file.files}
    del stored["about"]  # a note on origin and licence, for people who open the file
    words, pieces = _texts(stored.pop("words")), _texts(stored.pop("word_pieces"))
    word_pieces = {word: tuple(cut.split()) for word, cut in zip(words, pieces, strict=True)}
    sentences = _texts(stored.pop("reference_sentences"))
    references = {
        sentence: _reference(sentence, number, word_pieces, stored) for number, sentence in enumerate(sentences)
    }
    params = {f"{kind}_{role}": stored.pop(f"{kind}_{role}") for kind in "wb" for role in "qkvo"}
    return MiniLM(
        vocabulary=_texts(stored.pop("vocabulary")),
        sentences=_texts(stored.pop("sentences")),
        word_pieces=ReadOnlyDict(word_pieces),
        references=ReadOnlyDict(references),
        params=ReadOnlyDict(params),
        **stored,  # the tables, gains and biases carry the names of the fields
    )


def _reference(sentence, number, word_pieces, stored):
    """Take one reference out of the stored arrays."""
    pieces = [piece for word in split_words(sentence) for piece in word_pieces[word]]
    names = ["x", "weights", "output", "normed"]
    arrays = {name: stored.pop(f"reference_{number}_{name}") for name in names}
    return Reference(tokens=("[CLS]", *pieces, "[SEP]"), **arrays)


@dataclass(frozen=True, eq=False)
class EncoderReference:
    """What all six layers of the full model compute for one sentence of L tokens."""

    tokens: tuple  # L word pieces
    hidden: np.ndarray  # (7, L, 384) the embeddings, then the output of each layer
    weights: np.ndarray  # (6, 12, L, L) attention weights: layer, head, query, key

    def __repr__(self):
        return f"EncoderReference({' '.join(self.tokens)!r}, {len(self.tokens)} tokens)"


@dataclass(frozen=True, eq=False)
class MiniLMLayers:
    """The six layers of all-MiniLM-L6-v2. All numbers are float64 and read-only.

    Each layer is a dict, its matrices (in, out):
        w_q, w_k, w_v, w_o (384, 384), b_q, b_k, b_v, b_o (384,)     attention
        attention_gain, attention_bias (384,)                        the LayerNorm after it
        w_1 (384, 1536), b_1 (1536,), w_2 (1536, 384), b_2 (384,)    feed-forward
        feed_forward_gain, feed_forward_bias (384,)                  the LayerNorm after it
    """

    layers: tuple  # 6 dicts, the first layer first
    references: dict  # three of load_minilm().sentences -> EncoderReference
    num_heads: int = 12

    def __repr__(self):
        return f"MiniLMLayers({len(self.layers)} layers, {self.num_heads} heads)"


@cache
def load_minilm_layers() -> MiniLMLayers:
    """The layers behind the entrance that load_minilm() gives, read once and then shared."""
    with np.load(io.BytesIO(_read("minilm_encoder.npz")), allow_pickle=False) as file:
        stored = {name: _frozen(file[name]) for name in file.files}
    del stored["about"]
    tokenize = load_minilm().tokenize
    references = {}
    for number, sentence in enumerate(_texts(stored.pop("reference_sentences"))):
        arrays = {name: stored.pop(f"reference_{number}_{name}") for name in ("hidden", "weights")}
        references[sentence] = EncoderReference(tokens=tuple(tokenize(sentence)), **arrays)
    count = len(stored["w_q"])
    layers = tuple(ReadOnlyDict({name: array[layer] for name, array in stored.items()}) for layer in range(count))
    return MiniLMLayers(layers=layers, references=ReadOnlyDict(references))


@cache
def load_moby_dick() -> str:
    """Chapters 1 to 41 of Moby Dick by Herman Melville, about 384 thousand characters."""
    return _read("moby_dick.txt").decode("utf-8")


class ReadOnlyDict(dict):
    """A dict that refuses changes, since everyone shares it; dict(it) is a copy of your own."""

    def _refuse(self, *args, **kwargs):
        raise TypeError("this dict is shared and read-only; change a copy of it: dict(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self):  # copies and pickles are plain dicts
        return dict, (dict(self),)


def _read(name):
    """The bytes of a file in data/, if it is there and undamaged."""
    path = FOLDER / name
    mend = (
        f"Get it back with `git checkout -- data/{name}` in the course's folder, "
        "or make it again as data/README.md tells."
    )
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing. {mend}") from None
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise ValueError(f"{path} is damaged: its checksum is not the expected one. {mend}")
    return content


def _frozen(array):
    """Floats as float64; every array read-only."""
    array = array.astype(np.float64) if array.dtype.kind == "f" else array
    array.flags.writeable = False
    return array


def _texts(array):
    return tuple(text.decode("ascii") for text in array)
