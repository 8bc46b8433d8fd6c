"""The small models: their parts against plain loops, their training, their tasks, the command line.

What needs PyTorch stands in classes marked `torch`; what is recorded (`results`) needs none.
"""

import json
import math
import shlex
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mha_lesson import data, models
from mha_lesson.models import TASK_NAMES, command, get_task, results
from tests.conftest import HAS_TORCH
from tests.reference import says

if HAS_TORCH:
    import torch
    from torch import nn
    from torch.nn import functional as F

    from mha_lesson.models import char_lm, classifier, induction, series, training, translation
    from mha_lesson.models.blocks import (
        Block,
        UniformAttention,
        attention_layers,
        heads_off,
        make_attention,
        real_tokens,
        recording,
        start_small,
    )
    from mha_lesson.models.training import Task
    from mha_lesson.pytorch import MultiHeadAttention
    from mha_lesson.pytorch.heads import merge_heads, share_heads, split_heads
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object

ROOT = Path(models.__file__).resolve().parents[2]
SHIPPED = data.FOLDER / "models"


# ---------------------------------------------------------------------------- what tests share


@cache
def task_of(name):
    """One task for all tests: making its tensors takes a moment."""
    return get_task(name)


def small(monkeypatch, name, batch_size=4):
    """That task with small batches, for one test."""
    task = task_of(name)
    monkeypatch.setattr(task, "batch_size", batch_size)
    return task


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def lively(model, std=0.3, seed=0):
    """In float64, in evaluation mode, with all numbers large enough for every part to matter."""
    torch.manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(std * torch.randn_like(parameter) + (parameter.dim() == 1))
    return model


def close(got, want, atol=1e-10):
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class Stop(Exception):
    """Someone pulled the plug."""


class Tiny(Task):
    """Which of three numbers is the largest: learned in the blink of an eye."""

    name, title, metric, shipped = "tiny", "the largest of three", "accuracy", "wide"
    steps, batch_size, learning_rate, warmup = 130, 16, 2e-2, 10
    variants = {"wide": {"width": 8}, "narrow": {"width": 4}}  # noqa: RUF012

    def build(self, width=8, dropout=0.3):
        return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Dropout(dropout), nn.Linear(width, 3))

    def batch(self, generator):
        x = torch.randn(self.batch_size, 3, generator=generator)
        return x, x.argmax(1)

    def loss(self, model, x, answer):
        return F.cross_entropy(model(x), answer)


class Scripted(nn.Module):
    """A model that says what it is told to: row i of `answers`, however the rows are cut into batches."""

    def __init__(self, answers, context=64):
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(1))
        self.answers, self.context, self.seen = answers, context, []

    def forward(self, *inputs):
        start = sum(map(len, self.seen))
        self.seen.append(inputs[0])
        return self.answers[start : start + len(inputs[0])]


def one_hot(numbers, classes):
    return F.one_hot(numbers, classes).double()


# ---------------------------------------------------------------------------- parts: the layers


@pytest.mark.torch
class TestUniformAttention:
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("masked", ["nothing", "pairs (L, S)", "padding (B, 1, 1, S)", "an empty row"])
    @pytest.mark.parametrize("kind", ["self", "cross", "own values"])
    def test_it_is_a_mean_over_the_allowed_keys(self, kind, masked, causal):
        B, L, S, E = 2, 3, 3 if kind == "self" else 5, 4
        layer = lively(UniformAttention(E))
        query, key, value = randn(B, L, E), randn(B, S, E, seed=1), randn(B, S, E, seed=2)
        if masked == "nothing":
            keep = None
        elif masked == "padding (B, 1, 1, S)":
            keep = torch.tensor([[True] * S, [True] * (S - 1) + [False]])[:, None, None, :]
        else:
            keep = (torch.arange(L * S).view(L, S) * 7) % 3 > 0
            keep[1] &= masked != "an empty row"
        given = {"self": (query,), "cross": (query, key), "own values": (query, key, value)}[kind]
        source = given[-1]
        output, weights = layer(*given, keep=keep, causal=causal, need_weights=True)
        allowed = torch.ones(B, 1, L, S, dtype=torch.bool) if keep is None else keep.expand(B, 1, L, S)

        for b in range(B):
            for i in range(L):
                rows = [j for j in range(S) if allowed[b, 0, i, j] and (not causal or j <= i + S - L)]
                found = [layer.v_proj.weight @ source[b, j] + layer.v_proj.bias for j in rows]
                mean = sum(found) / len(rows) if rows else torch.zeros(E, dtype=torch.float64)
                close(output[b, i], layer.out_proj.weight @ mean + layer.out_proj.bias)
                want = torch.tensor([(j in rows) / max(len(rows), 1) for j in range(S)], dtype=torch.float64)
                close(weights[b, 0, i], want)
        assert weights.shape == (B, 1, L, S)
        assert torch.equal(layer(*given, keep=keep, causal=causal), output)

    def test_it_is_attention_whose_scores_are_all_the_same(self):
        """The rival differs from the layer in nothing else."""
        layer, rival = MultiHeadAttention(6, 2).double(), UniformAttention(6).double()
        rival.load_state_dict({k: v for k, v in layer.state_dict().items() if k.startswith(("v_proj", "out_proj"))})
        nn.init.zeros_(layer.q_proj.weight)
        x, memory, keep = randn(2, 4, 6), randn(2, 5, 6, seed=1), randn(2, 1, 4, 5, seed=2) > 0
        close(rival(x, memory, keep=keep), layer(x, memory, keep=keep))
        close(rival(x, causal=True), layer(x, causal=True))

    def test_dropout_is_for_training_and_spares_the_weights_shown(self):
        layer, x = UniformAttention(4, dropout=0.5).double(), randn(2, 6, 4)
        plain = layer.eval()(x)
        assert torch.equal(layer(x), plain)
        output, weights = layer.train()(x, need_weights=True)
        assert not torch.allclose(output, plain)
        close(weights, torch.full((2, 1, 6, 6), 1 / 6, dtype=torch.float64))

    def test_make_attention(self):
        layer = make_attention(8, 4, 2, dropout=0.25)
        assert (type(layer), layer.num_heads, layer.num_kv_heads, layer.dropout) == (MultiHeadAttention, 4, 2, 0.25)
        rival = make_attention(8, 4, 2, mixing="uniform", dropout=0.25)
        assert (type(rival), rival.num_heads, rival.dropout.p) == (UniformAttention, 1, 0.25)
        with pytest.raises(ValueError, match=says('mixing: expected "attention" or "uniform"', "'mean'")):
            make_attention(8, 4, mixing="mean")


