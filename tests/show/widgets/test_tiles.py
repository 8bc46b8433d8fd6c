"""The stepper through tiles shows the numbers of one pass."""

import math
import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from mha_lesson import show
from mha_lesson.show.palette import ink_on
from mha_lesson.show.widgets import tiles as widget_tiles
from mha_lesson.show.widgets.tiles import final_answer, seen_by, tile_states, tile_steps
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.softmax import masked_softmax
from tests.show.helpers_cost import written

SHAPES = [(5, 7, 2, 3), (3, 3, 1, 1), (2, 11, 5, 4), (7, 3, 2, 2), (1, 1, 1, 1), (5, 5, 5, 5)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [(), (2,)])
@pytest.mark.parametrize("L, S, block_q, block_k", SHAPES)
def test_the_last_tile_of_each_block_holds_the_answer(L, S, block_q, block_k, width, causal):
    rng = np.random.default_rng(0)
    scores, values = 50 * rng.standard_normal((L, S)), rng.standard_normal((S, *width))
    keep = causal_mask(L, S) if causal else np.ones((L, S), bool)
    assert np.array_equal(seen_by((L, S), causal), keep)
    answer = masked_softmax(scores, keep) @ values
    assert np.allclose(final_answer(scores, values, keep), answer, atol=1e-12)
    steps = tile_steps(scores, values, block_q, block_k, causal)
    found = np.zeros_like(answer)  # queries that see no key have no tile, and the answer 0
    for step in steps:
        if step.last:
            found[step.rows] = step.answer
    assert np.allclose(found, answer, atol=1e-12)
    assert steps[-1].last and len({step.rows.start for step in steps}) == sum(step.last for step in steps)
    if causal:
        assert all(keep[step.rows, step.keys].any() for step in steps)
    else:
        assert len(steps) == math.ceil(L / block_q) * math.ceil(S / block_k)


def test_every_step_is_the_softmax_of_the_keys_so_far():
    rng = np.random.default_rng(1)
    scores, values = rng.standard_normal((3, 7)), rng.standard_normal(7)
    for step in tile_steps(scores, values, 3, 2):
        end = step.keys.stop
        assert np.allclose(step.answer, masked_softmax(scores[:, :end], True) @ values[:end], atol=1e-12)
        assert np.array_equal(step.m, scores[:, :end].max(1))
        assert np.allclose(step.l, np.exp(scores[:, :end] - step.m[:, None]).sum(1), atol=1e-12)


def test_a_step_worked_by_hand():
    first, second = tile_steps([[0.0, 0.0, math.log(4.0)]], [1.0, 3.0, 5.0], 1, 2)
    assert (first.m[0], first.l[0], first.o[0], first.shrink[0]) == (0, 2, 4, 0)
    assert second.shrink[0] == pytest.approx(1 / 4)
    assert (second.l[0], second.o[0]) == pytest.approx((2 / 4 + 1, 4 / 4 + 5))
    assert second.answer[0] == pytest.approx(4)
    with pytest.raises(FrozenInstanceError):
        first.m = 0


def test_the_stepper_says_when_sums_shrink():
    widget = show.TileStepper(np.array([[1.0, 2.0, 4.0, 0.0]]), np.arange(4.0), block_q=1, block_k=2)
    first = "Tile 1 of 2: query 0 meets keys 0 and 1. It is the first: nothing has to shrink yet."
    assert widget.describe(1) == first
    rose = "The maximum of query 0 rose from 2.0 to 4.0, so what was summed shrinks by exp(2.0 - 4.0) = "
    assert f"{rose}{math.exp(-2):.3f}" in widget.describe(2)
    answer = masked_softmax(widget.scores, True) @ widget.values
    assert f"Query 0 is done after 2 tiles: o / l = {answer[0]:.3f}." in widget.describe(2)
    assert widget.text == f"TileStepper: {first}"
    falling = show.TileStepper([[4.0, 0.0], [4.0, 1.0]], [1.0, 2.0], 2, 1)
    assert "Queries" in falling.describe(2) and "No maximum rose, so nothing shrinks." in falling.describe(2)
    below = show.TileStepper([[-2.25, -1.0], [-3.0, 1.0]], [[1.0, 2.0], [0.0, 1.0]], 2, 1).describe(2)
    assert "exp(-2.25 - (-1.00)) = 0.287. (So for 1 more.)" in below
    assert re.search(r"o / l = \(0\.\d{3}, 1\.\d{3}\), \(0\.\d{3}, 1\.\d{3}\)\.$", below)


