"""The data of the course: a pretrained language model, a novel, and small sets to train on.

    model = load_minilm()
    tokens = model.tokenize(SENTENCE)   # ['[CLS]', 'after', 'maya', ..., '[SEP]']
    x = model.embed(tokens)             # (14, 384), what the model's first layer reads

The model is all-MiniLM-L6-v2, a small BERT. load_minilm() is its entrance only: embeddings, and
the attention sub-layer of its first layer. load_minilm_layers() has all six layers, for
`mha_lesson.models.minilm`. load_moby_dick() is the novel; load_spelling(), load_dates(),
load_digits(), load_bikes() and load_speech() are sets with a training and a test part;
gpu_records() are measurements on GPUs.
data/README.md says where the files come from, under which licences, and how they were made.

What is loaded is kept and shared by everyone who asks, so its arrays are read-only: writing
into one raises an error. Take a copy to change it: `w_q = model.params["w_q"].copy()`.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import difflib
import hashlib
import io
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from mha_lesson import places

SENTENCE = "After Maya placed the book on the table, she left."

FOLDER = places.folder("data")

# The files' fingerprints: a damaged file is noticed here, not as odd numbers in a lesson.
SHA256 = {
    "bike_hours.npz": "be12de3dc033cd99dfed6b9b3ea86e0cf0a29471fbb25a8838ef55092744570e",
    "dates.tsv": "9b4b751d6694dce98989db8983a12505e01f3931806efe687e16ee51f62fb311",
    "digits.npz": "765015ddb9cfac510ba00420a8016cf9b0f721c7d27119389baffed35955d4c2",
    "minilm_encoder.npz": "0c13ea0958c89a03f6de2333858c350f6d75e9495979cd11af9749db2df71b6f",
    "minilm_layer0.npz": "98305bbe50c439a14276f641312c2b3af8a8d86145eb1546420ccc0bdc526fe4",
    "moby_dick.txt": "f482b37cb9b73599ff4d3ca4f5ee83186407ce05ef9444dd52c4053e142e3661",
    "speech_digits.npz": "edd429db83afd57dd92356046f6f9ce3a42bcd0768f05a550a44ab21cff0e248",
    "spelling.tsv": "e822de1788e2f0ce723308af1d5b1b0dd52dfcb3f4ea86b475aac95d2fc5ce5f",
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


@dataclass(frozen=True, eq=False)
class Spelling:
    """Common English words and how they sound: ("through", ("TH", "R", "UW")).

    No word is in both parts, but a test word's relatives may be in training (drag, drags).
    """

    train: tuple  # 15 326 pairs (word, phonemes), in shuffled order
    test: tuple  # 1500 pairs
    letters: tuple  # the 26 letters that words are made of
    phonemes: tuple  # the 39 phonemes of American English, as CMUdict writes them

    def __repr__(self):
        return f"Spelling({len(self.train)} words to train, {len(self.test)} to test)"


@cache
def load_spelling() -> Spelling:
    """Words of 3 to 12 letters with their phonemes, from the CMU Pronouncing Dictionary."""
    lines = [line.split("\t") for line in _read("spelling.tsv").decode("ascii").splitlines()]
    pairs = tuple((word, tuple(phonemes.split(" "))) for word, phonemes in lines)
    return Spelling(
        train=pairs[:-1500],
        test=pairs[-1500:],
        letters=tuple(sorted({letter for word, _ in pairs for letter in word})),
        phonemes=tuple(sorted({phoneme for _, phonemes in pairs for phoneme in phonemes})),
    )


@dataclass(frozen=True, eq=False)
class Dates:
    """Dates as 22 languages write them: ("samedi 29 novembre 2025", "2025-11-29").

    The languages differ in their order of day, month and year. No date occurs twice, so the test
    dates are new. No form is of digits alone, so each text has one meaning.
    """

    train: tuple  # 18 000 pairs (text, ISO date), in shuffled order
    test: tuple  # 2000 pairs
    train_languages: tuple  # the language of each pair of train, a code such as "fr"
    test_languages: tuple  # the same for test
    characters: tuple  # the 106 characters that texts are made of; ISO dates use 0-9 and - of them

    def __repr__(self):
        return f"Dates({len(self.train)} dates to train, {len(self.test)} to test)"


@cache
def load_dates() -> Dates:
    """Dates from 1900 to 2099, written in the full, long or medium form of a language."""
    lines = [line.split("\t") for line in _read("dates.tsv").decode("utf-8").splitlines()]
    pairs = tuple((text, iso) for text, iso, _ in lines)
    languages = tuple(language for _, _, language in lines)
    return Dates(
        train=pairs[:-2000],
        test=pairs[-2000:],
        train_languages=languages[:-2000],
        test_languages=languages[-2000:],
        characters=tuple(sorted({sign for text, _ in pairs for sign in text})),
    )


@dataclass(frozen=True, eq=False)
class Digits:
    """Handwritten digits, 8 x 8 pixels. The pixels are float64, 0 (paper) to 1 (all ink).

    The test part is the end of the source: harder than images drawn at random from all of them,
    most likely because it is other people's writing.
    """

    train_images: np.ndarray  # (1437, 8, 8) sixteenths: 0, 1/16, ..., 1
    train_labels: np.ndarray  # (1437,) int64, the digit
    test_images: np.ndarray  # (360, 8, 8)
    test_labels: np.ndarray  # (360,)

    def __repr__(self):
        return f"Digits({len(self.train_images)} images to train, {len(self.test_images)} to test)"


@cache
def load_digits() -> Digits:
    """1797 handwritten digits: the set that scikit-learn has under the same name, cut in two."""
    with np.load(io.BytesIO(_read("digits.npz")), allow_pickle=False) as file:
        images, labels = _frozen(file["images"] / 16), _frozen(file["labels"].astype(np.int64))
    return Digits(
        train_images=images[:-360],
        train_labels=labels[:-360],
        test_images=images[-360:],
        test_labels=labels[-360:],
    )


@dataclass(frozen=True, eq=False)
class Bikes:
    """Bikes rented in Washington, D.C., hour by hour through 2011: 8760 hours.

    counts[train] are the months January to October, counts[test] November and December.
    """

    counts: np.ndarray  # (8760,) float64, rentals that began in the hour
    times: np.ndarray  # (8760,) datetime64[h], local time: 2011-01-01T00, 2011-01-01T01, ...
    working_day: np.ndarray  # (8760,) bool, False at weekends and on holidays
    recorded: np.ndarray  # (8760,) bool, False for the 115 hours that the source leaves out: counts is 0 there
    train: slice  # the hours of the training part, 0 to 7295
    test: slice  # the hours of the test part, 7296 to 8759

    def __repr__(self):
        return f"Bikes({len(self.counts)} hours)"


@cache
def load_bikes() -> Bikes:
    """A series with a daily and a weekly cycle, the hourly bike rentals of one year."""
    with np.load(io.BytesIO(_read("bike_hours.npz")), allow_pickle=False) as file:
        counts, working_day, recorded = (file[name] for name in ("counts", "working_day", "recorded"))
    times = np.datetime64("2011-01-01T00") + np.arange(len(counts))
    return Bikes(
        counts=_frozen(counts.astype(np.float64)),
        times=_frozen(times),
        working_day=_frozen(working_day),
        recorded=_frozen(recorded),
        train=slice(0, 7296),
        test=slice(7296, 8760),
    )


@dataclass(frozen=True, eq=False)
class Speech:
    """The words "zero" to "nine" as a speech synthesiser says them in noise, as log-mel pictures.

    A picture has 24 frames (36 ms each, first to last) of 20 mel bands (80 to 8000 Hz, low to
    high). Its numbers are decibels, scaled: 1 is its loudest point, 0 is 50 dB below and less.
    The test voices are not heard in training. All voices are synthetic, variations of one program.
    """

    train_mel: np.ndarray  # (1600, 24, 20) float64, 0 to 1
    train_labels: np.ndarray  # (1600,) int64, the digit; words[digit] is the word
    train_voices: np.ndarray  # (1600,) int64, 0 to 39; voices[number] is the name
    test_mel: np.ndarray  # (400, 24, 20)
    test_labels: np.ndarray  # (400,)
    test_voices: np.ndarray  # (400,) 40 to 49
    words: tuple  # "zero", "one", ..., "nine"
    voices: tuple  # 50 names, accent and variant as espeak-ng calls them: "en-us+Alicia"

    def __repr__(self):
        return f"Speech({len(self.train_mel)} words to train, {len(self.test_mel)} to test)"


@cache
def load_speech() -> Speech:
    """Ten spoken digits, four times in each of 50 synthetic voices, 10 of them for the test."""
    with np.load(io.BytesIO(_read("speech_digits.npz")), allow_pickle=False) as file:
        stored = {name: file[name] for name in file.files}
    arrays = {}
    for part, rows in [("train", ~stored["is_test"]), ("test", stored["is_test"])]:
        arrays[f"{part}_mel"] = _frozen(stored["mel"][rows] / 255)
        arrays[f"{part}_labels"] = _frozen(stored["label"][rows].astype(np.int64))
        arrays[f"{part}_voices"] = _frozen(stored["voice"][rows].astype(np.int64))
    return Speech(words=_texts(stored["words"]), voices=_texts(stored["voices"]), **arrays)


def gpu_records(folder: Path = FOLDER / "gpu") -> list[dict]:
    """What `python3 -m mha_lesson benchmark gpu` has measured, a dict for each stored run, oldest first; [] if none.

    The fields are those of data/gpu/schema.json. A file that does not follow it is an error that
    names file and field, and so is a dry run: its numbers are not measured on any device.
    """
    files = [path for path in sorted(folder.glob("*.json")) if path.name != "schema.json"]
    schema = _json(FOLDER / "gpu" / "schema.json") if files else None
    return sorted((_gpu_record(path, schema) for path in files), key=lambda record: record["date"])


def _gpu_record(path, schema):
    from jsonschema import Draft202012Validator, exceptions  # here: most readers of the data never need it

    record = _json(path)
    if isinstance(record, dict) and record.get("dry_run"):
        raise ValueError(f"{path}: field dry_run: a dry run measures nothing. Remove the file.")
    wrong = exceptions.best_match(Draft202012Validator(schema).iter_errors(record))
    if wrong is not None:
        field = wrong.json_path.removeprefix("$").lstrip(".") or "the whole file"
        raise ValueError(
            f"{path}: field {field}: {wrong.message[:300]}. Remove the file, or make it again: "
            "python3 -m mha_lesson benchmark gpu"
        )
    return record


def _json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ValueError(f"{path}: not JSON: {problem}. Remove the file, or get it back with git checkout.") from None


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
    mend = f"{places.mend(f'data/{name}')}, or make it again as data/README.md tells."
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
