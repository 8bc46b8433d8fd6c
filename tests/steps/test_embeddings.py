"""Rows of a table, and positions: values, invariants, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_lesson.steps.embeddings import add_positions, embed, lookup, rotary, sinusoidal_positions
from tests.reference import g, near, read_only, says, stable
from tests.reports import reported


def test_lookup_takes_the_rows_that_the_ids_name():
    table = read_only(g((7, 5)))
    ids = np.array([[6, 0, 3], [1, 1, 2]])
    got = lookup(ids, table)
    assert got.shape == (2, 3, 5)
    for b in range(2):
        for i in range(3):
            assert got[b, i].tolist() == table[ids[b, i]].tolist()
    assert lookup(np.array([], int), table).shape == (0, 5)


@pytest.mark.parametrize("function", [lookup, embed])
@pytest.mark.parametrize("ids, bad", [([0, 3], 3), ([-1, 0], -1), ([[0, 5], [-1, 1]], 5)])
def test_ids_without_a_row_are_refused(function, ids, bad):
    wanted = says("ids: expected numbers from 0 to 2", "3 rows", f"got {bad}.", "vocabulary that belongs")
    with pytest.raises(ValueError, match=wanted):
        function(np.array(ids), g((3, 2)))


@pytest.mark.parametrize("ids", [[1.0, 0.0], [True, False, True]])
def test_ids_that_are_not_whole_numbers_are_refused(ids):
    with pytest.raises((TypeError, ValueError), match="ids: expected"):
        lookup(np.array(ids), g((3, 2)))


def test_embed_is_the_row_times_the_root_of_the_width():
    table = read_only(g((7, 5)))
    near(embed(np.array([3, 0]), table), table[[3, 0]] * 5**0.5)
    near(embed(np.array([[6]]), table), table[6].reshape(1, 1, 5) * 5**0.5)


@reported("SamLynnEvans/Transformer#25")
def test_positions_share_one_frequency_in_each_pair():
    positions = sinusoidal_positions(4, 6)
    want = [0.141120, -0.989992, 0.138798, 0.990321, 0.006463, 0.999979]
    near(positions[3], want, 1e-6)
    dots = [float(p @ q) for p, q in zip(positions, positions[2:], strict=False)]
    near(np.array(dots), [1.579538] * 2, 1e-6)


@stable
@given(n=st.integers(1, 40), pairs=st.integers(1, 9))
def test_positions_invariants(n, pairs):
    positions = sinusoidal_positions(n, 2 * pairs)
    assert positions.shape == (n, 2 * pairs)
    near((positions.reshape(n, pairs, 2) ** 2).sum(-1), np.ones((n, pairs)))
    gram = positions @ positions.T  # gram[p, q] is a matter of the distance p - q alone
    near(gram[1:, 1:], gram[:-1, :-1])
    want = [
        [f(p / 10000 ** (2 * i / (2 * pairs))) for i in range(pairs) for f in (math.sin, math.cos)] for p in range(n)
    ]
    near(positions, want)


def test_positions_refuse_an_odd_width():
    with pytest.raises(ValueError, match=says("d: expected an even width", "pairs", "got 5")):
        sinusoidal_positions(4, 5)


@reported("karpathy/nanochat#264")
def test_rotary_turns_neighbours():
    x = read_only(np.tile([1.0, 2.0, 3.0, 4.0], (2, 1)))
    turned = rotary(x, np.array([0, 3]))
    near(turned[0], x[0])
    near(turned[1], [-1.272233, -1.838865, 1.683929, 4.707907], 1e-6)
    near(np.linalg.norm(turned[1]), 5.477226, 1e-6)
    q, k = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.5, -1.0, 2.0, 0.25]])
    for m, n in [(5, 2), (8, 5), (3, 0)]:
        score = rotary(q, np.array([m])) @ rotary(k, np.array([n])).T
        near(score, [[5.747583]], 1e-6)


@stable
@given(
    length=st.integers(1, 6),
    pairs=st.integers(1, 5),
    base=st.sampled_from([10.0, 100.0, 10000.0]),
    shift=st.integers(-5, 50),
    seed=st.integers(0, 2**16),
)
def test_rotary_invariants(length, pairs, base, shift, seed):
    rng = np.random.default_rng(seed)
    x = read_only(rng.standard_normal((2, 3, length, 2 * pairs)))
    y = read_only(rng.standard_normal((2, 3, length, 2 * pairs)))
    pos = rng.integers(0, 30, length)
    turned = rotary(x, pos, base)
    for place in range(length):
        for i in range(pairs):
            angle = pos[place] / base ** (i / pairs)
            want = (x[..., place, 2 * i] + 1j * x[..., place, 2 * i + 1]) * np.exp(1j * angle)
            near(turned[..., place, 2 * i], want.real)
            near(turned[..., place, 2 * i + 1], want.imag)
    near(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1))
    here = turned @ rotary(y, pos, base).swapaxes(-1, -2)
    there = rotary(x, pos + shift, base) @ rotary(y, pos + shift, base).swapaxes(-1, -2)
    near(here, there, 1e-11)


def test_rotary_refuses_an_odd_width():
    with pytest.raises(ValueError, match=says("x: expected an even last axis", "(2, 3)")):
        rotary(g((2, 3)), np.arange(2))


def test_rotary_never_cuts_whole_numbers_short():
    """An array of whole numbers is turned like the same floats, or refused; never truncated."""
    x = np.array([[1, 2, 3, 4]])
    try:
        turned = rotary(x, np.array([3]))
    except (TypeError, ValueError) as error:
        assert "x: expected" in str(error)
    else:
        near(turned, rotary(x.astype(float), np.array([3])))


@pytest.mark.parametrize("places", [2, 1])
def test_rotary_wants_one_position_a_row(places):
    with pytest.raises(ValueError, match="pos: expected"):
        rotary(g((3, 4)), np.arange(places))


@pytest.mark.parametrize("B, L, n", [(2, 3, 3), (3, 3, 3), (3, 3, 7), (5, 1, 5), (4, 2, 4)])
def test_a_place_in_the_sentence_gets_the_same_row_in_every_sequence(B, L, n):
    x, positions = read_only(g((B, L, 4)), g((n, 4), 0.9, 0.1))
    got = add_positions(x, positions)
    assert got.shape == (B, L, 4)
    for b, place, e in np.ndindex(got.shape):
        assert got[b, place, e] == x[b, place, e] + positions[place, e]


def test_add_positions_needs_a_row_for_each_token():
    with pytest.raises(ValueError, match=says("positions: expected at least L = 3 rows", "got 2")):
        add_positions(g((2, 3, 4)), g((2, 4)))
