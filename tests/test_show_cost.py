"""Figures and widgets of lessons 11 to 13, tested on the numbers that they show."""

import math
import re
from dataclasses import FrozenInstanceError
from itertools import combinations, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from mha_lesson import show
from mha_lesson.show.figures import cost as plots_cost
from mha_lesson.show.figures import plots
from mha_lesson.show.palette import ink_on
from mha_lesson.show.widgets import tiles as widget_tiles
from mha_lesson.show.widgets.cache import cache_facts, cache_html, cache_text, choice_name, head_choices, size_text
from mha_lesson.show.widgets.tiles import final_answer, seen_by, tile_states, tile_steps
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.serving import PUBLISHED, kv_cache_bytes
from mha_lesson.steps.softmax import masked_softmax

N = np.array([128, 256, 512, 1024])
ROOF = {"a": (10, 20.0), "b": (11, 21.0), "a long name": (10.5, 20.5), "at the top": (1000, 600.0)}
RECALL = {"full": ([0.8, 0.9], [0.9, 0.95], [1, 1]), "window": ([0, 0], [0.5, 0.1], [1, 0.2])}


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def written(axes):
    return [text.get_text() for text in axes.texts]


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


# ------------------------------------------------------------------------------ the calculator


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda m: m.name)
@pytest.mark.parametrize("tokens, batch, size", [(1024, 1, 2), (8192, 7, 1)])
def test_the_calculator_counts_as_the_lesson_does(model, tokens, batch, size):
    found = cache_facts(model, tokens, batch, size)
    kept = min(tokens, model.window or tokens)
    assert found["kept"] == kept
    assert found["total"] == found["by_heads"][model.kv_heads] == model.cache_bytes(tokens, batch, size)
    for heads, total in found["by_heads"].items():
        assert total == kv_cache_bytes(model.layers, heads, model.d_head, kept, batch, size)
    assert found["full"] == found["by_heads"][model.heads] == found["saved"] * found["total"]
    assert found["token"] * kept * batch == found["total"]


def test_a_card_holds_as_many_texts_as_fit_and_not_one_more():
    model = next(m for m in PUBLISHED if m.name == "Llama 3 70B")
    found = cache_facts(model, 8192, 3, 2)
    assert found["fits"][8] == {24: 9, 80: 32, 141: 56}  # 2.5 GiB each, however many are asked for
    for heads, fits in found["fits"].items():
        one = found["by_heads"][heads] / 3
        assert all(n * one <= card * 2**30 < (n + 1) * one for card, n in fits.items())


@pytest.mark.parametrize(
    "heads, kv_heads, choices",
    [(32, 8, [32, 8, 1]), (32, 32, [32, 8, 1]), (12, 12, [12, 6, 1]), (71, 1, [71, 1]), (8, 1, [8, 1]), (1, 1, [1])],
)
def test_choices_of_key_heads_are_ones_that_can_be_built(heads, kv_heads, choices):
    assert head_choices(heads, kv_heads) == choices
    assert all(heads % n == 0 for n in head_choices(heads, kv_heads))
    assert kv_heads in head_choices(heads, kv_heads)


def test_choices_have_names():
    assert [choice_name(n, 32)[-5:] for n in (32, 8, 1)] == ["(MHA)", "(GQA)", "(MQA)"]
    assert choice_name(1, 1) == "1 head"


def test_sizes_read_well():
    sizes = (12, 1023, 1024, 2048, 3 * 2**20, 2**31, 1.25 * 2**30, 999.6 * 2**30, 100 * 2**40)
    texts = ["12 bytes", "1,023 bytes", "1 KiB", "2 KiB", "3 MiB", "2 GiB", "1.25 GiB", "1,000 GiB", "100 TiB"]
    assert [size_text(n) for n in sizes] == texts