def norm_by_hand(norm, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def feed_by_hand(parts, x):
    inner = x @ parts[0].weight.T + parts[0].bias
    return inner * (1 + torch.erf(inner / math.sqrt(2))) / 2 @ parts[2].weight.T + parts[2].bias


@pytest.mark.torch
class TestBlock:
    @pytest.mark.parametrize("feed_forward", [None, 0, 5])
    @pytest.mark.parametrize("cross", [False, True])
    @pytest.mark.parametrize("causal", [False, True])
    def test_the_formula_by_hand(self, causal, cross, feed_forward):
        block = lively(Block(8, 2, cross=cross, feed_forward=feed_forward, dropout=0.5))
        x, memory = randn(2, 4, 8), randn(2, 3, 8, seed=1)
        keep = torch.tensor([[True, True, True, False], [True] * 4])[:, None, None, :]
        memory_keep = torch.tensor([[True, True, True], [True, False, True]])[:, None, None, :]
        want = x + block.attention(norm_by_hand(block.norm, x), keep=keep, causal=causal)
        if cross:
            want = want + block.cross_attention(norm_by_hand(block.cross_norm, want), memory, keep=memory_keep)
        if feed_forward != 0:
            want = want + feed_by_hand(block.feed_forward, norm_by_hand(block.feed_norm, want))
            assert block.feed_forward[0].out_features == (feed_forward or 16)
        close(block(x, memory, keep=keep, memory_keep=memory_keep, causal=causal), want)

    def test_what_is_left_out_has_no_weights(self):
        assert not any("feed" in name or "cross" in name for name in Block(8, 2, feed_forward=0).state_dict())

    def test_uniform_in_a_cross_block_leaves_its_self_attention(self):
        block = Block(8, 4, 2, cross=True, mixing="uniform", dropout=0.25)
        assert type(block.cross_attention) is UniformAttention
        assert type(block.attention) is MultiHeadAttention
        assert (block.attention.num_heads, block.attention.num_kv_heads, block.attention.dropout) == (4, 2, 0.25)
        assert type(Block(8, 4, mixing="uniform").attention) is UniformAttention
        assert type(Block(8, 4, 2, cross=True).cross_attention) is MultiHeadAttention

    def test_dropout_takes_from_each_part_and_never_from_the_stream(self):
        block, x = lively(Block(8, 2, cross=True)).train(), randn(2, 4, 8)
        block.dropout.p = 1.0
        assert torch.equal(block(x, x), x)

    def test_start_small_spares_the_vectors(self):
        model = lively(Block(32, 2))
        before = {name: p.clone() for name, p in model.named_parameters() if p.dim() == 1}
        start_small(model, std=0.01)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                assert torch.equal(parameter, before[name])
            else:
                assert parameter.std().item() == pytest.approx(0.01, rel=0.15)

    def test_real_tokens(self):
        keep = real_tokens(torch.tensor([[5, 0, 3], [7, 7, 7]]))
        assert keep.shape == (2, 1, 1, 3)
        assert keep[:, 0, 0].tolist() == [[True, False, True], [True, True, True]]
        assert real_tokens(torch.tensor([[5, 0]]), padding=5)[0, 0, 0].tolist() == [False, True]


# ---------------------------------------------------------------------------- parts: looking inside


@pytest.mark.torch
class TestRecording:
    def model(self, **options):
        return lively(induction.AttentionOnly(8, **{"num_heads": 2, "layers": 2, **options}))

    @pytest.mark.parametrize("mixing", ["attention", "uniform"])
    def test_the_maps_are_the_layers_own_weights(self, mixing):
        model, tokens = self.model(mixing=mixing), torch.arange(12).view(2, 6)
        with recording(model) as maps:
            model(tokens)
        assert list(maps) == ["blocks.0.attention", "blocks.1.attention"] == list(attention_layers(model))
        x = model.symbols(tokens) + model.positions.weight[:6]
        for block, weights in zip(model.blocks, maps.values(), strict=True):
            assert torch.equal(weights, block.attention(block.norm(x), causal=True, need_weights=True)[1])
            assert not weights.requires_grad
            x = block(x, causal=True)
        assert not torch.equal(*maps.values()) or mixing == "uniform"

    def test_the_last_call_counts(self):
        model = self.model()
        with recording(model) as maps:
            model(torch.arange(12).view(2, 6))
            model(torch.arange(3)[None])
        assert maps["blocks.1.attention"].shape == (1, 2, 3, 3)

    @pytest.mark.parametrize("training_mode", [False, True])
    def test_the_output_stays_the_same_to_the_last_bit(self, training_mode):
        model = char_lm.CharLM(16, 4, 2, layers=2, context=8, dropout=0.3).train(training_mode)
        tokens = torch.arange(16).view(2, 8)
        torch.manual_seed(1)
        plain = model(tokens)
        torch.manual_seed(1)
        with recording(model):
            recorded = model(tokens)
        assert torch.equal(recorded, plain)
        assert recorded.requires_grad

    def test_nothing_stays_behind_not_even_after_an_error(self):
        model, tokens = self.model(), torch.arange(6)[None]
        with pytest.raises(Stop), recording(model) as maps:
            model(tokens)
            raise Stop
        assert len(maps) == 2
        maps.clear()
        model(tokens)
        assert not maps
        for layer in attention_layers(model).values():
            assert not layer._forward_hooks and not layer._forward_pre_hooks
            assert isinstance(layer(randn(1, 3, 8)), torch.Tensor)

    def test_one_recording_inside_another(self):
        """As with `recording(model): model.alignment(...)`, which records for itself."""
        model, tokens = self.model(), torch.arange(12).view(2, 6)
        plain = model(tokens)
        with recording(model) as outer:
            with recording(model) as inner:
                assert torch.equal(model(tokens), plain)
            assert inner.keys() == outer.keys()
            assert all(torch.equal(inner[name], outer[name]) for name in inner)
            inner.clear()
            assert torch.equal(model(tokens), plain)
            assert not inner

    def test_who_asks_for_the_weights_gets_them_within_too(self):
        layer, x = MultiHeadAttention(8, 2).double(), randn(2, 3, 8)
        output, weights = layer(x, need_weights=True)
        with recording(layer) as maps:
            result = layer(x, need_weights=True)
        assert isinstance(result, tuple), "the layer was asked for (output, weights)"
        assert torch.equal(result[0], output) and torch.equal(result[1], weights)
        assert torch.equal(maps[""], weights)


@pytest.mark.torch
class TestHeadsOff:
    @pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
    @pytest.mark.parametrize("heads", [[1], [0, 3], (3, 3), {2}, [], range(4)])
    def test_the_layer_without_the_context_of_these_heads(self, heads, num_kv_heads):
        layer, x = lively(MultiHeadAttention(12, 4, num_kv_heads)), randn(2, 5, 12)
        before = {name: t.clone() for name, t in layer.state_dict().items()}
        plain, weights = layer(x, causal=True, need_weights=True)
        context = weights @ share_heads(split_heads(layer.v_proj(x), num_kv_heads), 4)  # (B, H, L, D)
        context[:, list(heads)] = 0
        with heads_off(layer, heads):
            close(layer(x, causal=True), layer.out_proj(merge_heads(context)), atol=1e-9)
            without = layer(x, causal=True)
        if len(list(heads)) == 4:
            close(without, layer.out_proj.bias.expand_as(without))
        assert all(torch.equal(t, before[name]) for name, t in layer.state_dict().items())
        assert torch.equal(layer(x, causal=True), plain)
        assert layer.out_proj.weight.requires_grad

    def test_all_is_restored_after_an_error(self):
        layer = MultiHeadAttention(8, 2)
        before = layer.out_proj.weight.detach().clone()
        with pytest.raises(Stop), heads_off(layer, [0]):
            assert not torch.equal(layer.out_proj.weight, before)
            raise Stop
        assert torch.equal(layer.out_proj.weight, before)

    @pytest.mark.parametrize("heads", [[4], [-1], [0, 17]])
    def test_wrong_numbers(self, heads):
        layer = MultiHeadAttention(8, 4)
        before = layer.out_proj.weight.detach().clone()
        wrong = [h for h in heads if h]
        with (
            pytest.raises(ValueError, match=says("heads: expected numbers from 0 to 3", f"got {wrong}")),
            heads_off(layer, heads),
        ):
            pass
        assert torch.equal(layer.out_proj.weight, before)

    def test_accuracy_without_each_head(self, monkeypatch):
        """A head whose output is nothing anyway costs nothing; the names are (layer, head)."""
        task, model = task_of("induction"), induction.AttentionOnly(8, 2)
        tokens, period = induction.repeating(8, seeded())
        monkeypatch.setattr(task, "test_part", lambda: (tokens, period))
        seen = []

        def accuracy(model, tokens, period):
            weights = [block.attention.out_proj.weight for block in model.blocks]
            seen.append([(n, h) for n, w in enumerate(weights) for h in (0, 1) if not w[:, 4 * h : 4 * h + 4].any()])
            return len(seen) / 10

        monkeypatch.setattr(induction, "copying_accuracy", accuracy)
        names = [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert task.without_each_head(model) == dict(zip(names, [0.1, 0.2, 0.3, 0.4], strict=True))
        assert seen == [[name] for name in names]


# ---------------------------------------------------------------------------- who sees whom


@pytest.mark.torch
class TestWhoSeesWhom:
    def influence(self, model, places, place):
        """At which places the output changes if one token changes."""
        tokens = torch.arange(2 * places).view(2, places) % 60
        other = tokens.clone()
        other[:, place] = (other[:, place] + 1) % 60
        with torch.no_grad():
            return ((model(tokens) - model(other)).abs().amax(dim=(0, 2)) > 1e-12).tolist()

    @pytest.mark.parametrize("mixing", ["attention", "uniform"])
    @pytest.mark.parametrize("name", ["induction", "moby"])
    @pytest.mark.parametrize("place", [0, 5, 11])
    def test_causal_models_see_the_past_and_never_the_future(self, name, mixing, place):
        if name == "induction":
            model = induction.AttentionOnly(8, 2, mixing=mixing)
        else:
            model = char_lm.CharLM(8, 2, layers=2, context=12, mixing=mixing)
        assert self.influence(lively(model), 12, place) == [p >= place for p in range(12)]

    def test_the_window_is_as_wide_as_it_says(self):
        model = lively(char_lm.WindowModel(window=4, d_model=3, inner=8))
        assert self.influence(model, 12, 5) == [5 <= p < 9 for p in range(12)]
        tokens = torch.arange(6)[None]
        before = model.characters.weight[-1].repeat(3)  # what stands before the beginning
        close(model(tokens)[0, 0], model.think(torch.cat([before, model.characters.weight[0]])))

    def test_positions(self):
        """Two equal symbols at two places are two different things."""
        model = lively(induction.AttentionOnly(8, 2, layers=1))
        logits = model(torch.full((1, 4), 7))
        assert not torch.allclose(logits[0, 1], logits[0, 2])

    def test_a_text_longer_than_the_context_is_refused(self):
        with pytest.raises(ValueError, match=says("tokens: expected at most 8 places, got 9")):
            char_lm.CharLM(8, 2, context=8)(torch.zeros(1, 9, dtype=torch.long))


LETTERS, SOUNDS = tuple("012abcdefgh"), tuple("012ABCDEFGHIJ")  # the first three are the special ones


@pytest.mark.torch
class TestTranslator:
    def model(self, **options):
        options = {"num_heads": 2, **options}
        return lively(translation.Translator(LETTERS, SOUNDS, 8, dropout=0.3, **options))

    @pytest.mark.parametrize("mixing", ["attention", "uniform"])
    def test_the_padding_of_the_source_changes_nothing(self, mixing):
        model = self.model(mixing=mixing)
        source, target = model.read(["abc", "hgfedcba"]), torch.tensor([[1, 5, 7], [1, 9, 4]])
        alone = model(source[:1, :3], target[:1])
        close(model(source, target)[:1], alone)
        with torch.no_grad():
            model.source_embedding.weight[translation.PADDING] += 10
        close(model(source, target)[:1], alone)

    def test_what_is_written_so_far_is_seen_and_nothing_later(self):
        model = self.model(decoder_layers=2)
        source, target = model.read(["abcd"]), torch.tensor([[1, 5, 7, 9, 4]])
        plain = model(source, target)
        for place in range(5):
            other = target.clone()
            other[0, place] += 1
            changed = (model(source, other) - plain).abs().amax(-1)[0] > 1e-12
            assert changed.tolist() == [p >= place for p in range(5)]

    def test_the_source_is_used_each_letter_of_it_in_its_place(self):
        model, target = self.model(), torch.tensor([[1, 5, 7]])
        plain = model(model.read(["abcd"]), target)
        for other in ("bbcd", "abca", "bacd", "abc"):
            changed = (model(model.read([other]), target) - plain).abs().amax(-1)[0]
            assert (changed > 1e-6).all(), other

    @pytest.mark.parametrize("mixing", ["attention", "uniform"])
    def test_uniform_sees_the_mean_of_the_memory_alone(self, mixing):
        model, source, target = self.model(mixing=mixing), torch.tensor([[3, 4, 5, 6]]), torch.tensor([[1, 5, 7]])
        memory, shift = randn(1, 4, 8), randn(8, seed=3)
        other = memory.clone()
        other[0, 0] += shift
        other[0, 2] -= shift
        apart = (model.decode(target, memory, source) - model.decode(target, other, source)).abs().max()
        assert (apart < 1e-10) == (mixing == "uniform")
        close(memory.mean(1), other.mean(1))
        assert (model.decode(target, memory, source) - model.decode(target, memory + shift, source)).abs().max() > 1e-3

    def test_the_variants_reach_the_layers(self):
        model = self.model(num_heads=4, num_kv_heads=2, mixing="uniform", encoder_layers=3)
        kinds = {name: type(layer) for name, layer in attention_layers(model).items()}
        assert kinds.pop("decoder.0.cross_attention") is UniformAttention
        assert set(kinds.values()) == {MultiHeadAttention}
        assert len(kinds) == 4 and model.encoder[2].attention.num_kv_heads == 2

    # ---- from and to text

    def script(self, monkeypatch, model, *rows):
        """`decode` says these symbols, one row of numbers for each source. Gives the list of its calls."""
        calls = []

        def decode(target, memory, source):
            calls.append(target.clone())
            step = target.shape[1] - 1
            logits = torch.zeros(len(rows), step + 1, len(SOUNDS))
            for i, row in enumerate(rows):
                logits[i, -1, row[min(step, len(row) - 1)]] = 1
            return logits

        monkeypatch.setattr(model, "decode", decode)
        return calls

    def test_translate_stops_at_the_end(self, monkeypatch):
        model, END = self.model(), translation.END
        calls = self.script(monkeypatch, model, [5, END, 6, 7, 8], [3, 4, 0, 1, 9, END, 3])
        assert model.translate(["ab", "c"]) == [["C"], ["A", "B", "G"]]
        assert len(calls) == 6, "one more for each symbol until the last source has its <end>"
        assert calls[0].tolist() == [[translation.START]] * 2
        assert calls[2].tolist() == [[translation.START, 5, END], [translation.START, 3, 4]]

    def test_translate_stops_at_the_longest(self, monkeypatch):
        model = self.model()
        calls = self.script(monkeypatch, model, [5])
        assert model.translate(["ab"], longest=7) == [["C"] * 7]
        assert len(calls) == 7

    def test_translate_is_the_likeliest_step_by_step_alone_or_in_a_batch(self):
        for seed in range(50):  # until the sources matter
            model = lively(self.model(), std=1.0, seed=seed)
            written = model.translate(["abc", "hgfedcba", "d"], longest=6)
            if len({tuple(w) for w in written}) == 3:
                break
        for source, symbols in zip(["abc", "hgfedcba", "d"], written, strict=True):
            target = [translation.START]
            while len(target) < 7 and target[-1] != translation.END:
                target.append(model(model.read([source]), torch.tensor([target]))[0, -1].argmax().item())
            assert symbols == [SOUNDS[i] for i in target[1:] if i > 2]
            assert model.translate([source], longest=6) == [symbols]
        assert len({tuple(w) for w in written}) == 3

    def test_alignment(self):
        model = self.model(num_heads=4, decoder_layers=2)
        written, source, weights = model.alignment("abcde", ["A", "F", "C"])
        assert (written, source) == (["A", "F", "C", "<end>"], list("abcde"))
        assert weights.shape == (4, 4, 5)
        close(weights.sum(-1), torch.ones(4, 4, dtype=torch.float64))
        with recording(model) as maps:
            model(model.read(["abcde"]), torch.tensor([[1, 3, 8, 5]]))
        assert torch.equal(maps["decoder.1.cross_attention"][0], weights)
        _, _, other = model.alignment("abcde", ["A", "G", "C"])
        changed = (weights - other).abs().amax(dim=(0, 2)) > 1e-12
        assert changed.tolist() == [False, False, True, True], "row i is made before symbol i is written"

    def test_alignment_explains_what_the_model_writes_itself(self, monkeypatch):
        model = self.model()
        monkeypatch.setattr(model, "translate", lambda sources: [["B", "D"] for _ in sources])
        written, _, weights = model.alignment("abc")
        assert written == ["B", "D", "<end>"]
        assert torch.equal(weights, model.alignment("abc", ("B", "D"))[2])

    def test_alignment_of_the_mean(self):
        weights = self.model(mixing="uniform").alignment("abcd", ["A"])[2]
        close(weights, torch.full((1, 2, 4), 0.25, dtype=torch.float64))

    def test_wrong_texts(self):
        model = self.model()
        with pytest.raises(ValueError, match=says("source: the model has never seen these symbols", "'!' 'é'")):
            model.translate(["a!é"])
        with pytest.raises(ValueError, match=says("expected 1 to 48 symbols, got 49")):
            model.read(["a" * 49])
        with pytest.raises(ValueError, match=says("expected 1 to 48 symbols, got 0")):
            model.read([""])
        assert model.read(["a" * 48]).shape == (1, 48)

    def test_alignment_names_a_symbol_that_it_does_not_know(self):
        with pytest.raises(ValueError, match="ZZ"):
            self.model().alignment("abc", ["A", "ZZ"])

    def test_pad_and_shorten(self):
        rows = translation.pad([[3], [4, 5, 6], [7, 8]])
        assert rows.tolist() == [[3, 0, 0], [4, 5, 6], [7, 8, 0]]
        assert translation.shorten(rows[[0, 2]]).tolist() == [[3, 0], [7, 8]]
        assert translation.shorten(rows).tolist() == rows.tolist()
        assert translation.alphabet_of(["ba", "ca"]) == ("<padding>", "<start>", "<end>", "a", "b", "c")


# ---------------------------------------------------------------------------- training


@pytest.mark.torch
class TestTraining:
    def run(self, *, stop=None, task=None, seed=0, **options):
        """(model or None if stopped, facts, the (step, loss) that `watch` saw)."""
        seen = []

        def watch(step, loss, model):
            assert model.training
            seen.append((step, loss))
            if step == stop:
                raise Stop

        try:
            model, facts = training.train(task or Tiny(), seed=seed, watch=watch, **options)
        except Stop:
            return None, None, seen
        return model, facts, seen

    kept, state = (), b""

    def whole(self):
        """The run of 130 steps that nothing stopped, made once for all tests."""
        TestTraining.kept = TestTraining.kept or self.run()
        return TestTraining.kept

    def stopped(self, path):
        """The checkpoint of a run that was stopped after step 101, made once for all tests."""
        if not TestTraining.state:
            self.run(stop=101, checkpoint=path)
            TestTraining.state = path.read_bytes()
        path.write_bytes(TestTraining.state)

    @pytest.mark.parametrize("stop", [100, 115, 129])
    def test_a_stopped_run_goes_on_to_the_same_bits(self, tmp_path, stop):
        path = tmp_path / "runs" / "tiny.checkpoint"
        whole, facts, losses = self.whole()
        assert len(losses) == 130
        first = self.run(stop=stop, checkpoint=path)[2]
        assert path.exists()
        torch.manual_seed(123)
        model, again, second = self.run(checkpoint=path)
        assert second[0][0] == 101
        assert first[:100] + second == losses
        assert same_weights(model, whole)
        assert not model.training and not whole.training
        assert {**again, "cpu_seconds": 0} == {**facts, "cpu_seconds": 0}
        assert not any(path.parent.iterdir()), "the checkpoint is removed at the end"

    def test_the_seconds_of_both_parts_count(self, tmp_path):
        path = tmp_path / "tiny.checkpoint"
        self.stopped(path)
        state = torch.load(path, weights_only=True)
        torch.save({**state, "seconds": 5000.0}, path)
        assert 5000 <= self.run(checkpoint=path)[1]["cpu_seconds"] < 5100

    @pytest.mark.parametrize(
        "other", [{"seed": 1}, {"steps": 131}, {"variant": {"width": 8, "dropout": 0.0}}, {"task": "named otherwise"}]
    )
    def test_the_checkpoint_of_another_run_is_not_used(self, tmp_path, other):
        path = tmp_path / "tiny.checkpoint"
        self.stopped(path)
        if "task" in other:
            other = {"task": Tiny()}
            other["task"].name = "other"
        seen = self.run(checkpoint=path, stop=3, **other)[2]
        assert seen == self.run(stop=3, **other)[2]

    @pytest.mark.parametrize("damage", ["noise", "empty", "cut", "a list", "no model", "weights of another shape"])
    def test_a_damaged_checkpoint_is_ignored(self, tmp_path, damage):
        path = tmp_path / "tiny.checkpoint"
        self.stopped(path)
        content, state = path.read_bytes(), torch.load(path, weights_only=True)
        if damage == "a list":
            torch.save([1, 2, 3], path)
        elif damage == "no model":
            torch.save({"run": state["run"]}, path)
        elif damage == "weights of another shape":
            torch.save({**state, "model": Tiny().build(width=5).state_dict()}, path)
        else:
            path.write_bytes({"noise": b"\x80not a checkpoint", "empty": b"", "cut": content[:-300]}[damage])
        seen = self.run(checkpoint=path, stop=3)[2]
        assert seen == self.whole()[2][:3]

    def test_the_old_checkpoint_stays_until_the_new_one_is_whole(self, tmp_path, monkeypatch):
        path, model = tmp_path / "tiny.checkpoint", Tiny().build()
        optimiser = torch.optim.AdamW(model.parameters())
        training.keep_state(path, {}, model, optimiser, 100, 1.0)
        before = path.read_bytes()
        assert names(tmp_path) == [path.name]

        def full_disk(state, target):
            Path(target).write_bytes(b"half")
            raise OSError("No space left on device")

        monkeypatch.setattr(torch, "save", full_disk)
        with pytest.raises(OSError, match="No space"):
            training.keep_state(path, {}, model, optimiser, 200, 2.0)
        assert path.read_bytes() == before

    def test_one_seed_one_result_whatever_was_drawn_before(self):
        torch.manual_seed(1)
        first, facts, losses = self.run(steps=20)
        torch.manual_seed(2)
        torch.rand(7)
        again, _, same = self.run(steps=20)
        assert same_weights(first, again) and losses == same
        other, _, different = self.run(steps=20, seed=1)
        assert not same_weights(first, other)
        assert all(a != b for a, b in zip(losses, different, strict=True))
        assert not same_weights(training.new_model(Tiny(), {}, 0), training.new_model(Tiny(), {}, 1))
        assert facts == {"task": "tiny", "variant": {"width": 8}, "seed": 0, "steps": 20, "parameters": 59} | {
            "cpu_seconds": facts["cpu_seconds"]
        }

    def test_every_step_of_every_run_draws_anew(self):
        seeds = [training.step_seed(seed, step) % 2**32 for seed in range(4) for step in range(-1, 3000)]
        assert len(set(seeds)) == len(seeds)
        drawn = []
        task = Tiny()
        plain = task.batch
        task.batch = lambda generator: drawn.append(plain(generator)) or drawn[-1]
        self.run(task=task, steps=5)
        assert len({x.sum().item() for x, _ in drawn}) == 5

    def test_the_loss_falls(self):
        losses = [loss for _, loss in self.whole()[2]]
        assert np.mean(losses[-20:]) < 0.6 * np.mean(losses[:5])

    @pytest.mark.parametrize("name", TASK_NAMES)
    def test_each_task_can_be_learned(self, name, monkeypatch):
        """The same few examples again and again: the loss must fall."""
        task = small(monkeypatch, name)
        fixed = task.batch(seeded())
        monkeypatch.setattr(task, "batch", lambda generator: fixed)
        monkeypatch.setattr(task, "warmup", 2)
        model, facts, losses = self.run(task=task, steps=6)
        with torch.no_grad():
            after = task.loss(model, *fixed).item()
        assert after < 0.97 * losses[0][1]
        assert facts["parameters"] == training.count_parameters(model)
        assert facts["variant"] == task.variants[task.shipped]

    def test_learning_rate(self):
        rates = [training.learning_rate(step, 1000, 3.0, 100, 0.1) for step in range(1001)]
        assert rates[0] == pytest.approx(0.03)
        assert rates[49] == pytest.approx(1.5, rel=0.01)
        assert 90 < np.argmax(rates) <= 100
        assert max(rates) == pytest.approx(3.0, rel=0.03)
        assert all(a < b for a, b in pairwise(rates[:96]))
        assert all(a > b for a, b in pairwise(rates[100:]))
        assert rates[500] == pytest.approx(3 * 0.55)
        assert rates[1000] == pytest.approx(0.3)
        level = [training.learning_rate(step, 50, 2.0, 10, 1.0) for step in range(9, 50)]
        assert level == pytest.approx([2.0] * 41)

    def test_one_step_moves_by_the_learning_rate_along_a_gradient_cut_at_1(self):
        class Steep(Tiny):
            def loss(self, model, x, answer):
                return 1000 * super().loss(model, x, answer)

        task, steps, seed = Steep(), 50, 3
        model = task.build(dropout=0.0).double()
        before = [p.detach().clone() for p in model.parameters()]
        task.batch = lambda generator: (torch.randn(5, 3, generator=generator).double(), torch.tensor([0, 1, 2, 0, 1]))
        batch = task.batch(seeded(training.step_seed(seed, 4)))
        want = task.loss(model, *batch)
        gradient = torch.autograd.grad(want, list(model.parameters()))
        length = math.sqrt(sum(g.pow(2).sum().item() for g in gradient))
        assert length > 10
        # a gradient left over from before must not count
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        sgd = torch.optim.SGD(model.parameters(), lr=99.0)
        assert training.one_step(task, model, sgd, seed, 4, steps, "cpu") == pytest.approx(want.item())
        rate = training.learning_rate(4, steps, task.learning_rate, task.warmup, task.rate_left)
        for p, old, g in zip(model.parameters(), before, gradient, strict=True):
            close(p.detach(), old - rate * g / length, atol=1e-7)

    def test_a_loss_that_is_no_number_stops_the_run(self, tmp_path):
        task, path = Tiny(), tmp_path / "tiny.checkpoint"
        self.stopped(path)
        plain, count = task.loss, []

        def loss(*args):
            count.append(1)
            return plain(*args) * (math.nan if len(count) == 5 else 1)

        task.loss = loss
        with pytest.raises(FloatingPointError, match=says("tiny: the loss became nan at step 105", "learning rate")):
            self.run(task=task, checkpoint=path)
        assert path.exists()

    def test_no_step_at_all_is_the_untrained_model(self):
        model, _, seen = self.run(steps=0)
        assert not seen, f"asked for 0 steps, got {len(seen)}"
        assert same_weights(model, training.new_model(Tiny(), {"width": 8}, 0))

    def test_parameters_that_are_shared_count_once(self):
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3))
        assert training.count_parameters(model) == 21
        model[1].weight = model[0].weight
        assert training.count_parameters(model) == 12

    def test_choose_device(self, monkeypatch):
        assert training.choose_device("cpu") == torch.device("cpu")
        for cuda, mps, want in [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]:
            monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
            monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
            assert training.choose_device().type == want


