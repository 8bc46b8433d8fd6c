"""Recalling a value: the sequences, the three kinds of attention that try, what was recorded of it."""

import math
import shlex

import numpy as np
import pytest

from mha_lesson import data
from mha_lesson.models import command, get_task, results, sweep_rows
from tests.conftest import HAS_TORCH
from tests.reference import says

if HAS_TORCH:
    import torch

    from mha_lesson.models import recall, training
    from mha_lesson.models.blocks import (
        Block,
        attention_layers,
        heads_off,
        make_attention,
        recording,
    )
    from mha_lesson.models.recall import BANDS, BLANK, LENGTH, PAIRS
    from mha_lesson.pytorch import MultiHeadAttention
    from mha_lesson.pytorch.cache import KVCache
    from mha_lesson.pytorch.cores import LinearCore, SDPACore, WindowCore


THREE = ("full attention", "window 32", "linear")


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def close(got, want, atol=1e-12):
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


def lively(model, std=0.5):
    """In float64, with all numbers large enough for every part to matter."""
    torch.manual_seed(0)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(std * torch.randn_like(parameter))
    return model


# ---------------------------------------------------------------------------- the layers


def score_window(q, k, i, j, window):
    return math.exp(q @ k / math.sqrt(len(q))) if i - window < j <= i else 0.0


def score_linear(q, k, i, j, window):
    def features(x):
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    return features(q) @ features(k) if j <= i else 0.0


