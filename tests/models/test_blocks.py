"""Blocks, uniform attention, recording and switching heads off: against plain loops."""

import math

import pytest

from tests.conftest import HAS_TORCH
from tests.models.helpers import Stop, close, lively, randn, seeded, task_of
from tests.reference import says

if HAS_TORCH:
    import torch
    from torch import nn

    from mha_lesson.models import char_lm, induction
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