@pytest.mark.torch
class TestKept:
    FACTS = {"variant": {"d_model": 8, "num_heads": 2}, "seed": 3, "scores": {"accuracy": 0.5}}  # noqa: RUF012

    def model(self):
        torch.manual_seed(0)
        return task_of("digits").build(**self.FACTS["variant"])

    def test_save_and_load(self, tmp_path):
        model, path = self.model(), tmp_path / "new" / "digits.safetensors"
        training.save(model, path, self.FACTS)
        assert names(path.parent) == [path.name]
        tensors, facts = training.read(path)
        assert facts == self.FACTS
        for name, t in model.state_dict().items():
            assert tensors[name].dtype == torch.float16
            assert torch.equal(tensors[name], t.half())
        for dtype in (torch.float32, torch.float64):
            loaded, facts = training.load("digits", dtype=dtype, folder=path.parent)
            assert facts == self.FACTS and not loaded.training
            assert {p.dtype for p in loaded.parameters()} == {dtype}
            assert all(torch.equal(t, tensors[name].to(dtype)) for name, t in loaded.state_dict().items())
        again, _ = models.load("digits", folder=path.parent)
        assert {p.dtype for p in again.parameters()} == {torch.float64}, "the default"
        x = torch.rand(2, 16, 4, dtype=torch.float64)
        assert torch.equal(again(x), loaded(x))

    def test_rounded_is_what_load_gives(self, tmp_path):
        model = self.model()
        exact = {name: t.clone() for name, t in model.state_dict().items()}
        training.save(model, tmp_path / "digits.safetensors", self.FACTS)
        assert training.rounded(model) is model
        assert not all(torch.equal(t, exact[name]) for name, t in model.state_dict().items())
        loaded, _ = training.load("digits", dtype=torch.float32, folder=tmp_path)
        assert same_weights(model, loaded)
        wide = training.rounded(self.model().double())
        assert {p.dtype for p in wide.parameters()} == {torch.float64}

    def test_a_file_named_by_a_string(self, tmp_path):
        """As the first lines of training.py show it."""
        path = str(tmp_path / "digits.safetensors")
        training.save(self.model(), path, self.FACTS)
        assert training.read(path)[1] == self.FACTS

    def test_a_missing_file_names_the_mend(self, tmp_path):
        with pytest.raises(
            FileNotFoundError,
            match=says(
                "speech.safetensors is missing",
                "git checkout -- data/models/speech.safetensors",
                "python3 -m mha_lesson train speech",
            ),
        ):
            training.load("speech", folder=tmp_path)

    @pytest.mark.parametrize(
        "damage", ["cut", "empty", "noise", "no facts", "other facts", "no JSON", "no variant", "another shape"]
    )
    def test_a_damaged_file_names_the_mend(self, tmp_path, damage):
        from safetensors.torch import save_file

        path, model = tmp_path / "digits.safetensors", self.model()
        training.save(model, path, self.FACTS)
        content = path.read_bytes()
        tensors = {name: t.half() for name, t in model.state_dict().items()}
        if damage in ("no facts", "other facts", "no JSON"):
            metadata = {"no facts": None, "other facts": {"title": "x"}, "no JSON": {"facts": "{"}}[damage]
            save_file(tensors, path, metadata=metadata)
        elif damage == "no variant":
            training.save(model, path, {"seed": 0})
        elif damage == "another shape":
            training.save(model, path, {"variant": {"d_model": 16, "num_heads": 2}})
        else:
            path.write_bytes({"cut": content[:-10], "empty": b"", "noise": b"noise" * 100}[damage])
        with pytest.raises(
            ValueError,
            match=says(
                "digits.safetensors is damaged",
                "git checkout -- data/models/digits.safetensors",
                "python3 -m mha_lesson train digits",
            ),
        ):
            training.load("digits", folder=tmp_path)

    def test_the_old_file_stays_until_the_new_one_is_whole(self, tmp_path, monkeypatch):
        path = tmp_path / "digits.safetensors"
        training.save(self.model(), path, self.FACTS)
        before = path.read_bytes()

        def full_disk(tensors, target, metadata):
            Path(target).write_bytes(b"half")
            raise OSError("No space left on device")

        monkeypatch.setattr("safetensors.torch.save_file", full_disk)
        with pytest.raises(OSError, match="No space"):
            training.save(self.model(), path, self.FACTS)
        assert path.read_bytes() == before


