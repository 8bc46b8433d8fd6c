"""The pretrained encoder: intact, equal to the full model, and what the lesson says about it."""

import hashlib
import importlib
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from mha_lesson import data, models
from mha_lesson.course.paths import ROOT
from mha_lesson.data import SENTENCE, load_minilm, load_minilm_layers
from mha_lesson.models.minilm import Encoding, MiniLMEncoder, gelu
from tests.conftest import HAS_TORCH

FOLDER = ROOT / "data"


NAME = "minilm_encoder.npz"


# How far float16 weights may be from the float32 model; data/README.md states the same.
TOLERANCE = {"hidden": 0.005, "encoder weights": 0.002}


OMAR = "After Omar placed the book on the table, he left."


HEADS_OF_5 = {(5, head) for head in range(12)}


def seen(encoding, layer, head, query, key):
    return encoding.weights[layer, head, encoding.tokens.index(query), encoding.tokens.index(key)]


# ---------------------------------------------------------------- the file


def test_checksum_and_size_are_those_of_the_readme():
    content = (FOLDER / NAME).read_bytes()
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    part = readme.split(f"## {NAME}")[1].split("\n## ")[0]
    checksum = hashlib.sha256(content).hexdigest()
    assert checksum == data.SHA256[NAME]
    assert checksum in part
    assert f"{len(content)} bytes" in part
    assert len(content) < 22_000_000
    for name, value in TOLERANCE.items():
        assert re.search(rf"\| `{name.split()[-1]}` \|.*\| {value} \|", part), name


def test_the_script_makes_the_shipped_file_again(tmp_path):
    wheel = os.environ.get("MHA_LESSON_MINILM_WHEEL")
    if not wheel:
        pytest.skip("needs the source package: set MHA_LESSON_MINILM_WHEEL to its path (data/README.md)")
    command = [sys.executable, str(FOLDER / "make_minilm.py"), wheel, str(tmp_path / NAME)]
    subprocess.run(command, check=True, timeout=300)
    assert (tmp_path / NAME).read_bytes() == (FOLDER / NAME).read_bytes()


def test_a_missing_or_damaged_file_names_the_mend(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"{NAME} is missing.*git checkout"):
        load_minilm_layers.__wrapped__()
    (tmp_path / NAME).write_bytes((FOLDER / NAME).read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{NAME} is damaged.*git checkout"):
        load_minilm_layers.__wrapped__()


def test_what_is_loaded_is_shared_and_read_only(encoder):
    loaded = load_minilm_layers()
    assert load_minilm_layers() is loaded
    assert len(loaded.layers) == 6
    assert len(repr(loaded)) < 60
    references = loaded.references.values()
    arrays = [array for layer in loaded.layers for array in layer.values()]
    arrays += [array for reference in references for array in (reference.hidden, reference.weights)]
    assert len(arrays) == 6 * 16 + 2 * 3
    for array in arrays:
        assert array.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            array += 1
    with pytest.raises(TypeError, match="read-only"):
        loaded.layers[0].update(w_q=0)
    with pytest.raises(TypeError, match="read-only"):
        loaded.references.clear()
    assert encoder.layers[2].w_1 is loaded.layers[2]["w_1"], "float64 makes no copy"


def test_layer_0_is_the_one_of_the_first_lessons(encoder):
    entrance, layer = load_minilm(), load_minilm_layers().layers[0]
    for name, array in entrance.params.items():
        np.testing.assert_array_equal(layer[name], array)
    np.testing.assert_array_equal(layer["attention_gain"], entrance.output_gain)
    np.testing.assert_array_equal(layer["attention_bias"], entrance.output_bias)
    for sentence, reference in entrance.references.items():
        weights = encoder(sentence).weights[0]
        np.testing.assert_allclose(weights, reference.weights, rtol=0, atol=0.001)


# ---------------------------------------------------------------- the numbers


@pytest.mark.parametrize("number", range(3))
def test_the_full_models_numbers_come_out(encoder, number):
    sentence, reference = list(load_minilm_layers().references.items())[number]
    found = encoder(sentence)
    L = len(found.tokens)
    assert isinstance(found, Encoding)
    assert found.tokens == reference.tokens
    assert found.hidden.shape == reference.hidden.shape == (7, L, 384)
    assert found.weights.shape == reference.weights.shape == (6, 12, L, L)
    np.testing.assert_allclose(found.hidden, reference.hidden, rtol=0, atol=TOLERANCE["hidden"])
    np.testing.assert_allclose(found.weights, reference.weights, rtol=0, atol=TOLERANCE["encoder weights"])
    assert (found.weights.argmax(-1) == reference.weights.argmax(-1)).all()
    np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=0, atol=1e-12)


