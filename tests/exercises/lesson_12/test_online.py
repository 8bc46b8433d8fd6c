"""12.online: one pass, as learners write it."""

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY, check
from tests.exercises.helpers import mistake, softmax, variant
from tests.reference import near

NEG = -np.inf


# -- answers as they are written ------------------------------------------------------------


def nothing_shrunk(s, v, block):
    m, l, a = NEG, 0.0, 0.0
    for i in range(0, len(s), block):
        m = max(m, s[i : i + block].max())
        p = np.exp(s[i : i + block] - m)
        l += p.sum()
        a += p @ v[i : i + block]
    return a / l


def blocks_averaged(s, v, block):
    outputs = []
    for i in range(0, len(s), block):
        p = np.exp(s[i : i + block] - s[i : i + block].max())
        outputs.append(p @ v[i : i + block] / p.sum())
    return np.mean(outputs)


def online(s, v, block):
    m, l, a = NEG, 0.0, 0.0
    for i in range(0, len(s), block):
        x = s[i : i + block]
        new = max(m, x.max())
        if new == NEG:
            continue
        p = np.exp(x - new)
        l, a, m = l * np.exp(m - new) + p.sum(), a * np.exp(m - new) + p @ v[i : i + block], new
    return a / l if l else 0.0


def last_block_dropped(s, v, block):
    k = len(s) // block * block
    return online(s[:k], v[:k], block)


def split_first(s, v, block):
    """Takes the sequence apart before it begins, and cuts a block off what is left."""
    left, values, m, l, o = s, v, NEG, 0.0, 0.0
    while len(left):
        piece, left, x, values = left[:block], left[block:], values[:block], values[block:]
        new = max(m, max(piece))
        if new > NEG:
            p = np.exp(piece - new)
            l, o, m = l * np.exp(m - new) + p.sum(), o * np.exp(m - new) + p @ x, new
    return o / l if l else 0


def without_a_guard(s, v, block):
    """As in the paper: no word about -inf."""
    m, l, o = NEG, 0.0, 0.0
    for i in range(0, len(s), block):
        new = max(m, s[i : i + block].max())
        p = np.exp(s[i : i + block] - new)
        l, o, m = l * np.exp(m - new) + p.sum(), o * np.exp(m - new) + p @ v[i : i + block], new
    return o / l


ONLINE = {
    "nothing_shrunk+minus_infinity": nothing_shrunk,
    "averaged": blocks_averaged,
    "rest_dropped": last_block_dropped,
    "minus_infinity": without_a_guard,
    "nothing_allowed_nan": lambda s, v, block: softmax(s) @ v,
    "correct": online,
}


def whole_row(s, v, block):
    e = np.exp(s - s.max()) if s.max() > NEG else np.zeros(len(s))
    return e @ v / max(e.sum(), 1e-300)


def sees_all(s, v, block):
    s = np.asarray(s)
    return online(s, v, block)


def sorts(s, v, block):
    return online(np.sort(s), v[np.argsort(s)], block)


def by_numpys_pieces(s, v, block):
    pieces = np.array_split(s.astype(float), range(block, len(s), block))
    m, l, o, i = NEG, 0.0, 0.0, 0
    for piece in pieces:
        new = max(m, piece.max())
        if new > NEG:
            p = np.exp(piece - new)
            l, o, m = l * np.exp(m - new) + p.sum(), o * np.exp(m - new) + p @ v[i : i + len(piece)], new
        i += len(piece)
    return o / l if l else 0


def writes_into_its_copy(s, v, block):
    s = s.copy()
    m, l, o = NEG, 0.0, 0.0
    for i in range(0, len(s), block):
        piece = s[i : i + block]
        new = max(m, piece.max())
        if new > NEG:
            piece -= new
            np.exp(piece, out=piece)
            l, o, m = l * np.exp(m - new) + piece.sum(), o * np.exp(m - new) + piece @ v[i : i + block], new
    return o / l if l else 0


@pytest.mark.parametrize("function", [split_first, by_numpys_pieces, writes_into_its_copy])
def test_the_sequence_may_be_cut_and_copied(function):
    assert mistake("12.online", function) == "correct"


def test_the_maximum_of_all_first_is_another_pass():
    def two_passes(s, v, block):
        m = max(s[i : i + block].max() for i in range(0, len(s), block))
        pieces = [(np.exp(s[i : i + block] - m), v[i : i + block]) for i in range(0, len(s), block)] if m > NEG else []
        return sum(p @ x for p, x in pieces) / max(sum(p.sum() for p, _ in pieces), 1e-300)

    assert mistake("12.online", two_passes) == "two_passes"


@pytest.mark.parametrize("function", [whole_row, sees_all, sorts])
def test_the_whole_row_at_once_is_not_softmax_in_one_pass(function):
    result = check("12.online", function)
    assert result.status == "incorrect" and "11 of 12 probes are right" in result.message
    assert "at most block = 2 scores at a time" in result.message and "s[start : start + block]" in result.message


@pytest.mark.parametrize("name", ONLINE)
def test_online_as_learners_write_it(name):
    assert mistake("12.online", ONLINE[name]) == name


# -- worked values, and those that wrong answers give ----------------------------------------


@pytest.mark.parametrize(
    "name, rising, falling",
    [
        (None, 129.019610, 16.243832),
        ("nothing_shrunk", 80.590508, 16.243832),
        ("averaged", 72.143403, 64.081542),
        ("rest_dropped", 129.019610, 16.243832),
    ],
)
def test_four_scores_in_two_blocks(name, rising, falling):
    function = variant("12.online", name) if name else REGISTRY["12.online"].solution
    v = np.array([1.0, 2, 100, 200])
    near(function(np.array([0, 1, 3, 2.7]), v, 2), rising, 1e-6)
    near(function(np.array([3.0, 2, 1, 0]), v, 2), falling, 1e-6)


def test_the_last_partial_block_counts():
    s, v = np.array([0, 1, 3, 2.7, 2]), np.array([1.0, 2, 100, 200, 1000])
    want = sum(np.exp(a) * b for a, b in zip(s, v, strict=True)) / np.exp(s).sum()
    near(REGISTRY["12.online"].solution(s, v, 2), want, 1e-9)
    near(variant("12.online", "rest_dropped")(s, v, 2), 129.019610, 1e-6)