# ---------------------------------------------------------------------------- all tasks


@pytest.mark.torch
class TestAllTasks:
    @pytest.mark.parametrize("name", TASK_NAMES)
    def test_it_says_what_it_is(self, name):
        task = task_of(name)
        assert task.name == name and task.title and task.metric
        assert task.shipped in task.variants
        stems = {v.replace(" ", "_").replace(",", "") for v in task.variants}
        assert len(stems) == len(task.variants), "two variants would share one file"

    def test_an_unknown_name(self):
        with pytest.raises(ValueError, match=says("name: expected one of induction, moby", "'mobi'")):
            get_task("mobi")

    @pytest.mark.parametrize("name", TASK_NAMES)
    def test_every_variant_can_be_built_and_trained(self, name, monkeypatch):
        task = small(monkeypatch, name, 2)
        batch = task.batch(seeded())
        for variant in task.variants.values():
            model = task.build(**variant)
            loss = task.loss(model, *batch)
            assert loss.dim() == 0 and loss.isfinite()
            assert (training.count_parameters(model) == 0) == (variant.get("kind") == "copy")
            if training.count_parameters(model):
                loss.backward()
            wanted = {k: v for k, v in variant.items() if k in ("num_heads", "num_kv_heads")}
            for layer in attention_layers(model).values():
                if isinstance(layer, MultiHeadAttention):
                    assert all(getattr(layer, k) == v for k, v in wanted.items())
            kinds = {type(layer) for layer in attention_layers(model).values()}
            assert (UniformAttention in kinds) == (variant.get("mixing") == "uniform")
            assert bool(kinds) == ("kind" not in variant)

    @pytest.mark.parametrize("name", TASK_NAMES)
    def test_a_batch_is_that_of_its_generator(self, name, monkeypatch):
        task = small(monkeypatch, name, 3)
        one, two, other = task.batch(seeded(0)), task.batch(seeded(0)), task.batch(seeded(1))
        torch.manual_seed(5)
        three = task.batch(seeded(0))
        for a, b, c in zip(one, two, three, strict=True):
            assert torch.equal(a, b) and torch.equal(a, c) and len(a) == 3
        assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))

    @pytest.mark.parametrize("name", [name for name in TASK_NAMES if name != "bikes"])
    def test_a_new_model_knows_nothing(self, name, monkeypatch):
        task = small(monkeypatch, name, 48)
        classes = {
            "induction": lambda: induction.SYMBOLS,
            "moby": lambda: len(set(data.load_moby_dick())),
            "spelling": lambda: 39 + 3,
            "dates": lambda: 11 + 3,
            "digits": lambda: 10,
            "speech": lambda: 10,
            "recall": lambda: 64,
        }[name]()
        model = training.new_model(task, task.variants[task.shipped], 0).eval()
        with torch.no_grad():
            loss = task.loss(model, *task.batch(seeded())).item()
        assert abs(loss - math.log(classes)) < 0.35

    @pytest.mark.parametrize("name", TASK_NAMES)
    def test_the_first_score_is_the_metric(self, name, monkeypatch):
        task = task_of(name)
        if name == "induction":
            part = induction.repeating(2, seeded())
            monkeypatch.setattr(task, "test_part", lambda: part)
        elif name == "moby":
            monkeypatch.setattr(char_lm, "text_and_alphabet", lambda: (torch.arange(3000) % 60, "?" * 60))
        elif name in ("spelling", "dates"):
            pairs = task.pairs("test")[:3]
            monkeypatch.setattr(task, "pairs", lambda part: pairs)
        model = task.build(**task.variants[task.shipped]).eval()
        assert next(iter(task.scores(model))) == task.metric


