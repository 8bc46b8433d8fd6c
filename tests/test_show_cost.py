"""Figures and widgets of lessons 11 to 13, tested on the numbers that they show."""

import math

import numpy as np
import pytest

from mha_lesson import show
from mha_lesson.show import plots_cost
from mha_lesson.show.widget_cache import cache_facts, size_text
from mha_lesson.show.widget_tiles import tile_steps
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.serving import PUBLISHED, kv_cache_bytes
from mha_lesson.steps.softmax import masked_softmax

N = np.array([128, 256, 512, 1024])


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def test_slopes_are_the_powers_of_n():
    assert show.slope_of(N, 3.0 * N**2) == pytest.approx(2)
    assert show.slope_of(N, 5.0 + 0 * N) == pytest.approx(0)
    assert show.slope_of(N, N**1.5 + 1e3) > 1


def test_cost_lines_hold_the_data_and_say_the_slope():
    fig = show.cost_lines(N, {"square": 1e-6 * N**2, "line": np.where(N > 900, np.nan, 1e-4 * N)}, "seconds")
    found = lines_of(fig.axes[0])
    assert {"square (slope 2.0)", "line (slope 1.0)"} <= set(found)
    assert np.array_equal(found["square (slope 2.0)"].get_ydata(), 1e-6 * N**2)
    assert len(found["line (slope 1.0)"].get_xdata()) == 3, "what was not measured is left out"
    assert fig.axes[0].get_xscale() == fig.axes[0].get_yscale() == "log"
    assert {text.get_text() for text in fig.axes[0].texts} == {"slope 1", "slope 2"}


def test_cost_lines_refuse_what_has_no_slope():
    with pytest.raises(ValueError, match="two lengths"):
        show.cost_lines([1], {"a": [1]})
    with pytest.raises(ValueError, match="expected 4 values"):
        show.cost_lines(N, {"a": [1, 2]})


def test_the_roof_has_its_ridge_where_peak_meets_bandwidth():
    fig = show.roofline({"a": (10, 20.0), "b": (1000, 600.0)}, peak_tflops=800, bandwidth_tb_s=4)
    found = lines_of(fig.axes[0])
    x, y = found["_roof"].get_data()
    assert np.allclose(y, np.minimum(800, 4 * x))
    assert x[0] < 10 and x[-1] > 1000
    assert fig.axes[0].texts[0].get_text() == "200 operations a byte"
    assert found["a"].get_xydata().tolist() == [[10, 20]]


def test_recall_lines_show_means_and_the_window():
    series = {"full": ([0.8, 0.9], [0.9, 0.95], [1, 1]), "window": ([0, 0], [0.5, 0.1], [1, 0.2])}
    axes = show.recall_lines([4, 64], series, window=0.5).axes[0]
    assert lines_of(axes)["full"].get_ydata().tolist() == [0.9, 0.95]
    assert len(axes.collections) == 2 and axes.texts[0].get_text() == "edge of the window"


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_ring_picture_agrees_with_the_ring(world):
    from mha_lesson.steps.gpu import ring_step

    texts = [text.get_text() for text in plots_cost.ring_picture(world).axes[0].texts]
    for rank in range(world):
        for step in range(world):
            source, keep = ring_step(rank, step, world, 2)
            word = "all" if keep.all() else "triangle" if keep.any() else "none"
            assert texts[rank * world + step] == f"K{source}\n{word}"


# ------------------------------------------------------------------------------ the calculator


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda m: m.name)
@pytest.mark.parametrize("tokens, batch, size", [(1024, 1, 2), (8192, 7, 1)])
def test_the_calculator_counts_as_the_lesson_does(model, tokens, batch, size):
    found = cache_facts(model, tokens, batch, size)
    kept = min(tokens, model.window or tokens)
    assert found["kept"] == kept
    full, own, one = found["by_heads"].values()
    assert own == found["total"] == kv_cache_bytes(model.layers, model.kv_heads, model.d_head, kept, batch, size)
    assert full * model.kv_heads == own * model.heads and one * model.kv_heads == own
    assert found["token"] * kept * batch == own


