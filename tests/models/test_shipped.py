"""The weights that come with the course: facts, scores."""

import math
import shlex

import pytest

from mha_lesson import data, models
from mha_lesson.models import TASK_NAMES, command
from tests.conftest import HAS_TORCH
from tests.models.helpers import task_of

if HAS_TORCH:
    from torch import nn

    from mha_lesson.models import char_lm, training
    from mha_lesson.models.training import Task
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


SHIPPED = data.FOLDER / "models"


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