def plain_forward(tokens, off=(), approximate=False, swap_norm=False):
    """All six layers in plain NumPy, one head after another, without the package's classes.

    off: heads whose output is set to 0 before W_O. The last two arguments are mistakes.
    """
    entrance = load_minilm()

    def norm(x, gain, bias):
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-12) * gain + bias

    rows = [entrance.vocabulary.index(token) for token in tokens]
    x = entrance.token_table[rows] + entrance.position_table[: len(rows)] + entrance.type_vector
    x = norm(x, entrance.embedding_gain, entrance.embedding_bias)
    hidden, weights = [x], []
    for layer, p in enumerate(load_minilm_layers().layers):
        total = np.tile(p["b_o"], (len(x), 1))
        for head in range(12):
            part = slice(32 * head, 32 * head + 32)
            q, k, v = (x @ p[f"w_{role}"][:, part] + p[f"b_{role}"][part] for role in "qkv")
            shares = np.exp(q @ k.T / math.sqrt(32))
            shares /= shares.sum(1, keepdims=True)
            weights.append(shares)
            output = shares @ v * ((layer, head) not in off)
            total += output @ p["w_o"][part]
        x = norm(x + total, p["attention_gain"], p["attention_bias"])
        inner = x @ p["w_1"] + p["b_1"]
        if approximate:
            inner = inner * np.maximum(0, np.sign(inner))
        else:
            inner = inner / 2 * (1 + np.vectorize(math.erf)(inner * math.sqrt(0.5)))
        fed = inner @ p["w_2"] + p["b_2"]
        if swap_norm:
            x = x + norm(fed, p["feed_forward_gain"], p["feed_forward_bias"])
        else:
            x = norm(x + fed, p["feed_forward_gain"], p["feed_forward_bias"])
        hidden.append(x)
    return np.stack(hidden), np.stack(weights).reshape(6, 12, len(x), len(x))