# ---------------------------------------------------------------------------- induction


@pytest.mark.torch
class TestInduction:
    def test_sequences_start_again_after_their_period(self):
        tokens, period = induction.repeating(2000, seeded())
        assert tokens.shape == (2000, 64) and tokens.dtype == torch.long
        assert (tokens.min(), tokens.max(), period.min(), period.max()) == (0, 63, 12, 32)
        for row, p in zip(tokens[:200], period[:200].tolist(), strict=True):
            assert torch.equal(row[p:], row[:-p])
            assert len(set(row[:p].tolist())) > 6
        assert len({tuple(row.tolist()) for row in tokens}) == 2000
        task = task_of("induction")
        (batch,) = task.batch(seeded(4))
        assert torch.equal(batch, induction.repeating(task.batch_size, seeded(4))[0])

    def by_looking_back(self, tokens):
        """What stood behind the last symbol when it stood there before; nothing (-1) if it never did."""
        guess = torch.full_like(tokens, -1)
        for row, line in enumerate(tokens.tolist()):
            for place, symbol in enumerate(line):
                before = [j for j in range(place) if line[j] == symbol]
                if before:
                    guess[row, place] = line[before[-1] + 1]
        return guess

    def test_the_answer_key_asks_what_can_be_known_and_all_of_that(self):
        """Symbols that differ within a period, so that nothing can be known by chance."""
        period = torch.tensor([12, 20, 32])
        rows = [torch.randperm(64, generator=seeded(i))[:p] for i, p in enumerate(period)]
        tokens = torch.stack([row.repeat(6)[:64] for row in rows])
        guess = self.by_looking_back(tokens)
        known = guess[:, :-1] >= 0  # (B, 63): of places 1 to 63
        logits = one_hot(guess.clamp(min=0), 64) * (guess >= 0)[..., None]
        logits[..., :63] += 0.1 * one_hot((tokens.roll(-1, 1) + 1) % 63, 63)  # wrong where nothing is known
        assert induction.copying_accuracy(Scripted(logits), tokens, period) == 1
        right = one_hot(tokens.roll(-1, 1), 64)
        for row, place in [(0, 0), (1, 3), (2, 10), (2, 31), (2, 0), (1, -1), (0, 5)]:
            spoilt = right.clone()
            place = (known[row].nonzero()[place] if place != 31 else torch.tensor([31])).item()
            spoilt[row, place] = 2 * one_hot((tokens[row, place + 1] + 1) % 64, 64)
            want = 1 - known[row, place].item() / known.sum().item()
            got = induction.copying_accuracy(Scripted(spoilt), tokens, period)
            assert got == pytest.approx(want, abs=1e-12), (row, place)
        assert known.sum(1).tolist() == [63 - 12, 63 - 20, 63 - 32]

    def test_scores(self, monkeypatch):
        task = task_of("induction")
        tokens, _ = task.test_part()
        assert tokens.shape == (256, 64)
        assert torch.equal(tokens, task.test_part()[0])
        right = one_hot(tokens.roll(-1, 1), 64)
        assert task.scores(Scripted(right)) == {"accuracy": 1}
        assert task.scores(Scripted(one_hot((tokens.roll(-1, 1) + 1) % 64, 64))) == {"accuracy": 0}
        assert task.scores(Scripted(one_hot(torch.zeros_like(tokens), 64)))["accuracy"] < 0.05

    def test_the_test_part_is_not_what_an_ordinary_seed_draws(self):
        """The generator looks at the low 32 bits of its seed alone: 2**40 is 0 for it."""
        task = task_of("induction")
        test = {tuple(row.tolist()) for row in task.test_part()[0]}
        for seed in range(50):
            assert not test & {tuple(row.tolist()) for row in task.batch(seeded(seed))[0]}, f"seed {seed}"

    @pytest.mark.gpu
    def test_accuracy_without_each_head_on_a_gpu(self, monkeypatch):
        task, part = task_of("induction"), induction.repeating(8, seeded())
        monkeypatch.setattr(task, "test_part", lambda: part)
        model = induction.AttentionOnly(8, 2).double()
        want = task.without_each_head(model)
        assert task.without_each_head(model.cuda()) == want

    def test_the_loss_is_that_of_the_next_symbol(self):
        tokens = induction.repeating(3, seeded())[0]
        logits = randn(3, 64, 64)
        want = [-logits[b, p].log_softmax(-1)[tokens[b, p + 1]].item() for b in range(3) for p in range(63)]
        assert task_of("induction").loss(Scripted(logits), tokens).item() == pytest.approx(np.mean(want))


# ---------------------------------------------------------------------------- text


@pytest.mark.torch
class TestText:
    def test_encode_and_decode(self):
        text = "Call me Ishmael.\n"
        tokens = char_lm.encode(text)
        assert tokens.dtype == torch.long and char_lm.decode(tokens) == text
        assert char_lm.decode(torch.arange(5)) == "".join(sorted(set(data.load_moby_dick())))[:5]
        whole, alphabet = char_lm.text_and_alphabet()
        assert char_lm.decode(whole[:3000]) == data.load_moby_dick()[:3000]
        assert len(whole) == len(data.load_moby_dick()) and len(alphabet) == whole.max() + 1
        with pytest.raises(ValueError, match=says("text: these characters do not occur in the novel", "'€' '漢'")):
            char_lm.encode("5€ 漢")

    def test_the_test_part_is_never_drawn(self, monkeypatch):
        """A novel whose characters are their own places, so short that every place is drawn."""
        monkeypatch.setattr(char_lm, "text_and_alphabet", lambda: (torch.arange(200), ""))
        task = small(monkeypatch, "moby", 4000)
        (text,) = task.batch(seeded())
        assert text.shape == (4000, 129)
        assert (text[:, 1:] - text[:, :-1] == 1).all(), "pieces hang together"
        assert text.min() == 0
        assert 180 - 3 < text.max() < 180, "the last tenth is the test part"

    @pytest.mark.parametrize("context", [8, 64, 128])
    def test_the_loss_is_that_of_the_next_character_within_the_context(self, context):
        task, text = task_of("moby"), torch.arange(2 * 129).view(2, 129) % 60
        logits = randn(2, context, 60)
        model = Scripted(logits, context)
        want = [-logits[b, p].log_softmax(-1)[text[b, p + 1]].item() for b in range(2) for p in range(context)]
        assert task.loss(model, text).item() == pytest.approx(np.mean(want))
        assert torch.equal(model.seen[0], text[:, :context])

    def test_a_model_that_knows_nothing_costs_log2_of_the_alphabet(self):
        alphabet = len(char_lm.text_and_alphabet()[1])
        score = task_of("moby").scores(Scripted(torch.zeros(1, 64, alphabet).expand(2000, -1, -1)))
        assert score == {"bits per character": pytest.approx(math.log2(alphabet), abs=1e-5)}

    def test_a_model_that_knows_how_frequent_letters_are(self):
        """Measured on the last tenth, on nearly all of it."""
        novel, alphabet = data.load_moby_dick(), char_lm.text_and_alphabet()[1]
        cut = len(novel) * 9 // 10
        share = np.array([novel[:cut].count(c) + 1 for c in alphabet], float)
        share /= share.sum()
        logits = torch.tensor(np.log(share)).expand(2000, 128, -1)
        model = Scripted(logits, context=128)
        bits = task_of("moby").scores(model)["bits per character"]
        read = torch.cat(model.seen).flatten()
        assert len(novel) - cut - 128 <= len(read) < len(novel) - cut
        assert char_lm.decode(read) == novel[cut : cut + len(read)]
        answers = novel[cut + 1 : cut + len(read) + 1]
        assert bits == pytest.approx(np.mean([-np.log2(share[alphabet.index(c)]) for c in answers]), abs=1e-5)

    def writer(self, context=16):
        return lively(char_lm.CharLM(8, 2, layers=1, context=context), std=1.0)

    def test_write_takes_the_likeliest(self):
        model, start = self.writer(), "Call me"
        seen = []
        hook = model.register_forward_pre_hook(lambda model, given: seen.append(char_lm.decode(given[0][0])))
        text = char_lm.write(model, start, 30)
        hook.remove()
        assert seen == [text[max(0, end - 16) : end] for end in range(7, 37)], "as much as the context holds"
        assert len(text) == len(start) + 30 and text.startswith(start)
        so_far = start
        while len(so_far) < len(text):
            logits = model(char_lm.encode(so_far[-16:])[None])[0, -1]
            so_far += char_lm.decode(logits.argmax()[None])
        assert text == so_far
        assert char_lm.write(model, start, 30, seed=5) == text
        assert char_lm.write(model, start, 0) == start
        assert len(set(text[len(start) :])) > 1, "one letter for ever: a bad test"

    def test_write_draws_with_a_temperature(self):
        model = self.writer()
        one = char_lm.write(model, "Whale", 40, temperature=1.0, seed=1)
        torch.manual_seed(9)
        assert char_lm.write(model, "Whale", 40, temperature=1.0, seed=1) == one
        assert char_lm.write(model, "Whale", 40, temperature=1.0, seed=2) != one
        assert len(one) == 45
        likeliest = char_lm.write(model, "Whale", 40)
        assert char_lm.write(model, "Whale", 40, temperature=1e-6) == likeliest != one
        wild = char_lm.write(model, "Whale", 200, temperature=1000.0)
        assert len(set(wild)) > 40, "hot: nearly any letter"
        assert len(char_lm.write(lively(char_lm.WindowModel(4, 3, 8)), "Whale", 100, temperature=1.0)) == 105


# ---------------------------------------------------------------------------- translation


