"""PositionSlider, WordScores and TensorSlicer say the right numbers."""

import re

import numpy as np
import pytest

from mha_lesson.show import palette, widgets
from tests.show.helpers import POSITIONS, SCORES, TOKENS, spoken, words_of


def test_position_slider_numbers():
    widget = widgets.PositionSlider(POSITIONS, TOKENS)
    np.testing.assert_allclose(widget.products(1), [0.8, 1.0, 0.6, 0.0], atol=1e-12)
    assert spoken(widget.render(1)) == (
        "Position 1 (placed): most similar 0 (Maya) (dot product 0.800; with itself 1.000)."
    )
    assert widgets.PositionSlider(POSITIONS[[0, 1, 0]]).nearest(1) == [0, 2]  # a tie names both
    assert widget.render(1).count("<rect") == 4 + 2  # bars and the vector


def test_position_slider_refusals():
    with pytest.raises(ValueError, match=r"\(n, d\)"):
        widgets.PositionSlider(np.ones(3))
    with pytest.raises(ValueError, match="2 words but 4 positions"):
        widgets.PositionSlider(POSITIONS, ["a", "b"])


def test_word_scores_numbers():
    weights = np.array([[0.1, 0.6, 0.2, 0.1]] * 4)
    html = widgets.WordScores(TOKENS, SCORES, weights).render(0)
    assert spoken(html) == ("The query of Maya scores highest with the key of placed: 2.000, weight 0.600.")
    assert "book −1.000 0.100" in words_of(html)
    text = widgets.WordScores(TOKENS, SCORES, weights).text
    assert text == (
        "WordScores: highest score of each query: Maya -> placed 2.000 (weight 0.600); "
        "placed -> Maya 5.000 (weight 0.100); the -> book 3.000 (weight 0.100); book -> Maya 1.000 (weight 0.100)."
    )
    assert words_of(html).count("◀ highest") == 1
    # -1 to 2: zero lies at one third, the bar of 2 fills the rest, that of -1 the third
    assert "margin-left:33.3%;width:66.7%" in html
    assert "margin-left:0.0%;width:33.3%" in html


def test_word_scores_ties_go_to_the_first_and_masked_scores_are_shown():
    widget = widgets.WordScores(TOKENS, np.where(np.eye(4, dtype=bool), -np.inf, 1.0))
    assert "key of placed: 1.000" in spoken(widget.render(0))
    assert "Maya −inf" in words_of(widget.render(0))


def test_word_scores_tell_equal_words_apart():
    widget = widgets.WordScores(["the", "book", "the"], np.eye(3))
    assert widget.tokens == ["the (0)", "book", "the (2)"]
    assert [index for _, index in widget.controls["word"].options] == [0, 1, 2]


@pytest.mark.parametrize(("shape", "says"), [((3, 3), r"\(4, 4\)"), ((2, 4, 4), "one head")])
def test_word_scores_refusals(shape, says):
    with pytest.raises(ValueError, match=says):
        widgets.WordScores(TOKENS, np.ones(shape))
    with pytest.raises(ValueError, match="weights has the shape"):
        widgets.WordScores(TOKENS, SCORES, np.ones((2, 2)))


def test_scale_compute_by_hand():
    # scores ln 3 and 0: weights 3/4 and 1/4; derivative +-3/16 four times, together 3/4
    sample = (np.ones((1, 4)), np.array([[[np.log(3) / 4] * 4, [0.0] * 4]]))
    found = widgets.ScaleSlider.compute(4, False, sample)
    np.testing.assert_allclose(found["scores"], [[np.log(3), 0]], atol=1e-12)
    np.testing.assert_allclose(found["weights"], [[0.75, 0.25]], atol=1e-12)
    assert found["spread"] == pytest.approx(np.log(3) / 2)
    assert found["top_weight"] == pytest.approx(0.75)
    assert found["gradient"] == pytest.approx(0.75)
    scaled = widgets.ScaleSlider.compute(4, True, sample)
    assert scaled["top_weight"] == pytest.approx(np.sqrt(3) / (1 + np.sqrt(3)))


def test_tensor_slicer_steps_are_the_real_reshapes():
    widget = widgets.TensorSlicer(TOKENS[:3], 4, 2)
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(widget.origin("x"), x)
    np.testing.assert_array_equal(widget.origin("reshape"), x.reshape(3, 2, 2))
    split = [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]
    np.testing.assert_array_equal(widget.origin("swap"), split)
    np.testing.assert_array_equal(widget.origin("merged"), x)
    wrong = [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    np.testing.assert_array_equal(widget.origin("wrong"), wrong)
    for step in ("x", "reshape", "swap", "merged"):
        np.testing.assert_array_equal(widget.held_by(step, 1), split[1])
    with pytest.raises(ValueError, match="choose one of"):
        widget.origin("sideways")


def test_tensor_slicer_says_what_a_head_holds():
    widget = widgets.TensorSlicer(TOKENS[:3], 4, 2)
    assert spoken(widget.render("swap", 0)) == (
        "Shape (2, 3, 2); head 0, token 0: t0·f0, t0·f1. Head 0 has its features of every token."
    )
    assert spoken(widget.render("wrong", 0)) == (
        "Shape (2, 3, 2); head 0, row 1: t0·f2, t0·f3. Mixed up: head 0 holds numbers of t0 (Maya), t1 (placed) only."
    )


def test_tensor_slicer_colours_by_head_and_frames_the_chosen_one():
    html = widgets.TensorSlicer(TOKENS[:2], 4, 2).render("wrong", 1)
    cells = re.findall(r'<td style="background:(#\w+);([^"]*)">([^<]*)</td>', html)
    assert [text for _, _, text in cells] == [
        "t0·f0", "t0·f1", "t0·f2", "t0·f3", "t1·f0", "t1·f1", "t1·f2", "t1·f3",
    ]  # fmt: skip
    first, second = palette.head_colour(0), palette.head_colour(1)
    assert [colour for colour, _, _ in cells] == [first, first, second, second] * 2
    assert ["outline" in style for _, style, _ in cells] == [False] * 4 + [True] * 4


def test_tensor_slicer_refuses_uneven_heads():
    with pytest.raises(ValueError, match="can't be shared out evenly"):
        widgets.TensorSlicer(TOKENS, 6, 4)
