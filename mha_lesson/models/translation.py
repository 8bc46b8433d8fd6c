"""An encoder reads, a decoder writes, and cross-attention joins them: a map that can be read.

    through                      ->  TH R UW           spelling to sound
    samedi 29 novembre 2025      ->  2025-11-29        dates of many languages to one form

    source   (B, S)         numbers of characters, padded with 0
    target   (B, L)         numbers of what is written, <start> first, <end> last, padded with 0
    memory   (B, S, E)      the encoder's vector for each character of the source
    logits   (B, L, V)      at each place of the target, scores for what comes next
    weights  (B, H, L, S)   cross-attention: where each written symbol looked

Three masks: the encoder may not see the padding of the source; the decoder may not look ahead; and
cross-attention may not see the padding of the source either. The target's own padding needs no
mask: it stands behind everything real, where `causal` already hides it.

With mixing="uniform" the cross-attention cannot choose: the decoder gets the mean of the memory.
That is what came before attention, and what it is measured against.

Sources: Bahdanau et al. 2015 (attention as alignment); Vaswani et al. 2017, section 3.2.3.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lesson import data
from mha_lesson.models.blocks import Block, embedding, real_tokens, recording
from mha_lesson.models.training import Task, head_counts

PADDING, START, END = 0, 1, 2
SPECIAL = ("<padding>", "<start>", "<end>")
LONGEST = 48  # places that have a position vector


class Translator(nn.Module):
    """Encoder and decoder. forward(source, target) scores what comes after each place of target."""

    def __init__(
        self, source_symbols, target_symbols, d_model=96, num_heads=4, num_kv_heads=None, *,
        encoder_layers=2, decoder_layers=1, dropout=0.1, mixing="attention",
    ):  # fmt: skip
        super().__init__()
        self.source_symbols, self.target_symbols = tuple(source_symbols), tuple(target_symbols)
        self.source_embedding = embedding(len(source_symbols), d_model, std=0.3)
        self.target_embedding = embedding(len(target_symbols), d_model, std=0.3)
        self.source_positions = embedding(LONGEST, d_model, std=0.3)
        self.target_positions = embedding(LONGEST, d_model, std=0.3)
        self.encoder = nn.ModuleList(
            Block(d_model, num_heads, num_kv_heads, dropout=dropout) for _ in range(encoder_layers)
        )
        self.memory_norm = nn.LayerNorm(d_model)
        self.decoder = nn.ModuleList(
            Block(d_model, num_heads, num_kv_heads, cross=True, dropout=dropout, mixing=mixing)
            for _ in range(decoder_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.scores = nn.Linear(d_model, len(target_symbols), bias=False)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor) -> Tensor:
        """What the encoder makes of the source, (B, S) -> (B, S, E)."""
        x = self.dropout(self.source_embedding(source) + self.source_positions.weight[: source.shape[1]])
        for block in self.encoder:
            x = block(x, keep=real_tokens(source))  # (B, S, E)
        return self.memory_norm(x)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Scores for what comes after each place of target, (B, L, V)."""
        x = self.dropout(self.target_embedding(target) + self.target_positions.weight[: target.shape[1]])
        for block in self.decoder:
            x = block(x, memory, memory_keep=real_tokens(source), causal=True)  # (B, L, E)
        return self.scores(self.norm(x))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, self.encode(source), source)

    # ---------------------------------------------------------------- from and to text

    def read(self, sources) -> Tensor:
        """Source texts as numbers, (B, S), padded. A symbol that training never saw is an error."""
        return pad([numbers(text, self.source_symbols) for text in sources], self.scores.weight.device)

    def words(self, row: Tensor) -> list[str]:
        """One row of target numbers as symbols, up to <end>."""
        ids = row.tolist()
        ids = ids[: ids.index(END)] if END in ids else ids
        return [self.target_symbols[i] for i in ids if i not in (PADDING, START)]

    @torch.no_grad()
    def translate(self, sources, longest: int = 24) -> list[list[str]]:
        """Greedy: the likeliest symbol at each place, until <end>. A list of symbols for each source."""
        source = self.read(sources)
        memory = self.encode(source)
        target = torch.full((len(source), 1), START, device=source.device)
        for _ in range(min(longest, LONGEST - 1)):
            best = self.decode(target, memory, source)[:, -1].argmax(-1)  # (B,)
            target = torch.cat([target, best[:, None]], dim=1)
            if (target == END).any(1).all():
                break
        return [self.words(row) for row in target]

    @torch.no_grad()
    def alignment(self, source, written=None) -> tuple[list[str], list[str], Tensor]:
        """(written symbols, source symbols, weights (H, L, S)) of the last cross-attention.

        Row i is where the decoder looked when it wrote symbol i; the last row wrote <end>.
        written: symbols to explain; default those that the model writes itself.
        """
        written = self.translate([source])[0] if written is None else list(written)
        target = [START, *numbers(written, self.target_symbols, "written")]
        with recording(self) as maps:
            self(self.read([source]), torch.tensor([target], device=self.scores.weight.device))
        last = [name for name in maps if name.endswith("cross_attention")][-1]
        return [*written, SPECIAL[END]], list(source), maps[last][0]


