"""The forecast of a series: calendar, windows, scales."""

import numpy as np
import pytest

from mha_lesson import data
from tests.conftest import HAS_TORCH
from tests.models.helpers import Scripted, close, lively, randn, seeded, task_of

if HAS_TORCH:
    import torch
    from torch import nn

    from mha_lesson.models import series
    from mha_lesson.models.training import Task
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


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

    def test_scores_leave_the_device_before_they_become_float64(self):
        """Apple's GPUs have no float64: a forecast that lies there can only be made wide on the CPU."""

        class OnApplesGPU:
            def __init__(self, numbers):
                self.numbers = numbers

            def cpu(self):
                return self.numbers

            def double(self):
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

        apple = lambda past, ahead: OnApplesGPU(torch.zeros(len(past), 24))  # noqa: E731
        apple.parameters = lambda: iter([torch.zeros(1)])
        assert task_of("bikes").scores(apple)["bikes off"] > 0

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
