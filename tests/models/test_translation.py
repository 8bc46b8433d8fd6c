"""The translator: its masks, its parts, its tasks."""

import numpy as np
import pytest

from tests.conftest import HAS_TORCH
from tests.reference import says

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.models.translation import Translator  # noqa: E402
from tests.models.helpers import Scripted, close, lively, randn, seeded, small, task_of  # noqa: E402

if HAS_TORCH:
    import torch
    from torch import nn

    from mha_lesson.models import translation
    from mha_lesson.models.blocks import (
        UniformAttention,
        attention_layers,
        recording,
    )
    from mha_lesson.models.training import Task
    from mha_lesson.pytorch import MultiHeadAttention
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


# ---------------------------------------------------------------------------- who sees whom


LETTERS, SOUNDS = tuple("012abcdefgh"), tuple("012ABCDEFGHIJ")  # the first three are the special ones


@pytest.mark.torch
class TestTranslator:
    def model(self, **options):
        options = {"num_heads": 2, **options}
        return lively(translation.Translator(LETTERS, SOUNDS, 8, dropout=0.3, **options))

    @pytest.mark.parametrize("mixing", ["attention", "uniform"])
    def test_the_padding_of_the_source_changes_nothing(self, mixing):
        model = self.model(mixing=mixing)
        source, target = model.read(["abc", "hgfedcba"]), torch.tensor([[1, 5, 7], [1, 9, 4]])
        alone = model(source[:1, :3], target[:1])
        close(model(source, target)[:1], alone)
        with torch.no_grad():
            model.source_embedding.weight[translation.PADDING] += 10
        close(model(source, target)[:1], alone)

    def test_what_is_written_so_far_is_seen_and_nothing_later(self):
        model = self.model(decoder_layers=2)
        source, target = model.read(["abcd"]), torch.tensor([[1, 5, 7, 9, 4]])
        plain = model(source, target)
        for place in range(5):
            other = target.clone()
            other[0, place] += 1
            changed = (model(source, other) - plain).abs().amax(-1)[0] > 1e-12
            assert changed.tolist() == [p >= place for p in range(5)]

    def test_the_source_is_used_each_letter_of_it_in_its_place(self):
        model, target = self.model(), torch.tensor([[1, 5, 7]])
        plain = model(model.read(["abcd"]), target)
        for other in ("bbcd", "abca", "bacd", "abc"):
            changed = (model(model.read([other]), target) - plain).abs().amax(-1)[0]
            assert (changed > 1e-6).all(), other

    @pytest.mark.parametrize("mixing", ["attention", "uniform"])
    def test_uniform_sees_the_mean_of_the_memory_alone(self, mixing):
        model, source, target = self.model(mixing=mixing), torch.tensor([[3, 4, 5, 6]]), torch.tensor([[1, 5, 7]])
        memory, shift = randn(1, 4, 8), randn(8, seed=3)
        other = memory.clone()
        other[0, 0] += shift
        other[0, 2] -= shift
        apart = (model.decode(target, memory, source) - model.decode(target, other, source)).abs().max()
        assert (apart < 1e-10) == (mixing == "uniform")
        close(memory.mean(1), other.mean(1))
        assert (model.decode(target, memory, source) - model.decode(target, memory + shift, source)).abs().max() > 1e-3

    def test_the_variants_reach_the_layers(self):
        model = self.model(num_heads=4, num_kv_heads=2, mixing="uniform", encoder_layers=3)
        kinds = {name: type(layer) for name, layer in attention_layers(model).items()}
        assert kinds.pop("decoder.0.cross_attention") is UniformAttention
        assert set(kinds.values()) == {MultiHeadAttention}
        assert len(kinds) == 4 and model.encoder[2].attention.num_kv_heads == 2

    # ---- from and to text

    def script(self, monkeypatch, model, *rows):
        """`decode` says these symbols, one row of numbers for each source. Gives the list of its calls."""
        calls = []

        def decode(target, memory, source):
            calls.append(target.clone())
            step = target.shape[1] - 1
            logits = torch.zeros(len(rows), step + 1, len(SOUNDS))
            for i, row in enumerate(rows):
                logits[i, -1, row[min(step, len(row) - 1)]] = 1
            return logits

        monkeypatch.setattr(model, "decode", decode)
        return calls

    def test_translate_stops_at_the_end(self, monkeypatch):
        model, END = self.model(), translation.END
        calls = self.script(monkeypatch, model, [5, END, 6, 7, 8], [3, 4, 0, 1, 9, END, 3])
        assert model.translate(["ab", "c"]) == [["C"], ["A", "B", "G"]]
        assert len(calls) == 6, "one more for each symbol until the last source has its <end>"
        assert calls[0].tolist() == [[translation.START]] * 2
        assert calls[2].tolist() == [[translation.START, 5, END], [translation.START, 3, 4]]

    def test_translate_stops_at_the_longest(self, monkeypatch):
        model = self.model()
        calls = self.script(monkeypatch, model, [5])
        assert model.translate(["ab"], longest=7) == [["C"] * 7]
        assert len(calls) == 7

    def test_translate_is_the_likeliest_step_by_step_alone_or_in_a_batch(self):
        for seed in range(50):  # until the sources matter
            model = lively(self.model(), std=1.0, seed=seed)
            written = model.translate(["abc", "hgfedcba", "d"], longest=6)
            if len({tuple(w) for w in written}) == 3:
                break
        for source, symbols in zip(["abc", "hgfedcba", "d"], written, strict=True):
            target = [translation.START]
            while len(target) < 7 and target[-1] != translation.END:
                target.append(model(model.read([source]), torch.tensor([target]))[0, -1].argmax().item())
            assert symbols == [SOUNDS[i] for i in target[1:] if i > 2]
            assert model.translate([source], longest=6) == [symbols]
        assert len({tuple(w) for w in written}) == 3

    def test_alignment(self):
        model = self.model(num_heads=4, decoder_layers=2)
        written, source, weights = model.alignment("abcde", ["A", "F", "C"])
        assert (written, source) == (["A", "F", "C", "<end>"], list("abcde"))
        assert weights.shape == (4, 4, 5)
        close(weights.sum(-1), torch.ones(4, 4, dtype=torch.float64))
        with recording(model) as maps:
            model(model.read(["abcde"]), torch.tensor([[1, 3, 8, 5]]))
        assert torch.equal(maps["decoder.1.cross_attention"][0], weights)
        _, _, other = model.alignment("abcde", ["A", "G", "C"])
        changed = (weights - other).abs().amax(dim=(0, 2)) > 1e-12
        assert changed.tolist() == [False, False, True, True], "row i is made before symbol i is written"

    def test_alignment_explains_what_the_model_writes_itself(self, monkeypatch):
        model = self.model()
        monkeypatch.setattr(model, "translate", lambda sources: [["B", "D"] for _ in sources])
        written, _, weights = model.alignment("abc")
        assert written == ["B", "D", "<end>"]
        assert torch.equal(weights, model.alignment("abc", ("B", "D"))[2])

    def test_alignment_of_the_mean(self):
        weights = self.model(mixing="uniform").alignment("abcd", ["A"])[2]
        close(weights, torch.full((1, 2, 4), 0.25, dtype=torch.float64))

    def test_wrong_texts(self):
        model = self.model()
        with pytest.raises(ValueError, match=says("source: the model has never seen these symbols", "'!' 'é'")):
            model.translate(["a!é"])
        with pytest.raises(ValueError, match=says("expected 1 to 48 symbols, got 49")):
            model.read(["a" * 49])
        with pytest.raises(ValueError, match=says("expected 1 to 48 symbols, got 0")):
            model.read([""])
        assert model.read(["a" * 48]).shape == (1, 48)

    def test_alignment_names_a_symbol_that_it_does_not_know(self):
        with pytest.raises(ValueError, match="ZZ"):
            self.model().alignment("abc", ["A", "ZZ"])

    def test_pad_and_shorten(self):
        rows = translation.pad([[3], [4, 5, 6], [7, 8]])
        assert rows.tolist() == [[3, 0, 0], [4, 5, 6], [7, 8, 0]]
        assert translation.shorten(rows[[0, 2]]).tolist() == [[3, 0], [7, 8]]
        assert translation.shorten(rows).tolist() == rows.tolist()
        assert translation.alphabet_of(["ba", "ca"]) == ("<padding>", "<start>", "<end>", "a", "b", "c")