@pytest.mark.torch
class TestTranslationTasks:
    @pytest.mark.parametrize("name", ["spelling", "dates"])
    def test_the_parts_are_apart_and_can_be_read(self, name):
        task = task_of(name)
        train, test = task.pairs("train"), task.pairs("test")
        assert (len(train), len(test)) == {"spelling": (15326, 1500), "dates": (18000, 2000)}[name]
        assert not {source for source, _ in train} & {source for source, _ in test}
        if name == "dates":
            assert not {iso for _, iso in train} & {iso for _, iso in test}
        sources, targets = task.alphabets
        assert sources[:3] == targets[:3] == translation.SPECIAL
        assert {s for source, _ in test for s in source} <= set(sources[3:])
        assert {s for _, target in test for s in target} <= set(targets[3:])
        assert max(len(source) for source, _ in train + test) <= translation.LONGEST
        assert max(len(target) for _, target in train + test) <= min(translation.LONGEST - 2, 24)

    @pytest.mark.parametrize("name", ["spelling", "dates"])
    def test_a_batch_holds_pairs_of_the_training_part(self, name, monkeypatch):
        task = small(monkeypatch, name, 40)
        source, target = task.batch(seeded())
        assert len(source) == len(target) == 40
        assert (source != 0).any(0).all() and (target != 0).any(0).all(), "no column of padding alone"
        sources, targets = task.alphabets
        known = {(s, tuple(t)) for s, t in task.pairs("train")}
        for s, t in zip(source.tolist(), target.tolist(), strict=True):
            s, t = [i for i in s if i], [i for i in t if i]
            assert (t[0], t[-1]) == (translation.START, translation.END)
            assert ("".join(sources[i] for i in s), tuple(targets[i] for i in t[1:-1])) in known
        assert ((source[:, 1:] != 0) <= (source[:, :-1] != 0)).all(), "padding stands at the end"
        assert ((target[:, 1:] != 0) <= (target[:, :-1] != 0)).all()
        assert len({tuple(row) for row in source.tolist()}) > 30

    def test_the_loss_leaves_the_padding_out(self):
        source = torch.tensor([[3, 4], [5, 0]])
        target = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
        logits = randn(2, 3, 9)
        model = Scripted(logits)
        model.forward = lambda s, t: (model.seen.append(t), logits)[1]
        want = []
        for b, p in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]:
            logs = logits[b, p].log_softmax(-1)
            want.append(-(0.9 * logs[target[b, p + 1]] + 0.1 * logs.mean()).item())
        assert task_of("spelling").loss(model, source, target).item() == pytest.approx(np.mean(want))
        assert torch.equal(model.seen[0], target[:, :-1])

    class Parrot:
        """Knows all answers, but for those of the sources in `wrong`: there its first symbol is another."""

        source_symbols, target_symbols = LETTERS, SOUNDS

        def __init__(self, pairs, wrong=()):
            self.pairs, self.wrong = pairs, set(wrong)
            self.answers = {s: ["J", *t[1:]] if s in self.wrong else list(t) for s, t in pairs}

        def translate(self, sources):
            return [self.answers[s] for s in sources]

        def read(self, sources):
            return translation.pad([translation.numbers(s, LETTERS) for s in sources])

        def __call__(self, source, target):
            logits = torch.zeros(*target.shape, len(SOUNDS))
            for b, row in enumerate(source.tolist()):
                text = "".join(LETTERS[i] for i in row if i)
                answer = [SOUNDS.index(a) for a in self.answers[text]] + [translation.END]
                for p, number in enumerate(answer):
                    logits[b, p, number] = 1
            return logits

        def alignment(self, source, written):
            """Two heads whose mean lies on place 0, 1, 1, 0, ... of three, and on 2 for <end>."""
            weights = torch.zeros(2, len(written) + 1, 3)
            for i in range(len(written)):
                weights[0, i, [0, 1, 1, 0][i % 4]] = 1
                weights[1, i] = torch.tensor([0.25, 0.25, 0.5])
            weights[:, -1, 2] = 1
            return [*written, "<end>"], list(source), weights

    def test_scores(self, monkeypatch):
        task = task_of("spelling")
        words = [a + b + c for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefg"][:443]
        pairs = tuple((word, tuple("ABCD"[: 1 + i % 4])) for i, word in enumerate(words))
        monkeypatch.setattr(task, "pairs", lambda part: {"test": pairs}[part])
        perfect = task.scores(self.Parrot(pairs))
        assert (perfect["exact"], perfect["symbols"]) == (1, 1)
        wrong = [words[0], words[7], words[442]]
        scores = task.scores(self.Parrot(pairs, wrong))
        symbols = sum(len(t) + 1 for _, t in pairs)  # with <end>
        assert scores["exact"] == pytest.approx(440 / 443)
        assert scores["symbols"] == pytest.approx(1 - 3 / symbols)
        none = task.scores(self.Parrot(pairs, words))
        assert none["exact"] == 0
        assert none["symbols"] == pytest.approx(1 - 443 / symbols)

    def test_reading(self):
        """Mean of the heads: the largest weight is (1 + 0.25) / 2; of 0, 1, 1, 0 one step goes back."""
        pairs = [("abc", tuple("ABCD")), ("abd", tuple("AB"))]
        score = translation.reading(self.Parrot(pairs), pairs)
        assert score == {"peak": pytest.approx(0.625), "straight": pytest.approx(3 / 4)}


# ---------------------------------------------------------------------------- classes


@pytest.mark.torch
class TestClassifiers:
    def test_patches_by_hand(self):
        image = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]])
        want = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
        assert classifier.patches(torch.stack([image, image + 100]), 2).tolist() == [
            want,
            [[n + 100 for n in row] for row in want],
        ]
        assert classifier.patches(image[None], 4).tolist() == [[list(range(16))]]
        assert classifier.patches(image[None, :2], 2).tolist() == [want[:2]]

    def test_digits_are_those_of_the_file(self):
        pieces, labels, test, answers = task_of("digits").data
        digits = data.load_digits()
        assert pieces.shape == (1437, 16, 4) and test.shape == (360, 16, 4)
        close(pieces[5, 6].double(), torch.tensor(digits.train_images[5, 2:4, 4:6].ravel()), atol=1e-6)
        close(test[7, 13].double(), torch.tensor(digits.test_images[7, 6:8, 2:4].ravel()), atol=1e-6)
        assert (labels.numpy() == digits.train_labels).all() and (answers.numpy() == digits.test_labels).all()

    def test_speech_is_scaled_by_the_training_part_alone(self):
        pieces, labels, test, answers = task_of("speech").data
        speech = data.load_speech()
        assert pieces.shape == (1600, 24, 20) and test.shape == (400, 24, 20)
        mean, spread = speech.train_mel.mean(), speech.train_mel.std()
        np.testing.assert_allclose(pieces.numpy(), (speech.train_mel - mean) / spread, atol=2e-5)
        np.testing.assert_allclose(test.numpy(), (speech.test_mel - mean) / spread, atol=2e-5)
        assert (labels.numpy() == speech.train_labels).all() and (answers.numpy() == speech.test_labels).all()
        assert not set(speech.train_voices) & set(speech.test_voices)

    @pytest.mark.parametrize("name", ["digits", "speech"])
    def test_a_batch_holds_training_examples_with_their_labels(self, name):
        task = task_of(name)
        train, labels, _, _ = task.data
        pieces, answers = task.batch(seeded())
        assert pieces.shape == (48, *train.shape[1:])
        for piece, answer in zip(pieces, answers, strict=True):
            places = (train == piece).flatten(1).all(1).nonzero().flatten()
            assert len(places) and answer in labels[places]
        assert len(set(answers.tolist())) > 5

    @pytest.mark.parametrize("name", ["digits", "speech"])
    def test_scores(self, name):
        task = task_of(name)
        _, _, pieces, labels = task.data
        model = Scripted(one_hot(labels, 10))
        assert task.scores(model) == {"accuracy": 1}
        assert torch.equal(torch.cat(model.seen), pieces)
        assert task.scores(Scripted(one_hot((labels + 1) % 10, 10))) == {"accuracy": 0}
        some = labels.clone()
        some[:33] += 1
        assert task.scores(Scripted(one_hot(some % 10, 10)))["accuracy"] == pytest.approx(1 - 33 / len(labels))

    @pytest.mark.parametrize("positions", [True, False])
    def test_without_positions_the_order_is_lost(self, positions):
        model = lively(classifier.Classifier(5, 3, 4, 8, 2, layers=2, positions=positions))
        x = randn(2, 5, 3)
        same = torch.allclose(model(x), model(x[:, [3, 1, 0, 4, 2]]), rtol=0, atol=1e-10)
        assert same == (not positions)

    def test_every_piece_reaches_the_class(self):
        for model in (
            classifier.Classifier(5, 3, 4, 8, 2),
            classifier.Classifier(5, 3, 4, 8, mixing="uniform"),
            classifier.Flat(5, 3, 4),
            classifier.Flat(5, 3, 4, inner=6),
        ):
            model, x = lively(model), randn(1, 5, 3)
            assert model(x).shape == (1, 4)
            for place in range(5):
                other = x.clone()
                other[0, place, 1] += 2
                assert not torch.allclose(model(other), model(x))

    def test_logistic_regression_is_one_linear_map(self):
        model, x = classifier.Flat(5, 3, 4).double(), randn(2, 5, 3)
        want = x.reshape(2, 15) @ model.classes.weight.T + model.classes.bias
        close(model(x), want)
        assert training.count_parameters(model) == 15 * 4 + 4


# ---------------------------------------------------------------------------- series