def numbers(symbols, alphabet: tuple[str, ...], name: str = "source") -> list[int]:
    """Each symbol's place in the alphabet. name: what the symbols are called in an error."""
    unknown = sorted(set(symbols) - set(alphabet))
    if unknown:
        raise ValueError(f"{name}: the model has never seen these symbols: {' '.join(map(repr, unknown))}.")
    if not 0 < len(symbols) <= LONGEST:
        raise ValueError(f"{name}: expected 1 to {LONGEST} symbols, got {len(symbols)}.")
    return [alphabet.index(s) for s in symbols]


def pad(rows: list[list[int]], device=None) -> Tensor:
    """Rows of unequal length as one (B, longest) tensor, filled up with PADDING."""
    longest = max(map(len, rows))
    return torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows], device=device)


def alphabet_of(texts) -> tuple[str, ...]:
    """The special symbols, then all that occur, in order."""
    return (*SPECIAL, *sorted({symbol for text in texts for symbol in text}))


class TranslationTask(Task):
    """Pairs (source text, target symbols). A subclass says where they come from."""

    metric, warmup, weight_decay = "exact", 200, 0.01
    variants: ClassVar[dict[str, dict]] = {
        **head_counts(1, 2, 4, 8),
        "4 heads, 1 kv head": {"num_heads": 4, "num_kv_heads": 1},
        "mean of the source": {"num_heads": 4, "mixing": "uniform"},
    }
    shipped = "4 heads"

    def pairs(self, part: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The "train" or "test" part."""
        raise NotImplementedError

    @cached_property
    def alphabets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(source symbols, target symbols) of the training part."""
        sources, targets = zip(*self.pairs("train"), strict=True)
        return alphabet_of(sources), alphabet_of(targets)

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The training part as two padded tensors, (N, S) and (N, L)."""
        source_symbols, target_symbols = self.alphabets
        pairs = self.pairs("train")
        source = pad([numbers(s, source_symbols) for s, _ in pairs])
        target = pad([[START, *numbers(t, target_symbols), END] for _, t in pairs])
        return source, target

    def build(self, **variant) -> nn.Module:
        return Translator(*self.alphabets, **variant)

    def batch(self, generator):
        source, target = self.tensors
        chosen = torch.randint(len(source), (self.batch_size,), generator=generator)
        return shorten(source[chosen]), shorten(target[chosen])

    def loss(self, model, source, target):
        logits = model(source, target[:, :-1])  # (B, L - 1, V)
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PADDING, label_smoothing=0.1)

    def scores(self, model):
        """exact: share of sources whose whole translation is right. symbols: of single symbols, given
        the right ones before. peak and straight: see `reading`. The metric of the task comes first."""
        pairs = self.pairs("test")
        sources, answers = zip(*pairs, strict=True)
        written = [w for i in range(0, len(sources), 200) for w in model.translate(sources[i : i + 200])]
        exact = sum(w == list(a) for w, a in zip(written, answers, strict=True)) / len(pairs)
        scores = {"exact": exact, "symbols": symbol_accuracy(model, pairs), **reading(model, pairs[:200])}
        return {self.metric: scores[self.metric], **scores}


def shorten(rows: Tensor) -> Tensor:
    """Without the columns that hold padding in every row."""
    return rows[:, : int((rows != PADDING).sum(1).max())]


@torch.no_grad()
def symbol_accuracy(model: Translator, pairs) -> float:
    """Share of target symbols (with <end>) that the model would write, given the right ones before."""
    right = total = 0
    for i in range(0, len(pairs), 200):
        part = pairs[i : i + 200]
        source = model.read([s for s, _ in part])
        target = pad([[START, *numbers(t, model.target_symbols), END] for _, t in part], source.device)
        guess, answer = model(source, target[:, :-1]).argmax(-1), target[:, 1:]
        right += ((guess == answer) & (answer != PADDING)).sum().item()
        total += (answer != PADDING).sum().item()
    return right / total


def reading(model: Translator, pairs) -> dict[str, float]:
    """How readable the cross-attention is, on the right answers, all heads averaged:
    peak, the mean of each row's largest weight; straight, how often the place it stands at does not
    go back from one written symbol to the next."""
    peaks, steps = [], []
    for source, answer in pairs:
        _, _, weights = model.alignment(source, answer)  # (H, L, S)
        mean = weights.mean(0)[:-1]  # (L, S), without the row of <end>
        place = mean.argmax(-1)  # (L,)
        peaks.append(mean.max(-1).values.mean().item())
        steps += (place[1:] >= place[:-1]).tolist()
    return {"peak": sum(peaks) / len(peaks), "straight": sum(steps) / len(steps)}


class Spelling(TranslationTask):
    name, title = "spelling", "spelling to sound: through -> TH R UW"
    metric, steps, learning_rate = "symbols", 1500, 2e-3

    def pairs(self, part):
        spelling = data.load_spelling()
        return spelling.train if part == "train" else spelling.test


class Dates(TranslationTask):
    name, title = "dates", "dates of many languages to one form: samedi 29 novembre 2025 -> 2025-11-29"
    metric, steps, learning_rate = "exact", 1500, 2e-3

    def pairs(self, part):
        dates = data.load_dates()
        return dates.train if part == "train" else dates.test