def test_sizes_read_well():
    assert [size_text(n) for n in (12, 2048, 3 * 2**20, 2**31)] == ["12 bytes", "2 KiB", "3 MiB", "2 GiB"]


def test_the_calculator_says_what_it_shows():
    widget = show.KVCacheCalculator(PUBLISHED, "Llama 2 7B")
    assert "Llama 2 7B, 1 text of 4,096 tokens, 2 bytes a number: 2 GiB" in widget.text
    assert "512 KiB" in widget.text
    state = {**widget.start, "model": "Mistral 7B", "tokens": 32768, "batch": 3}
    assert "keeps the last 4,096" in widget.describe(**state)
    assert "made for texts up to 8,192" in widget.describe(**state)
    assert "1.5 GiB" in widget.render(**state)
    assert "Llama 2 7B 2 GiB" in widget.picture_alt()
    assert len(widget.picture().axes[0].patches) == 2 * len(PUBLISHED)


def test_the_calculator_refuses_unknown_models():
    with pytest.raises(ValueError, match=r"Llama 2 7B.*got 'mine'"):
        show.KVCacheCalculator(PUBLISHED, "mine")
    with pytest.raises(ValueError, match="empty"):
        show.KVCacheCalculator([])


def test_moving_a_control_changes_the_html():
    widget = show.KVCacheCalculator(PUBLISHED, "Llama 2 7B")
    before = widget.output.value
    widget.controls["batch"].value = 5
    assert widget.output.value != before and "5 texts" in widget.output.value


# ------------------------------------------------------------------------------ the stepper


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("L, S, block_q, block_k", [(5, 7, 2, 3), (3, 3, 1, 1), (2, 11, 5, 4), (7, 3, 2, 2)])
def test_the_last_tile_of_each_block_holds_the_answer(L, S, block_q, block_k, causal):
    rng = np.random.default_rng(0)
    scores, values = 5 * rng.standard_normal((L, S)), rng.standard_normal(S)
    keep = causal_mask(L, S) if causal else True
    answer = masked_softmax(scores, keep) @ values
    steps = tile_steps(scores, values, block_q, block_k, causal)
    last = {step.rows.start: step for step in steps}
    for step in last.values():
        found = np.divide(step.o, step.l, out=np.zeros_like(step.o), where=step.l > 0)
        assert np.allclose(found, answer[step.rows], atol=1e-12)
    if causal:
        assert all(causal_mask(L, S)[step.rows, step.keys].any() for step in steps)
    else:
        assert len(steps) == math.ceil(L / block_q) * math.ceil(S / block_k)


def test_the_stepper_says_when_sums_shrink():
    widget = show.TileStepper(np.array([[1.0, 2.0, 4.0, 0.0]]), np.arange(4.0), block_q=1, block_k=2)
    assert "nothing has to shrink yet" in widget.describe(1)
    assert f"exp(2.0 - 4.0) = {math.exp(-2):.3f}" in widget.describe(2)
    assert "The row is done after 2 tiles" in widget.describe(2)
    assert widget.text.startswith("TileStepper: Tile 1 of 2")
    widget.controls["tile"].value = 2
    assert "Tile 2 of 2" in widget.output.value


def test_the_stepper_marks_tiles_and_future():
    widget = show.TileStepper(np.ones((4, 4)), np.ones(4), block_q=2, block_k=2, causal=True)
    html = widget.render(2)
    assert html.count("#ffd37a") == 4 and html.count("#bbbbbb") == 6
    assert "3 steps" in widget.picture_alt()
    assert widget.picture().axes[0].get_title().startswith("The order of the tiles")


def test_the_stepper_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"expected scores \(L, S\)"):
        tile_steps(np.ones((2, 3)), np.ones(2), 1, 1)
    with pytest.raises(ValueError, match="1 or more"):
        tile_steps(np.ones((2, 3)), np.ones(3), 0, 1)