@pytest.mark.torch
class TestSeries:
    def test_the_calendar_turns_once_a_day_and_once_a_week(self):
        hours = np.arange(3 * 168.0)
        when = series.calendar(hours, hours % 2 == 0)
        assert when.shape == (504, series.CALENDAR)
        np.testing.assert_allclose(when[:, 0], np.sin(2 * np.pi * hours / 24), atol=1e-9)
        np.testing.assert_allclose(when[:, 8], np.cos(2 * np.pi * hours / 24), atol=1e-9)
        np.testing.assert_allclose(when[:, 4], np.sin(2 * np.pi * hours / 168), atol=1e-9)
        assert (when[:, 16] == (hours % 2 == 0)).all()
        day, week = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
        np.testing.assert_allclose(when[24:, day], when[:-24, day], atol=1e-9)
        np.testing.assert_allclose(when[168:, week], when[:-168, week], atol=1e-9)
        assert np.abs(when[24:, 4] - when[:-24, 4]).max() > 0.5
        assert len(np.unique(when[:168, :16].round(6), axis=0)) == 168, "each hour of the week has a face of its own"
        assert np.abs(when).max() <= 1

    def test_counts_are_scaled_by_the_training_part_alone(self):
        counts, when, mean, spread = task_of("bikes").series
        bikes = data.load_bikes()
        np.testing.assert_allclose(np.expm1(counts.numpy() * spread + mean), bikes.counts, rtol=1e-4, atol=1e-3)
        assert counts[bikes.train].double().mean().item() == pytest.approx(0, abs=1e-4)
        assert counts[bikes.train].double().std().item() == pytest.approx(1, abs=1e-3)
        assert when.shape == (8760, 17)
        midday = (bikes.times.astype("datetime64[h]").astype(int) % 24) == 12
        np.testing.assert_allclose(when[midday, 8], -1, atol=1e-5)
        assert (when[:, 16].bool().numpy() == bikes.working_day).all()

    def test_windows_by_hand(self):
        task = task_of("bikes")
        counts, when, _, _ = task.series
        past, ahead, answer = task.windows(torch.tensor([168, 5000]))
        assert (past.shape, ahead.shape, answer.shape) == ((2, 168, 19), (2, 24, 19), (2, 24))
        assert torch.equal(past[0, :, 0], counts[:168]) and torch.equal(past[1, :, 0], counts[4832:5000])
        assert torch.equal(answer[1], counts[5000:5024])
        assert torch.equal(past[1, :, 2:], when[4832:5000]) and torch.equal(ahead[1, :, 2:], when[5000:5024])
        assert (ahead[..., 0] == 0).all(), "the answer is not among what is given"
        assert past[1, [0, -1], 1].tolist() == [-1, 0] and ahead[1, [0, -1], 1].tolist() == [0, 1]

    def test_training_never_reaches_into_the_test_part(self, monkeypatch):
        task, bikes = task_of("bikes"), data.load_bikes()
        drawn = []
        plain = type(task).windows
        monkeypatch.setattr(task, "windows", lambda start: drawn.append(start) or plain(task, start[:2]))
        monkeypatch.setattr(task, "batch_size", 200_000)
        task.batch(seeded())
        starts = drawn[0]
        assert len(starts) == 200_000
        assert starts.min() == series.PAST, "the first hour with a whole week before it"
        assert starts.max() + series.AHEAD == bikes.train.stop, "the last window ends with the training part"

    @pytest.mark.parametrize("hours", [24, 168])
    def test_copying_scores_what_numpy_says(self, hours):
        task, bikes = task_of("bikes"), data.load_bikes()
        off = []
        for start in range(bikes.test.start + 168, bikes.test.stop - 24 + 1, 6):
            off.append(np.abs(bikes.counts[start : start + 24] - bikes.counts[start - hours : start - hours + 24]))
        assert task.scores(series.Copy(hours))["bikes off"] == pytest.approx(np.mean(off), abs=1e-3)
        assert task.scores(series.Copy(hours).double())["bikes off"] == pytest.approx(np.mean(off), abs=1e-3)

    def test_scores_of_a_model_that_is_right_or_off_by_so_much(self):
        task, bikes = task_of("bikes"), data.load_bikes()
        _, _, mean, spread = task.series
        starts = np.arange(bikes.test.start + 168, bikes.test.stop - 24 + 1, 6)
        truth = np.stack([bikes.counts[s : s + 24] for s in starts])
        scaled = lambda counts: torch.tensor((np.log1p(counts) - mean) / spread)  # noqa: E731
        assert task.scores(Scripted(scaled(truth))) == {"bikes off": pytest.approx(0, abs=1e-3)}
        assert task.scores(Scripted(scaled(truth + 7))) == {"bikes off": pytest.approx(7, abs=1e-3)}

    def test_the_linear_model_by_hand(self):
        model = lively(series.Linear())
        past, ahead = randn(2, 168, 19), randn(2, 24, 19, seed=1)
        want = torch.stack(
            [
                model.counts.weight[i] @ past[b, :, 0] + model.counts.bias[i]
                + model.calendar.weight[0] @ ahead[b, i, 2:] + model.calendar.bias[0]
                for b in range(2) for i in range(24)
            ]
        ).view(2, 24)  # fmt: skip
        close(model(past, ahead), want)

    @pytest.mark.parametrize("mixing", ["attention", "uniform"])
    def test_each_hour_ahead_is_forecast_from_the_past_and_its_own_calendar(self, mixing):
        model = lively(series.Forecaster(8, 2, mixing=mixing))
        past, ahead = randn(1, 168, 19), randn(1, 24, 19, seed=1)
        plain = model(past, ahead)
        assert plain.shape == (1, 24)
        other = ahead.clone()
        other[0, 3, 5] += 1
        assert ((model(past, other) - plain).abs()[0] > 1e-9).tolist() == [i == 3 for i in range(24)]
        other = past.clone()
        other[0, 0, 0] += 5
        assert ((model(other, ahead) - plain).abs() > 1e-12).all()


# ---------------------------------------------------------------------------- the command line


def listing(folder):
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to be in; afterwards it is still empty, and the course's data untouched."""
    here, before = tmp_path / "here", listing(data.FOLDER)
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield tmp_path / "to"
    assert not list(here.iterdir()), "something was written outside --to"
    assert listing(data.FOLDER).items() >= before.items(), "a file of the course was changed"


@pytest.mark.torch
class TestCommand:
    def test_overview(self, capsys):
        assert command.main([]) == 0
        lines = capsys.readouterr().out.splitlines()
        for name in TASK_NAMES:
            task = task_of(name)
            (line,) = [line for line in lines if line.split()[:1] == [name]]
            assert task.title in line and f"({task.shipped_steps or task.steps} steps)" in line
        assert task_of("moby").shipped_steps

    def test_an_unknown_variant_gives_2_and_names_all(self, elsewhere, capsys):
        for arguments in (
            ["digits", "--variant", "9 heads", "--to", str(elsewhere)],
            ["sweep", "digits", "--variants", "1 head", "9 heads", "--to", str(elsewhere)],
        ):
            assert command.main(arguments) == 2
            said = capsys.readouterr()
            assert not said.out and all(variant in said.err for variant in task_of("digits").variants)
        assert not elsewhere.exists()

    @pytest.mark.parametrize("arguments", [["digit"], ["sweep", "digit"], ["digits", "--steps", "0"], ["sweep"]])
    def test_wrong_arguments_give_2(self, arguments, capsys):
        with pytest.raises(SystemExit) as stop:
            command.main(arguments)
        assert stop.value.code == 2
        assert "mha_lesson train" in capsys.readouterr().err

    def test_train_one(self, elsewhere, capsys):
        arguments = ["bikes", "--variant", "2 heads", "--seed", "4", "--steps", "2"]
        options = ["--device", "cpu", "--threads", "1", "--to", str(elsewhere), "--json"]
        assert command.main([*arguments, *options]) == 0
        said = capsys.readouterr()
        facts = json.loads(said.out)
        assert not said.err, "--json comes without a bar"
        assert names(elsewhere) == ["bikes-2_heads-seed4.safetensors"]
        path = elsewhere / "bikes-2_heads-seed4.safetensors"
        tensors, stored = training.read(path)
        assert stored == facts
        wanted = {"task": "bikes", "variant": {"num_heads": 2}, "variant_name": "2 heads", "seed": 4, "steps": 2}
        assert facts.items() >= {**wanted, "device": "cpu", "threads": 1}.items()
        assert facts["torch"] == torch.__version__.split("+")[0] and facts["forward_ms"] > 0
        again = command.train_parser().parse_args(shlex.split(facts["command"])[4:])
        assert (again.name, again.variant, again.seed, again.steps) == ("bikes", "2 heads", 4, 2)

        task = task_of("bikes")
        model, _ = training.train(task, {"num_heads": 2}, 4, steps=2)
        exact = task.scores(model)["bikes off"]
        assert all(torch.equal(t.half(), tensors[name]) for name, t in model.state_dict().items())
        model.load_state_dict(tensors)
        kept = task.scores(model)["bikes off"]
        assert facts["scores"] == {"bikes off": round(kept, 4)}
        assert round(kept, 4) != round(exact, 4), "a bad test: rounding the weights makes no difference here"

    def test_a_stopped_command_goes_on_where_it_was(self, elsewhere, capsys, monkeypatch):
        seen = []

        def watch(bar, step, loss, model):
            seen.append(step)
            if step == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(command.Bar, "__call__", watch)
        arguments = ["digits", "--variant", "logistic regression", "--steps", "130", "--to", str(elsewhere)]
        for stop, fresh, first in [(120, [], 1), (115, [], 101), (112, ["--fresh"], 1), (None, [], 101)]:
            seen.clear()
            if stop:
                assert command.main([*arguments, *fresh]) == 130
            else:
                assert command.main([*arguments, *fresh]) == 0
            assert seen[0] == first
        assert names(elsewhere) == ["digits-logistic_regression-seed0.safetensors"]
        out = capsys.readouterr().out
        assert "logistic regression, seed 0: accuracy 0." in out and "130 steps" in out

    @pytest.mark.parametrize("variant, steps", [(None, 1500), ("4 heads, longer", 1500), ("1 head", 400)])
    def test_default_variant_and_steps(self, elsewhere, monkeypatch, variant, steps):
        asked = []

        def train(task, variant, seed, **options):
            asked.append((variant, seed, options["steps"]))
            raise Stop

        monkeypatch.setattr(training, "train", train)
        chosen = [] if variant is None else ["--variant", variant]
        with pytest.raises(Stop):
            command.main(["moby", "--to", str(elsewhere), "--json", *chosen])
        assert asked == [(task_of("moby").variants[variant or "4 heads, longer"], 0, steps)]

    def test_sweep(self, elsewhere, capsys, monkeypatch):
        """In a process of its own, as it is; then again, with nothing left to do."""
        arguments = ["sweep", "digits", "--variants", "logistic regression", "--seeds", "5", "--steps", "2"]
        arguments += ["--to", str(elsewhere)]
        assert command.main(arguments) == 0
        path = elsewhere / "digits_sweep.json"
        record = json.loads(path.read_text("utf-8"))
        (row,) = record["rows"]
        assert (row["variant_name"], row["seed"], row["steps"]) == ("logistic regression", 5, 2)
        assert (row["device"], row["threads"]) == ("cpu", 1)
        assert row["scores"].keys() == {"accuracy"} and row["parameters"] == 650
        assert (record["task"], record["metric"], record["higher_is_better"]) == ("digits", "accuracy", True)

        monkeypatch.setattr(command, "fresh_run", lambda *args: pytest.fail(f"trained again: {args}"))
        assert command.main(arguments) == 0
        assert json.loads(path.read_text("utf-8")) == record
        assert "1 rows" in capsys.readouterr().out

    def fake_runs(self, monkeypatch):
        asked = []

        def fresh_run(name, variant, seed, steps, folder):
            asked.append((variant, seed))
            return {
                "variant_name": variant, "seed": seed, "steps": steps, "scores": {"accuracy": 0.5, "exact": 0.5},
                "cpu_seconds": 1.0, "parameters": 7, "forward_ms": 0.5,
            }  # fmt: skip

        monkeypatch.setattr(command, "fresh_run", fresh_run)
        return asked

    def test_sweep_trains_every_variant_with_every_seed(self, elsewhere, monkeypatch):
        asked = self.fake_runs(monkeypatch)
        for name in ("digits", "moby"):
            asked.clear()
            assert command.main(["sweep", name, "--to", str(elsewhere)]) == 0
            task = task_of(name)
            variants = [v for v in task.variants if v != "4 heads, longer"]  # trains longer: not comparable
            assert sorted(asked) == sorted((v, seed) for v in variants for seed in command.SEEDS)
            rows = json.loads((elsewhere / f"{name}_sweep.json").read_text("utf-8"))["rows"]
            assert len(rows) == len(asked) and all(row["steps"] == task.steps for row in rows)

    def test_sweep_keeps_what_it_has_when_a_run_fails(self, elsewhere, monkeypatch):
        asked = self.fake_runs(monkeypatch)
        fine = command.fresh_run

        def fails_once(name, variant, seed, *rest):
            if seed == 1:
                raise RuntimeError("out of memory")
            return fine(name, variant, seed, *rest)

        monkeypatch.setattr(command, "fresh_run", fails_once)
        arguments = ["sweep", "digits", "--variants", "1 head", "--seeds", "0", "1", "2", "--to", str(elsewhere)]
        with pytest.raises(RuntimeError, match="out of memory"):
            command.main(arguments)
        monkeypatch.setattr(command, "fresh_run", fine)
        assert command.main(arguments) == 0
        assert asked == [("1 head", 0), ("1 head", 1), ("1 head", 2)]

    def test_a_seed_named_twice_is_trained_once(self, elsewhere, monkeypatch):
        asked = self.fake_runs(monkeypatch)
        command.main(["sweep", "digits", "--variants", "1 head", "1 head", "--seeds", "0", "0", "--to", str(elsewhere)])
        assert asked == [("1 head", 0)]

    def test_a_rule_without_parameters_is_scored_once_and_not_trained(self, elsewhere, monkeypatch):
        """A row of it says 0 steps: the second call must find it all the same."""
        model, facts = training.train(task_of("bikes"), {"kind": "copy", "hours": 24}, 1)
        assert (facts["parameters"], facts["steps"], facts["seed"]) == (0, 0, 1) and not model.training
        asked = self.fake_runs(monkeypatch)
        plain = command.fresh_run
        monkeypatch.setattr(command, "fresh_run", lambda *args: {**plain(*args), "steps": 0})
        for _ in range(2):
            command.main(
                ["sweep", "bikes", "--variants", "same hour yesterday", "--seeds", "0", "--to", str(elsewhere)]
            )
        assert asked == [("same hour yesterday", 0)]

    def test_runs_of_another_length_are_not_mixed_in(self, elsewhere, monkeypatch, sweeps):
        """A quick try with --steps 2 must not count among the seeds of the real comparison."""
        self.fake_runs(monkeypatch)
        arguments = ["sweep", "digits", "--variants", "1 head", "--seeds", "0", "--to", str(elsewhere)]
        command.main([*arguments, "--steps", "2"])
        command.main(arguments)
        (sweeps / "digits.json").write_bytes((elsewhere / "digits_sweep.json").read_bytes())
        (row,) = results.summary("digits")
        assert len(row.scores) == 1, "one seed, but runs of 2 and of 1100 steps are averaged"

    def test_a_run_that_fails_says_why(self, tmp_path, monkeypatch):
        def run(command, **options):
            return subprocess.CompletedProcess(command, 1, "", "Traceback: no memory")

        monkeypatch.setattr(command.subprocess, "run", run)
        with pytest.raises(RuntimeError, match=says("digits, 1 head, seed 3 failed", "no memory")):
            command.fresh_run("digits", "1 head", 3, 2, tmp_path)


