"""`python3 -m mha_lesson.models`: words, training, going on."""

import json
import shlex
import subprocess
import sys

import pytest

from mha_lesson import data
from mha_lesson.course.paths import ROOT
from mha_lesson.models import TASK_NAMES, command, results
from tests.conftest import HAS_TORCH
from tests.reference import says

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from tests.models.helpers import Stop, names, task_of  # noqa: E402

if HAS_TORCH:
    import torch
    from torch import nn

    from mha_lesson.models import training
    from mha_lesson.models.training import Task
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


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

    def test_a_run_that_trips_over_its_scores_is_not_lost(self, elsewhere, capsys, monkeypatch):
        """Scoring failed on a device once, after minutes of training, and the checkpoint was gone already."""
        arguments = [
            "bikes",
            "--variant",
            "2 heads",
            "--steps",
            "2",
            "--device",
            "cpu",
            "--to",
            str(elsewhere),
            "--json",
        ]
        scores = type(task_of("bikes")).scores

        def trips(task, model):
            raise TypeError("no float64 here")

        monkeypatch.setattr(type(task_of("bikes")), "scores", trips)
        with pytest.raises(TypeError):
            command.main(arguments)
        assert names(elsewhere) == ["bikes-2_heads-seed0.checkpoint"]
        monkeypatch.setattr(type(task_of("bikes")), "scores", scores)
        monkeypatch.setattr(training, "one_step", None)  # nothing may be trained again
        assert command.main(arguments) == 0
        assert names(elsewhere) == ["bikes-2_heads-seed0.safetensors"]

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


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys):
    from mha_lesson.models import command

    def stopped(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train_one", stopped)
    assert command.main(["speech"]) == 130
    assert "goes on from the last hundred steps" in capsys.readouterr().err
