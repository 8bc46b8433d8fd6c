"""ScaleSlider and SoftmaxExplorer say the right numbers, and break honestly."""

import re

import numpy as np
import pytest

from mha_lesson.show import widgets
from tests.show.helpers import words_of


def test_scale_compute_shows_the_effect_and_repeats():
    grow = [widgets.ScaleSlider.compute(d, False) for d in (4, 64, 1024)]
    flat = [widgets.ScaleSlider.compute(d, True) for d in (4, 64, 1024)]
    for run, d in zip(grow, (4, 64, 1024), strict=True):
        assert run["spread"] == pytest.approx(np.sqrt(d), rel=0.1)
    assert grow[2]["top_weight"] > 0.9 > 0.5 > flat[2]["top_weight"]
    assert grow[2]["gradient"] < flat[2]["gradient"] / 4
    assert all(run["spread"] == pytest.approx(1, rel=0.1) for run in flat)
    assert widgets.ScaleSlider.compute(64)["spread"] == flat[1]["spread"]
    assert widgets.ScaleSlider().sizes == [2**p for p in range(2, 11)]


def test_scale_slider_sample_sets_the_sizes_and_is_checked():
    rng = np.random.default_rng(0)
    widget = widgets.ScaleSlider((rng.normal(size=(5, 20)), rng.normal(size=(5, 3, 20))))
    assert widget.sizes == [4, 8, 16]
    assert "of 3 keys" in widget.text
    with pytest.raises(ValueError, match="queries"):
        widgets.ScaleSlider((np.ones((5, 8)), np.ones((4, 3, 8))))
    with pytest.raises(ValueError, match="4 are the fewest"):
        widgets.ScaleSlider((np.ones((5, 2)), np.ones((5, 3, 2))))


def test_mask_presets():
    presets = widgets.MaskPainter.presets_for(4)
    assert presets["all"].all()
    np.testing.assert_array_equal(presets["causal"], np.tri(4, dtype=bool))
    np.testing.assert_array_equal(presets["reversed causal"], np.tri(4, dtype=bool).T)
    np.testing.assert_array_equal(presets["window 2"], np.tri(4) - np.tri(4, k=-2) > 0)
    np.testing.assert_array_equal(presets["padding last 2"], [[1, 1, 0, 0]] * 4)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"shift": 800.0}, r"above 709\.8 in float64"),
        ({"shift": 100.0, "dtype": "float32"}, r"above 88\.7 in float32"),
        ({"shift": 20.0, "dtype": "float16"}, r"above 11\.1 in float16"),
        ({"shift": 2000.0, "dtype": "float16", "subtract": True}, "1 apart"),
        ({"shift": 2000.0, "dtype": "float16", "temperature": 0.01}, "more than float16 can hold"),
    ],
)
def test_softmax_explorer_breaks_honestly_and_says_why(state, says):
    widget = widgets.SoftmaxExplorer()
    found = widget.compute(**state)
    assert any(re.search(says, note) for note in found["notes"])
    if not state.get("subtract"):
        assert np.isnan(found["weights"]).any()
        html = widget.render(**{**widget.start, **state})
        assert "nan" in words_of(html)
        assert "◀" not in html


def test_softmax_explorer_underflow():
    found = widgets.SoftmaxExplorer((-800.0, -900.0)).compute()
    assert found["total"] == 0
    assert "0 / 0 is nan" in found["notes"][0]


def test_softmax_explorer_keeps_the_number_format():
    for dtype in widgets.SoftmaxExplorer.TYPES:
        found = widgets.SoftmaxExplorer().compute(dtype=dtype)
        assert found["weights"].dtype == found["z"].dtype == np.dtype(dtype)
    with pytest.raises(ValueError, match="list of numbers"):
        widgets.SoftmaxExplorer(np.ones((2, 2)))
