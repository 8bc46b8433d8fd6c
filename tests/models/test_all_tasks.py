"""All tasks: what each says it is, and who sees whom in each model."""

import math

import pytest

from mha_lesson import data
from mha_lesson.models import TASK_NAMES, get_task
from tests.conftest import HAS_TORCH
from tests.models.helpers import close, lively, seeded, small, task_of
from tests.reference import says

if HAS_TORCH:
    import torch
    from torch import nn

    from mha_lesson.models import char_lm, induction, training
    from mha_lesson.models.blocks import (
        UniformAttention,
        attention_layers,
    )
    from mha_lesson.models.training import Task
    from mha_lesson.pytorch import MultiHeadAttention
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


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
