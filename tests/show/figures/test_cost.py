"""Figures of cost: slopes, roofline, recall, many devices; and their text can be read."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from mha_lesson import show
from mha_lesson.show.figures import cost as plots_cost
from mha_lesson.show.figures import plots
from mha_lesson.steps.serving import PUBLISHED
from tests.show.helpers_cost import N, written

ROOF = {"a": (10, 20.0), "b": (11, 21.0), "a long name": (10.5, 20.5), "at the top": (1000, 600.0)}


RECALL = {"full": ([0.8, 0.9], [0.9, 0.95], [1, 1]), "window": ([0, 0], [0.5, 0.1], [1, 0.2])}


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def seen_labels(axis):
    """The labels of the ticks that lie inside the figure; matplotlib keeps some more at the ends."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 if tick.label1.get_visible() else tick.label2
            for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]  # fmt: skip


def check_texts(fig):
    """No text covers another, none is cut off, none is too small, and the figure fits a page."""
    assert fig.get_figwidth() <= 8.0
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    axes = fig.axes[0]
    texts = [*axes.texts, axes.title, *seen_labels(axes.xaxis), *seen_labels(axes.yaxis)]
    texts = [text for text in texts if text.get_text().strip()]
    # Not Annotation's own method: that one counts its leader line in.
    boxes = [(text.get_text(), type(axes.title).get_window_extent(text, canvas.get_renderer())) for text in texts]
    for (name, a), (other, b) in combinations(boxes, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        along = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across < 1 or along < 1, f"{name!r} covers {other!r}"
    whole = fig.bbox
    for name, box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1, f"{name!r} is cut"
    assert min(text.get_fontsize() for text in texts) >= plots.SMALL


# ------------------------------------------------------------------------------ cost against length


def test_slopes_are_the_powers_of_n():
    assert show.slope_of(N, 3.0 * N**2) == pytest.approx(2)
    assert show.slope_of(N, 5.0 + 0 * N) == pytest.approx(0)
    assert show.slope_of([1, 2, 4], [9, 1, 8]) == pytest.approx(3), "the last two points count"
    assert show.slope_of([1, 2, 4, 8], [1, 2, np.nan, np.nan]) == pytest.approx(1), "NaN: not measured"


@pytest.mark.parametrize(
    "lengths, values, words",
    [([1, 2], [1], "one for each length"), ([1, 2], [1, np.nan], "two points"), ([1, 2], [0, 1], "above 0"),
     ([2, 2], [1, 3], "two different lengths")],
)  # fmt: skip
def test_no_slope_without_two_points(lengths, values, words):
    with pytest.raises(ValueError, match=words):
        show.slope_of(lengths, values)


def test_cost_lines_hold_the_data_and_say_the_slope():
    fig = show.cost_lines(N, {"square": 1e-6 * N**2, "line": np.where(N > 900, np.nan, 1e-4 * N)}, "seconds")
    axes = fig.axes[0]
    found = lines_of(axes)
    assert {"square (slope 2.0)", "line (slope 1.0)"} <= set(found)
    assert np.array_equal(found["square (slope 2.0)"].get_ydata(), 1e-6 * N**2)
    assert len(found["line (slope 1.0)"].get_xdata()) == 3, "what was not measured is left out"
    assert axes.get_xscale() == axes.get_yscale() == "log" and axes.get_ylabel() == "seconds"
    assert sorted(written(axes)) == ["line (slope 1.0)", "slope 1", "slope 2", "square (slope 2.0)"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["128", "256", "512", "1,024"]


def test_a_name_leads_to_the_last_point_of_its_line():
    axes = show.cost_lines(N, {"square": 1e-6 * N**2, "line": np.where(N > 900, np.nan, 1e-4 * N)}).axes[0]
    points = {text.get_text(): text.xy for text in axes.texts}
    assert points["square (slope 2.0)"] == pytest.approx((1024, 1e-6 * 1024**2))
    assert points["line (slope 1.0)"] == pytest.approx((512, 1e-4 * 512))


def test_guide_lines_have_their_slopes_and_lie_above_the_data():
    values = {"a": 1e-6 * N**2, "b": 1e-3 * N**1.0}
    axes = show.cost_lines(N, values, slopes=(0.5, 3)).axes[0]
    for slope in (0.5, 3):
        x, y = lines_of(axes)[f"_slope {slope}"].get_data()
        assert np.log(y[1] / y[0]) / np.log(x[1] / x[0]) == pytest.approx(slope)
        assert axes.get_ylim()[0] < min(y) and max(y) < axes.get_ylim()[1], "inside the figure"
        for data in values.values():
            assert (y > np.interp(x, N, data)).all()
    assert not [name for name in lines_of(show.cost_lines(N, values, slopes=()).axes[0]) if "_slope" in name]


def test_every_line_has_its_own_colour_marker_and_stroke():
    found = show.cost_lines(N, {str(i): (i + 1.0) * N for i in range(4)}, slopes=()).axes[0].lines
    for look in ("get_color", "get_marker", "get_linestyle"):
        assert len({getattr(line, look)() for line in found}) == 4


@pytest.mark.parametrize(
    "lengths, series, words",
    [([1], {"a": [1]}, "two lengths"), (N, {}, "one series"), (N, {"a": [1, 2]}, r"'a': expected 4 values"),
     (N, {"a": [0, 1, 2, 3]}, "above 0"), (N, {"a": [np.nan] * 4}, "nothing was measured")],
)  # fmt: skip
def test_cost_lines_refuse_what_has_no_slope(lengths, series, words):
    with pytest.raises(ValueError, match=words):
        show.cost_lines(lengths, series)


def test_a_line_of_one_point_or_none_is_drawn_without_a_slope():
    one, no = [1, np.nan, np.nan, np.nan], [np.nan] * 4
    axes = show.cost_lines(N, {"one": one, "none": no, "flat": [1, 1, 1, 0.999]}).axes[0]
    assert "one" in written(axes) and "none" not in written(axes)
    assert "flat (slope 0.0)" in written(axes), "never -0.0"
    text = show.cost_text(N, {"one": one, "flat": [2, 2, 2, 4]}, "bytes")
    assert text == "bytes against length, 128 to 1,024, both logarithmic: one no slope measured; flat slope 1.0."


def test_names_move_apart_and_keep_their_order():
    wanted, heights = [0.5, 0.1, 0.52, 0.5], [0.1, 0.1, 0.2, 0.1]
    places = plots_cost.spread_out(wanted, heights)
    assert places[1] == pytest.approx(0.1), "what is free stays"
    order = sorted(range(4), key=places.__getitem__)
    assert order == [1, 0, 3, 2]
    for a, b in pairwise(order):
        assert places[b] - places[a] >= (heights[a] + heights[b]) / 2 - 1e-6
    assert plots_cost.spread_out([0.5, 0.5], [0.1, 0.1]) == pytest.approx([0.45, 0.55]), "each gives way alike"
    assert plots_cost.spread_out([], []) == []


# ------------------------------------------------------------------------------ roofline, recall


def test_the_roof_has_its_ridge_where_peak_meets_bandwidth():
    axes = show.roofline(ROOF, peak_tflops=800, bandwidth_tb_s=4).axes[0]
    found = lines_of(axes)
    x, y = found["_roof"].get_data()
    assert np.allclose(y, np.minimum(800, 4 * x))
    assert x[0] < 10 and x[-1] > 1000
    assert found["_ridge"].get_xdata().tolist() == [200, 200]
    assert {"200 operations a byte", "peak 800 TFLOP/s", "4 TB/s"} <= set(written(axes))
    assert found["a"].get_xydata().tolist() == [[10, 20]]
    named = {text.get_text(): text.xy for text in axes.texts}
    assert all(named[name] == place for name, place in ROOF.items()), "a name leads to its point"
    assert len({found[name].get_marker() for name in ROOF}) == 4
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_the_roofline_in_words_says_how_near_the_roof_is():
    text = show.roofline_text({"decode": (10, 20.0), "prefill": (1000, 600.0)}, 800, 4)
    assert "flat from 200 operations a byte" in text
    assert "decode: 10 operations a byte, 20 TFLOP/s, 50 % of the roof" in text  # 4 TB/s · 10 = 40 TFLOP/s
    assert "600 TFLOP/s, 75 % of the roof" in text


@pytest.mark.parametrize("points, peak, width", [({"a": (0, 1)}, 1, 1), ({"a": (1, np.inf)}, 1, 1), ({}, -1, 1)])
def test_the_roofline_refuses_what_has_no_logarithm(points, peak, width):
    with pytest.raises(ValueError, match="above 0"):
        show.roofline(points, peak, width)


def test_recall_lines_show_means_bands_and_the_window():
    axes = show.recall_lines([4, 64], RECALL, window=16).axes[0]
    found = lines_of(axes)
    assert found["full"].get_xydata().tolist() == [[4, 0.9], [64, 0.95]]
    assert found["_window"].get_xdata()[0] == 16, "the window is a distance"
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.y0, band.x1, band.y1) == (4, 0.8, 64, 1)
    assert set(written(axes)) == {"full", "window", "the window ends: 16"}
    assert "_window" not in lines_of(show.recall_lines([4, 64], RECALL).axes[0])
    assert show.recall_text([4, 64], RECALL).endswith("full from 0.90 to 0.95; window from 0.50 to 0.10.")


def test_recall_lines_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="rising numbers"):
        show.recall_lines([64, 4], RECALL)
    with pytest.raises(ValueError, match=r"'full': expected \(low, mean, high\), 3 each"):
        show.recall_lines([4, 8, 64], RECALL)


