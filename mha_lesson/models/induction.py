"""Two layers of attention and nothing else learn to copy: how heads work together.

A sequence of random symbols that repeats itself after a while, at a distance that differs from
sequence to sequence:

    7 2 9 4 1 8 7 2 9 4 1 ?

What comes next? "Find where the last symbol stood before, and say what came after it." A head of
the second layer can do it with the help of one in the first:

    layer 0, previous-token head   each place writes down which symbol stands before it
    layer 1, induction head        the last symbol looks for the place that wrote it down

Neither works alone: one layer cannot do it, nor can two without the previous-token head.

    tokens   (B, T)      T = 64 symbols out of 64
    logits   (B, T, 64)  at each place, scores for the next symbol

Source: Olsson et al. 2022, "In-context Learning and Induction Heads"; Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits".
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lesson.models.blocks import Block, attention_layers, embedding, heads_off, start_small
from mha_lesson.models.training import Task, head_counts

SYMBOLS = LENGTH = 64
PERIODS = (12, 32)  # the repeat starts at one of 12 to 32


class AttentionOnly(nn.Module):
    """Embedding, some layers of attention, scores for the next symbol. No feed-forward part."""

    def __init__(self, d_model: int = 64, num_heads: int = 2, num_kv_heads=None, layers: int = 2, mixing="attention"):
        super().__init__()
        self.symbols = embedding(SYMBOLS, d_model)
        self.positions = embedding(LENGTH, d_model)
        self.blocks = nn.ModuleList(
            Block(d_model, num_heads, num_kv_heads, feed_forward=0, mixing=mixing) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.scores = nn.Linear(d_model, SYMBOLS, bias=False)
        start_small(self)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.symbols(tokens) + self.positions.weight[: tokens.shape[1]]  # (B, T, E)
        for block in self.blocks:
            x = block(x, causal=True)
        return self.scores(self.norm(x))  # (B, T, SYMBOLS)


def repeating(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(tokens (count, T), period (count,)): random symbols that start again after `period` places."""
    symbols = torch.randint(SYMBOLS, (count, PERIODS[1]), generator=generator)
    period = torch.randint(PERIODS[0], PERIODS[1] + 1, (count,), generator=generator)
    place = torch.arange(LENGTH) % period[:, None]  # (count, T)
    return symbols.gather(1, place), period


def copying_accuracy(model: nn.Module, tokens: Tensor, period: Tensor) -> float:
    """Share of right guesses where the answer can be known: once the repeat has begun."""
    with torch.no_grad():
        guess = model(tokens)[:, :-1].argmax(-1)  # (B, T - 1), what comes at places 1 to T - 1
    known = torch.arange(1, LENGTH)[None] > period.cpu()[:, None]  # (B, T - 1)
    return (guess == tokens[:, 1:]).cpu()[known].double().mean().item()


class Induction(Task):
    name, title = "induction", "two attention layers learn to copy a repeated sequence"
    metric = "accuracy"
    steps, learning_rate, rate_left, weight_decay = 800, 3e-3, 1.0, 0.01
    variants: ClassVar[dict[str, dict]] = {
        **head_counts(1, 2, 4, 8, 16),
        "4 heads, 1 kv head": {"num_heads": 4, "num_kv_heads": 1},
        "one layer, 4 heads": {"num_heads": 4, "layers": 1},
        "uniform weights": {"num_heads": 1, "mixing": "uniform"},
    }
    shipped = "2 heads"

    def build(self, **variant) -> nn.Module:
        return AttentionOnly(**variant)

    def batch(self, generator):
        return (repeating(self.batch_size, generator)[0],)

    def loss(self, model, tokens):
        logits = model(tokens)[:, :-1]  # (B, T - 1, SYMBOLS)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def test_part(self) -> tuple[Tensor, Tensor]:
        """256 sequences from a seed that nobody else uses. (A generator takes the last 32 bits of a seed.)"""
        return repeating(256, torch.Generator().manual_seed(2**32 - 1))

    def scores(self, model):
        tokens, period = self.test_part()
        tokens = tokens.to(next(model.parameters()).device)
        return {"accuracy": copying_accuracy(model, tokens, period)}

    def without_each_head(self, model) -> dict[tuple[int, int], float]:
        """Accuracy with one head switched off, for each (layer, head)."""
        tokens, period = self.test_part()
        tokens = tokens.to(next(model.parameters()).device)
        accuracy = {}
        for number, layer in enumerate(attention_layers(model).values()):
            for head in range(layer.num_heads):
                with heads_off(layer, [head]):
                    accuracy[number, head] = copying_accuracy(model, tokens, period)
        return accuracy