def by_loops(layer, x, score, window=None):
    """(output, weights) of a layer for x (L, E): one query, one key, one head at a time."""
    w = {name: t.numpy() for name, t in layer.state_dict().items()}
    q, k, v = (x @ w[f"{n}_proj.weight"].T + w[f"{n}_proj.bias"] for n in "qkv")
    L, H, G = len(x), layer.num_heads, layer.num_kv_heads
    D = q.shape[1] // H
    weights, found = np.zeros((H, L, L)), np.zeros((L, H * D))
    for h in range(H):
        mine, its = slice(h * D, (h + 1) * D), slice(h // (H // G) * D, (h // (H // G) + 1) * D)
        for i in range(L):
            row = np.array([score(q[i, mine], k[j, its], i, j, window) for j in range(L)])
            weights[h, i] = row / row.sum()
            found[i, mine] = weights[h, i] @ v[:, its]
    return found @ w["out_proj.weight"].T + w["out_proj.bias"], weights


@pytest.mark.torch
class TestCheaperAttention:
    MIXING = (("window", 3), ("window", 1), ("window", 99), ("linear", None))

    @pytest.mark.parametrize("num_kv_heads", [6, 2])
    @pytest.mark.parametrize(("mixing", "window"), MIXING)
    def test_against_loops(self, mixing, window, num_kv_heads):
        B, L, E = 2, 11, 30
        layer = lively(make_attention(E, 6, num_kv_heads, mixing=mixing, window=window), 0.4)
        x = randn(B, L, E)
        with torch.no_grad():
            output, weights = layer(x, causal=True, need_weights=True)
            assert torch.equal(layer(x, causal=True), output)
            alone, its_weights = layer(x[1], causal=True, need_weights=True)
        score = score_window if mixing == "window" else score_linear
        for b in range(B):
            want, want_weights = by_loops(layer, x[b].numpy(), score, window)
            close(output[b], torch.tensor(want))
            close(weights[b], torch.tensor(want_weights))
        close(alone, output[1])
        close(its_weights, weights[1])

    def test_a_window_over_everything_is_full_attention(self):
        full, window = make_attention(12, 3), make_attention(12, 3, mixing="window", window=7)
        window.load_state_dict(full.state_dict())
        x = torch.randn(2, 7, 12, generator=seeded())
        close(window(x, causal=True), full(x, causal=True), atol=1e-6)
        narrow = make_attention(12, 3, mixing="window", window=6)
        narrow.load_state_dict(full.state_dict())
        assert not torch.allclose(narrow(x, causal=True)[:, -1], full(x, causal=True)[:, -1])

    @pytest.mark.parametrize(("mixing", "window"), MIXING)
    def test_every_weight_gets_its_gradient(self, mixing, window):
        layer = make_attention(8, 2, mixing=mixing, window=window).double()
        x = randn(2, 5, 8).requires_grad_()
        layer(x, causal=True).square().sum().backward()
        assert x.grad.abs().min() > 0
        alone = window == 1  # the softmax over one key is 1, whatever its score
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            moved = getattr(layer, name).weight.grad.abs().max() > 1e-8
            assert moved == (not alone or name in ("v_proj", "out_proj")), name

    def test_kinds_and_names(self):
        full = make_attention(8, 4, 2)
        for kind, made in (
            (WindowCore, make_attention(8, 4, 2, mixing="window", window=5)),
            (LinearCore, make_attention(8, 4, 2, mixing="linear")),
        ):
            assert type(made.core) is kind and type(made) is MultiHeadAttention
            assert (made.num_heads, made.num_kv_heads) == (4, 2)
            assert {n: t.shape for n, t in made.state_dict().items()} == {
                n: t.shape for n, t in full.state_dict().items()
            }

    @pytest.mark.parametrize("mixing", ["window", "linear"])
    def test_what_is_refused(self, mixing):
        layer = make_attention(8, 2, mixing=mixing, window=3 if mixing == "window" else None)
        x = torch.randn(2, 5, 8)
        refused = [("keep: expected None", {"causal": True, "keep": torch.ones(5, 5, dtype=torch.bool)})]
        if mixing == "window":
            refused += [("causal: expected True", {}), ("cache: expected KVCache(window=3)", {"cache": KVCache()})]
        else:
            refused += [
                ("key: expected as many keys as queries", {"causal": True, "key": torch.randn(2, 7, 8)}),
                ("cache: expected None", {"cache": KVCache()}),
            ]
        for text, options in refused:
            with pytest.raises(ValueError, match=says(text)):
                layer(x, **options)
        with pytest.raises(ValueError, match=says("core: expected full attention")):
            layer.to_numpy()

    @pytest.mark.parametrize(
        ("text", "options"),
        [
            ("dropout: expected 0", {"mixing": "linear", "dropout": 0.1}),
            ("dropout: expected 0", {"mixing": "window", "window": 3, "dropout": 0.1}),
            ("window: expected how many tokens", {"mixing": "window"}),
            ("window: expected how many tokens", {"mixing": "window", "window": 0}),
            ("window: expected how many tokens", {"mixing": "window", "window": 2.0}),
            ('window: expected None unless mixing is "window"', {"mixing": "linear", "window": 3}),
            ('mixing: expected "attention" or "uniform", or for causal', {"mixing": "windows"}),
        ],
    )
    def test_what_cannot_be_made(self, text, options):
        with pytest.raises(ValueError, match=says(text)):
            make_attention(8, 2, **options)

    @pytest.mark.parametrize(("mixing", "window"), [("window", 3), ("linear", None)])
    def test_the_tools_that_look_inside_work_on_them(self, mixing, window):
        block = lively(Block(6, 2, mixing=mixing, window=window))
        x = randn(2, 7, 6)
        with torch.no_grad():
            plain = block(x, causal=True)
            with recording(block) as maps:
                assert torch.equal(block(x, causal=True), plain)
            assert list(maps) == ["attention"] and maps["attention"].shape == (2, 2, 7, 7)
            close(maps["attention"].sum(-1), torch.ones(2, 2, 7, dtype=torch.float64))
            with heads_off(block.attention, [1]):
                assert not torch.allclose(block(x, causal=True), plain)
            assert torch.equal(block(x, causal=True), plain)

    def test_a_block_with_a_window_has_it_in_one_part_alone(self):
        """With `cross`, self-attention is the full one, and a window is not handed to it."""
        assert type(Block(6, 2, cross=True, mixing="window", window=3).attention) is MultiHeadAttention


# ---------------------------------------------------------------------------- the sequences


@pytest.mark.torch
class TestSequences:
    def test_each_question_has_one_pair_before_it_at_the_distance_told(self):
        tokens, answers, distance, pairs = (t.numpy() for t in recall.draw(60, seeded(1)))
        assert set(pairs) == set(PAIRS)
        for row in range(60):
            told = {}  # key -> (value, its place), as a reader would note them down
            asked = 0
            for place in range(0, LENGTH, 2):
                symbol, after = tokens[row, place], tokens[row, place + 1]
                if symbol == BLANK:
                    assert after == BLANK and answers[row, place] == -1
                elif after != BLANK:
                    assert 64 <= after < 128 and symbol < 64 and symbol not in told
                    assert answers[row, place] == -1
                    told[symbol] = (after - 64, place + 1)
                else:
                    value, there = told[symbol]
                    assert (answers[row, place], distance[row, place]) == (value, place - there)
                    asked += 1
            assert len(told) == asked == pairs[row] == (distance[row] > 0).sum()
            assert (answers[row, 1::2] == -1).all() and (distance[row][answers[row] == -1] == 0).all()

    def test_distance_and_number_of_pairs_vary_apart_from_each_other(self):
        made = recall.draw(3000, seeded(2))
        means = [made.distance[made.pairs == n].sum() / (n * (made.pairs == n).sum()) for n in PAIRS]
        want = np.mean([2 * (b - a) - 1 for a in range(64) for b in range(a + 1, 64)])  # two slots of 64, any two
        assert all(abs(mean - want) < 1.5 for mean in means)
        values = made.answers[made.answers >= 0].bincount(minlength=64) / (made.answers >= 0).sum()
        assert values.min() > 0.012 and values.max() < 0.02

    def test_every_question_is_in_one_band(self):
        distance = recall.held_out(200).distance
        assert sum(((distance >= low) & (distance <= high)).sum() for low, high in BANDS) == (distance > 0).sum()

    def test_the_held_out_part_is_always_the_same_and_never_trained_on(self):
        first, again = recall.held_out(8), recall.held_out(8)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        seeds = {training.step_seed(seed, step) % 2**32 for seed in range(3) for step in range(800)}
        assert 2**32 - 1 not in seeds

    def test_the_distance_is_counted_from_the_value_to_the_question(self):
        made = recall.draw(5, seeded(4))
        rows = (made.tokens.tolist(), made.answers.tolist(), made.distance.tolist())
        for tokens, answers, distance in zip(*rows, strict=True):
            asked = [place for place, answer in enumerate(answers) if answer >= 0]
            assert asked and all(distance[place] == 0 for place in range(len(tokens)) if place not in asked)
            for place in asked:
                value = tokens.index(tokens[place]) + 1  # behind the first time that this key stands there
                assert tokens[value] - recall.KEYS == answers[place]
                assert distance[place] == place - value

    def test_accuracies_by_hand(self):
        made = recall.draw(40, seeded(3))

        class Near(torch.nn.Module):
            """Right up to distance 31, wrong beyond it."""

            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(1))

            def forward(self, tokens):
                assert torch.equal(tokens, made.tokens)
                says_it = torch.where(made.distance <= 31, made.answers, (made.answers + 1) % 64)
                return torch.nn.functional.one_hot(says_it.clamp(min=0), 64).double()

        scores = recall.accuracies(Near(), made)
        share = ((made.distance > 0) & (made.distance <= 31)).sum() / (made.distance > 0).sum()
        assert scores["accuracy"] == pytest.approx(share.item(), abs=1e-6)
        assert [scores[f"distance {low}-{high}"] for low, high in BANDS] == [1, 0, 0, 0]
        few = made.distance[made.pairs == 4]
        want = ((few > 0) & (few <= 31)).sum() / (few > 0).sum()
        assert scores["4 pairs"] == pytest.approx(want.item(), abs=1e-6)
        by_distance = recall.accuracy_by_distance(Near(), made)
        assert 0 not in by_distance and by_distance[31] == 1 and by_distance[33] == 0


