"""The real data: intact, as documented, and equal to what the full model computes."""

import copy
import dataclasses
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mha_lesson import data
from mha_lesson.data import SENTENCE, load_minilm, load_moby_dick

FOLDER = Path(__file__).resolve().parent.parent / "data"
FILES = {"minilm_layer0.npz": 2_200_000, "moby_dick.txt": 400_000}  # name -> most bytes

# How far float16 weights may be from the float32 model; data/README.md states the same.
TOLERANCE = {"x": 0.004, "weights": 0.001, "output": 0.001, "normed": 0.01}


@pytest.fixture(scope="module")
def model():
    return load_minilm()


def compute_layer(model, x):
    """The layer in plain NumPy, one head after another, written without the package's steps."""
    p, width = model.params, model.d_head
    weights, output = [], p["b_o"].copy()
    for head in range(model.num_heads):
        part = slice(head * width, (head + 1) * width)
        q, k, v = (x @ p[f"w_{r}"][:, part] + p[f"b_{r}"][part] for r in "qkv")
        exponentials = np.exp(q @ k.T / np.sqrt(width))
        weights.append(exponentials / exponentials.sum(axis=1, keepdims=True))
        output = output + weights[-1] @ v @ p["w_o"][part]
    summed = x + output
    normed = (summed - summed.mean(1, keepdims=True)) / summed.std(1, keepdims=True)
    return {
        "x": x,
        "weights": np.stack(weights),
        "output": output,
        "normed": normed * model.output_gain + model.output_bias,
    }


# ---------------------------------------------------------------- the files


@pytest.mark.parametrize("name", FILES)
def test_checksum_and_size_are_those_of_the_readme(name):
    content = (FOLDER / name).read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    part = readme.split(f"## {name}")[1].split("\n## ")[0]
    assert checksum in part
    assert f"{len(content)} bytes" in part
    assert checksum == data.SHA256[name]
    assert len(content) <= FILES[name]


def test_the_readme_states_the_tested_tolerances():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, value in TOLERANCE.items():
        assert re.search(rf"\| `{name}` \|.*\| {value} \|", readme), name


def test_licences_are_shipped():
    text = (FOLDER / "LICENSE-APACHE-2.0.txt").read_text(encoding="utf-8")
    assert "Apache License" in text and "TERMS AND CONDITIONS" in text
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "Apache-2.0" in readme and "PDDL" in readme


@pytest.mark.parametrize(
    ("script", "name", "variable"),
    [
        ("make_minilm_layer0.py", "minilm_layer0.npz", "MHA_LESSON_MINILM_WHEEL"),
        ("make_moby_dick.py", "moby_dick.txt", "MHA_LESSON_MOBY_DICK_PACKAGE"),
    ],
)
def test_the_script_makes_the_shipped_file_again(script, name, variable, tmp_path):
    source = os.environ.get(variable)
    if not source:
        pytest.skip(f"needs the source package: set {variable} to its path (data/README.md)")
    command = [sys.executable, str(FOLDER / script), source, str(tmp_path / name)]
    subprocess.run(command, check=True, timeout=300)
    assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("load", [load_minilm, load_moby_dick])
