"""Which value stood beside this key? What full attention, a window and a fixed memory can bring back.

Pairs of a key and a value, and questions, at random places; everywhere else a blank:

    place     0  1   2  3   4  5   6  7   8  9  10 11  12 13
    token     .  .  k7 v3   .  .  k2 v9  k7  .   .  .  k2  .        questions at 8 and 12
    answer                                3             9           distances 5 and 5

Each key is asked once, somewhere after its pair. Two things vary by chance, apart from each other:

    distance   from the pair's value to the question, 1, 3, 5, ..., 125 places: what a window bounds
    pairs      4, 8, 16 or 32 in a sequence: what a memory of fixed size has to hold

Every variant below has the same tokens, steps, batches and learning rate. What differs is what a
question can still see:

    full attention        all pairs, and it can pick out one of them           memory grows with T
    window w              itself and the w - 1 tokens before it                memory w tokens
    linear (elu + 1)      sums over all tokens, a table of D·D numbers a head  memory H·D·D = E·D
    uniform weights       the mean of all tokens: it cannot choose at all

With n layers of windows, word of a token spreads w - 1 places a layer. The first layer reads a table
of the symbol before (see below), which adds one: a question hears of a token at most n·(w - 1) + 1
places back, 2·w - 1 for two layers. To hear of it is not yet to recall it: the places between must
pass on every pair that might be asked for, before anyone knows which.

One thing is given to all of them: each place also gets a vector for the symbol before it, so that a
value's place knows its key. That is a convolution over two tokens, the "shift" of H3, which was made
because a memory of sums cannot easily look at just one place. Full attention can make it by itself
with one more layer (the previous-token head of induction.py), but not in so few steps: two layers
without it were right on 0.15 of the questions after the 800 steps that the variants below get.

How fair is it? All have one learning rate, 1e-2. Full attention learns as well with 3e-3 and 2e-2,
the window (within its reach) with 2e-2; for linear attention 3e-3, 6e-3 and 2e-2 were no better. Its
runs differ much: with two heads, trials beside the recorded ones ended between 0.61 and 0.79. Three
times the steps brought it from 0.67 to 0.72, so it was not merely stopped too early; other features
than elu + 1, or a memory that can erase, were not tried.

    tokens    (B, T)       T = 128: a key 0-63, a value 64-127, or the blank 128
    answers   (B, T)       0-63 where a key is asked again, -1 elsewhere
    distance  (B, T)       of that question, 0 elsewhere
    pairs     (B,)         in the whole sequence
    logits    (B, T, 64)

Sources: Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models"
(the task, multi-query associative recall); Fu et al. 2023, "Hungry Hungry Hippos" (the shift);
Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight Programmers" (how many pairs a
table of D rows can hold). The course's own: blanks, and pairs and questions mixed at random places,
so that distance and number of pairs vary apart from each other.
"""

# Quoted word for word by tests/faults/faults.py: change both together.

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mha_lesson.models import training
from mha_lesson.models.blocks import Block, embedding, start_small
from mha_lesson.models.training import STORED, Task

KEYS = VALUES = 64
BLANK = KEYS + VALUES
LENGTH = 128
PAIRS = (4, 8, 16, 32)  # in one sequence
BANDS = ((1, 31), (33, 63), (65, 95), (97, 125))  # of distances, which are odd
NOT_ASKED = -1