# ---------------------------------------------------------------------------- translation


@pytest.mark.torch
class TestTranslationTasks:
    @pytest.mark.parametrize("name", ["spelling", "dates"])
    def test_the_parts_are_apart_and_can_be_read(self, name):
        task = task_of(name)
        train, test = task.pairs("train"), task.pairs("test")
        assert (len(train), len(test)) == {"spelling": (15326, 1500), "dates": (18000, 2000)}[name]
        assert not {source for source, _ in train} & {source for source, _ in test}
        if name == "dates":
            assert not {iso for _, iso in train} & {iso for _, iso in test}
        sources, targets = task.alphabets
        assert sources[:3] == targets[:3] == translation.SPECIAL
        assert {s for source, _ in test for s in source} <= set(sources[3:])
        assert {s for _, target in test for s in target} <= set(targets[3:])
        assert max(len(source) for source, _ in train + test) <= translation.LONGEST
        assert max(len(target) for _, target in train + test) <= min(translation.LONGEST - 2, 24)

    @pytest.mark.parametrize("name", ["spelling", "dates"])
    def test_a_batch_holds_pairs_of_the_training_part(self, name, monkeypatch):
        task = small(monkeypatch, name, 40)
        source, target = task.batch(seeded())
        assert len(source) == len(target) == 40
        assert (source != 0).any(0).all() and (target != 0).any(0).all(), "no column of padding alone"
        sources, targets = task.alphabets
        known = {(s, tuple(t)) for s, t in task.pairs("train")}
        for s, t in zip(source.tolist(), target.tolist(), strict=True):
            s, t = [i for i in s if i], [i for i in t if i]
            assert (t[0], t[-1]) == (translation.START, translation.END)
            assert ("".join(sources[i] for i in s), tuple(targets[i] for i in t[1:-1])) in known
        assert ((source[:, 1:] != 0) <= (source[:, :-1] != 0)).all(), "padding stands at the end"
        assert ((target[:, 1:] != 0) <= (target[:, :-1] != 0)).all()
        assert len({tuple(row) for row in source.tolist()}) > 30

    def test_the_loss_leaves_the_padding_out(self):
        source = torch.tensor([[3, 4], [5, 0]])
        target = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
        logits = randn(2, 3, 9)
        model = Scripted(logits)
        model.forward = lambda s, t: (model.seen.append(t), logits)[1]
        want = []
        for b, p in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]:
            logs = logits[b, p].log_softmax(-1)
            want.append(-(0.9 * logs[target[b, p + 1]] + 0.1 * logs.mean()).item())
        assert task_of("spelling").loss(model, source, target).item() == pytest.approx(np.mean(want))
        assert torch.equal(model.seen[0], target[:, :-1])

    class Parrot:
        """Knows all answers, but for those of the sources in `wrong`: there its first symbol is another."""

        source_symbols, target_symbols = LETTERS, SOUNDS

        def __init__(self, pairs, wrong=()):
            self.pairs, self.wrong = pairs, set(wrong)
            self.answers = {s: ["J", *t[1:]] if s in self.wrong else list(t) for s, t in pairs}

        def translate(self, sources):
            return [self.answers[s] for s in sources]

        def read(self, sources):
            return translation.pad([translation.numbers(s, LETTERS) for s in sources])

        def __call__(self, source, target):
            logits = torch.zeros(*target.shape, len(SOUNDS))
            for b, row in enumerate(source.tolist()):
                text = "".join(LETTERS[i] for i in row if i)
                answer = [SOUNDS.index(a) for a in self.answers[text]] + [translation.END]
                for p, number in enumerate(answer):
                    logits[b, p, number] = 1
            return logits

        def alignment(self, source, written):
            """Two heads whose mean lies on place 0, 1, 1, 0, ... of three, and on 2 for <end>."""
            weights = torch.zeros(2, len(written) + 1, 3)
            for i in range(len(written)):
                weights[0, i, [0, 1, 1, 0][i % 4]] = 1
                weights[1, i] = torch.tensor([0.25, 0.25, 0.5])
            weights[:, -1, 2] = 1
            return [*written, "<end>"], list(source), weights

    def test_scores(self, monkeypatch):
        task = task_of("spelling")
        words = [a + b + c for a in "abcdefgh" for b in "abcdefgh" for c in "abcdefg"][:443]
        pairs = tuple((word, tuple("ABCD"[: 1 + i % 4])) for i, word in enumerate(words))
        monkeypatch.setattr(task, "pairs", lambda part: {"test": pairs}[part])
        perfect = task.scores(self.Parrot(pairs))
        assert (perfect["exact"], perfect["symbols"]) == (1, 1)
        wrong = [words[0], words[7], words[442]]
        scores = task.scores(self.Parrot(pairs, wrong))
        symbols = sum(len(t) + 1 for _, t in pairs)  # with <end>
        assert scores["exact"] == pytest.approx(440 / 443)
        assert scores["symbols"] == pytest.approx(1 - 3 / symbols)
        none = task.scores(self.Parrot(pairs, words))
        assert none["exact"] == 0
        assert none["symbols"] == pytest.approx(1 - 443 / symbols)

    def test_reading(self):
        """Mean of the heads: the largest weight is (1 + 0.25) / 2; of 0, 1, 1, 0 one step goes back."""
        pairs = [("abc", tuple("ABCD")), ("abd", tuple("AB"))]
        score = translation.reading(self.Parrot(pairs), pairs)
        assert score == {"peak": pytest.approx(0.625), "straight": pytest.approx(3 / 4)}


@pytest.mark.torch
def test_encoder_and_decoder_have_positions_of_their_own():
    """The two tables have the same shape: to read the wrong one changes no shape, and trains, too."""
    torch.manual_seed(0)
    model = Translator("012abc", "012xyz", d_model=8, num_heads=2).double().eval()
    source, target = torch.tensor([[3, 4, 5, 3]]), torch.tensor([[1, 3, 4]])
    with torch.no_grad():
        memory = model.encode(source)
        logits = model.decode(target, memory, source)
        model.source_positions.weight.mul_(2)
        assert torch.equal(model.decode(target, memory, source), logits)
        assert not torch.allclose(model.encode(source), memory)

        memory = model.encode(source)
        logits = model.decode(target, memory, source)
        model.target_positions.weight.mul_(2)
        assert torch.equal(model.encode(source), memory)
        assert not torch.allclose(model.decode(target, memory, source), logits)
