"""One class for a whole sequence: pictures cut into patches, and sound cut into moments.

    pieces   (B, T, F)      T pieces of F numbers: 2 x 2 pixels, or one moment of a sound
    x        (B, T + 1, E)  one vector a piece, and one more, "class", that starts the same each time
    logits   (B, C)         from the class vector after the last block: a score for each of C classes

    Classifier   attention: the class vector collects what it needs
    Flat         no attention: all pieces side by side into one linear map (logistic regression), or
                 into a feed-forward network

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (patches and the class vector);
Gong et al. 2021, "AST: Audio Spectrogram Transformer".
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lesson import data
from mha_lesson.models.blocks import Block, embedding
from mha_lesson.models.training import Task, head_counts


class Classifier(nn.Module):
    """positions=False leaves the position vectors out: then the order of the pieces is lost."""

    def __init__(
        self, pieces, features, classes, d_model=48, num_heads=4, num_kv_heads=None, *,
        layers=1, dropout=0.1, positions=True, mixing="attention",
    ):  # fmt: skip
        super().__init__()
        self.enter = nn.Linear(features, d_model)
        self.start = nn.Parameter(torch.zeros(d_model))
        self.positions = embedding(pieces + 1, d_model) if positions else None
        self.blocks = nn.ModuleList(
            Block(d_model, num_heads, num_kv_heads, dropout=dropout, mixing=mixing) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.classes = nn.Linear(d_model, classes)

    def forward(self, pieces: Tensor) -> Tensor:
        start = self.start.expand(len(pieces), 1, -1)  # (B, 1, E)
        x = torch.cat([start, self.enter(pieces)], dim=1)  # (B, T + 1, E)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.classes(self.norm(x[:, 0]))  # (B, C)


class Flat(nn.Module):
    """All numbers of the pieces side by side. inner=0: one linear map; else a network of that width."""

    def __init__(self, pieces, features, classes, inner=0):
        super().__init__()
        width = pieces * features
        self.classes = (
            nn.Sequential(
                nn.Linear(width, inner), nn.ReLU(), nn.Dropout(0.1), nn.Linear(inner, inner), nn.ReLU(),
                nn.Linear(inner, classes),
            )
            if inner
            else nn.Linear(width, classes)
        )  # fmt: skip

    def forward(self, pieces: Tensor) -> Tensor:
        return self.classes(pieces.flatten(1))  # (B, C)


class ClassifierTask(Task):
    """Examples as pieces (N, T, F) with labels (N,). A subclass says where they come from."""

    metric, layers = "accuracy", 1
    batch_size, warmup = 48, 60
    classes = 10

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(train pieces, train labels, test pieces, test labels)."""
        raise NotImplementedError

    @cached_property
    def data(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.parts()

    def build(self, kind: str = "attention", **variant) -> nn.Module:
        pieces, features = self.data[0].shape[1:]
        if kind == "flat":
            return Flat(pieces, features, self.classes, **variant)
        return Classifier(pieces, features, self.classes, **{"layers": self.layers, **variant})

    def batch(self, generator):
        pieces, labels, _, _ = self.data
        chosen = torch.randint(len(pieces), (self.batch_size,), generator=generator)
        return pieces[chosen], labels[chosen]

    def loss(self, model, pieces, labels):
        return F.cross_entropy(model(pieces), labels)

    @torch.no_grad()
    def scores(self, model):
        _, _, pieces, labels = self.data
        parameter = next(model.parameters())
        guess = model(pieces.to(parameter.device, parameter.dtype)).argmax(-1).cpu()  # (N,)
        return {"accuracy": (guess == labels).double().mean().item()}


def patches(images: Tensor, size: int) -> Tensor:
    """Pictures (N, Y, X) cut into squares, row by row: (N, T, size·size)."""
    squares = images.unfold(1, size, size).unfold(2, size, size)  # (N, Y/size, X/size, size, size)
    return squares.flatten(1, 2).flatten(-2)


class Digits(ClassifierTask):
    name, title = "digits", "handwritten digits, 8 x 8 pixels, as 16 patches"
    steps, layers, shipped = 1100, 2, "4 heads"
    variants: ClassVar[dict[str, dict]] = {
        **head_counts(1, 2, 4, 8, 16),
        "4 heads, 1 kv head": {"num_heads": 4, "num_kv_heads": 1},
        "4 heads, no positions": {"num_heads": 4, "positions": False},
        "uniform weights": {"mixing": "uniform"},
        "network, no attention": {"kind": "flat", "inner": 128},
        "logistic regression": {"kind": "flat"},
    }

    def parts(self):
        """Tested on the last fifth of the collection, as it came: other hands than most of the rest."""
        digits = data.load_digits()
        train = patches(torch.tensor(digits.train_images, dtype=torch.float32), 2)  # (N, 16, 4)
        test = patches(torch.tensor(digits.test_images, dtype=torch.float32), 2)
        return train, torch.tensor(digits.train_labels), test, torch.tensor(digits.test_labels)


class Speech(ClassifierTask):
    name, title = "speech", "spoken digits of synthetic voices, as moments of sound"
    steps, shipped = 900, "8 heads"
    variants: ClassVar[dict[str, dict]] = {
        **head_counts(1, 2, 4, 8, 16),
        "8 heads, 2 kv heads": {"num_heads": 8, "num_kv_heads": 2},
        "8 heads, 1 kv head": {"num_heads": 8, "num_kv_heads": 1},
        "1 head, 2 layers": {"num_heads": 1, "layers": 2},
        "uniform weights": {"mixing": "uniform"},
        "network, no attention": {"kind": "flat", "inner": 128},
        "logistic regression": {"kind": "flat"},
    }

    def parts(self):
        """The voices of the test part are never heard in training."""
        speech = data.load_speech()
        train = torch.tensor(speech.train_mel, dtype=torch.float32)  # (N, T, F)
        test = torch.tensor(speech.test_mel, dtype=torch.float32)
        mean, spread = train.mean(), train.std()
        labels = torch.tensor(speech.train_labels), torch.tensor(speech.test_labels)
        return (train - mean) / spread, labels[0], (test - mean) / spread, labels[1]
