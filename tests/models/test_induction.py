"""Induction: the sequences and the answer key."""

import numpy as np
import pytest

from tests.conftest import HAS_TORCH
from tests.models.helpers import Scripted, one_hot, randn, seeded, task_of

if HAS_TORCH:
    import torch
    from torch import nn

    from mha_lesson.models import induction
    from mha_lesson.models.training import Task
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


@pytest.mark.torch
class TestInduction:
    def test_sequences_start_again_after_their_period(self):
        tokens, period = induction.repeating(2000, seeded())
        assert tokens.shape == (2000, 64) and tokens.dtype == torch.long
        assert (tokens.min(), tokens.max(), period.min(), period.max()) == (0, 63, 12, 32)
        for row, p in zip(tokens[:200], period[:200].tolist(), strict=True):
            assert torch.equal(row[p:], row[:-p])
            assert len(set(row[:p].tolist())) > 6
        assert len({tuple(row.tolist()) for row in tokens}) == 2000
        task = task_of("induction")
        (batch,) = task.batch(seeded(4))
        assert torch.equal(batch, induction.repeating(task.batch_size, seeded(4))[0])

    def by_looking_back(self, tokens):
        """What stood behind the last symbol when it stood there before; nothing (-1) if it never did."""
        guess = torch.full_like(tokens, -1)
        for row, line in enumerate(tokens.tolist()):
            for place, symbol in enumerate(line):
                before = [j for j in range(place) if line[j] == symbol]
                if before:
                    guess[row, place] = line[before[-1] + 1]
        return guess

    def test_the_answer_key_asks_what_can_be_known_and_all_of_that(self):
        """Symbols that differ within a period, so that nothing can be known by chance."""
        period = torch.tensor([12, 20, 32])
        rows = [torch.randperm(64, generator=seeded(i))[:p] for i, p in enumerate(period)]
        tokens = torch.stack([row.repeat(6)[:64] for row in rows])
        guess = self.by_looking_back(tokens)
        known = guess[:, :-1] >= 0  # (B, 63): of places 1 to 63
        logits = one_hot(guess.clamp(min=0), 64) * (guess >= 0)[..., None]
        logits[..., :63] += 0.1 * one_hot((tokens.roll(-1, 1) + 1) % 63, 63)  # wrong where nothing is known
        assert induction.copying_accuracy(Scripted(logits), tokens, period) == 1
        right = one_hot(tokens.roll(-1, 1), 64)
        for row, place in [(0, 0), (1, 3), (2, 10), (2, 31), (2, 0), (1, -1), (0, 5)]:
            spoilt = right.clone()
            place = (known[row].nonzero()[place] if place != 31 else torch.tensor([31])).item()
            spoilt[row, place] = 2 * one_hot((tokens[row, place + 1] + 1) % 64, 64)
            want = 1 - known[row, place].item() / known.sum().item()
            got = induction.copying_accuracy(Scripted(spoilt), tokens, period)
            assert got == pytest.approx(want, abs=1e-12), (row, place)
        assert known.sum(1).tolist() == [63 - 12, 63 - 20, 63 - 32]

    def test_scores(self, monkeypatch):
        task = task_of("induction")
        tokens, _ = task.test_part()
        assert tokens.shape == (256, 64)
        assert torch.equal(tokens, task.test_part()[0])
        right = one_hot(tokens.roll(-1, 1), 64)
        assert task.scores(Scripted(right)) == {"accuracy": 1}
        assert task.scores(Scripted(one_hot((tokens.roll(-1, 1) + 1) % 64, 64))) == {"accuracy": 0}
        assert task.scores(Scripted(one_hot(torch.zeros_like(tokens), 64)))["accuracy"] < 0.05

    def test_the_test_part_is_not_what_an_ordinary_seed_draws(self):
        """The generator looks at the low 32 bits of its seed alone: 2**40 is 0 for it."""
        task = task_of("induction")
        test = {tuple(row.tolist()) for row in task.test_part()[0]}
        for seed in range(50):
            assert not test & {tuple(row.tolist()) for row in task.batch(seeded(seed))[0]}, f"seed {seed}"

    @pytest.mark.gpu
    def test_accuracy_without_each_head_on_a_gpu(self, monkeypatch):
        task, part = task_of("induction"), induction.repeating(8, seeded())
        monkeypatch.setattr(task, "test_part", lambda: part)
        model = induction.AttentionOnly(8, 2).double()
        want = task.without_each_head(model)
        assert task.without_each_head(model.cuda()) == want

    def test_the_loss_is_that_of_the_next_symbol(self):
        tokens = induction.repeating(3, seeded())[0]
        logits = randn(3, 64, 64)
        want = [-logits[b, p].log_softmax(-1)[tokens[b, p + 1]].item() for b in range(3) for p in range(63)]
        assert task_of("induction").loss(Scripted(logits), tokens).item() == pytest.approx(np.mean(want))
