"""How the small models are trained, kept and loaded: one loop for all of them.

A `Task` says what there is to learn. It makes a model, draws a batch, measures the loss, and
scores the trained model on data that training never saw. Everything else is here.

    task = get_task("speech")
    model, facts = train(task, {"num_heads": 8}, seed=0)
    save(model, "speech.safetensors", facts)
    model, facts = load("speech")                       # the one that came with the course

A run can be stopped at any time and goes on where it was: step n of seed s draws its batch and its
dropout from a generator seeded with (s, n), so nothing but the model and the optimiser has to be
remembered.

The recipe is the usual one: AdamW, a learning rate that rises for the first steps and then falls
along a cosine, and gradients cut at length 1 (Loshchilov & Hutter 2017 and 2019; Pascanu et al. 2013).
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import hashlib
import json
import math
import platform
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mha_lesson.data import FOLDER

STORED = FOLDER / "models"  # trained weights that come with the course


class Task:
    """Something to learn. A subclass fills in the rest.

    name          what `python3 -m mha_lesson train NAME` calls it
    title         one line for people
    metric        what its first score is, e.g. "accuracy"
    higher_is_better
    steps, batch_size, learning_rate, warmup, weight_decay
    variants      name -> keywords of `build`: the model that is shipped, and what it is compared with
    shipped       the variant whose weights come with the course
    """

    name = title = metric = shipped = ""
    higher_is_better = True
    steps, batch_size, learning_rate, warmup, weight_decay = 1000, 64, 2e-3, 100, 0.05
    rate_left = 0.1  # of the learning rate, at the end
    shipped_steps: int | None = None  # if the shipped model trains longer than those it is compared with
    variants: ClassVar[dict[str, dict]] = {}

    def build(self, **variant) -> nn.Module:
        """A new model, with random weights."""
        raise NotImplementedError

    def batch(self, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Training examples, drawn with this generator."""
        raise NotImplementedError

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """How wrong the model is on a batch: one number."""
        raise NotImplementedError

    def scores(self, model: nn.Module) -> dict[str, float]:
        """How good it is on the test part; the first entry is `metric`."""
        raise NotImplementedError


def head_counts(*counts: int) -> dict[str, dict]:
    """Variants that differ in the number of heads alone: {"1 head": {"num_heads": 1}, "2 heads": ...}."""
    return {f"{n} head{'s' * (n != 1)}": {"num_heads": n} for n in counts}


def choose_device(name: str = "auto") -> torch.device:
    """ "auto" is the first there is of: a CUDA GPU, an Apple GPU, the CPU."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def learning_rate(step: int, steps: int, highest: float, warmup: int, left: float) -> float:
    """Rises in a straight line for `warmup` steps, then half a cosine down to `left` of `highest`."""
    rise = min(1.0, (step + 1) / warmup)
    fall = (1 + left) / 2 + (1 - left) / 2 * math.cos(math.pi * step / steps)  # from 1 to left
    return highest * rise * fall


def step_seed(seed: int, step: int) -> int:
    """A seed for this step of this run, unlike any other's."""
    digest = hashlib.sha256(f"{seed}/{step}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def new_model(task: Task, variant: dict, seed: int) -> nn.Module:
    """The model of this task with the random weights of this seed."""
    torch.manual_seed(step_seed(seed, -1))
    return task.build(**variant)


def train(
    task: Task,
    variant: dict | None = None,
    seed: int = 0,
    *,
    steps: int | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    watch=None,
) -> tuple[nn.Module, dict]:
    """A trained model in evaluation mode, and the facts about the run.

    variant: keywords of task.build, default those of the shipped model.
    checkpoint: a file from which a stopped run goes on; written every 100 steps and at the end. Whoever
        stores the result removes it then.
    watch(step, loss, model): called after each step.
    """
    variant = task.variants[task.shipped] if variant is None else variant
    steps, device = task.steps if steps is None else steps, choose_device(device)
    run = {"task": task.name, "variant": variant, "seed": seed, "steps": steps}
    model = new_model(task, variant, seed).to(device)
    if count_parameters(model) == 0:  # a rule, such as "the same as yesterday"
        return model.eval(), {**run, "steps": 0, "parameters": 0, "cpu_seconds": 0.0}
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=task.learning_rate, betas=(0.9, 0.98), weight_decay=task.weight_decay
    )
    start, seconds = resume(checkpoint, run, model, optimiser)
    model.train()
    for step in range(start, steps):
        began = time.process_time()
        loss = one_step(task, model, optimiser, seed, step, steps, device)
        seconds += time.process_time() - began
        if checkpoint is not None and (step + 1) % 100 == 0:
            keep_state(checkpoint, run, model, optimiser, step + 1, seconds)
        if watch is not None:
            watch(step + 1, loss, model)
    if checkpoint is not None:
        keep_state(checkpoint, run, model, optimiser, steps, seconds)
    model.eval()
    return model, {**run, "parameters": count_parameters(model), "cpu_seconds": round(seconds, 1)}


