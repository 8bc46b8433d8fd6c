"""The calculator of the cache counts as lesson 11 does."""

import re
from types import SimpleNamespace

import pytest

from mha_lesson import show
from mha_lesson.show.widgets.cache import cache_facts, cache_html, cache_text, choice_name, head_choices, size_text
from mha_lesson.steps.serving import PUBLISHED, kv_cache_bytes


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda m: m.name)
@pytest.mark.parametrize("tokens, batch, size", [(1024, 1, 2), (8192, 7, 1)])
def test_the_calculator_counts_as_the_lesson_does(model, tokens, batch, size):
    found = cache_facts(model, tokens, batch, size)
    kept = min(tokens, model.window or tokens)
    assert found["kept"] == kept
    assert found["total"] == found["by_heads"][model.kv_heads] == model.cache_bytes(tokens, batch, size)
    for heads, total in found["by_heads"].items():
        assert total == kv_cache_bytes(model.layers, heads, model.d_head, kept, batch, size)
    assert found["full"] == found["by_heads"][model.heads] == found["saved"] * found["total"]
    assert found["token"] * kept * batch == found["total"]


def test_a_card_holds_as_many_texts_as_fit_and_not_one_more():
    model = next(m for m in PUBLISHED if m.name == "Llama 3 70B")
    found = cache_facts(model, 8192, 3, 2)
    assert found["fits"][8] == {24: 9, 80: 32, 141: 56}  # 2.5 GiB each, however many are asked for
    for heads, fits in found["fits"].items():
        one = found["by_heads"][heads] / 3
        assert all(n * one <= card * 2**30 < (n + 1) * one for card, n in fits.items())


@pytest.mark.parametrize(
    "heads, kv_heads, choices",
    [(32, 8, [32, 8, 1]), (32, 32, [32, 8, 1]), (12, 12, [12, 6, 1]), (71, 1, [71, 1]), (8, 1, [8, 1]), (1, 1, [1])],
)
def test_choices_of_key_heads_are_ones_that_can_be_built(heads, kv_heads, choices):
    assert head_choices(heads, kv_heads) == choices
    assert all(heads % n == 0 for n in head_choices(heads, kv_heads))
    assert kv_heads in head_choices(heads, kv_heads)


def test_choices_have_names():
    assert [choice_name(n, 32)[-5:] for n in (32, 8, 1)] == ["(MHA)", "(GQA)", "(MQA)"]
    assert choice_name(1, 1) == "1 head"


def test_sizes_read_well():
    sizes = (12, 1023, 1024, 2048, 3 * 2**20, 2**31, 1.25 * 2**30, 999.6 * 2**30, 100 * 2**40)
    texts = ["12 bytes", "1,023 bytes", "1 KiB", "2 KiB", "3 MiB", "2 GiB", "1.25 GiB", "1,000 GiB", "100 TiB"]
    assert [size_text(n) for n in sizes] == texts


def test_the_calculator_says_what_it_shows():
    widget = show.KVCacheCalculator(PUBLISHED, "Llama 2 7B")
    assert widget.text == (
        "KVCacheCalculator: Llama 2 7B, 1 text of 4,096 tokens, 2 bytes a number: 2 GiB, "
        "of which one token takes 512 KiB."
    )
    state = {**widget.start, "model": "Mistral 7B", "tokens": 32768, "batch": 3}
    said = widget.describe(**state)
    assert "keeps the last 4,096" in said and "made for texts up to 8,192" in said
    assert "each of its 32 query heads it would be 4 times as much, 6 GiB" in said
    assert "1.5 GiB" in widget.render(**state) and said in widget.render(**state)
    assert "Llama 2 7B 2 GiB" in widget.picture_alt()
    bars, count = widget.picture().axes[0].patches, len(PUBLISHED)
    assert len(bars) == 2 * count
    lengths = [bar.get_width() * 2**30 for bar in bars]
    assert lengths[1::2] == pytest.approx([m.cache_bytes(m.context) for m in PUBLISHED])
    assert lengths[::2] == pytest.approx([m.cache_bytes(m.context) * m.heads / m.kv_heads for m in PUBLISHED])


def test_the_table_marks_what_was_built():
    model = next(m for m in PUBLISHED if m.name == "Llama 3 8B")
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", cache_html(model, 8192, 2, 2))
    assert len(rows) == 3
    assert ["as built" in row for row in rows] == [False, True, False]
    assert ["width:100.0%" in row for row in rows] == [True, False, False]
    assert all(size in row for size, row in zip(("8 GiB", "2 GiB", "256 MiB"), rows, strict=True))


def test_a_model_of_the_learner_needs_no_more_than_its_shape():
    mine = SimpleNamespace(name="<mine>", layers=2, heads=4, kv_heads=2, d_head=8, context=64, window=16)
    assert cache_facts(mine, 64, 1, 4)["total"] == 2 * 2 * 2 * 8 * 16 * 4
    assert "&lt;mine&gt;" in cache_html(mine, 64, 1, 4) and "<mine>" not in cache_html(mine, 64, 1, 4)
    assert "1 byte a number" in cache_text(mine, 64, 1, 1)
    assert show.KVCacheCalculator([mine]).start["tokens"] == 256, "the shortest that the slider has"


def test_the_calculator_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match=r"Llama 2 7B.*got 'mine'"):
        show.KVCacheCalculator(PUBLISHED, "mine")
    with pytest.raises(ValueError, match="empty"):
        show.KVCacheCalculator([])
    with pytest.raises(ValueError, match="above 0"):
        cache_facts(PUBLISHED[0], 0, 1, 2)


def test_every_control_changes_the_html():
    widget = show.KVCacheCalculator(PUBLISHED, "Llama 2 7B")
    for name, value, words in [
        ("batch", 5, "5 texts"), ("tokens", 131072, "131,072 tokens"), ("bytes_per_number", 1, "1 byte a"),
        ("model", "GPT-3", "GPT-3, 5 texts"),
    ]:  # fmt: skip
        before = widget.output.value
        widget.controls[name].value = value
        assert widget.output.value != before and words in widget.output.value
