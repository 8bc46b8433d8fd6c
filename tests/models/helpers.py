"""What tests of several models share."""

from functools import cache

from mha_lesson.models import get_task
from tests.conftest import HAS_TORCH

if HAS_TORCH:
    import torch
    from torch import nn
    from torch.nn import functional as F

    from mha_lesson.models.training import Task
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


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


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class Stop(Exception):
    """Someone pulled the plug."""


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
