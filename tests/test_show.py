"""Figures hold the right data, widgets say the right numbers, errors are seen."""

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mha_lesson.show import markup, palette, widgets
from mha_lesson.show.figures import diagrams, plots
from mha_lesson.show.widgets import base as widget_base

ROOT = Path(__file__).resolve().parents[1]
TOKENS = ["Maya", "placed", "the", "book"]
VIEW = "application/vnd.jupyter.widget-view+json"


def words_of(html):
    """The visible text of some HTML."""
    html = re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


def spoken(html):
    """The sentence for screen readers."""
    return unescape(re.search(r'<p role="status" aria-live="polite">(.*?)</p>', html).group(1))


def tick_names(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def written(axes):
    return [text.get_text() for text in axes.texts]


def run_python(code):
    """Run code in a fresh interpreter; its output."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# ---------------------------------------------------------------- importing


def test_importing_show_loads_nothing_heavy():
    seen = run_python(
        "import sys, mha_lesson.show as show; heavy = ('matplotlib', 'ipywidgets')\n"
        "print(*[name in sys.modules for name in heavy])\n"
        "show.heatmap; print(*[name in sys.modules for name in heavy])\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    assert seen == ["False", "False", "True", "False", "False"]


def test_widgets_draw_without_matplotlib():
    """A callback that made a figure would be a hundred times slower."""
    seen = run_python(
        "import sys; from mha_lesson.show import widgets as w; s = w.SoftmaxExplorer()\n"
        "s.controls['shift'].value = 100; print('matplotlib' in sys.modules)"
    )
    assert seen == ["False"]


def test_lazy_names_and_unknown_ones():
    import mha_lesson.show as show

    assert show.heatmap is plots.heatmap
    assert show.MaskPainter is widgets.MaskPainter
    assert {"heatmap", "widgets", "TensorSlicer"} <= set(dir(show))
    with pytest.raises(AttributeError, match="no_such"):
        show.no_such  # noqa: B018


# ---------------------------------------------------------------- heatmap


def test_heatmap_shows_the_matrix_with_names_and_numbers():
    matrix = np.array([[0.25, 0.75], [1.0, 0.0]])
    fig = plots.heatmap(matrix, ["Maya", "left"], title="weights")
    axes = fig.axes[0]
    assert isinstance(fig, Figure)
    np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
    assert tick_names(axes.yaxis) == tick_names(axes.xaxis) == ["Maya", "left"]
    assert written(axes) == ["0.25", "0.75", "1.00", "0.00"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("key", "query", "weights")
    assert fig.get_facecolor() == (1, 1, 1, 1)


def test_heatmap_row_zero_is_on_top_and_axes_are_not_swapped():
    axes = plots.heatmap(np.arange(6.0).reshape(2, 3)).axes[0]
    low, high = axes.get_ylim()
    assert low > high
    assert written(axes) == ["0", "1", "2", "3", "4", "5"]
    assert len(axes.get_xticks()) == 3
    assert len(axes.get_yticks()) == 2


@pytest.mark.parametrize(
    ("matrix", "signed", "name", "ends"),
    [
        ([[0.0, 0.5]], None, "cividis", (0.0, 0.5)),
        ([[-2.0, 0.5]], None, "PuOr_r", (-2.0, 2.0)),
        ([[0.0, 0.5]], True, "PuOr_r", (-0.5, 0.5)),
        ([[0.0, 0.0]], None, "cividis", (0.0, 1.0)),
        ([[-np.inf, 3.0]], None, "cividis", (0.0, 3.0)),
    ],
)
def test_heatmap_colours(matrix, signed, name, ends):
    image = plots.heatmap(matrix, signed=signed).axes[0].images[0]
    assert image.get_cmap().name == name
    assert image.get_clim() == ends


def test_heatmap_writes_numbers_only_into_small_maps_unless_asked():
    assert len(written(plots.heatmap(np.ones((8, 8))).axes[0])) == 64
    assert written(plots.heatmap(np.ones((9, 2))).axes[0]) == []
    assert len(written(plots.heatmap(np.ones((9, 2)), annotate=True).axes[0])) == 18
    assert written(plots.heatmap(np.ones((2, 2)), annotate=False).axes[0]) == []


def test_heatmap_says_what_is_not_a_number():
    axes = plots.heatmap([[np.nan, np.inf], [-np.inf, -0.0001]]).axes[0]
    assert written(axes) == ["nan", "∞", "−∞", "0.00"]
    assert axes.images[0].get_array().mask.tolist() == [[True, True], [True, False]]


def test_keep_hatches_forbidden_cells_but_never_hides_a_number_in_them():
    keep = np.array([[True, False], [False, True]])
    axes = plots.heatmap([[0.5, 0.5], [0.0, 1.0]], keep=keep).axes[0]
    hatched = [patch.get_xy() for patch in axes.patches if patch.get_hatch()]
    assert hatched == [(0.5, -0.5), (-0.5, 0.5)]  # (column, row) minus one half
    assert written(axes) == ["0.50", "0.50", "1.00"]  # the leaking 0.50 stays to be seen


def test_keep_broadcasts_and_is_checked():
    axes = plots.heatmap(np.ones((3, 2)), keep=np.array([True, False])).axes[0]
    assert len(axes.patches) == 3
    with pytest.raises(ValueError, match="astype"):
        plots.heatmap(np.ones((2, 2)), keep=np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"\(3,\).*\(2, 2\)"):
        plots.heatmap(np.ones((2, 2)), keep=np.ones(3, bool))


def test_heatmap_refuses_weights_that_look_averaged_over_heads():
    with pytest.raises(ValueError, match="average_attn_weights=False") as caught:
        plots.heatmap(np.ones((2, 3, 3)))
    assert "3 axes (2, 3, 3)" in str(caught.value)
    assert "weights[0, head]" in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 2, 3, 3), (3,), (0, 3)])
def test_heatmap_refuses_other_shapes(shape):
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        plots.heatmap(np.ones(shape))


def test_labels_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="rows has 3 labels but the matrix has 2 rows"):
        plots.heatmap(np.ones((2, 3)), rows=list("abc"))
    with pytest.raises(ValueError, match="columns has 2 labels but the matrix has 3 columns"):
        plots.heatmap(np.ones((2, 3)), columns=list("ab"))


def test_labels_may_hold_anything():
    fig = plots.heatmap(np.ones((2, 2)), ["$x^", "<pad>"])
    plots.png(fig)  # a "$" that started a formula would fail here


# ---------------------------------------------------------------- the other plots


def test_head_grid_shows_every_head_on_one_scale():
    weights = np.random.default_rng(0).random((5, 3, 3))
    fig = plots.head_grid(weights, ["a", "b", "c"], title="layer 5", columns=3)
    shown = [axes for axes in fig.axes if axes.images and axes.get_title().startswith("head")]
    assert [axes.get_title() for axes in shown] == [f"head {h}" for h in range(5)]
    for head, axes in enumerate(shown):
        np.testing.assert_array_equal(axes.images[0].get_array(), weights[head])
        assert axes.images[0].get_clim() == (0.0, weights.max())
    assert sum(axes.get_visible() for axes in fig.axes) == 5 + 1  # and the colour bar


def test_head_grid_refuses_a_batch():
    with pytest.raises(ValueError, match=r"weights\[0\]"):
        plots.head_grid(np.ones((2, 4, 3, 3)), TOKENS)
    with pytest.raises(ValueError, match="tokens has 4 labels"):
        plots.head_grid(np.ones((2, 3, 3)), TOKENS)


def test_lines_hold_the_data_and_differ_in_more_than_colour():
    x = np.array([1, 2, 4])
    fig = plots.lines(x, {"a": [1, 2, 3], "b": [3, 2, 1]}, "t", "d", "var", logx=True, logy=True)
    axes = fig.axes[0]
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    np.testing.assert_array_equal(axes.lines[1].get_xdata(), x)
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [3, 2, 1])
    assert len({line.get_marker() for line in axes.lines}) == 2
    assert len({line.get_linestyle() for line in axes.lines}) == 2
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert tick_names(axes.xaxis) == ["1", "2", "4"]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["a", "b"]


def test_lines_refuse_a_series_of_another_length():
    with pytest.raises(ValueError, match="'b' has the shape"):
        plots.lines([1, 2, 3], {"b": [1, 2]})


def test_bars_single_and_grouped():
    single = plots.bars(["x", "y"], [1.0, -0.5], ylabel="score").axes[0]
    assert [bar.get_height() for bar in single.patches] == [1.0, -0.5]
    assert tick_names(single.xaxis) == ["x", "y"]
    assert written(single) == ["1.00", "-0.50"]
    fig = plots.bars(["x", "y"], {"1 head": [1, 2], "8 heads": [3, 4]})
    assert [bar.get_height() for bar in fig.axes[0].patches] == [1, 2, 3, 4]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["1 head", "8 heads"]
    with pytest.raises(ValueError, match="2 labels"):
        plots.bars(["x", "y"], [1, 2, 3])


def test_spread_shows_every_run_and_marks_the_mean():
    axes = plots.spread({"1 head": [0.5, 0.7, 0.9], "8 heads": [0.8]}, "t", "accuracy").axes[0]
    dots, mean, single, _ = axes.lines
    np.testing.assert_array_equal(dots.get_xdata(), [0.5, 0.7, 0.9])
    np.testing.assert_array_equal(dots.get_ydata(), [0, 0, 0])
    np.testing.assert_allclose(mean.get_xdata(), [0.7, 0.7])
    np.testing.assert_array_equal(single.get_xdata(), [0.8])
    assert dots.get_marker() != single.get_marker()
    assert tick_names(axes.yaxis) == ["1 head", "8 heads"]
    assert axes.yaxis_inverted()
    with pytest.raises(ValueError, match="empty"):
        plots.spread({})


def test_tradeoff_holds_cost_mean_and_range():
    fig = plots.tradeoff({"1 head": (2.0, 0.5, 0.6, 0.9), "plain": (0.5, 0.4, 0.4, 0.4)}, "t", "s", "accuracy")
    axes = fig.axes[0]
    assert axes.get_xscale() == "log"
    first, second = axes.containers
    np.testing.assert_allclose(first.lines[0].get_xydata(), [[2.0, 0.6]])
    np.testing.assert_allclose(first.lines[2][0].get_segments()[0], [[2.0, 0.5], [2.0, 0.9]])
    np.testing.assert_allclose(second.lines[0].get_xydata(), [[0.5, 0.4]])
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["1 head", "plain"]
    assert tick_names(axes.xaxis) == ["0.5", "1", "2"]
    many = plots.tradeoff({f"n{i}": (i + 1.0, 0.1, 0.2, 0.3) for i in range(9)}).axes[0]
    looks = [(c.lines[0].get_color(), c.lines[0].get_marker(), c.lines[0].get_mfc()) for c in many.containers]
    assert len(set(looks)) == 9
    with pytest.raises(ValueError, match="empty"):
        plots.tradeoff({})


def test_similarity_map_holds_cosines_in_the_given_order():
    axes = plots.similarity_map([[3.0, 0.0], [1.0, 1.0], [-2.0, 0.0], [0.0, 0.0]], TOKENS).axes[0]
    shown = axes.images[0].get_array()
    half = np.sqrt(0.5)
    expected = [[1, half, -1], [half, 1, -half], [-1, -half, 1]]
    np.testing.assert_allclose(shown[:3, :3], expected, atol=1e-12)
    assert shown.mask[3].all()  # no direction, no number
    assert axes.images[0].get_clim() == (-1, 1)
    assert tick_names(axes.yaxis) == TOKENS


def test_position_bands_show_matrix_and_curves():
    positions = np.random.default_rng(0).normal(size=(6, 8))
    left, right = plots.position_bands(positions).axes[:2]
    np.testing.assert_array_equal(left.images[0].get_array(), positions)
    for line, channel in zip(right.lines, (0, 2, 4, 6), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), positions[:, channel])
        assert line.get_label() == f"channel {channel}"
    with pytest.raises(ValueError, match="number of positions"):
        plots.position_bands(positions[0])


def test_course_map_names_all_lessons_and_ticks_the_finished_ones():
    texts = written(plots.course_map().axes[0])
    assert {f"{n:02d}" for n in range(1, 14)} <= set(texts)
    assert any("softmax" in text for text in texts)
    assert not any("✓" in text for text in texts)
    ticked = [t for t in written(plots.course_map((1, "06")).axes[0]) if re.match(r"✓ \d", t)]
    assert set(ticked) == {"✓ 01", "✓ 06"}


def test_course_map_texts_stay_inside_their_boxes():
    fig = plots.course_map(range(14))
    renderer = FigureCanvasAgg(fig).get_renderer()
    axes = fig.axes[0]
    boxes = [patch.get_window_extent(renderer) for patch in axes.patches]
    for text in axes.texts:
        place = text.get_window_extent(renderer)
        middle = ((place.x0 + place.x1) / 2, (place.y0 + place.y1) / 2)
        around = [box for box in boxes if box.contains(*middle)]
        assert all(box.x0 < place.x0 and place.x1 < box.x1 for box in around), text.get_text()


def test_head_tensor_split_and_plain_reshape():
    x = np.zeros((3, 4))
    top, bottom = plots.head_tensor(x, 2, ["a", "b", "c"]).axes
    assert written(top) == [f"t{t}·f{f}" for t in range(3) for f in range(4)]
    assert written(bottom)[:6] == ["t0·f0", "t0·f1", "t1·f0", "t1·f1", "t2·f0", "t2·f1"]
    assert tick_names(bottom.yaxis) == ["a", "b", "c"]
    wrong = plots.head_tensor(x, 2, reshape_only=True).axes[1]
    assert written(wrong)[:6] == ["t0·f0", "t0·f1", "t0·f2", "t0·f3", "t1·f0", "t1·f1"]
    assert "mixed" in wrong.get_title()


@pytest.mark.parametrize(
    ("shape", "heads", "labels", "says"),
    [((2, 3, 4), 2, None, "x\\[0\\]"), ((3, 4), 3, None, "evenly"), ((3, 4), 2, ["a"], "1 labels")],
)
def test_head_tensor_refusals(shape, heads, labels, says):
    with pytest.raises(ValueError, match=says):
        plots.head_tensor(np.zeros(shape), heads, labels)


def test_no_text_is_smaller_than_nine_points():
    figures = [
        plots.heatmap(np.ones((12, 12)), title="t"),
        plots.head_grid(np.ones((2, 4, 4)), TOKENS),
        plots.lines([1, 2], {"a": [1, 2]}),
        plots.bars(["x"], [1]),
        plots.course_map(),
        plots.position_bands(np.ones((4, 4))),
        plots.head_tensor(np.ones((2, 4)), 2),
    ]
    from matplotlib.text import Text

    for fig in figures:
        sizes = [t.get_fontsize() for t in fig.findobj(Text) if t.get_text() and t.get_visible()]
        assert min(sizes) >= 9


def test_figures_leave_nothing_behind():
    from matplotlib import _pylab_helpers

    plots.png(plots.course_map())
    assert not _pylab_helpers.Gcf.figs


# ---------------------------------------------------------------- into the notebook


def test_figure_bundle_has_picture_alt_and_text():
    data, metadata = plots.figure_bundle(plots.bars(["x"], [1]), "One bar.", "1, sum 1.000")
    assert data["image/png"].startswith(b"\x89PNG")
    assert data["text/plain"] == "1, sum 1.000"
    assert metadata == {"image/png": {"alt": "One bar."}}
    assert plots.figure_bundle(plots.bars(["x"], [1]), "One bar.")[0]["text/plain"] == "One bar."


def test_the_same_picture_gives_the_same_bytes():
    assert plots.png(plots.bars(["x"], [1])) == plots.png(plots.bars(["x"], [1]))


@pytest.mark.parametrize("alt", ["", "  ", None])
def test_figure_insists_on_alt_text(alt):
    with pytest.raises(ValueError, match="alt is empty"):
        plots.figure(plots.bars(["x"], [1]), alt)


def test_figure_and_show_map_display_and_return_nothing(monkeypatch):
    import IPython.display

    calls = []
    monkeypatch.setattr(IPython.display, "display", lambda *a, **k: calls.append((a, k)))
    assert plots.figure(plots.bars(["x"], [1]), "One bar.") is None
    assert plots.show_map(np.eye(2), ["a", "b"], title="identity", alt="A diagonal.") is None
    (data,), options = calls[1]
    assert data["text/plain"] == ("identity: 2x2, min 0.000, max 1.000, row sums 1.000, argmax [0 1]")
    assert options == {"raw": True, "metadata": {"image/png": {"alt": "A diagonal."}}}


@pytest.mark.parametrize(
    ("matrix", "text"),
    [
        (np.eye(3), "3x3, min 0.000, max 1.000, row sums 1.000, argmax [0 1 2]"),
        (-np.eye(2) * 1e-9, "2x2, min 0.000, max 0.000, row sums 0.000, argmax [0 0]"),
        ([[1, 2], [3, 4.5]], "2x2, min 1.000, max 4.500, row sums 3.000 to 7.500, argmax [1 1]"),
        ([[0.3, 0.3 + 1e-12]], "1x2, min 0.300, max 0.300, row sums 0.600, argmax [0]"),
        ([np.nan, 1], "2, nan 1, min 1.000, max 1.000, sum nan, argmax 1"),
        ([[-np.inf, 1]], "1x2, min -inf, max 1.000, row sums -inf, argmax [1]"),
        (
            np.ones((2, 1, 2)) / 2,
            "2x1x2, min 0.500, max 0.500, row sums 1.000, argmax [[0] [0]]",
        ),
    ],
)
def test_summary(matrix, text):
    assert plots.summary(matrix) == text


# ---------------------------------------------------------------- colours


def test_widget_colours_are_matplotlibs():
    for mine, name in ((palette.SEQUENTIAL, "cividis"), (palette.DIVERGING, "PuOr_r")):
        theirs = colormaps[name](np.linspace(0, 1, 9))[:, :3] * 255
        for colour, rgb in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(palette._rgb(colour), rgb, atol=1)


def test_ink_can_be_read_on_every_cell_colour():
    def luminance(colour):
        rgb = palette._rgb(colour) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    grounds = [palette.weight_colour(v, 1.0) for v in np.linspace(0, 1, 21)]
    grounds += [palette.signed_colour(v, 1.0) for v in np.linspace(-1, 1, 21)]
    for ground in [*grounds, *palette.HEAD_COLOURS, palette.weight_colour(np.nan, 1.0)]:
        a, b = sorted((luminance(ground), luminance(palette.ink_on(ground))))
        assert (b + 0.05) / (a + 0.05) >= 4.5, ground


# ---------------------------------------------------------------- all widgets

POSITIONS = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
SCORES = np.array([[0.0, 2.0, 1.0, -1.0], [5.0, 1.0, 1.0, 1.0], [0, 0, 0, 3.0], [1, 1, 1, 1.0]])


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


# ---------------------------------------------------------------- one widget at a time


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


# ---------------------------------------------------------------- markup


def test_numbers_are_never_minus_zero():
    assert markup.number(-1e-9) == "0.000"
    assert markup.number(-1.5, 1) == "−1.5"
    assert markup.number(float("nan")) == "nan"


def test_split_origin_matches_numpy():
    x = np.arange(24).reshape(4, 6)
    expected = x.reshape(4, 3, 2).swapaxes(0, 1)
    np.testing.assert_array_equal(diagrams.split_origin(4, 6, 3), expected)


# ---------------------------------------------------------------- in a real notebook

CELLS = [
    "import numpy as np\nfrom mha_lesson import show\n"
    "tokens = ['Maya', 'placed', 'the', 'book']\n"
    "scores = np.arange(16.0).reshape(4, 4) % 5\n"
    "weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)",
    "show.PositionSlider(scores, tokens)",
    "show.WordScores(tokens, scores, weights)",
    "show.ScaleSlider()",
    "show.MaskPainter(tokens, attend=lambda keep: keep / keep.sum(-1, keepdims=True))",
    "show.SoftmaxExplorer()",
    "show.TensorSlicer(tokens, 8, 2)",
    "show.show_map(weights, tokens, title='weights', alt='Weights of four words.')",
    "show.figure(show.head_grid(np.stack([weights] * 2), tokens), 'Two heads.')",
    "show.figure(show.lines([1, 2, 4], {'a': [1, 2, 3]}, logx=True), 'A rising line.')",
    "show.figure(show.bars(tokens, scores[0]), 'Four bars.', show.summary(scores[0]))",
    "show.figure(show.course_map((1, 2)), 'The map of the course.')",
    "show.figure(show.position_bands(scores), 'Four positions.')",
    "show.figure(show.similarity_map(scores, tokens), 'Similarities of four words.')",
    "show.figure(show.head_tensor(scores, 2, tokens, reshape_only=True), 'Mixed tokens.')",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook with every figure and widget, run once: (path, environment, notebook)."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    folder = tmp_path_factory.mktemp("notebook")
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute(
        env=environment
    )
    notebook.metadata.pop("widgets", None)
    path = folder / "all.ipynb"
    nbformat.write(notebook, path)
    return path, environment, notebook


@pytest.mark.slow
def test_every_output_has_picture_text_and_alt(executed):
    for cell in executed[2].cells[1:]:
        (output,) = cell.outputs
        assert output.data["image/png"].startswith("iVBOR")
        assert output.metadata["image/png"]["alt"]
        assert output.data["text/plain"].strip()
        assert ("Figure" in output.data["text/plain"]) is False


def run_nbval(notebook, folder, environment):
    """The strict comparison of stored and new outputs, as maintainers run it."""
    import nbformat

    nbformat.write(notebook, folder / "copy.ipynb")
    options = ["--nbval", "--nbval-current-env", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder / "copy.ipynb")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_strict_nbval_passes_with_and_without_the_stored_widget_view(executed, tmp_path):
    pytest.importorskip("nbval")
    import nbformat

    path, environment, _ = executed
    notebook = nbformat.read(path, 4)
    # Every second output loses its link to a live widget, as in notebooks stored clean.
    for cell in notebook.cells[::2]:
        for output in cell.outputs:
            output.data.pop(VIEW, None)
    done = run_nbval(notebook, tmp_path, environment)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{len(CELLS)} passed" in done.stdout


@pytest.mark.slow
def test_nbval_notices_when_a_number_behind_a_picture_changes(executed, tmp_path):
    pytest.importorskip("nbval")
    import nbformat

    path, environment, _ = executed
    notebook = nbformat.read(path, 4)
    # The stored outputs stay, the weights change: the sum runs over the wrong axis.
    notebook.cells[0].source = CELLS[0].replace("sum(1,", "sum(0,")
    notebook.cells = [cell for cell in notebook.cells if cell.source in (notebook.cells[0].source, CELLS[2], CELLS[7])]
    done = run_nbval(notebook, tmp_path, environment)
    assert "2 failed, 1 passed" in done.stdout, done.stdout[-3000:]