# ---------------------------------------------------------------------------- who sees whom


@pytest.mark.torch
class TestReach:
    PLACES = 40

    def heard(self, model, place):
        """Where the output changes if one token changes."""
        tokens = torch.randint(64, (1, self.PLACES), generator=seeded(5))
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % 64
        with torch.no_grad():
            return ((model(tokens) - model(other)).abs().amax((0, 2)) > 1e-13).tolist()

    @pytest.mark.parametrize("place", [0, 7, 39])
    @pytest.mark.parametrize("layers", [1, 2])
    @pytest.mark.parametrize("mixing", ["attention", "linear", "uniform"])
    def test_the_past_is_seen_whole_and_the_future_never(self, mixing, layers, place):
        model = lively(recall.RecallModel(8, 2, layers, mixing))
        assert self.heard(model, place) == [p >= place for p in range(self.PLACES)]

    @pytest.mark.parametrize("place", [0, 7, 30])
    @pytest.mark.parametrize("window", [2, 5])
    @pytest.mark.parametrize("layers", [1, 2, 3])
    def test_windows_hear_one_step_of_w_minus_1_for_each_layer_and_the_shift(self, layers, window, place):
        model = lively(recall.RecallModel(8, 2, layers, "window", window))
        reach = layers * (window - 1) + 1
        assert self.heard(model, place) == [place <= p <= place + reach for p in range(self.PLACES)]
        if layers == 2:
            assert reach == 2 * window - 1

    @pytest.mark.parametrize("variant", THREE)
    def test_so_do_the_trained_ones(self, variant):
        model, _ = recall.load_variant(variant)
        tokens = recall.held_out(2).tokens
        other = tokens.clone()
        other[:, 40] = (other[:, 40] + 1) % 64
        with torch.no_grad():
            heard = (model(tokens) != model(other)).any(-1)  # (2, T)
        reach = 32 if variant == "window 32" else LENGTH
        assert heard[:, 40 : 40 + reach + 1].all()
        assert not heard[:, :40].any() and not heard[:, 40 + reach + 1 :].any()


