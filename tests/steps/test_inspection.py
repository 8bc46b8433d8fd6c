"""Looking into heads: ablation, distances, search, induction, by hand and against plain loops."""

import math

import numpy as np
import pytest

from mha_lesson.steps.inspection import ablate_heads, find_head, head_distances, induction_scores
from tests.reference import g, near, read_only, says


def test_a_head_switched_off_by_hand():
    heads = read_only(np.array([[[1.0], [2]], [[10], [20]]]))
    w_o, b_o = read_only(np.array([[1.0, 2], [3, 5]])), read_only(np.array([100.0, 200]))
    near(ablate_heads(heads, w_o, b_o, [0]), [[130, 250], [160, 300]])
    near(ablate_heads(heads, w_o, b_o, {1}), [[101, 202], [102, 204]])
    near(ablate_heads(heads, w_o, b_o, []), [[131, 252], [162, 304]])
    near(ablate_heads(heads, w_o, b_o, {0, 1}), [[100, 200], [100, 200]])


def test_ablation_is_the_sum_over_the_heads_that_are_left():
    heads, w_o, b_o = g((5, 7, 3)), g((15, 11)), g((11,))
    expected = b_o + sum(heads[h] @ w_o[3 * h : 3 * h + 3] for h in (0, 2, 4))
    near(ablate_heads(heads, w_o, b_o, [3, 1]), expected)


def test_a_head_that_is_not_there_is_refused():
    heads, w_o, b_o = g((2, 3, 5)), g((10, 7)), g((7,))
    for off in ([2], [-1]):
        with pytest.raises(ValueError, match=says("off: expected head numbers from 0 to 1, got", str(off))):
            ablate_heads(heads, w_o, b_o, off)


def test_distances_by_hand():
    """[1, 0] and [0, 1] are 1 apart; [1, 0] and [1/2, 1/2]: middle [3/4, 1/4]."""
    weights = read_only(np.array([[[1.0, 0], [1, 0]], [[0, 1], [0.5, 0.5]]]))
    half = math.sqrt((math.log2(4 / 3) + 0.5 * math.log2(2 / 3) + 0.5 * math.log2(2)) / 2)
    near(head_distances(weights), [[0, (1 + half) / 2], [(1 + half) / 2, 0]])


def test_distances_against_loops():
    weights = np.exp(g((3, 5, 7)))
    weights[:, :, 5:] = 0
    weights[1, :, 0] = 0
    weights /= weights.sum(-1, keepdims=True)
    expected = np.zeros((3, 3))
    for a in range(3):
        for b in range(3):
            for p, q in zip(weights[a].tolist(), weights[b].tolist(), strict=True):
                bits = 0.0
                for x, y in zip(p, q, strict=True):
                    bits += x * math.log2(2 * x / (x + y)) / 2 if x else 0
                    bits += y * math.log2(2 * y / (x + y)) / 2 if y else 0
                expected[a, b] += math.sqrt(max(bits, 0)) / 5
    found = head_distances(weights)
    near(found, expected)
    near(found, found.T)
    assert not np.diag(found).any() and (found <= 1).all()


def test_distances_are_quiet_about_zeros_and_empty_rows():
    weights = np.zeros((2, 3, 5))
    with np.errstate(all="raise"):
        near(head_distances(weights), np.zeros((2, 2)))
    assert head_distances(weights.astype(np.float32)).dtype == np.float32


def test_the_head_is_found_from_query_to_key():
    weights = np.zeros((2, 3, 5, 7))
    weights[1, 2, 4, 0], weights[0, 1, 0, 4], weights[0, 2, 4, 1] = 0.4, 0.9, 0.8
    assert find_head(weights, 4, 0) == (1, 2)
    assert find_head(weights, 0, 4) == (0, 1)
    assert find_head(weights, 4, 1) == (0, 2)
    assert [type(i) for i in find_head(weights, 4, 0)] == [int, int]


def test_no_mean_and_no_other_word_hides_the_head():
    weights = np.zeros((2, 3, 5, 7))
    weights[:, :, 4, 0] = [[0.0, 0.8, 0.7], [0.9, 0.2, 0.3]]
    weights[0, 2, 3, 0] = 0.95
    assert find_head(weights, 4, 0) == (1, 0)


def test_induction_by_hand():
    """a b a b: position 2 looks after the first a (at 1), position 3 after the first b (at 2)."""
    weights = np.zeros((2, 4, 4))
    weights[0, 2, 1], weights[0, 3, 2] = 0.75, 0.25
    weights[1, 2, 0], weights[1, 3, 1], weights[1, 1, 1] = 1, 1, 1
    near(induction_scores(weights, [7, 8, 7, 8]), [0.5, 0])


def test_induction_adds_up_over_copies_and_counts_doubled_tokens():
    weights = np.zeros((1, 4, 4))
    weights[0, 1, 1], weights[0, 2, 1], weights[0, 2, 2] = 0.5, 0.25, 0.5
    near(induction_scores(weights, [3, 3, 3, 4]), [(0.5 + 0.75) / 2])


def test_induction_against_the_definition():
    weights, tokens = g((3, 7, 7)), [2, 5, 2, 2, 5, 0, 2]
    for head, score in zip(weights, induction_scores(weights, tokens), strict=True):
        sums = []
        for i in range(7):
            if tokens[i] in tokens[:i]:
                sums.append(sum(head[i, j] for j in range(1, i + 1) if tokens[j - 1] == tokens[i]))
        near(score, sum(sums) / len(sums))


def test_without_a_repeat_the_induction_score_is_zero():
    none = induction_scores(g((3, 5, 5)).astype(np.float32), [1, 2, 3, 4, 5])
    assert none.tolist() == [0, 0, 0] and none.dtype == np.float32
