"""Cached writing: a block and a language model with a cache give what they give without one."""

import math

import pytest

from tests.reference import says

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.models import char_lm  # noqa: E402
from mha_lesson.models.blocks import Block, attention_layers, recording  # noqa: E402
from mha_lesson.pytorch.cache import KVCache  # noqa: E402

pytestmark = pytest.mark.torch


NAN = math.nan


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(got, want, atol=1e-12):
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=got.dtype), rtol=0, atol=atol)


# ---------------------------------------------------------------------------- in the models


def lively(model, std=1.0):
    torch.manual_seed(3)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(std * torch.randn_like(parameter) + (parameter.dim() == 1))
    return model


def writer(context=64, **options):
    return lively(char_lm.CharLM(16, 4, 2, layers=2, context=context, **options))


def fed(model):
    """Lengths of what goes into the model from now on."""
    seen = []
    model.register_forward_pre_hook(lambda model, given: seen.append(given[0].shape[1]))
    return seen


@torch.no_grad()
def test_a_block_with_a_cache():
    block, x, cache = lively(Block(12, 3, 1)), numbers(2, 9, 12), KVCache()
    want = block(x, causal=True)
    close(torch.cat([block(x[:, :4], cache=cache), block(x[:, 4:5], cache=cache)], 1), want[:, :5])
    cache.clear()
    prompt = x[:, :4].clone()
    prompt[0, 2:] = NAN
    found = block(prompt, cache=cache, lengths=[2, 4])
    close(found[0, :2], want[0, :2])
    close(found[1], want[1, :4])


@torch.no_grad()
def test_a_language_model_with_caches():
    model = writer(context=20)
    tokens = torch.randint(0, 40, (2, 20), generator=torch.Generator().manual_seed(0))
    want = model(tokens)
    for cuts in ([20], [1] * 20, [7, 1, 1, 5, 6]):
        caches = model.caches()
        close(torch.cat([model(piece, caches) for piece in tokens.split(cuts, 1)], 1), want, 1e-10)
        assert [cache.length.tolist() for cache in caches] == [[20, 20]] * 2
    caches, lengths = model.caches(), [3, 17]
    first = model(tokens[:, :17], caches, lengths)
    rest = torch.stack([tokens[0, 3:6], tokens[1, 17:]])
    second = torch.cat([model(rest[:, :1], caches), model(rest[:, 1:], caches)], 1)
    for b, n in enumerate(lengths):
        close(first[b, :n], want[b, :n], 1e-10)
        close(second[b], want[b, n : n + 3], 1e-10)


@torch.no_grad()
def test_padding_may_reach_beyond_the_context():
    model, tokens = writer(context=8), torch.arange(14).view(2, 7)
    want = model(tokens)
    caches = model.caches()
    model(tokens[:, :5], caches)
    rest = torch.cat([tokens[:, 5:], torch.zeros(2, 4, dtype=torch.long)], 1)
    close(model(rest, caches, [2, 2])[:, :2], want[:, 5:], 1e-10)


def test_what_a_language_model_refuses():
    model, tokens = writer(context=8).requires_grad_(False), torch.arange(10)[None]
    with pytest.raises(ValueError, match=says("tokens: expected at most 8 places, got 10")):
        model(tokens, model.caches())
    caches = model.caches()
    model(tokens[:, :6], caches)
    with pytest.raises(ValueError, match=says("tokens: expected at most 8 places, got 9", "learned positions")):
        model(tokens[:, :3], caches)
    with pytest.raises(ValueError, match=says("caches: expected one for each of 2 blocks, got 1")):
        model(tokens[:, :1], caches[:1])
    with pytest.raises(ValueError, match=says("lengths: came without caches")):
        model(tokens[:, :4], None, [3])
    assert caches[0].length.tolist() == caches[1].length.tolist() == [6]
    with pytest.raises(ValueError, match=says("caches: this model mixes", "uniform")):
        writer(mixing="uniform").caches()
    for call in (
        lambda rival: char_lm.write(rival, "a", 2, cached=True),
        lambda rival: char_lm.write_batch(rival, ["a"], 2),
    ):
        with pytest.raises(ValueError, match=says("model: WindowModel has no keys")):
            call(char_lm.WindowModel(4, 3, 8))


def test_cached_writing_gives_the_same_text_and_reads_each_letter_once():
    model, start = writer(), "Call me Ish"
    plain = char_lm.write(model, start, 54)  # the last letter is written and not read: 64 in all
    assert len(set(plain[len(start) :])) > 5, "the same letter again and again: a bad test"
    hot = char_lm.write(model, start, 54, temperature=0.7, seed=5)
    seen = fed(model)
    assert char_lm.write(model, start, 54, cached=True) == plain
    assert seen == [11] + [1] * 53
    assert char_lm.write(model, start, 54, temperature=0.7, seed=5, cached=True) == hot != plain
    assert char_lm.write(model, start, 0, cached=True) == start
    assert char_lm.write(model, "C", 1, cached=True) == char_lm.write(model, "C", 1)


def test_a_full_cache_begins_anew_with_half_of_the_context():
    model, start = writer(context=8), "abcdefghijk"
    seen = fed(model)
    text = char_lm.write(model, start, 12, cached=True)
    assert seen == [8, 4, 1, 1, 1, 1, 4, 1, 1, 1, 1, 4]
    assert text.startswith(start) and len(text) == 23
    so_far = start
    for view in (8, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 4):  # letters in sight of each choice
        so_far += char_lm.decode(model(char_lm.encode(so_far[-view:])[None])[0, -1].argmax()[None])
    assert text == so_far
    tiny = writer(context=1)
    assert char_lm.write(tiny, "ab", 5, cached=True) == char_lm.write(tiny, "ab", 5)


def test_writing_on_from_several_starts_at_once():
    model, starts = writer(), ["Call me", "I", "The white whale", "Ahab "]
    seen = fed(model)
    texts = char_lm.write_batch(model, starts, 30)
    assert seen == [15] + [1] * 29
    assert texts == [char_lm.write(model, start, 30) for start in starts]
    assert len({text[-20:] for text in texts}) > 1
    assert char_lm.write_batch(model, starts, 0) == starts
    assert char_lm.write_batch(model, [], 3) == []
    assert char_lm.write_batch(model, ["abc" * 5], 50)[0] == char_lm.write(model, "abc" * 5, 50), "just fits"
    with pytest.raises(ValueError, match=says("length: expected at most 50 letters after the longest start, got 51")):
        char_lm.write_batch(model, ["a", "abc" * 5], 51)
    with pytest.raises(ValueError, match=says("start: expected at least one character")):
        char_lm.write_batch(model, ["a", ""], 3)


@torch.no_grad()
def test_recording_with_caches():
    model, tokens = writer(), torch.arange(10)[None]
    with recording(model) as full:
        want = model(tokens)
    caches = model.caches()
    with recording(model) as maps:
        model(tokens[:, :9], caches)
        close(model(tokens[:, 9:], caches), want[:, 9:], 1e-10)
    assert len(maps) == len(attention_layers(model)) == 2
    for name, weights in maps.items():
        close(weights, full[name][:, :, 9:], 1e-10)