# ---------------------------------------------------------------------------- trained weights


@pytest.mark.torch
class TestTrained:
    @pytest.mark.parametrize("variant", THREE)
    def test_facts(self, variant):
        model, facts = recall.load_variant(variant)
        task = get_task("recall")
        assert (facts["task"], facts["variant_name"], facts["steps"]) == ("recall", variant, task.steps)
        assert facts["variant"] == task.variants[variant]
        assert facts["parameters"] == training.count_parameters(model) == 18752
        assert {p.dtype for p in model.parameters()} == {torch.float64} and not model.training
        again = command.train_parser().parse_args(shlex.split(facts["command"])[3:])
        assert (again.name, again.variant, again.seed) == ("recall", variant, facts["seed"])
        assert (data.FOLDER / "models" / recall.FILES[variant]).stat().st_size < 150_000
        row = next(r for r in sweep_rows("recall") if (r["variant_name"], r["seed"]) == (variant, facts["seed"]))
        assert row["scores"] == facts["scores"]

    def test_fresh_sequences_give_the_picture_of_the_record(self):
        fresh = recall.draw(150, seeded(77))
        scores = {variant: recall.accuracies(recall.load_variant(variant)[0], fresh) for variant in THREE}
        for variant in THREE:
            recorded = recall.load_variant(variant)[1]["scores"]
            assert scores[variant].keys() == recorded.keys()
            for name, value in scores[variant].items():
                assert value == pytest.approx(recorded[name], abs=0.12), (variant, name)
        assert scores["full attention"]["accuracy"] > 0.99
        window, linear = scores["window 32"], scores["linear"]
        assert window["distance 1-31"] > 0.99 and window["distance 33-63"] < 0.06
        assert linear["4 pairs"] - linear["32 pairs"] > 0.15
        assert linear["distance 33-63"] > 10 * window["distance 33-63"], "no cliff"

    def test_the_window_ends_between_31_and_33(self):
        by_distance = recall.accuracy_by_distance(recall.load_variant("window 32")[0], recall.draw(150, seeded(78)))
        assert min(by_distance[d] for d in range(1, 32, 2)) > 0.95
        assert max(by_distance[d] for d in range(33, 80, 2)) < 0.2

    def test_full_attention_looks_at_the_value_it_needs(self):
        model, made = recall.load_variant("full attention")[0], recall.held_out(20)
        with torch.no_grad(), recording(model) as maps:
            model(made.tokens)
        (weights,) = maps.values()  # (B, H, T, T)
        row, place = (made.distance > 0).nonzero(as_tuple=True)
        there = weights[row, :, place, place - made.distance[row, place]]  # (questions, H)
        assert there.amax(1).mean() > 0.8

    def test_wrong_names_and_lost_files(self, tmp_path):
        with pytest.raises(ValueError, match=says("variant: expected one of full attention, window 32", "'lineal'")):
            recall.load_variant("lineal")
        again = ("recall_linear.safetensors", "git checkout", 'mha_lesson train recall --variant "linear"')
        with pytest.raises(ValueError, match=says(again[0], "no such file", *again[1:])):
            recall.load_variant("linear", folder=tmp_path)
        (tmp_path / again[0]).write_bytes(b"noise" * 99)
        with pytest.raises(ValueError, match=says(again[0], "damaged", *again[1:])):
            recall.load_variant("linear", folder=tmp_path)
        other = recall.RecallModel(8, 2)
        training.save(other, tmp_path / again[0], {"variant": {"d_model": 16}})
        with pytest.raises(ValueError, match=says(again[0], "damaged", *again[1:])):
            recall.load_variant("linear", folder=tmp_path)