def test_states_of_the_tiles():
    steps = tile_steps(np.ones((4, 4)), np.ones(4), 2, 2, causal=True)
    n, d, t, s = "now", "done", "later", "skipped"
    assert tile_states((4, 4), steps, 2).tolist() == [[d, d, s, s]] * 2 + [[n, n, t, t]] * 2


def test_the_stepper_marks_tiles_and_future():
    widget = show.TileStepper(np.ones((4, 4)), np.ones(4), block_q=2, block_k=2, causal=True)
    scores, kept, legend = re.findall(r"<table>.*?</table>", widget.render(2))
    assert [scores.count(f'"tile {state}') for state in ("now", "done", "later", "skipped")] == [4, 4, 4, 4]
    assert scores.count(">·<") == 6, "the future, in skipped tiles and in those that are computed"
    assert all(words in legend for words in ("this tile", "done", "to come", "never computed"))
    assert "never computed" not in show.TileStepper(np.ones((4, 4)), np.ones(4)).render(1)
    assert kept.count("<tr>") == 3 and "query 2" in kept and "query 1" not in kept
    assert "3 steps" in widget.picture_alt() and "1 of 4 lie in the future" in widget.picture_alt()
    axes = widget.picture().axes[0]
    assert {"1", "2", "3"} <= set(written(axes)) and "4" not in written(axes)
    assert axes.get_title().endswith("hatched: never computed")
    assert {ink_on(widget_tiles.NOW), ink_on(widget_tiles.DONE)} == {"#000000"}, "as the style sheet has it"


def test_the_table_beside_the_tiles_holds_what_is_kept_and_the_answer():
    widget = show.TileStepper([[0.0, 0.0, math.log(4.0)]], [1.0, 3.0, 5.0], block_q=1, block_k=2)
    for tile, numbers in ((1, ["0.00", "0.00", "2.00", "4.00", "2.00", "4.00"]),
                          (2, ["1.39", "0.25", "1.50", "6.00", "4.00", "4.00"])):  # fmt: skip
        kept = re.findall(r"<table>.*?</table>", widget.render(tile))[1]
        assert re.findall(r'<td class="number">(.*?)</td>', kept) == numbers, "m, shrink, l, o, o / l, in the end"


def test_a_query_without_keys_is_shown_as_such():
    # Three queries, two keys: the last sees both, the first none.
    widget = show.TileStepper(np.zeros((3, 2)), np.ones(2), block_q=2, block_k=1, causal=True)
    assert "Queries 0 and 1 are done after 1 tile: o / l = 0.000, 1.000." in widget.describe(1)
    assert "−∞" in widget.render(1) and "nan" not in "".join(widget.render(t + 1) for t in range(len(widget.steps)))


def test_buttons_and_slider_move_the_same_tile():
    widget = show.TileStepper(np.eye(4), np.ones(4), block_q=4, block_k=2)
    back, slider, on = widget.box.children[0].children
    assert slider is widget.controls["tile"]
    for button, tile in ((back, 1), (on, 2), (on, 2), (back, 1)):
        button.click()
        assert slider.value == tile and f"Tile {tile} of 2" in widget.output.value


@pytest.mark.parametrize(
    "scores, values, blocks, words",
    [(np.ones(3), np.ones(3), (1, 1), r"scores: expected \(L, S\)"), (np.ones((2, 3)), np.ones(2), (1, 1), "values: "),
     (np.ones((2, 0)), np.ones(0), (1, 1), "one key"), (np.ones((2, 3)), np.ones(3), (0, 1), "1 or more"),
     (np.full((2, 3), -np.inf), np.ones(3), (1, 1), "causal=True")],
)  # fmt: skip
def test_tiles_refuse_what_does_not_fit(scores, values, blocks, words):
    with pytest.raises(ValueError, match=words):
        tile_steps(scores, values, *blocks)


def test_the_stepper_refuses_what_can_not_be_read():
    with pytest.raises(ValueError, match="12 queries and keys at most"):
        show.TileStepper(np.ones((13, 3)), np.ones(3))
    with pytest.raises(ValueError, match="3 numbers a key at most"):
        show.TileStepper(np.ones((2, 3)), np.ones((3, 4)))
