"""MaskPainter: presets, painting, warnings."""

import numpy as np
import pytest

from mha_lesson.show import widgets
from tests.show.helpers import TOKENS, spoken, words_of


def test_mask_painter_paints_and_warns():
    widget = widgets.MaskPainter(TOKENS)
    assert widget.warnings(widget.keep) == []
    assert "0.33 0.33 0.33 0.00" in words_of(widget.output.value)
    widget.cells[0][0].value = False
    assert not widget.keep[0, 0]
    assert widget.cells[0][0].description == "·"
    assert widget.cells[0][0].tooltip == "Maya may not attend to Maya"
    assert "position 0 (Maya) may attend to nothing" in words_of(widget.output.value)
    widget.cells[1][3].value = True
    assert widget.cells[1][3].tooltip == "placed may attend to book"
    assert "lets position 1 (placed) see the future" in words_of(widget.output.value)
    widget.preset_buttons["reversed causal"].click()
    np.testing.assert_array_equal(widget.keep, np.tri(4, dtype=bool).T)
    assert widget.sees_future(widget.keep) == [0, 1, 2]
    assert "positions that see the future: 3." in spoken(widget.output.value)


def test_mask_presets_draw_once_and_are_not_painted_over():
    calls = []
    widget = widgets.MaskPainter(TOKENS, lambda keep: calls.append(1) or keep * 0.25)
    calls.clear()
    widget.preset_buttons["all"].click()
    assert len(calls) == 1
    widget.cells[0][0].value = False
    assert widget.presets["all"].all()


def test_mask_painter_uses_the_given_attend_and_shields_the_mask():
    def attend(keep):
        keep[:] = True  # a learner may well do this
        return np.full((4, 4), 0.125)

    widget = widgets.MaskPainter(TOKENS, attend)
    assert "0.12 0.12" in words_of(widget.output.value)
    np.testing.assert_array_equal(widget.keep, np.tri(4, dtype=bool))
    assert widget.text.endswith("Weights of the last word: 0.125 0.125 0.125 0.125.")


def test_mask_painter_shows_nan_and_tells_about_wrong_shapes():
    widget = widgets.MaskPainter(TOKENS, lambda keep: np.full((4, 4), np.nan))
    assert "nan nan" in words_of(widget.output.value)
    widget.png()
    widget = widgets.MaskPainter(TOKENS, lambda keep: np.ones((2, 4, 4)))
    assert "what attend(keep) returned has the shape (2, 4, 4)" in words_of(widget.output.value)
    assert widget.text.endswith("Weights of the last word: unknown.")
    widget.png()


def test_mask_painter_refusals():
    with pytest.raises(ValueError, match="15 tokens"):
        widgets.MaskPainter(list("abcdefghijklmno"))
    with pytest.raises(ValueError, match="'upside down'"):
        widgets.MaskPainter(TOKENS, start="upside down")
    with pytest.raises(ValueError, match="booleans of shape"):
        widgets.MaskPainter(TOKENS).paint(np.ones((4, 4)))


def test_softmax_explorer_right_values():
    widget = widgets.SoftmaxExplorer()
    powers = np.exp([1, 2, 3, 0.5])
    for state in ({}, {"subtract": True}, {"subtract": True, "shift": 2000.0}):
        found = widget.compute(**state)
        np.testing.assert_allclose(found["weights"], powers / powers.sum(), rtol=1e-9)
    assert "0.085, 0.232, 0.631, 0.052; their sum is 1.000" in widget.text
