"""A language model that reads and writes letter by letter, and two plainer ones to compare it with.

    tokens   (B, T)      numbers of characters
    logits   (B, T, V)   at each place, scores for the next of V characters

    CharLM       a transformer: each place looks back at all places before it
    WindowModel  no attention: a feed-forward network reads the last 16 characters, side by side

A score in bits per character: how many yes-or-no questions each next letter costs on average. V
letters without any knowledge cost log2(V), about 6.

    model, facts = load("moby")
    print(write(model, "Call me", 100))                   everything again for each letter
    print(write(model, "Call me", 100, cached=True))      each letter once: lesson 11

The positions are learned: a table with one row for each of `context` places, and no more. Once the
text is longer, the letters in the window all move one place on for each new one, and with them
all keys and values: a cache is worth nothing then. (Rotary positions would go on.)

Source: Radford et al. 2019 (the shape of GPT-2, here tiny); Bengio et al. 2003 (the window model).
"""

# Quoted word for word by tests/faults/faults.py: change both together.

import math
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lesson.data import load_moby_dick
from mha_lesson.models.blocks import Block, embedding, start_small
from mha_lesson.models.training import Task, head_counts
from mha_lesson.pytorch import MultiHeadAttention
from mha_lesson.pytorch.cache import KVCache


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

    def forward(self, tokens: Tensor, caches: list[KVCache] | None = None, lengths=None) -> Tensor:
        """Scores (B, T, V) for the next character. With caches, tokens are new ones, after those there.

        caches: one for each block, from `caches()`. lengths (B,): how many of the T are real.
        """
        self._check_room(tokens, caches, lengths)
        if caches is None:
            places, caches = self.positions.weight[: tokens.shape[1]], [None] * len(self.blocks)  # (T, E)
        else:
            number = caches[0].positions(tokens.shape[1]).to(tokens.device)  # (T,) or (B, T)
            places = self.positions(number.clamp(max=self.context - 1))  # only padding can be beyond
        x = self.characters(tokens) + places  # (B, T, E)
        for block, kept in zip(self.blocks, caches, strict=True):
            x = block(x, causal=True, cache=kept, lengths=lengths)
        return self.scores(self.norm(x))  # (B, T, V)

    def caches(self) -> list[KVCache]:
        """Empty caches, one for each block."""
        if not all(isinstance(block.attention, MultiHeadAttention) for block in self.blocks):
            raise ValueError('caches: this model mixes with "uniform" weights, which have no keys to keep.')
        return [KVCache(capacity=self.context) for _ in self.blocks]

    def _check_room(self, tokens, caches, lengths):
        if caches is not None and len(caches) != len(self.blocks):
            raise ValueError(f"caches: expected one for each of {len(self.blocks)} blocks, got {len(caches)}.")
        if lengths is not None and caches is None:
            raise ValueError("lengths: came without caches. Without them, cut what follows the end from the scores.")
        new = tokens.shape[1] if lengths is None else torch.as_tensor(lengths)
        before = torch.zeros(1) if caches is None or not len(caches[0].length) else caches[0].length.cpu()
        most = int((before + new).max())
        if most > self.context:
            raise ValueError(
                f"tokens: expected at most {self.context} places, got {most}. Pass the last ones alone"
                + (", to new caches: learned positions end there, and none of the old keys fits another place."
                   if caches is not None else ".")
            )  # fmt: skip


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
def write(
    model: CharLM, start: str, length: int, *, temperature: float = 0.0, seed: int = 0, cached: bool = False
) -> str:
    """`start` and `length` more characters. temperature 0 takes the likeliest each time.

    The whole text so far goes through the model again for each new letter. With cached=True each
    goes through once, and as long as the text fits into the context it is the same text. (But for
    rounding: two letters with scores equal to the last digits may change places.) When the cache
    is full, it begins anew with the last half of the context; from there on letters are chosen
    with half to all of the context in view, and the text may differ.
    """
    tokens = _start(model, start)  # (1, T)
    caches = _caches(model) if cached else None
    generator = torch.Generator().manual_seed(seed)
    fed = 0  # letters that went into the caches
    for _ in range(length):
        if not cached:
            logits = model(tokens[:, -model.context :])[0, -1]  # (V,)
        else:
            new = tokens[:, fed:][:, -model.context :]
            if fed and _full(model, caches):
                caches, new = model.caches(), tokens[:, -max(model.context // 2, 1) :]
            logits, fed = model(new, caches)[0, -1], tokens.shape[1]  # (V,)
        tokens = torch.cat([tokens, _choose(logits, temperature, generator)[None]], dim=1)
    return decode(tokens[0])


@torch.no_grad()
def write_batch(model: CharLM, starts: list[str], length: int) -> list[str]:
    """Each start with `length` more characters, the likeliest each time: as `write`, all at once.

    The starts may differ in length: they are padded on the right, and the caches leave the padding
    out. No text may outgrow the context.
    """
    rows = [_start(model, start)[0] for start in starts]
    if not rows:
        return []
    caches, longest = _caches(model), max(map(len, rows))
    if length and longest + length - 1 > model.context:  # the last letter is written, not read
        raise ValueError(
            f"length: expected at most {model.context - longest + 1} letters after the longest start, got {length}: "
            f"the model has learned {model.context} positions, and no cached key fits another one."
        )
    lengths = torch.tensor([len(row) for row in rows])
    new = nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (B, longest)
    for i in range(length):
        logits = model(new, caches, lengths if i == 0 else None)  # (B, T, V)
        last = lengths.to(new.device) - 1 if i == 0 else torch.zeros_like(lengths, device=new.device)  # (B,)
        new = logits[torch.arange(len(rows), device=new.device), last].argmax(-1)[:, None]  # (B, 1)
        rows = [torch.cat([row, letter]) for row, letter in zip(rows, new, strict=True)]
    return [decode(row) for row in rows]


def _start(model, start) -> Tensor:
    if not start:
        raise ValueError("start: expected at least one character for the model to go on from, got none.")
    return encode(start)[None].to(next(model.parameters()).device)  # (1, T)


def _caches(model) -> list[KVCache]:
    if not hasattr(model, "caches"):
        raise ValueError(f"model: {type(model).__name__} has no keys and values to keep. Write with cached=False.")
    return model.caches()


def _full(model, caches) -> bool:
    return int(caches[0].length.max()) == model.context


def _choose(logits, temperature, generator) -> Tensor:
    """One letter, (1,): the likeliest at temperature 0, else drawn."""
    if temperature == 0:
        return logits.argmax()[None]
    shares = (logits / temperature).softmax(-1).cpu()  # where the generator is
    return torch.multinomial(shares, 1, generator=generator).to(logits.device)
