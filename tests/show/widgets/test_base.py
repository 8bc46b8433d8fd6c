"""All widgets: alive, pictured, fixed; errors are seen."""

import re

import pytest

from mha_lesson.show import widgets
from mha_lesson.show.widgets import base as widget_base
from tests.show.helpers import POSITIONS, SCORES, TOKENS, VIEW, spoken, words_of


def all_widgets():
    """Each widget with a change of its state: (widget, function that moves a control)."""
    return {
        "PositionSlider": (
            widgets.PositionSlider(POSITIONS),
            lambda w: setattr(w.controls["position"], "value", 0),
        ),
        "WordScores": (
            widgets.WordScores(TOKENS, SCORES),
            lambda w: setattr(w.controls["word"], "value", 2),
        ),
        "ScaleSlider": (widgets.ScaleSlider(), lambda w: setattr(w.controls["d"], "value", 512)),
        "MaskPainter": (
            widgets.MaskPainter(TOKENS),
            lambda w: setattr(w.cells[0][3], "value", True),
        ),
        "SoftmaxExplorer": (
            widgets.SoftmaxExplorer(),
            lambda w: setattr(w.controls["temperature"], "value", 5.0),
        ),
        "TensorSlicer": (
            widgets.TensorSlicer(TOKENS, 6, 3),
            lambda w: setattr(w.controls["step"], "value", "wrong"),
        ),
    }


@pytest.fixture(params=list(all_widgets()))
def moved(request):
    return all_widgets()[request.param]


def test_widget_bundle_is_live_pictured_and_fixed(moved):
    widget, move = moved
    data, metadata = widget._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", VIEW}
    assert data["image/png"].startswith(b"\x89PNG")
    assert data[VIEW]["model_id"] == widget.box.model_id
    assert len(metadata["image/png"]["alt"]) > 40
    assert data["text/plain"].startswith(type(widget).__name__ + ": ")
    assert re.search(r"\d", data["text/plain"])
    move(widget)
    again, _ = widget._repr_mimebundle_()
    assert again["text/plain"] == data["text/plain"] == repr(widget)
    assert again["image/png"] == data["image/png"]


def test_a_change_of_state_changes_the_drawing(moved):
    widget, move = moved
    before = widget.output.value
    move(widget)
    after = widget.output.value
    assert before != after
    assert spoken(before) != spoken(after)
    assert after == widget.render(**widget.state())


def test_every_control_has_a_name(moved):
    widget, _ = moved
    assert all(control.description for control in widget.controls.values())


def test_drawings_take_the_colour_of_the_theme(moved):
    widget, _ = moved
    html = widget.output.value
    assert "color: var(--jp-ui-font-color1, inherit)" in html
    for cell in re.findall(r'<td style="([^"]*background:[^"]*)"', html):
        assert re.search(r"(^|;)color:#(000000|ffffff)", cell)


def test_widgets_work_as_pictures_where_ipywidgets_is_missing(monkeypatch):
    for module in (widget_base, *_widget_modules()):
        monkeypatch.setattr(module, "ipywidgets", None)
    widget = widgets.SoftmaxExplorer()
    data, metadata = widget._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png"}
    assert metadata["image/png"]["alt"]
    assert "0.631" in words_of(widget.output.value)


def _widget_modules():
    from mha_lesson.show.widgets import masks as widget_masks
    from mha_lesson.show.widgets import scores as widget_scores
    from mha_lesson.show.widgets import words as widget_words

    return widget_masks, widget_scores, widget_words


class Failing(widgets.SoftmaxExplorer):
    def render(self, **state):
        if state["shift"] > 0:
            raise RuntimeError("no <room> left")
        return super().render(**state)


def test_an_error_in_a_slider_callback_is_shown_and_the_next_move_mends_it():
    widget = Failing()
    widget.controls["shift"].value = 10
    assert "could not be drawn" in widget.output.value
    assert "RuntimeError: no <room> left" in words_of(widget.output.value)
    widget.controls["shift"].value = 0
    assert "could not be drawn" not in widget.output.value


def test_an_error_in_a_button_callback_is_shown():
    """ipywidgets itself drops what a button's callback raises."""

    def attend(keep):
        if keep.all():
            raise ZeroDivisionError("all of them")
        return keep / keep.sum(-1, keepdims=True)

    widget = widgets.MaskPainter(TOKENS, attend)
    widget.preset_buttons["all"].click()
    assert "ZeroDivisionError: all of them" in words_of(widget.output.value)
    widget.preset_buttons["causal"].click()
    assert "could not be drawn" not in widget.output.value


def test_tokens_are_never_taken_for_html():
    tokens = ["<pad>", "a&b", "<script>alert(1)</script>", "$"]
    for widget in (
        widgets.WordScores(tokens, SCORES),
        widgets.MaskPainter(tokens),
        widgets.TensorSlicer(tokens, 4, 2),
        widgets.PositionSlider(POSITIONS, tokens),
    ):
        assert "<pad>" not in widget.output.value
        assert "<script>" not in widget.output.value
        widget.png()