@pytest.mark.parametrize("off", [(), {(2, 7), (5, 5), (5, 0)}])
def test_a_forward_pass_without_our_classes_gives_the_same(encoder, off):
    found = encoder(SENTENCE, ablate=off)
    hidden, weights = plain_forward(found.tokens, off)
    np.testing.assert_allclose(found.hidden, hidden, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.weights, weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mistake", ["approximate", "swap_norm"])
def test_the_comparison_can_fail(mistake):
    reference = load_minilm_layers().references[SENTENCE]
    hidden, _ = plain_forward(reference.tokens, **{mistake: True})
    assert np.abs(hidden - reference.hidden).max() > 20 * TOLERANCE["hidden"]


def test_gelu_is_the_exact_one():
    """Against the integral of the normal density, and away from the shortcut with tanh."""
    x = np.linspace(-6, 6, 1201)
    steps = np.linspace(-9, 6, 150_001)
    density = np.exp(-(steps**2) / 2) / math.sqrt(2 * math.pi)
    sums = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)]) * (steps[1] - steps[0])
    np.testing.assert_allclose(gelu(x), x * np.interp(x, steps, sums), rtol=0, atol=1e-7)
    shortcut = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    assert 0.0004 < np.abs(gelu(x) - shortcut).max() < 0.0005, "what its docstring says"
    assert gelu(x.astype(np.float32)).dtype == np.float32
    assert gelu(np.array(0.0)) == 0
    assert gelu(np.array([-40.0, 40.0])).tolist() == [0, 40]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float32_and_float64(dtype, encoding):
    found = MiniLMEncoder(dtype)(SENTENCE)
    assert found.hidden.dtype == found.weights.dtype == dtype
    np.testing.assert_allclose(found.hidden, encoding.hidden, rtol=0, atol=2e-5)
    np.testing.assert_allclose(found.weights, encoding.weights, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- in PyTorch


def test_the_numpy_model_imports_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; from mha_lesson.models.minilm import MiniLMEncoder; "
        "print(MiniLMEncoder()('She left.').hidden.shape)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "(7, 5, 384)", run.stderr


def test_annotated_shapes_hold(monkeypatch, tmp_path):
    """Both models, loaded once more with beartype at every annotation."""
    pytest.importorskip("beartype")
    from jaxtyping import TypeCheckError, install_import_hook

    # A cache of its own: bytecode of the checked modules must not be mixed up with the plain one.
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    for name in ("minilm", "minilm_torch"):
        monkeypatch.delitem(sys.modules, f"mha_lesson.models.{name}", raising=False)
        monkeypatch.delattr(models, name, raising=False)
    with install_import_hook(["mha_lesson.models"], "beartype.beartype"):
        checked = importlib.import_module("mha_lesson.models.minilm").MiniLMEncoder()
        checked(checked("She left.").tokens, ablate={(0, 0)})
        checked.embedding("She left.")
        with pytest.raises(TypeCheckError):
            checked.layers[0](np.zeros((3, 384), dtype=int))
        if HAS_TORCH:
            import torch

            model = checked.to_torch()
            model(torch.tensor([2, 3]))
            model(torch.tensor([[2, 3], [2, 3]]), torch.ones(2, 1, 1, 2).bool())
            with pytest.raises(TypeCheckError):
                model(torch.ones(2))


# ---------------------------------------------------------------- what the lesson says about it


def test_head_5_of_layer_5_links_she_to_maya(encoder, encoding):
    assert seen(encoding, 5, 5, "she", "maya") == pytest.approx(0.53, abs=0.01)
    assert max(seen(encoding, 5, 5, "she", noun) for noun in ("book", "table")) < 0.05
    omar = encoder(OMAR)
    assert seen(omar, 5, 5, "he", "omar") == pytest.approx(0.61, abs=0.01)
    assert max(seen(omar, 5, 5, "he", noun) for noun in ("book", "table")) < 0.06


def test_and_fails_on_other_sentences(encoder):
    cat = encoder("The cat chased the mouse until it was tired.")
    assert seen(cat, 5, 5, "it", "cat") == pytest.approx(0.13, abs=0.01)
    assert seen(cat, 5, 5, "it", "mouse") == pytest.approx(0.35, abs=0.01)
    anna = encoder("Anna told David that she was tired.")
    assert seen(anna, 5, 5, "she", "david") == pytest.approx(0.60, abs=0.01)
    assert seen(anna, 5, 4, "she", "anna") == pytest.approx(0.62, abs=0.01)


def test_a_head_switched_off(encoder, encoding):
    cut = encoder(SENTENCE, ablate={(2, 7)})
    np.testing.assert_array_equal(cut.weights[:3], encoding.weights[:3])  # its own layer's too
    np.testing.assert_array_equal(cut.hidden[:3], encoding.hidden[:3])
    assert np.abs(cut.hidden[3] - encoding.hidden[3]).max() > 0.1
    assert np.abs(cut.weights[3] - encoding.weights[3]).max() > 0.001
    np.testing.assert_array_equal(encoder(SENTENCE).hidden, encoding.hidden)  # the model itself stays as it was


def test_a_whole_layer_of_heads_switched_off(encoder, encoding):
    cut = encoder(encoding.tokens, ablate=HEADS_OF_5)
    np.testing.assert_array_equal(cut.hidden[:6], encoding.hidden[:6])
    np.testing.assert_array_equal(cut.weights, encoding.weights)
    p = load_minilm_layers().layers[5]
    layer = encoder.layers[5].without(range(12))
    found, _ = layer.attention(encoding.hidden[5])
    np.testing.assert_array_equal(found, np.tile(p["b_o"], (14, 1)))
    assert np.abs(cut.hidden[6] - encoding.hidden[6]).max() > 0.1


def test_a_high_weight_may_do_nothing(encoder):
    """Head 1 of layer 3 sends "they" to "students" with 0.92. Without it hardly anything changes."""
    sentence = "The students thanked the teacher because they learned a lot."
    whole, cut = encoder(sentence), encoder(sentence, ablate={(3, 1)})
    assert seen(whole, 3, 1, "they", "students") == pytest.approx(0.92, abs=0.01)
    assert encoder.embedding(sentence) @ encoder.embedding(sentence, {(3, 1)}) > 0.998
    they = whole.tokens.index("they")
    before, after = whole.hidden[6][they], cut.hidden[6][they]
    assert before @ after / np.linalg.norm(before) / np.linalg.norm(after) > 0.985
    # Head 5 of layer 5 matters far more, with a smaller weight.
    assert encoder.embedding(SENTENCE) @ encoder.embedding(SENTENCE, {(5, 5)}) < 0.96
    # And nearly all of a head may rest on [CLS], where it finds nothing.
    assert seen(encoder(SENTENCE), 4, 5, "she", "[CLS]") > 0.9
    assert encoder.embedding(SENTENCE) @ encoder.embedding(SENTENCE, {(4, 5)}) > 0.999


def test_tokens_or_text(encoder, encoding):
    again = encoder(list(encoding.tokens))
    np.testing.assert_array_equal(again.hidden, encoding.hidden)
    assert repr(again).startswith("Encoding('[CLS] after maya")
    assert "6 layers, 12 heads" in repr(encoder)
    np.testing.assert_array_equal(again.hidden[0], load_minilm().embed(encoding.tokens))


def test_every_lesson_sentence_runs(encoder):
    for sentence in load_minilm().sentences[2::9]:
        assert np.isfinite(encoder(sentence).hidden).all()


def test_embeddings_of_like_sentences_are_close(encoder):
    texts = ["The dog bit the man.", "The man bit the dog.", "The bank gave her the money."]
    dog, man, bank = (encoder.embedding(text) for text in texts)
    assert dog.shape == (384,)
    assert np.linalg.norm(dog) == pytest.approx(1, abs=1e-12)
    mean = encoder(texts[0]).hidden[6].sum(axis=0)
    np.testing.assert_allclose(dog, mean / math.sqrt((mean**2).sum()), rtol=0, atol=1e-12)
    assert dog @ man > 0.9 > 0.3 > dog @ bank
    assert dog @ encoder.embedding(texts[0], ablate={(5, 5)}) < 0.9999


@pytest.mark.parametrize(
    ("ablate", "error", "message"),
    [
        ((5, 5), TypeError, r"set of \(layer, head\) pairs.*got \(5, 5\).*ablate=\{\(5, 5\)\}"),
        (5, TypeError, "One head alone"),
        ({(6, 0)}, ValueError, r"layer 0 to 5 and head 0 to 11, got \(6, 0\)"),
        ({(0, 12)}, ValueError, r"got \(0, 12\)"),
        ({(-1, 0)}, ValueError, r"got \(-1, 0\)"),
    ],
)
def test_wrong_heads_name_the_mend(encoder, ablate, error, message):
    with pytest.raises(error, match=message):
        encoder(SENTENCE, ablate=ablate)


def test_other_wrong_arguments(encoder):
    with pytest.raises(ValueError, match="expected float32 or float64, got float16"):
        MiniLMEncoder(np.float16)
    with pytest.raises(ValueError, match="'xylophone' is not among"):
        encoder("A xylophone.")
    with pytest.raises(ValueError, match="only 32 position vectors"):
        encoder(["dog"] * 33)