def one_step(task, model, optimiser, seed, step, steps, device) -> float:
    """One batch, its gradient, one move of the weights. Gives the loss before the move."""
    torch.manual_seed(step_seed(seed, step))  # dropout
    generator = torch.Generator().manual_seed(step_seed(seed, step))  # the batch
    for group in optimiser.param_groups:
        group["lr"] = learning_rate(step, steps, task.learning_rate, task.warmup, task.rate_left)
    loss = task.loss(model, *(t.to(device) for t in task.batch(generator)))
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    value = loss.item()
    if not math.isfinite(value):
        raise FloatingPointError(
            f"{task.name}: the loss became {value} at step {step + 1}. Train again with a smaller learning rate."
        )
    return value


def count_parameters(model: nn.Module) -> int:
    """Numbers that training adjusts; shared ones count once."""
    return sum(p.numel() for p in model.parameters())


# ------------------------------------------------------------------------------ stopped and gone on


def keep_state(path: Path, run: dict, model, optimiser, step: int, seconds: float) -> None:
    """Write what a stopped run needs. The old file stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    state = {"run": run, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
    torch.save({**state, "step": step, "seconds": seconds}, partial)
    partial.replace(path)


def resume(path: Path | None, run: dict, model, optimiser) -> tuple[int, float]:
    """(step to go on with, seconds so far); (0, 0.0) if nothing usable was kept for this very run."""
    if path is None or not path.exists():
        return 0, 0.0
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["run"] != run:
            return 0, 0.0
        step, seconds = int(state["step"]), float(state["seconds"])
        optimiser.load_state_dict(state["optimiser"])
        model.load_state_dict(state["model"])
        return step, seconds
    except Exception:  # damaged, or of an older model: whatever torch says about it, the run starts afresh
        model.load_state_dict(fresh)
        optimiser.state.clear()
        return 0, 0.0


# ------------------------------------------------------------------------------ kept and loaded


def save(model: nn.Module, path: Path | str, facts: dict) -> None:
    """The weights as float16 in a safetensors file, with the facts about the run in its header."""
    from safetensors.torch import save_file

    tensors = {name: t.detach().cpu().to(torch.float16).contiguous() for name, t in model.state_dict().items()}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    save_file(tensors, partial, metadata={"facts": json.dumps(facts)})
    partial.replace(path)


def rounded(model: nn.Module) -> nn.Module:
    """The model with its weights rounded to float16 and back: what `load` will give."""
    model.load_state_dict({name: t.to(torch.float16).to(t.dtype) for name, t in model.state_dict().items()})
    return model


def load(name: str, *, dtype: torch.dtype = torch.float64, folder: Path = STORED) -> tuple[nn.Module, dict]:
    """(model, facts): a trained model that came with the course, in evaluation mode.

    float64 by default: then the printed numbers are the same on every machine.
    """
    from mha_lesson.models import get_task

    task, path = get_task(name), folder / f"{name}.safetensors"
    tensors, facts = read(path)
    try:
        model = task.build(**facts["variant"])
        model.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError) as error:
        what = f"{path.name} is damaged: its weights do not fit the model ({str(error)[:200]})."
        raise ValueError(f"{what} {mend(path)}") from None
    return model.to(dtype).eval(), facts


def mend(path: Path) -> str:
    """What to do about a file of weights that is missing or damaged."""
    back = f"Get it back with `git checkout -- data/models/{path.name}`"
    return f"{back}, or train it again: python3 -m mha_lesson train {path.stem}"


def read(path: Path | str) -> tuple[dict[str, Tensor], dict]:
    """The tensors of a file that `save` wrote, and its facts; an error that says what to do if not."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is missing. {mend(path)}")
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is damaged ({error}). {mend(path)}") from None


def circumstances(device: str) -> dict[str, Any]:
    """Where and with what a run was made: for the record."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "machine": f"{sys.platform} {platform.machine()}",
        "device": str(device),
        "threads": torch.get_num_threads(),
    }
