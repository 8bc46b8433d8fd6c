"""Figures hold the right data."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from mha_lesson.show.figures import plots
from tests.show.helpers import TOKENS, tick_names, written

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