@pytest.mark.torch
class TestTask:
    @pytest.mark.parametrize("variant", ["full attention", "window 32", "linear", "uniform weights"])
    def test_a_few_steps_lower_the_loss_and_a_new_model_knows_nothing(self, variant):
        task = get_task("recall")
        fixed = recall.draw(8, seeded(4))[:2]
        task.batch, task.warmup = (lambda generator: fixed), 2
        losses = []
        training.train(task, task.variants[variant], steps=6, watch=lambda step, loss, model: losses.append(loss))
        assert abs(losses[0] - math.log(64)) < 0.2
        assert losses[-1] < losses[0] - 0.05

    def test_the_loss_asks_the_questions_alone(self):
        task, model = get_task("recall"), lively(recall.RecallModel(8, 2), 0.2)
        tokens, answers = recall.draw(3, seeded(6))[:2]
        with torch.no_grad():
            log = model(tokens).log_softmax(-1)
            want = [-log[b, t, answers[b, t]].item() for b, t in (answers >= 0).nonzero().tolist()]
            assert task.loss(model, tokens, answers).item() == pytest.approx(np.mean(want), abs=1e-12)

    def test_variants_are_what_they_are_called(self):
        task = get_task("recall")
        kinds = {"window": WindowCore, "linear": LinearCore, "full": SDPACore}
        sizes = set()
        for name, variant in task.variants.items():
            model = task.build(**variant)
            layers = list(attention_layers(model).values())
            assert len(layers) == (2 if "two layers" in name else 1)
            first = name.split()[0].strip(",")
            if first in kinds:
                assert all(type(layer.core) is kinds[first] for layer in layers)
                assert layers[0].num_heads == (1 if "1 head" in name else 4 if "4 heads" in name else 2)
                if "two layers" not in name and "wide" not in name:
                    sizes.add(training.count_parameters(model))
        assert sizes == {18752}, "the same size, so that the middle alone differs"


# ---------------------------------------------------------------------------- the record


class TestRecord:
    def rows(self):
        return {row.name: row for row in results.summary("recall")}

    def test_every_variant_with_three_seeds(self):
        record = results.sweep("recall")
        assert record["command"] == "python3 -m mha_lesson train sweep recall" and record["metric"] == "accuracy"
        assert all(row["steps"] == 800 for row in record["rows"])
        seen = {}
        for row in record["rows"]:
            seen.setdefault(row["variant_name"], []).append(row["seed"])
        assert all(sorted(seeds) == [0, 1, 2] for seeds in seen.values())
        if HAS_TORCH:
            assert list(seen) == list(get_task("recall").variants)

    def test_what_the_lesson_says_of_it(self):
        assert self.rows()["full attention"].low > 0.999
        distance = {name: {r.name: r for r in results.summary("recall", name)} for name in self.bands()}
        assert distance["distance 1-31"]["window 32"].low > 0.99
        assert distance["distance 33-63"]["window 32"].high < 0.05
        few, many = ({r.name: r for r in results.summary("recall", f"{n} pairs")} for n in (4, 32))
        assert few["linear"].low - many["linear"].high > 0.2
        assert many["linear, 4 heads"].high < many["linear"].low < many["linear, 1 head, twice as wide"].low

    def bands(self):
        return [name for name in results.sweep_rows("recall")[0]["scores"] if name.startswith("distance")]
