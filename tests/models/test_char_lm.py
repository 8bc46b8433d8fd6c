"""The language model of characters: its text, its loss, its writing."""

import math

import numpy as np
import pytest

from mha_lesson import data
from tests.conftest import HAS_TORCH
from tests.models.helpers import Scripted, lively, randn, seeded, small, task_of
from tests.reference import says

if HAS_TORCH:
    import torch
    from torch import nn

    from mha_lesson.models import char_lm
    from mha_lesson.models.training import Task
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


@pytest.mark.torch
class TestText:
    def test_encode_and_decode(self):
        text = "Call me Ishmael.\n"
        tokens = char_lm.encode(text)
        assert tokens.dtype == torch.long and char_lm.decode(tokens) == text
        assert char_lm.decode(torch.arange(5)) == "".join(sorted(set(data.load_moby_dick())))[:5]
        whole, alphabet = char_lm.text_and_alphabet()
        assert char_lm.decode(whole[:3000]) == data.load_moby_dick()[:3000]
        assert len(whole) == len(data.load_moby_dick()) and len(alphabet) == whole.max() + 1
        with pytest.raises(ValueError, match=says("text: these characters do not occur in the novel", "'€' '漢'")):
            char_lm.encode("5€ 漢")

    def test_the_test_part_is_never_drawn(self, monkeypatch):
        """A novel whose characters are their own places, so short that every place is drawn."""
        monkeypatch.setattr(char_lm, "text_and_alphabet", lambda: (torch.arange(200), ""))
        task = small(monkeypatch, "moby", 4000)
        (text,) = task.batch(seeded())
        assert text.shape == (4000, 129)
        assert (text[:, 1:] - text[:, :-1] == 1).all(), "pieces hang together"
        assert text.min() == 0
        assert 180 - 3 < text.max() < 180, "the last tenth is the test part"

    @pytest.mark.parametrize("context", [8, 64, 128])
    def test_the_loss_is_that_of_the_next_character_within_the_context(self, context):
        task, text = task_of("moby"), torch.arange(2 * 129).view(2, 129) % 60
        logits = randn(2, context, 60)
        model = Scripted(logits, context)
        want = [-logits[b, p].log_softmax(-1)[text[b, p + 1]].item() for b in range(2) for p in range(context)]
        assert task.loss(model, text).item() == pytest.approx(np.mean(want))
        assert torch.equal(model.seen[0], text[:, :context])

    def test_a_model_that_knows_nothing_costs_log2_of_the_alphabet(self):
        alphabet = len(char_lm.text_and_alphabet()[1])
        score = task_of("moby").scores(Scripted(torch.zeros(1, 64, alphabet).expand(2000, -1, -1)))
        assert score == {"bits per character": pytest.approx(math.log2(alphabet), abs=1e-5)}

    def test_a_model_that_knows_how_frequent_letters_are(self):
        """Measured on the last tenth, on nearly all of it."""
        novel, alphabet = data.load_moby_dick(), char_lm.text_and_alphabet()[1]
        cut = len(novel) * 9 // 10
        share = np.array([novel[:cut].count(c) + 1 for c in alphabet], float)
        share /= share.sum()
        logits = torch.tensor(np.log(share)).expand(2000, 128, -1)
        model = Scripted(logits, context=128)
        bits = task_of("moby").scores(model)["bits per character"]
        read = torch.cat(model.seen).flatten()
        assert len(novel) - cut - 128 <= len(read) < len(novel) - cut
        assert char_lm.decode(read) == novel[cut : cut + len(read)]
        answers = novel[cut + 1 : cut + len(read) + 1]
        assert bits == pytest.approx(np.mean([-np.log2(share[alphabet.index(c)]) for c in answers]), abs=1e-5)

    def writer(self, context=16):
        return lively(char_lm.CharLM(8, 2, layers=1, context=context), std=1.0)

    def test_write_takes_the_likeliest(self):
        model, start = self.writer(), "Call me"
        seen = []
        hook = model.register_forward_pre_hook(lambda model, given: seen.append(char_lm.decode(given[0][0])))
        text = char_lm.write(model, start, 30)
        hook.remove()
        assert seen == [text[max(0, end - 16) : end] for end in range(7, 37)], "as much as the context holds"
        assert len(text) == len(start) + 30 and text.startswith(start)
        so_far = start
        while len(so_far) < len(text):
            logits = model(char_lm.encode(so_far[-16:])[None])[0, -1]
            so_far += char_lm.decode(logits.argmax()[None])
        assert text == so_far
        assert char_lm.write(model, start, 30, seed=5) == text
        assert char_lm.write(model, start, 0) == start
        assert len(set(text[len(start) :])) > 1, "one letter for ever: a bad test"

    def test_write_draws_with_a_temperature(self):
        model = self.writer()
        one = char_lm.write(model, "Whale", 40, temperature=1.0, seed=1)
        torch.manual_seed(9)
        assert char_lm.write(model, "Whale", 40, temperature=1.0, seed=1) == one
        assert char_lm.write(model, "Whale", 40, temperature=1.0, seed=2) != one
        assert len(one) == 45
        likeliest = char_lm.write(model, "Whale", 40)
        assert char_lm.write(model, "Whale", 40, temperature=1e-6) == likeliest != one
        wild = char_lm.write(model, "Whale", 200, temperature=1000.0)
        assert len(set(wild)) > 40, "hot: nearly any letter"
        assert len(char_lm.write(lively(char_lm.WindowModel(4, 3, 8)), "Whale", 100, temperature=1.0)) == 105