class RecallModel(nn.Module):
    """A vector for each symbol, the one before it and its place; layers of attention; scores for the value.

    mixing, window: how tokens are mixed (`blocks.make_attention`). There is no feed-forward part.
    """

    def __init__(self, d_model: int = 32, num_heads: int = 2, layers: int = 1, mixing="attention", window=None):
        super().__init__()
        self.symbols = embedding(BLANK + 1, d_model)
        self.before = embedding(BLANK + 1, d_model)
        self.positions = embedding(LENGTH, d_model)
        self.blocks = nn.ModuleList(
            Block(d_model, num_heads, feed_forward=0, mixing=mixing, window=window) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.scores = nn.Linear(d_model, VALUES, bias=False)
        start_small(self)

    def forward(self, tokens: Tensor) -> Tensor:
        before = F.pad(tokens[:, :-1], (1, 0), value=BLANK)  # (B, T), the symbol at the place before
        x = self.symbols(tokens) + self.before(before) + self.positions.weight[: tokens.shape[1]]  # (B, T, E)
        for block in self.blocks:
            x = block(x, causal=True)
        return self.scores(self.norm(x))  # (B, T, VALUES)


# ------------------------------------------------------------------------------ the sequences


class Sequences(NamedTuple):
    """What to read, what to answer, and what makes each question hard."""

    tokens: Tensor  # (B, T)
    answers: Tensor  # (B, T)
    distance: Tensor  # (B, T)
    pairs: Tensor  # (B,)


def draw(count: int, generator: torch.Generator) -> Sequences:
    """`count` sequences. T / 2 slots of two places: of two slots drawn, the first is a pair, the other asks."""
    most = PAIRS[-1]
    pairs = torch.tensor(PAIRS)[torch.randint(len(PAIRS), (count,), generator=generator)]  # (B,)
    used = torch.arange(most) < pairs[:, None]  # (B, most)
    keys = torch.rand(count, KEYS, generator=generator).argsort(1)[:, :most]  # (B, most), no key twice
    values = torch.randint(VALUES, (count, most), generator=generator)
    slots = torch.rand(count, LENGTH // 2, generator=generator).argsort(1)[:, : 2 * most]
    told, asked = (2 * slots.view(count, most, 2)).sort(-1).values.unbind(-1)  # (B, most) each: places
    tokens = torch.full((count, LENGTH), BLANK)
    for place, symbols in ((told, keys), (told + 1, KEYS + values), (asked, keys)):
        tokens.scatter_(1, place, torch.where(used, symbols, BLANK))
    answers = torch.full((count, LENGTH), NOT_ASKED).scatter(1, asked, torch.where(used, values, NOT_ASKED))
    distance = torch.zeros(count, LENGTH, dtype=torch.long).scatter(1, asked, (asked - told - 1) * used)
    return Sequences(tokens, answers, distance, pairs)


def held_out(count: int = 512) -> Sequences:
    """From a seed that nobody else uses. (A generator takes the last 32 bits of a seed.)"""
    return draw(count, torch.Generator().manual_seed(2**32 - 1))


# ------------------------------------------------------------------------------ how well it recalls


def right(model: nn.Module, sequences: Sequences) -> Tensor:
    """Boolean (B, T): asked there, and the likeliest value is the answer."""
    with torch.no_grad():
        guess = model(sequences.tokens.to(next(model.parameters()).device)).argmax(-1).cpu()  # (B, T)
    return guess == sequences.answers


def accuracies(model: nn.Module, sequences: Sequences) -> dict[str, float]:
    """Share of right answers: of all, of each band of distances, of each number of pairs."""
    good, asked = right(model, sequences), sequences.answers != NOT_ASKED
    groups = {"accuracy": asked}
    for low, high in BANDS:
        groups[f"distance {low}-{high}"] = (sequences.distance >= low) & (sequences.distance <= high)
    for pairs in PAIRS:
        groups[f"{pairs} pairs"] = asked & (sequences.pairs == pairs)[:, None]
    return {name: good[group].double().mean().item() for name, group in groups.items()}


def accuracy_by_distance(model: nn.Module, sequences: Sequences) -> dict[int, float]:
    """The same for every single distance: where exactly a window ends."""
    good = right(model, sequences)
    return {
        d: good[sequences.distance == d].double().mean().item() for d in sequences.distance.unique().tolist() if d > 0
    }


class Recall(Task):
    name, title = "recall", "recalling the value beside a key: what a window and a fixed memory lose"
    metric = "accuracy"
    steps, batch_size, learning_rate, weight_decay = 800, 32, 1e-2, 0.01
    variants: ClassVar[dict[str, dict]] = {
        "full attention": {"num_heads": 2},
        "window 32": {"num_heads": 2, "mixing": "window", "window": 32},
        "linear": {"num_heads": 2, "mixing": "linear"},
        "uniform weights": {"num_heads": 1, "mixing": "uniform"},
        "window 32, two layers": {"num_heads": 2, "mixing": "window", "window": 32, "layers": 2},
        "linear, two layers": {"num_heads": 2, "mixing": "linear", "layers": 2},
        "full attention, 4 heads": {"num_heads": 4},
        "linear, 4 heads": {"num_heads": 4, "mixing": "linear"},
        "linear, 1 head": {"num_heads": 1, "mixing": "linear"},
        "linear, 1 head, twice as wide": {"d_model": 64, "num_heads": 1, "mixing": "linear"},
    }
    shipped = "full attention"

    def build(self, **variant) -> nn.Module:
        return RecallModel(**variant)

    def batch(self, generator):
        return draw(self.batch_size, generator)[:2]

    def loss(self, model, tokens, answers):
        return F.cross_entropy(model(tokens).flatten(0, 1), answers.flatten(), ignore_index=NOT_ASKED)

    def scores(self, model):
        return accuracies(model, held_out())


# ------------------------------------------------------------------------------ trained weights

FILES = {  # variants whose weights come with the course
    "full attention": "recall.safetensors",
    "window 32": "recall_window.safetensors",
    "linear": "recall_linear.safetensors",
}


def load_variant(variant: str, *, dtype: torch.dtype = torch.float64, folder=STORED) -> tuple[nn.Module, dict]:
    """(model, facts) of "full attention", "window 32" or "linear", trained, in evaluation mode."""
    if variant not in FILES:
        raise ValueError(f"variant: expected one of {', '.join(FILES)}, got {variant!r}.")
    path = folder / FILES[variant]
    try:
        tensors, facts = training.read(path)
        model = RecallModel(**facts["variant"])
        model.load_state_dict(tensors)
    except (FileNotFoundError, ValueError, KeyError, TypeError, RuntimeError):
        raise ValueError(
            f"{path.name}: expected trained weights, got {'damaged ones' if path.exists() else 'no such file'}. "
            f"Get them back with `git checkout -- data/models/{path.name}`, or train again: "
            f'python3 -m mha_lesson train recall --variant "{variant}"'
        ) from None
    return model.to(dtype).eval(), facts