def test_the_calculator_says_what_it_shows():
    widget = show.KVCacheCalculator(PUBLISHED, "Llama 2 7B")
    assert widget.text == (
        "KVCacheCalculator: Llama 2 7B, 1 text of 4,096 tokens, 2 bytes a number: 2 GiB, "
        "of which one token takes 512 KiB."
    )
    state = {**widget.start, "model": "Mistral 7B", "tokens": 32768, "batch": 3}
    said = widget.describe(**state)
    assert "keeps the last 4,096" in said and "made for texts up to 8,192" in said
    assert "each of its 32 query heads it would be 4 times as much, 6 GiB" in said
    assert "1.5 GiB" in widget.render(**state) and said in widget.render(**state)
    assert "Llama 2 7B 2 GiB" in widget.picture_alt()
    bars, count = widget.picture().axes[0].patches, len(PUBLISHED)
    assert len(bars) == 2 * count
    lengths = [bar.get_width() * 2**30 for bar in bars]
    assert lengths[1::2] == pytest.approx([m.cache_bytes(m.context) for m in PUBLISHED])
    assert lengths[::2] == pytest.approx([m.cache_bytes(m.context) * m.heads / m.kv_heads for m in PUBLISHED])


def test_the_table_marks_what_was_built():
    model = next(m for m in PUBLISHED if m.name == "Llama 3 8B")
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", cache_html(model, 8192, 2, 2))
    assert len(rows) == 3
    assert ["as built" in row for row in rows] == [False, True, False]
    assert ["width:100.0%" in row for row in rows] == [True, False, False]
    assert all(size in row for size, row in zip(("8 GiB", "2 GiB", "256 MiB"), rows, strict=True))


def test_a_model_of_the_learner_needs_no_more_than_its_shape():
    mine = SimpleNamespace(name="<mine>", layers=2, heads=4, kv_heads=2, d_head=8, context=64, window=16)
    assert cache_facts(mine, 64, 1, 4)["total"] == 2 * 2 * 2 * 8 * 16 * 4
    assert "&lt;mine&gt;" in cache_html(mine, 64, 1, 4) and "<mine>" not in cache_html(mine, 64, 1, 4)
    assert "1 byte a number" in cache_text(mine, 64, 1, 1)
    assert show.KVCacheCalculator([mine]).start["tokens"] == 256, "the shortest that the slider has"


def test_the_calculator_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match=r"Llama 2 7B.*got 'mine'"):
        show.KVCacheCalculator(PUBLISHED, "mine")
    with pytest.raises(ValueError, match="empty"):
        show.KVCacheCalculator([])
    with pytest.raises(ValueError, match="above 0"):
        cache_facts(PUBLISHED[0], 0, 1, 2)


def test_every_control_changes_the_html():
    widget = show.KVCacheCalculator(PUBLISHED, "Llama 2 7B")
    for name, value, words in [
        ("batch", 5, "5 texts"), ("tokens", 131072, "131,072 tokens"), ("bytes_per_number", 1, "1 byte a"),
        ("model", "GPT-3", "GPT-3, 5 texts"),
    ]:  # fmt: skip
        before = widget.output.value
        widget.controls[name].value = value
        assert widget.output.value != before and words in widget.output.value


# ------------------------------------------------------------------------------ the stepper

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


@pytest.mark.parametrize(
    "kind, arguments", [("KVCacheCalculator", [PUBLISHED[:3]]), ("TileStepper", [np.eye(3), N[:3]])]
)
def test_stored_output_is_a_picture_with_words(kind, arguments):
    widget, again = (getattr(show, kind)(*arguments) for _ in range(2))
    data, metadata = widget._repr_mimebundle_()
    assert data["image/png"][:4] == b"\x89PNG" and data["text/plain"] == repr(again)
    assert len(metadata["image/png"]["alt"]) > 40
    assert 'role="status"' in widget.output.value


def test_an_error_in_a_callback_is_shown():
    widget = show.TileStepper(np.eye(3), np.ones(3))
    widget.steps = []
    widget.controls["tile"].value = 2
    assert "This could not be drawn" in widget.output.value and "IndexError" in widget.output.value
