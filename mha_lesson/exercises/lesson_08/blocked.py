"""Exercise 08.blocked."""

from collections.abc import Callable

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol, sandbox
from mha_lesson.exercises.engine.compare import NotPlain, plain
from mha_lesson.exercises.lesson_08.shared import torch
from mha_lesson.steps.masks import padding_mask


def _whole_numbers(function: Callable) -> bool:
    """Does this blocked() answer with integers? PyTorch refuses them, and adds floats."""
    value = sandbox.call_all(function, [BLOCKED.probe_list[0].args], sandbox.SECONDS)[0].value
    return plain(value).dtype.kind in "iu"


def _additive_alike(args: tuple, answer):
    """A mask of 0 and large numbers (-1e4, -1e9, the lowest float) as one of 0 and infinities."""
    try:
        mask = plain(answer)
    except NotPlain:
        return answer
    if not isinstance(mask, np.ndarray) or mask.dtype.kind != "f":
        return answer
    additive = ((mask == 0) | (abs(mask) >= 100)).all()
    return np.where(mask == 0, 0, np.copysign(np.inf, mask)) if additive else answer


def _added(lengths, S, number: float, at_padding: bool = True):
    return torch.zeros(len(lengths), S).masked_fill(BLOCKED.solution(lengths, S) == at_padding, number)


mistake = Mistakes()


mistake.edit(
    "keep",
    """The edge is in the right place. But True means 'may attend' here, this course's own meaning;
    nn.MultiheadAttention wants True where it is blocked, at the padding. Turn it round: ~mask.""",
    old=">=",
    new="<",
)

mistake.edit(
    "one_too_few",
    """Padding is True, good. But its first place is left open: places count from 0, so place `length` is padding
    already. >= and not >.""",
    old=">=",
    new=">",
)

mistake.edit(
    "one_too_many",
    """Padding is True, good. But the last real token is blocked as well: place length - 1 still belongs to the
    sequence.""",
    old="torch.arange(S) >=",
    new="torch.arange(S) + 1 >=",
)


@mistake
def swapped_axes(lengths, S):
    """The comparison is right. But yours is (S, B); nn.MultiheadAttention wants one row for each sequence, (B, S),
    whatever batch_first says."""
    return BLOCKED.solution(lengths, S).T


@mistake
def zeros_and_ones(lengths, S):
    """1 stands where it is blocked, good. But numbers are no booleans: a float mask is ADDED to the scores, so a 1
    would favour the padding, and no error says so. Make it boolean: .bool()."""
    return BLOCKED.solution(lengths, S).float()


@mistake(when=_whole_numbers)
def whole_zeros_and_ones(lengths, S):
    """1 stands where it is blocked, good. But integers are no booleans, and nn.MultiheadAttention refuses them. The
    comparison gives True and False by itself: leave out what makes numbers of them."""
    return BLOCKED.solution(lengths, S).int()


@mistake
def tokenizer_mask(lengths, S):
    """This is the mask as tokenizers give it, 1 = token. But nn.MultiheadAttention would add it to the scores, which
    hides nothing. What it wants is boolean, and True at the padding: mask == 0."""
    return (~BLOCKED.solution(lengths, S)).float()


@mistake(when=_whole_numbers)
def whole_tokenizer_mask(lengths, S):
    """This is the mask as tokenizers give it, 1 = token. But nn.MultiheadAttention refuses integers. What it wants is
    boolean, and True at the padding: the place is `length` or more."""
    return (~BLOCKED.solution(lengths, S)).int()


@mistake
def additive(lengths, S):
    """0 and -inf (or a large negative number), added to the scores: nn.MultiheadAttention takes this too, and it hides
    the right places. But a boolean mask is asked for, True = blocked: mask < 0."""
    return _added(lengths, S, -np.inf)


@mistake
def additive_inverted(lengths, S):
    """A mask of 0 and -inf (or a large negative number) is added to the scores, which is allowed. But yours hides the
    tokens, and a boolean mask is asked for, True at the padding: here mask == 0."""
    return _added(lengths, S, -np.inf, at_padding=False)


@mistake
def additive_positive(lengths, S):
    """The padding is marked, good. But a large positive number, added to the scores, draws all attention there; and a
    boolean mask is asked for, True = blocked: mask > 0."""
    return _added(lengths, S, np.inf)


mistake.edit(
    "no_column",
    """Comparing places with lengths is right. But (S,) and (B,) meet place by place: that fails, and where B = S each
    place gets the length of another sequence. Make the lengths a column: [:, None].""",
    old="[:, None]",
    new="",
)


@mistake
def padding_first(lengths, S):
    """As many places are blocked as there is padding. But you block the first ones; here the padding comes after the
    tokens."""
    return BLOCKED.solution(lengths, S).flip(1)


@mistake
def axes_too_early(lengths, S):
    """The values are right, and (B, 1, 1, S) is what this course's layers and SDPA take. But key_padding_mask is (B,
    S), without axes for heads and queries."""
    return BLOCKED.solution(lengths, S)[:, None, None, :]


mistake.edit(
    "longest_for_S",
    """Padding is True, good. But the mask ends with the longest sequence: it has to be S wide, as wide as the
    batch.""",
    old="torch.arange(S)",
    new="torch.arange(max(lengths))",
)


@mistake
def first_length_for_all(lengths, S):
    """The first row is right. But every sequence got the length of the first: a column of lengths, [:, None], gives
    each its own."""
    return BLOCKED.solution([lengths[0]] * len(lengths), S)


@mistake
def nothing_blocked(lengths, S):
    """The shape is right. But nothing is blocked: compare each place with the length of its sequence."""
    return torch.zeros(len(lengths), S, dtype=torch.bool)


BLOCKED = Exercise(
    id="08.blocked",
    needs_torch=True,
    signature="blocked(lengths, S)",
    solution="mha_lesson.pytorch.interop:key_padding_mask",
    probes=lambda: [
        Probe(([3, 1], 5), "lengths 3 and 1, S = 5"),
        Probe(([2, 7, 5], 7), "lengths 2, 7 and 5, S = 7"),
        Probe(([0, 2], 3), "an empty sequence, S = 3"),
        Probe(([1, 4, 2, 3], 6), "four sequences, S = 6, longer than all of them"),
        Probe(([2, 3, 1], 3), "B = S = 3, lengths 2, 3 and 1"),
    ],
    protocol=Protocol(read=_additive_alike),
    mistakes=mistake.all,
    forms={
        "a loop": lambda lengths, S: [[place >= n for place in range(S)] for n in lengths],
        "NumPy": lambda lengths, S: np.arange(S) >= np.array(lengths)[:, None],
        "the course's own mask turned round": lambda lengths, S: ~torch.as_tensor(padding_mask(np.array(lengths), S)),
        "filled row by row": lambda lengths, S: _by_rows(lengths, S),
        "stacked": lambda lengths, S: torch.stack([torch.arange(S).ge(n) for n in lengths]),
    },
    hints=(
        "True = blocked: where in a row of S places does the padding begin?",
        "Compare each place 0, 1, ..., S - 1 with the length of its sequence. Tokens stand at places < length; the "
        "padding is the other side, places >= length, and True belongs there.",
        "torch.arange(S) has shape (S,). To meet every length, the lengths must be a column: torch.tensor(lengths)[:, "
        "None].",
    ),
    well_done="True = blocked, (B, S), boolean. With SDPA the same word would mean the opposite.",
)  # fmt: skip


def _by_rows(lengths, S):
    mask = torch.zeros(len(lengths), S, dtype=torch.bool)
    for row, n in zip(mask, lengths, strict=True):
        row[n:] = True
    return mask
