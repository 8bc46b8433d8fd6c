"""The classifiers of digits and of speech."""

import numpy as np
import pytest

from mha_lesson import data
from tests.conftest import HAS_TORCH
from tests.models.helpers import Scripted, close, lively, one_hot, randn, seeded, task_of

if HAS_TORCH:
    import torch
    from torch import nn

    from mha_lesson.models import classifier, training
    from mha_lesson.models.training import Task
else:  # the classes below need something to be written with; no test of them runs
    from types import SimpleNamespace

    nn, Task = SimpleNamespace(Module=object), object


@pytest.mark.torch
class TestClassifiers:
    def test_patches_by_hand(self):
        image = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]])
        want = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
        assert classifier.patches(torch.stack([image, image + 100]), 2).tolist() == [
            want,
            [[n + 100 for n in row] for row in want],
        ]
        assert classifier.patches(image[None], 4).tolist() == [[list(range(16))]]
        assert classifier.patches(image[None, :2], 2).tolist() == [want[:2]]

    def test_digits_are_those_of_the_file(self):
        pieces, labels, test, answers = task_of("digits").data
        digits = data.load_digits()
        assert pieces.shape == (1437, 16, 4) and test.shape == (360, 16, 4)
        close(pieces[5, 6].double(), torch.tensor(digits.train_images[5, 2:4, 4:6].ravel()), atol=1e-6)
        close(test[7, 13].double(), torch.tensor(digits.test_images[7, 6:8, 2:4].ravel()), atol=1e-6)
        assert (labels.numpy() == digits.train_labels).all() and (answers.numpy() == digits.test_labels).all()

    def test_speech_is_scaled_by_the_training_part_alone(self):
        pieces, labels, test, answers = task_of("speech").data
        speech = data.load_speech()
        assert pieces.shape == (1600, 24, 20) and test.shape == (400, 24, 20)
        mean, spread = speech.train_mel.mean(), speech.train_mel.std()
        np.testing.assert_allclose(pieces.numpy(), (speech.train_mel - mean) / spread, atol=2e-5)
        np.testing.assert_allclose(test.numpy(), (speech.test_mel - mean) / spread, atol=2e-5)
        assert (labels.numpy() == speech.train_labels).all() and (answers.numpy() == speech.test_labels).all()
        assert not set(speech.train_voices) & set(speech.test_voices)

    @pytest.mark.parametrize("name", ["digits", "speech"])
    def test_a_batch_holds_training_examples_with_their_labels(self, name):
        task = task_of(name)
        train, labels, _, _ = task.data
        pieces, answers = task.batch(seeded())
        assert pieces.shape == (48, *train.shape[1:])
        for piece, answer in zip(pieces, answers, strict=True):
            places = (train == piece).flatten(1).all(1).nonzero().flatten()
            assert len(places) and answer in labels[places]
        assert len(set(answers.tolist())) > 5

    @pytest.mark.parametrize("name", ["digits", "speech"])
    def test_scores(self, name):
        task = task_of(name)
        _, _, pieces, labels = task.data
        model = Scripted(one_hot(labels, 10))
        assert task.scores(model) == {"accuracy": 1}
        assert torch.equal(torch.cat(model.seen), pieces)
        assert task.scores(Scripted(one_hot((labels + 1) % 10, 10))) == {"accuracy": 0}
        some = labels.clone()
        some[:33] += 1
        assert task.scores(Scripted(one_hot(some % 10, 10)))["accuracy"] == pytest.approx(1 - 33 / len(labels))

    @pytest.mark.parametrize("positions", [True, False])
    def test_without_positions_the_order_is_lost(self, positions):
        model = lively(classifier.Classifier(5, 3, 4, 8, 2, layers=2, positions=positions))
        x = randn(2, 5, 3)
        same = torch.allclose(model(x), model(x[:, [3, 1, 0, 4, 2]]), rtol=0, atol=1e-10)
        assert same == (not positions)

    def test_every_piece_reaches_the_class(self):
        for model in (
            classifier.Classifier(5, 3, 4, 8, 2),
            classifier.Classifier(5, 3, 4, 8, mixing="uniform"),
            classifier.Flat(5, 3, 4),
            classifier.Flat(5, 3, 4, inner=6),
        ):
            model, x = lively(model), randn(1, 5, 3)
            assert model(x).shape == (1, 4)
            for place in range(5):
                other = x.clone()
                other[0, place, 1] += 2
                assert not torch.allclose(model(other), model(x))

    def test_logistic_regression_is_one_linear_map(self):
        model, x = classifier.Flat(5, 3, 4).double(), randn(2, 5, 3)
        want = x.reshape(2, 15) @ model.classes.weight.T + model.classes.bias
        close(model(x), want)
        assert training.count_parameters(model) == 15 * 4 + 4
