"""How many heads: parameters, sweeps and the choice, worked by hand."""

import numpy as np
import pytest

from mha_lesson.steps.head_count import cheapest_as_good, layer_parameters, sweep_heads
from tests.reference import near


def test_parameters_by_hand():
    """Width 6, 3 heads of width 2: Q 42, O 42; one head of keys and values: 2 * 14."""
    assert layer_parameters(6, 3, 1) == 112
    assert layer_parameters(6, 3, 3) == 4 * 42
    assert layer_parameters(6, 1, 1) == layer_parameters(6, 6, 6) == 168
    assert layer_parameters(512, 8, 8) == 1_050_624


def test_parameters_are_those_of_the_torch_layer():
    torch = pytest.importorskip("torch")
    for heads in (1, 5):
        layer = torch.nn.MultiheadAttention(35, heads)
        assert layer_parameters(35, heads, heads) == sum(p.numel() for p in layer.parameters())


def test_the_sweep_by_hand():
    scores = {(2, 5): 0.5, (2, 6): 0.9, (2, 9): 0.4, (1, 5): 0.25, (1, 6): 0.75, (1, 9): 0.5}
    table = sweep_heads(lambda heads, seed: scores[heads, seed], [2, 1], [5, 6, 9])
    near(table, [[2, 0.6, 0.4, 0.9], [1, 0.5, 0.25, 0.75]])
    assert table.dtype == float


def test_the_sweep_trains_each_once_with_the_same_seeds():
    calls = []
    sweep_heads(lambda heads, seed: calls.append((heads, seed)) or 1, [4, 8], [3, 7])
    assert calls == [(4, 3), (4, 7), (8, 3), (8, 7)]


NAMES = ["baseline", "1 head", "8 heads"]


def choose(*scores, costs=(1, 2, 3)):
    return cheapest_as_good(NAMES, np.array(scores), np.array(costs))


def test_the_cheapest_that_is_as_good_is_chosen():
    assert choose([0.5, 0.6], [0.7, 0.8], [0.75, 0.85]) == "1 head"
    assert choose([0.5, 0.8], [0.7, 0.8], [0.75, 0.85]) == "baseline", "the plain baseline wins"
    assert choose([0.5, 0.6], [0.6, 0.7], [0.75, 0.85]) == "8 heads"
    assert choose([0.5, 0.8], [0.7, 0.8], [0.75, 0.85], costs=(3, 1, 2)) == "1 head"
    assert choose([0.9, 0.8], [0.1, 0.2], [0.3, 0.4], costs=(3, 1, 2)) == "baseline"


def test_ranges_that_touch_overlap_and_the_mean_sets_the_bar():
    assert choose([0.5, 0.75], [0.7, 0.7], [0.75, 0.85]) == "baseline"
    assert choose([0.1, 0.99], [0.7, 0.7], [0.75, 0.85], costs=(3, 1, 2)) == "8 heads"