def test_missing_and_damaged_files_name_the_mend(load, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    name = "minilm_layer0.npz" if load is load_minilm else "moby_dick.txt"
    with pytest.raises(FileNotFoundError, match=rf"{name} is missing.*git checkout"):
        load.__wrapped__()
    (tmp_path / name).write_bytes((FOLDER / name).read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{name} is damaged.*git checkout"):
        load.__wrapped__()


def test_loading_works_from_any_folder_and_happens_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_moby_dick.__wrapped__() == load_moby_dick()
    assert load_minilm.__wrapped__().vocabulary == load_minilm().vocabulary
    assert load_minilm() is load_minilm()


# ---------------------------------------------------------------- the model


def test_shapes_and_types(model):
    size = len(model.vocabulary)
    assert (model.num_heads, model.d_head, model.d_model) == (12, 32, 384)
    assert model.token_table.shape == (size, 384)
    assert model.position_table.shape == (32, 384)
    for name in ["type_vector", "embedding_gain", "embedding_bias", "output_gain", "output_bias"]:
        assert getattr(model, name).shape == (384,)
    for role in "qkvo":
        assert model.params[f"w_{role}"].shape == (384, 384)
        assert model.params[f"b_{role}"].shape == (384,)
    assert len(model.params) == 8
    assert all(array.dtype == np.float64 for array in all_arrays(model))
    assert len(repr(model)) < 100


def all_arrays(model):
    owners = [vars(model), model.params, *(vars(r) for r in model.references.values())]
    return [v for owner in owners for v in owner.values() if isinstance(v, np.ndarray)]


def test_everything_shared_is_read_only(model):
    assert len(all_arrays(model)) == 7 + 8 + 4 * len(model.references)
    for array in all_arrays(model):
        with pytest.raises(ValueError, match="read-only"):
            array += 1
    for write in [
        lambda: model.params.update(w_q=0),
        lambda: model.params.__setitem__("w_q", 0),
        lambda: model.word_pieces.clear(),
        lambda: model.references.pop(SENTENCE),
    ]:
        with pytest.raises(TypeError, match=r"dict\(\.\.\.\)"):
            write()
    with pytest.raises(AttributeError):
        model.num_heads = 4
    own = copy.deepcopy(model.params)
    own["w_q"][0, 0] = 7.0
    assert model.params["w_q"][0, 0] != 7.0


def test_four_references_of_different_lengths(model):
    assert next(iter(model.references)) == SENTENCE
    assert [len(r.tokens) for r in model.references.values()] == [14, 14, 8, 16]
    for sentence, reference in model.references.items():
        assert list(reference.tokens) == model.tokenize(sentence)
        np.testing.assert_allclose(reference.weights.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("start", ["tokens", "stored input"])
@pytest.mark.parametrize("number", range(4))
def test_the_packed_weights_give_the_full_models_numbers(model, number, start):
    reference = list(model.references.values())[number]
    x = model.embed(reference.tokens) if start == "tokens" else reference.x
    found = compute_layer(model, x)
    for name, tolerance in TOLERANCE.items():
        expected = getattr(reference, name)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=tolerance, err_msg=name)
    assert (found["weights"].argmax(-1) == reference.weights.argmax(-1)).all()


def test_the_comparison_can_fail(model):
    """Without the scale, with a transposed W_V or without positions, the numbers are far off."""
    reference = model.references[SENTENCE]
    unscaled = dict(model.params, w_q=model.params["w_q"] * np.sqrt(32))
    flipped = dict(model.params, w_v=model.params["w_v"].T)
    for params in [unscaled, flipped]:
        wrong = compute_layer(dataclasses.replace(model, params=params), reference.x)
        assert np.abs(wrong["output"] - reference.output).max() > 0.1
    unplaced = model.embed(reference.tokens, positions=False)
    assert np.abs(unplaced - reference.x).max() > 0.1


def head_2_on_previous(weights):
    """The least weight that head 2 gives to the previous token, over all but the first token."""
    return np.diagonal(weights[2], offset=-1).min()


def test_head_2_looks_at_the_previous_token(model):
    found = compute_layer(model, model.embed(model.tokenize(SENTENCE)))["weights"]
    assert head_2_on_previous(found) >= 0.999
    assert head_2_on_previous(model.references[SENTENCE].weights) >= 0.999
    for sentence in model.sentences:  # elsewhere it is nearly as sure of itself
        found = compute_layer(model, model.embed(model.tokenize(sentence)))["weights"]
        assert head_2_on_previous(found) >= 0.99, sentence


def test_without_positions_the_layer_does_not_see_the_order(model):
    tokens = model.tokenize("The dog bit the man.")
    order = np.array([3, 0, 7, 4, 1, 6, 5, 2])
    shuffled = [tokens[i] for i in order]
    plain = compute_layer(model, model.embed(tokens, positions=False))["output"]
    moved = compute_layer(model, model.embed(shuffled, positions=False))["output"]
    np.testing.assert_allclose(moved, plain[order], atol=1e-12)
    placed = compute_layer(model, model.embed(tokens))["output"]
    moved = compute_layer(model, model.embed(shuffled))["output"]
    assert np.abs(moved - placed[order]).max() > 0.1


def test_embed_is_the_sum_of_three_vectors_normalised(model):
    tokens = model.tokenize("Birds sing at dawn.")
    x = model.embed(tokens)
    for row, token in enumerate(tokens):
        total = model.token_table[model.vocabulary.index(token)] + model.position_table[row]
        total = total + model.type_vector
        expected = (total - total.mean()) / total.std() * model.embedding_gain
        np.testing.assert_allclose(x[row], expected + model.embedding_bias, atol=1e-9)


# ---------------------------------------------------------------- words

EXPECTED_TOKENS = {
    SENTENCE: "[CLS] after maya placed the book on the table , she left . [SEP]",
    "The DOG bit the man": "[CLS] the dog bit the man [SEP]",
    "Don't worry, it works!": "[CLS] don ' t worry , it works ! [SEP]",
    "Tokenization splits words.": "[CLS] token ##ization splits words . [SEP]",
    "unhappiness;embeddings": "[CLS] un ##ha ##pp ##iness ; em ##bed ##ding ##s [SEP]",
    "": "[CLS] [SEP]",
}


@pytest.mark.parametrize("sentence", EXPECTED_TOKENS)
def test_tokenize(model, sentence):
    assert model.tokenize(sentence) == EXPECTED_TOKENS[sentence].split()


def test_every_lesson_sentence_and_word_is_known(model):
    assert model.sentences[0] == SENTENCE
    assert len(set(model.sentences)) == len(model.sentences) == 44
    for text in [*model.sentences, *model.word_pieces]:
        tokens = model.tokenize(text)
        assert [model.vocabulary[i] for i in model.ids(tokens)] == tokens
        assert len(tokens) <= 32


def test_words_for_the_similarity_map_are_one_token_each(model):
    words = """king queen man woman paris france rome italy dog cat puppy kitten car truck
    monday tuesday one two three happy sad"""
    for word in words.split():
        assert model.tokenize(word) == ["[CLS]", word, "[SEP]"]


def test_batches_of_unequal_lengths_are_there(model):
    lengths = [len(re.findall(r"\w+", sentence)) for sentence in model.sentences]
    assert {4, 7, 12} <= set(lengths)


def test_padding_is_token_0(model):
    ids = model.ids(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    assert ids.dtype == np.int64
    assert ids.tolist() == [0, 1, 2, 3, 4]


def test_unknown_words_are_named_with_close_ones(model):
    with pytest.raises(ValueError, match=r"'kitte' is not .* Close to it: kitten.* See them all"):
        model.tokenize("The kitte sat on the mat.")
    with pytest.raises(ValueError, match="'xylophones' is not among the 546 words"):
        model.tokenize("xylophones")


def test_wrong_arguments_name_the_mend(model):
    with pytest.raises(TypeError, match="one sentence at a time"):
        model.tokenize(["The dog bit the man."])
    with pytest.raises(TypeError, match="tokenize"):
        model.embed("The dog bit the man.")
    with pytest.raises(ValueError, match="'Dog' is not in the vocabulary"):
        model.ids(["Dog"])
    with pytest.raises(ValueError, match="only 32 position vectors"):
        model.embed(["dog"] * 33)
    assert model.embed(["dog"] * 33, positions=False).shape == (33, 384)


# ---------------------------------------------------------------- the novel


def test_moby_dick_starts_and_ends_as_it_should():
    text = load_moby_dick()
    assert text.startswith("CHAPTER 1. Loomings.\n\nCall me Ishmael. Some years ago")
    assert text.endswith("naught in that brute but the deadliest ill.\n")
    assert "\r" not in text and "<" not in text and "Gutenberg" not in text
    numbers = [int(number) for number in re.findall(r"^CHAPTER (\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, 42))
