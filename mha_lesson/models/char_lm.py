"""A language model that reads and writes letter by letter, and two plainer ones to compare it with.

    tokens   (B, T)      numbers of characters
    logits   (B, T, V)   at each place, scores for the next of V characters

    CharLM       a transformer: each place looks back at all places before it
    WindowModel  no attention: a feed-forward network reads the last 16 characters, side by side

A score in bits per character: how many yes-or-no questions each next letter costs on average. V
letters without any knowledge cost log2(V), about 6.

    model, facts = load("moby")
    print(write(model, "Call me", 200))

Source: Radford et al. 2019 (the shape of GPT-2, here tiny); Bengio et al. 2003 (the window model).
"""

import math
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lesson.data import load_moby_dick
from mha_lesson.models.parts import Block, embedding, start_small
from mha_lesson.models.training import Task, head_counts


@cache
def text_and_alphabet() -> tuple[Tensor, str]:
    """(the novel as numbers, its V characters in order). The last tenth is the test part."""
    text = load_moby_dick()
    alphabet = "".join(sorted(set(text)))
    number = {c: i for i, c in enumerate(alphabet)}
    return torch.tensor([number[c] for c in text]), alphabet


def encode(text: str) -> Tensor:
    """Text as numbers of characters, (T,). A character that the novel never uses is an error."""
    alphabet = text_and_alphabet()[1]
    unknown = sorted(set(text) - set(alphabet))
    if unknown:
        raise ValueError(f"text: these characters do not occur in the novel: {' '.join(map(repr, unknown))}.")
    return torch.tensor([alphabet.index(c) for c in text], dtype=torch.long)


def decode(tokens: Tensor) -> str:
    """Numbers of characters as text."""
    alphabet = text_and_alphabet()[1]
    return "".join(alphabet[i] for i in tokens.tolist())


class CharLM(nn.Module):
    """A small GPT: embeddings, causal blocks, scores for the next character."""

    def __init__(
        self, d_model=128, num_heads=4, num_kv_heads=None, *, layers=2, context=64, dropout=0.0, mixing="attention"
    ):
        super().__init__()
        self.context = context
        characters = len(text_and_alphabet()[1])
        self.characters = embedding(characters, d_model)
        self.positions = embedding(context, d_model)
        self.blocks = nn.ModuleList(
            Block(d_model, num_heads, num_kv_heads, feed_forward=4 * d_model, dropout=dropout, mixing=mixing)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.scores = nn.Linear(d_model, characters, bias=False)
        start_small(self)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] > self.context:
            raise ValueError(
                f"tokens: expected at most {self.context} places, got {tokens.shape[1]}. Pass the last ones alone."
            )
        x = self.characters(tokens) + self.positions.weight[: tokens.shape[1]]  # (B, T, E)
        for block in self.blocks:
            x = block(x, causal=True)
        return self.scores(self.norm(x))  # (B, T, V)


class WindowModel(nn.Module):
    """Reads the last `window` characters side by side; what stood before them does not exist."""

    def __init__(self, window=16, d_model=24, inner=480, context=64):
        super().__init__()
        self.context, self.window = context, window
        characters = len(text_and_alphabet()[1])
        self.characters = embedding(characters + 1, d_model)  # one more: before the beginning
        self.think = nn.Sequential(
            nn.Linear(window * d_model, inner), nn.GELU(), nn.Linear(inner, inner), nn.GELU(),
            nn.Linear(inner, characters),
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        before = self.characters.num_embeddings - 1
        padded = F.pad(tokens, (self.window - 1, 0), value=before)  # (B, T + window - 1)
        seen = padded.unfold(1, self.window, 1)  # (B, T, window)
        return self.think(self.characters(seen).flatten(-2))  # (B, T, V)


class MobyDick(Task):
    name, title = "moby", "a language model, letter by letter, on Moby Dick"
    metric, higher_is_better = "bits per character", False
    steps, batch_size, learning_rate, weight_decay = 400, 32, 2e-3, 0.1
    variants: ClassVar[dict[str, dict]] = {
        **head_counts(1, 4, 8, 16),
        "8 heads, 1 kv head": {"num_heads": 8, "num_kv_heads": 1},
        "uniform weights": {"num_heads": 1, "mixing": "uniform"},
        "window of 16": {"kind": "window"},
        "4 heads, longer": {"num_heads": 4, "context": 128, "dropout": 0.1},
    }
    shipped = "4 heads, longer"
    shipped_steps = 1500

    def build(self, kind: str = "attention", **variant) -> nn.Module:
        return WindowModel(**variant) if kind == "window" else CharLM(**variant)

    def batch(self, generator):
        context = 128  # a model with a shorter context reads the first part of it
        text, _ = text_and_alphabet()
        last = len(text) * 9 // 10 - context - 1
        start = torch.randint(last, (self.batch_size,), generator=generator)
        return (text[start[:, None] + torch.arange(context + 1)],)  # (B, context + 1)

    def loss(self, model, text):
        text = text[:, : model.context + 1]
        logits = model(text[:, :-1])  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())

    def scores(self, model):
        """Bits per character on the last tenth of the novel, cut into pieces of the model's context."""
        text, _ = text_and_alphabet()
        text, length = text[len(text) * 9 // 10 :], model.context
        pieces = text[: (len(text) - 1) // length * length].view(-1, length)  # (N, T)
        answers = text[1 : pieces.numel() + 1].view(-1, length)  # (N, T)
        device, total = next(model.parameters()).device, 0.0
        with torch.no_grad():
            for x, y in zip(pieces.split(64), answers.split(64), strict=True):
                logits = model(x.to(device))
                total += F.cross_entropy(logits.flatten(0, 1), y.to(device).flatten(), reduction="sum").item()
        return {"bits per character": total / pieces.numel() / math.log(2)}


@torch.no_grad()
def write(model: CharLM, start: str, length: int, *, temperature: float = 0.0, seed: int = 0) -> str:
    """`start` and `length` more characters. temperature 0 takes the likeliest each time.

    The whole text so far goes through the model again for each new letter: lesson 11 mends that.
    """
    if not start:
        raise ValueError("start: expected at least one character for the model to go on from, got none.")
    tokens = encode(start)[None].to(next(model.parameters()).device)  # (1, T)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(length):
        logits = model(tokens[:, -model.context :])[0, -1]  # (V,)
        if temperature == 0:
            choice = logits.argmax()[None]
        else:
            shares = (logits / temperature).softmax(-1).cpu()  # where the generator is
            choice = torch.multinomial(shares, 1, generator=generator).to(tokens.device)
        tokens = torch.cat([tokens, choice[None]], dim=1)
    return decode(tokens[0])