# ------------------------------------------------------------------------------ many devices


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_ring_picture_agrees_with_the_ring(world):
    from mha_lesson.steps.gpu import ring_step

    axes = plots_cost.ring_picture(world).axes[0]
    for rank in range(world):
        for step in range(world):
            source, keep = ring_step(rank, step, world, 2)
            word = "all" if keep.all() else "triangle" if keep.any() else "none"
            text, patch = axes.texts[rank * world + step], axes.patches[rank * world + step]
            assert text.get_text() == f"K{source}\n{word}"
            assert text.get_position() == (step + 0.5, rank + 0.5)
            assert bool(patch.get_hatch()) == (word == "none"), "not by colour alone"


def test_without_a_mask_all_ranks_see_all_keys():
    texts = written(plots_cost.ring_picture(3, causal=False).axes[0])
    assert {text.split("\n")[1] for text in texts} == {"all"}
    assert sorted(text.split("\n")[0] for text in texts) == ["K0"] * 3 + ["K1"] * 3 + ["K2"] * 3


def test_heads_are_shared_out_without_gap_or_double():
    axes = show.head_split_picture(6, 3).axes[0]
    places = {text.get_text(): text.get_position() for text in axes.texts if text.get_text().startswith("H")}
    assert places == {f"H{h}": (h + 0.5, h // 2 + 0.5) for h in range(6)}
    assert written(axes).count("its part of\nthe output") == 3


def test_pictures_of_ranks_refuse_what_can_not_be_drawn():
    for world in (0, 9):
        with pytest.raises(ValueError, match=f"world: expected 1 to 8 ranks.*got {world}"):
            show.ring_picture(world)
    with pytest.raises(ValueError, match="multiple of 3 ranks"):
        show.head_split_picture(8, 3)


# ------------------------------------------------------------------------------ can it be read?


LONG = {"written out, all scores in memory": 1.0 * N**2, "online": 2.0 * N, "tiles": 2.01 * N, "flat": 9.0 + 0 * N}


FIGURES = {
    "cost": lambda: show.cost_lines(N, LONG, "seconds", "Time against length"),
    "roofline": lambda: show.roofline(ROOF, 800, 4),
    "roofline, ridge on the right": lambda: show.roofline({"decode": (1, 2), "decode, 64": (1.01, 2.2)}, 989, 3.35),
    "recall": lambda: show.recall_lines([4, 8, 64], {n: [[0.9] * 3] * 3 for n in "abc"}, 4, "Recall"),
    "ring of 8": lambda: show.ring_picture(8, "Eight ranks"),
    "16 heads": lambda: show.head_split_picture(16, 4, "Sixteen heads"),
    "calculator": lambda: show.KVCacheCalculator(PUBLISHED).picture(),
    "tiles": lambda: show.TileStepper(np.ones((5, 7)) / 3, np.ones(7), 2, 3, True).picture(),
}


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_covers_another_or_is_cut(name):
    check_texts(FIGURES[name]())
