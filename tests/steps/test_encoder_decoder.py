"""Cross-attention, its masks, its cost, greedy decoding: by hand and against plain loops."""

import math

import numpy as np
import pytest

from mha_lesson.steps.encoder_decoder import cross_attention, cross_cost, encoder_decoder_masks, greedy_decode
from tests.reference import g, loop_softmax, near, read_only
from tests.steps.helpers import writes


def test_cross_attention_by_hand():
    """Two keys, scores 0 and log(3) * sqrt(E) / sqrt(E): shares 1/4 and 3/4."""
    xd = read_only(np.array([[math.log(3) * 2, 0, 0, 0]]))
    xe = read_only(np.array([[0.0, 8, 4, 0], [1, 0, 4, 8]]))
    near(cross_attention(xd, xe), [[0.75, 2, 4, 6]])


def test_cross_attention_of_the_collected_case():
    xd = np.sin(0.7 * np.arange(6) + 0.3).reshape(2, 3)
    xe = 2 * np.sin(0.9 * np.arange(12) + 0.1).reshape(4, 3)
    np.testing.assert_allclose(cross_attention(xd, xe)[0], [0.012814, 1.203753, 1.483716], atol=1e-6)


@pytest.mark.parametrize("L, S, E", [(2, 5, 3), (7, 3, 2), (1, 1, 5)])
def test_cross_attention_against_loops(L, S, E):
    xd, xe = g((L, E)), g((S, E))[:, ::-1].copy()
    expected = []
    for q in xd.tolist():
        shares = loop_softmax([sum(a * b for a, b in zip(q, k, strict=True)) / E**0.5 for k in xe.tolist()], [True] * S)
        expected.append([sum(w * k[e] for w, k in zip(shares, xe.tolist(), strict=True)) for e in range(E)])
    near(cross_attention(xd, xe), expected)


def test_cross_attention_reads_the_encoder_in_any_order():
    xd, xe = g((3, 5)), g((7, 5))
    near(cross_attention(xd, xe[::-1]), cross_attention(xd, xe))
    assert cross_attention(xd.astype(np.float32), xe.astype(np.float32)).dtype == np.float32


def test_each_attention_gets_its_own_mask():
    encoder, decoder, cross = encoder_decoder_masks([1, 3], 2, 3)
    assert encoder.tolist() == [[[[True, False, False]]], [[[True, True, True]]]]
    assert decoder.tolist() == [[[[True, False], [True, True]]]]
    assert cross.tolist() == encoder.tolist()
    assert [m.shape for m in (encoder, decoder, cross)] == [(2, 1, 1, 3), (1, 1, 2, 2), (2, 1, 1, 3)]
    assert {m.dtype for m in (encoder, decoder, cross)} == {np.dtype(bool)}


def test_greedy_decoding_by_hand():
    assert greedy_decode(writes(3, 1, 4, 2), 0, 2, 6) == [3, 1, 4]
    assert greedy_decode(writes(3, 1, 4, 2), 0, 2, 3) == [3, 1, 4]
    assert greedy_decode(writes(3, 1, 4, 2), 0, 2, 2) == [3, 1]
    assert greedy_decode(writes(2), 0, 2, 5) == []
    assert greedy_decode(writes(5), 5, 2, 4) == [5, 5, 5, 5], "start may come up as a word"
    assert greedy_decode(writes(5), 0, 2, 0) == []


def test_greedy_decoding_hands_over_all_tokens_and_stops_asking():
    calls = []
    out = greedy_decode(writes(3, 1, 2, calls=calls), 7, 2, 9)
    assert calls == [[7], [7, 3], [7, 3, 1]]
    assert all(type(i) is int for i in out)


def test_the_cost_by_hand():
    """L 2, S 3, E 5: Q 50, K 75, V 75, scores 30, mix 30, output 50."""
    assert cross_cost(2, 3, 5) == 310
    assert cross_cost(1, 1, 1) == 6
    assert cross_cost(100, 100, 1) == 4 * 100 + 2 * 100 * 100


def test_the_cost_counts_the_products_of_the_layer():
    L, S, E = 7, 11, 3
    products = [(L, E, E), (S, E, E), (S, E, E), (L, E, S), (L, S, E), (L, E, E)]
    assert cross_cost(L, S, E) == sum(np.prod(shape) for shape in products)
