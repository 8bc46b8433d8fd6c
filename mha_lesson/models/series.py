"""A forecast: from a week of bike rentals, hour by hour, to the 24 hours that follow.

    past      (B, 168, F)   each hour of the last week: how many bikes, and where it stands in day and week
    ahead     (B, 24, F)    the hours to forecast: where they stand in day and week; bikes unknown (0)
    forecast  (B, 24)

    Forecaster   each hour ahead is a query, the hours of the week are keys and values: cross-attention
    Linear       no attention: one linear map from the 168 counts to the 24, and from the calendar

All counts are log(1 + bikes), moved to mean 0 and spread 1. The score is in bikes.

Two forecasts need no training at all: the same hour yesterday, and the same hour a week ago.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lesson import data
from mha_lesson.models.blocks import make_attention
from mha_lesson.models.training import Task, head_counts

PAST, AHEAD = 168, 24  # hours
CALENDAR = 17  # numbers that say when an hour is


def calendar(hours: np.ndarray, working_day: np.ndarray) -> np.ndarray:
    """When each hour is, as numbers that turn smoothly with day and week, (N,) -> (N, 17).

    Sine and cosine of 1 to 4 turns a day and a week, and 1 for a working day. `hours` counts from a
    midnight between two weeks.
    """
    turns = np.concatenate([np.arange(1, 5) / 24, np.arange(1, 5) / 168])  # (8,)
    angle = 2 * np.pi * hours[:, None] * turns  # (N, 8)
    return np.concatenate([np.sin(angle), np.cos(angle), working_day[:, None]], axis=1)


class Forecaster(nn.Module):
    """Attention as a smoother that is learned: each hour ahead takes a weighted mean of the past."""

    def __init__(self, d_model=48, num_heads=4, num_kv_heads=None, *, mixing="attention"):
        super().__init__()
        self.past = nn.Linear(CALENDAR + 2, d_model)  # bikes, how long ago, calendar
        self.ahead = nn.Linear(CALENDAR + 2, d_model)
        self.attention = make_attention(d_model, num_heads, num_kv_heads, mixing=mixing)
        self.think = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, 2 * d_model), nn.GELU(),
                                   nn.Linear(2 * d_model, 1))  # fmt: skip

    def forward(self, past: Tensor, ahead: Tensor) -> Tensor:
        query = self.ahead(ahead)  # (B, 24, E)
        found = self.attention(query, self.past(past))  # (B, 24, E)
        return self.think(query + found)[..., 0]  # (B, 24)


class Linear(nn.Module):
    """forecast = A · (168 counts) + B · (calendar of that hour): the plain baseline."""

    def __init__(self):
        super().__init__()
        self.counts = nn.Linear(PAST, AHEAD)
        self.calendar = nn.Linear(CALENDAR, 1)

    def forward(self, past: Tensor, ahead: Tensor) -> Tensor:
        return self.counts(past[..., 0]) + self.calendar(ahead[..., 2:])[..., 0]  # (B, 24)


class Copy(nn.Module):
    """The same hour so many hours before. There is nothing to train."""

    def __init__(self, hours: int):
        super().__init__()
        self.hours = hours

    def forward(self, past: Tensor, ahead: Tensor) -> Tensor:
        start = PAST - self.hours
        return past[:, start : start + AHEAD, 0]  # (B, 24)


class Bikes(Task):
    name, title = "bikes", "a forecast: bike rentals of the next 24 hours"
    metric, higher_is_better = "bikes off", False
    steps, batch_size, learning_rate = 1200, 64, 3e-3
    variants: ClassVar[dict[str, dict]] = {
        **head_counts(1, 2, 4, 8),
        "4 heads, 1 kv head": {"num_heads": 4, "num_kv_heads": 1},
        "uniform weights": {"mixing": "uniform"},
        "linear, no attention": {"kind": "linear"},
        "same hour yesterday": {"kind": "copy", "hours": 24},
        "same hour last week": {"kind": "copy", "hours": 168},
    }
    shipped = "4 heads"

    def build(self, kind: str = "attention", **variant) -> nn.Module:
        return {"attention": Forecaster, "linear": Linear, "copy": Copy}[kind](**variant)

    @cached_property
    def series(self) -> tuple[Tensor, Tensor, float, float]:
        """(counts (N,), calendar (N, 17), mean, spread): counts as log(1 + bikes), scaled by the training part."""
        bikes = data.load_bikes()
        logs = np.log1p(bikes.counts)
        mean, spread = logs[bikes.train].mean(), logs[bikes.train].std()
        hours = (bikes.times - bikes.times[0]).astype("timedelta64[h]").astype(float)
        when = calendar(hours, bikes.working_day)
        to_tensor = lambda a: torch.tensor(a, dtype=torch.float32)  # noqa: E731
        return to_tensor((logs - mean) / spread), to_tensor(when), float(mean), float(spread)

    def windows(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(past, ahead, answer) for forecasts that begin at these hours, (B,)."""
        counts, when, _, _ = self.series
        before = start[:, None] + torch.arange(-PAST, 0)  # (B, 168)
        after = start[:, None] + torch.arange(AHEAD)  # (B, 24)
        ago = torch.linspace(-1, 0, PAST).expand(len(start), -1)  # (B, 168), -1 a week ago, 0 now
        later = torch.linspace(0, 1, AHEAD).expand(len(start), -1)  # (B, 24)
        past = torch.cat([counts[before][..., None], ago[..., None], when[before]], dim=-1)  # (B, 168, F)
        unknown = torch.zeros(len(start), AHEAD, 1)
        ahead = torch.cat([unknown, later[..., None], when[after]], dim=-1)  # (B, 24, F)
        return past, ahead, counts[after]

    def batch(self, generator):
        last = data.load_bikes().train.stop - AHEAD
        return self.windows(torch.randint(PAST, last + 1, (self.batch_size,), generator=generator))

    def loss(self, model, past, ahead, answer):
        return F.l1_loss(model(past, ahead), answer)

    @torch.no_grad()
    def scores(self, model):
        """Mean distance between forecast and truth in bikes, for forecasts that begin every 6 hours."""
        bikes, (_, _, mean, spread) = data.load_bikes(), self.series
        start = torch.arange(bikes.test.start + PAST, bikes.test.stop - AHEAD + 1, 6)
        past, ahead, answer = self.windows(start)
        kind = next(model.parameters(), past)  # device and dtype
        forecast = model(past.to(kind), ahead.to(kind)).cpu().double()  # (N, 24); Apple's GPUs have no float64
        bikes_of = lambda z: torch.expm1(z.double() * spread + mean)  # noqa: E731
        return {"bikes off": (bikes_of(forecast) - bikes_of(answer)).abs().mean().item()}