def test_without_torch_the_command_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    for arguments in ([], ["digits"], ["sweep", "digits"]):
        assert command.main(arguments) == 1
        assert "need PyTorch" in capsys.readouterr().err


# ---------------------------------------------------------------------------- what is recorded


ROWS = [
    {"variant_name": v, "seed": s, "scores": {"accuracy": a, "peak": p}, "parameters": n, "cpu_seconds": c,
     "forward_ms": f, "peak_mb": 90.0, "steps": 900}
    for v, s, a, p, n, c, f in [
        ("8 heads", 0, 0.9, 0.1, 100, 10.0, 2.0),
        ("1 head", 0, 0.5, 0.2, 70, 4.0, 1.0),
        ("8 heads", 1, 0.7, 0.4, 100, 30.0, 7.0),
        ("8 heads", 2, 0.8, 0.1, 100, 11.0, 3.0),
        ("1 head", 1, 0.6, 0.6, 70, 5.0, 2.0),
    ]
]  # fmt: skip
RECORD = {"task": "speech", "metric": "accuracy", "higher_is_better": True, "title": "t", "command": "c", "rows": ROWS}


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """A folder with one record, instead of data/sweeps."""
    folder = tmp_path / "sweeps"
    folder.mkdir()
    (folder / "speech.json").write_text(json.dumps(RECORD), "utf-8")
    monkeypatch.setattr(results, "SWEEPS", folder)
    results._read.cache_clear()
    yield folder
    results._read.cache_clear()


def test_sweep_and_rows(sweeps):
    assert results.sweep("speech") == models.sweep("speech") == RECORD
    assert results.sweep_rows("speech") == models.sweep_rows("speech") == ROWS


def test_summary(sweeps):
    eight, one = results.summary("speech")
    assert [eight, one] == models.summary("speech")
    assert (eight.name, one.name) == ("8 heads", "1 head")
    assert eight.scores == (0.9, 0.7, 0.8) and one.scores == (0.5, 0.6)
    assert (eight.mean, eight.low, eight.high) == (pytest.approx(0.8), 0.7, 0.9)
    assert (eight.parameters, eight.train_seconds, eight.forward_ms) == (100, 11.0, 3.0)
    assert (one.parameters, one.train_seconds, one.forward_ms) == (70, 4.5, 1.5)
    assert eight.memory_mb == 90.0
    assert results.summary("speech", "peak")[1].scores == models.summary("speech", "peak")[1].scores == (0.2, 0.6)


def test_changing_what_comes_back_changes_nothing_for_others(sweeps):
    record = results.sweep("speech")
    record["rows"][0]["scores"]["accuracy"] = 0
    record["metric"] = "peak"
    record["rows"].pop()
    rows = results.sweep_rows("speech")
    rows[1]["scores"].clear()
    rows.reverse()
    assert results.sweep("speech") == RECORD
    assert results.summary("speech")[0].scores == (0.9, 0.7, 0.8)
    with pytest.raises(AttributeError):
        results.summary("speech")[0].name = "9 heads"


def test_an_unknown_record_names_those_there_are(sweeps):
    (sweeps / "digits.json").write_text(json.dumps(RECORD), "utf-8")
    for ask in (results.sweep, results.sweep_rows, results.summary):
        with pytest.raises(ValueError, match=says("name:", "(digits, speech)", "'speach'")):
            ask("speach")


@pytest.mark.parametrize("content", [b'{"task": ', b"", b"\xff\xfe\x00"])
def test_a_damaged_record_names_the_mend(sweeps, content):
    (sweeps / "speech.json").write_bytes(content)
    with pytest.raises(ValueError, match=says("speech.json is damaged", "git checkout -- data/sweeps/speech.json")):
        results.summary("speech")


def test_results_load_without_torch():
    code = "import sys, mha_lesson.models.results, mha_lesson.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


# ---------------------------------------------------------------------------- WEIGHTS THAT COME WITH THE COURSE


def test_SHIPPED_every_task_has_its_weights():
    missing = [name for name in TASK_NAMES if not (SHIPPED / f"{name}.safetensors").exists()]
    assert not missing, f"data/models lacks the weights of: {', '.join(missing)}"


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in TASK_NAMES if (SHIPPED / f"{name}.safetensors").exists()])
class TestShipped:
    def test_its_facts(self, name):
        task = task_of(name)
        model, facts = models.load(name)
        assert (facts["task"], facts["variant_name"]) == (name, task.shipped)
        assert facts["variant"] == task.variants[task.shipped]
        assert facts["steps"] == (task.shipped_steps or task.steps)
        assert isinstance(facts["seed"], int)
        assert facts["parameters"] == training.count_parameters(model)
        assert facts["torch"].split(".")[0] == "2" and facts["device"] and facts["python"]
        assert next(iter(facts["scores"])) == task.metric
        again = command.train_parser().parse_args(shlex.split(facts["command"])[3:])
        assert facts["command"].startswith("python3 -m mha_lesson.models ")
        assert (again.name, again.variant, again.seed) == (name, task.shipped, facts["seed"])
        assert again.steps == facts["steps"]
        assert not model.training and all(p.isfinite().all() for p in model.parameters())

    def test_its_scores_on_a_part_of_the_test(self, name, monkeypatch):
        """All of it where that is quick. In float64, so the last digit may differ from the record."""
        task, (model, facts) = task_of(name), models.load(name)
        tolerance = dict.fromkeys(facts["scores"], 0.01)
        if name in ("spelling", "dates"):
            pairs = task.pairs("test")[:150]
            monkeypatch.setattr(task, "pairs", lambda part: pairs)
            for key, value in facts["scores"].items():
                count = 150 if key == "exact" else 800
                tolerance[key] = 0.02 + 4 * math.sqrt(value * (1 - value) / count)
        elif name == "moby":
            text, alphabet = char_lm.text_and_alphabet()
            cut = len(text) * 9 // 10
            monkeypatch.setattr(char_lm, "text_and_alphabet", lambda: (text[cut - 54000 : cut + 6000], alphabet))
            tolerance["bits per character"] = 0.25
        scores = task.scores(model)
        assert scores.keys() == facts["scores"].keys()
        for key, value in facts["scores"].items():
            assert scores[key] == pytest.approx(value, abs=tolerance[key], rel=0), key

    @pytest.mark.slow
    def test_its_scores_come_out_again(self, name):
        model, facts = models.load(name)
        for key, value in task_of(name).scores(model).items():
            assert value == pytest.approx(facts["scores"][key], abs=0.01, rel=0), key
