"""Training: stopped and gone on, saved and loaded."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mha_lesson import models
from mha_lesson.models import TASK_NAMES
from tests.conftest import HAS_TORCH
from tests.models.helpers import Stop, close, names, seeded, small, task_of
from tests.reference import says

if HAS_TORCH:
    import torch
    from torch import nn
    from torch.nn import functional as F

    from mha_lesson.models import training
    from mha_lesson.models.training import Task
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


# ---------------------------------------------------------------------------- what tests share


def same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


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
        assert path.exists(), "whoever stores the result removes it"
        assert self.run(checkpoint=path)[2] == [], "nothing is left to train"

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
        for cuda, mps, want in [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]:
            monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
            monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
            assert training.choose_device().type == want
            assert training.choose_device("cpu") == torch.device("cpu"), "a device that is named is taken"


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
