"""Figures about cost: time and memory against length, the roofline, recall, devices that share the work.

Like `plots`: arrays in, a matplotlib Figure out. Show one with `show.figure(fig, alt="...")`.

    cost = c · N^p  is, on two logarithmic axes, the straight line  log cost = p · log N + log c
    roof(x) = min(peak, x · bandwidth)     x: operations for each byte that is moved

Source of the roofline: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
"""

from textwrap import fill

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from mha_lesson.show.figures.plots import MARKERS, SMALL, STYLES, _title
from mha_lesson.show.palette import LINE_COLOURS, darker, head_colour

GUIDE = "#8c8c8c"
SIZE = (7.6, 4.3)  # inches
NARROW = 24  # letters in a line of a label
MOST_RANKS = 8  # rows, or columns, that fit
# A thin line from the left edge of a name to its point.
LEADER = {"arrowstyle": "-", "linewidth": 0.8, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 4}


# ---------------------------------------------------------------- cost against length


def slope_of(lengths, values) -> float:
    """The power p in value ~ length^p, from the last two points: where fixed costs matter least.

    lengths, values (n,): above 0; NaN where something was not measured.
    """
    lengths, values = np.asarray(lengths, float), np.asarray(values, float)
    if lengths.shape != values.shape or lengths.ndim != 1:
        raise ValueError(f"values: expected one for each length, {lengths.shape}, got {values.shape}.")
    there = np.isfinite(values)
    (a, b), (x, y) = _last_two(lengths[there]), _last_two(values[there])
    if min(a, b, x, y) <= 0 or a == b:
        raise ValueError(f"expected numbers above 0 and two different lengths, got lengths {a:g}, {b:g}: {x:g}, {y:g}.")
    return float(np.log(y / x) / np.log(b / a))


def _last_two(numbers):
    if len(numbers) < 2:
        raise ValueError(f"expected two lengths or more with a value: a slope needs two points, got {len(numbers)}.")
    return numbers[-2:]


def cost_lines(lengths, series, ylabel="", title="", slopes=(1, 2), xlabel="length N"):
    """Cost against length, both logarithmic: a power of N is a straight line, and its slope is the power.

    series: {name: values (n,)}; NaN where something was not measured. slopes: thin lines to compare with.
    At the end of each line stands its name and its slope between its last two points.
    """
    lengths = np.asarray(lengths, float)
    series = {str(name): np.asarray(values, float) for name, values in series.items()}
    _check_cost(lengths, series)
    fig = Figure(figsize=SIZE, facecolor="white", layout="constrained")
    axes = fig.subplots()
    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    ends = []
    for index, (name, values) in enumerate(series.items()):
        there = np.isfinite(values)
        if there.sum() > 1:
            name += f" (slope {_slope_text(lengths, values)})"
        axes.plot(lengths[there], values[there], label=name, **_look(index))
        if there.any():
            ends.append((name, lengths[there][-1], values[there][-1], LINE_COLOURS[index % len(LINE_COLOURS)]))
    _draw_slopes(axes, lengths, np.array(list(series.values())), slopes)
    axes.set_xticks(lengths, [f"{n:,g}" if n < 1e6 else f"{n:.3g}" for n in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    _name_ends(axes, ends)
    _finish(axes, title)
    return fig


def cost_text(lengths, series, what="cost"):
    """The figure of `cost_lines` in words, for its alt text."""
    parts = []
    for name, values in series.items():
        there = np.isfinite(values)
        slope = f"slope {_slope_text(lengths, values)}" if there.sum() > 1 else "no slope measured"
        parts.append(f"{name} {slope}")
    return f"{what} against length, {lengths[0]:,g} to {lengths[-1]:,g}, both logarithmic: {'; '.join(parts)}."


def _slope_text(lengths, values):
    return f"{round(slope_of(lengths, values), 1) + 0.0:.1f}"  # + 0.0: never -0.0


def _check_cost(lengths, series):
    if lengths.ndim != 1 or len(lengths) < 2 or not series:
        raise ValueError("expected two lengths or more and one series or more: a slope needs two points.")
    for name, values in series.items():
        if values.shape != lengths.shape:
            raise ValueError(f"series {name!r}: expected {len(lengths)} values, got {values.shape}.")
        if (values <= 0).any() or (lengths <= 0).any():
            raise ValueError(f"series {name!r}: expected numbers above 0, they have a logarithm. NaN: not measured.")
    if not any(np.isfinite(values).any() for values in series.values()):
        raise ValueError("series: nothing was measured, all values are NaN.")


def _draw_slopes(axes, lengths, values, slopes):
    """Thin lines from one point, above what is drawn on the left, so that they meet no data that rises."""
    if not len(slopes):
        return
    reach = lengths[0] * (lengths[-1] / lengths[0]) ** np.array([0, 0.3])  # a third of the width
    near = values[:, lengths <= lengths[0] * (lengths[-1] / lengths[0]) ** 0.5]
    start = 1.6 * (np.nanmax(near) if np.isfinite(near).any() else np.nanmax(values))
    low, high = axes.get_ylim()
    for slope in slopes:
        line = start * (reach / reach[0]) ** slope
        axes.plot(reach, line, color=GUIDE, linewidth=1.0, label=f"_slope {slope}")
        axes.annotate(f"slope {slope}", (reach[1], line[1]), (4, 0), textcoords="offset points",
                      color="#555555", fontsize=SMALL, va="center")  # fmt: skip
        high = max(high, line[1] * 2)
    axes.set_ylim(low, high)


def _look(index):
    """Colour, marker and line style of curve number `index`."""
    return {
        "color": LINE_COLOURS[index % len(LINE_COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": STYLES[index % len(STYLES)],
        "markersize": 5.5,
    }


def _name_ends(axes, ends):
    """Names at the right edge, beside the last points: ends is [(name, x, y, colour)].

    Names that would cover each other move apart; a thin line leads from each to its point.
    """
    low, high = axes.get_ylim()
    scale = np.log if axes.get_yscale() == "log" else np.asarray
    texts = [fill(name, NARROW) for name, *_ in ends]
    line = 1.35 * SMALL / 72 / (axes.figure.get_figheight() - 0.9)  # of the height of the axes
    heights = [line * (text.count("\n") + 1) for text in texts]
    wanted = [float((scale(y) - scale(low)) / (scale(high) - scale(low))) for _, _, y, _ in ends]
    for text, place, (_, x, y, colour) in zip(texts, spread_out(wanted, heights), ends, strict=True):
        axes.annotate(
            text, (x, y), (1.04, place), textcoords="axes fraction", va="center", fontsize=SMALL,
            color=darker(colour, 0.35), annotation_clip=False,
            arrowprops={"color": colour, **LEADER},
        )  # fmt: skip


def spread_out(wanted, heights):
    """Centres for boxes of these heights, none over another, each as near to `wanted` as a few rounds make it."""
    order = np.argsort(wanted, kind="stable")
    places, heights = np.asarray(wanted, float)[order], np.asarray(heights, float)[order]
    for _ in range(200):
        gaps = (heights[1:] + heights[:-1]) / 2 - np.diff(places)
        if not (gaps > 1e-9).any():
            break
        push = np.where(gaps > 0, gaps / 2, 0)
        places[1:] += push
        places[:-1] -= push
    # What is left after the rounds goes upwards.
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + (heights[i] + heights[i - 1]) / 2)
    back = np.empty_like(places)
    back[order] = places
    return back.tolist()


# ---------------------------------------------------------------- the roofline


def roofline(points, peak_tflops, bandwidth_tb_s, title=""):
    """What a device can reach at so many operations a byte: memory limits on the left, arithmetic on the right.

    points: {name: (operations a byte, TFLOP/s)}.
    """
    numbers = np.array([peak_tflops, bandwidth_tb_s, *np.ravel(list(points.values()))], float)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        raise ValueError("points, peak_tflops, bandwidth_tb_s: expected finite numbers above 0, they have a logarithm.")
    fig = Figure(figsize=SIZE, facecolor="white", layout="constrained")
    axes = fig.subplots()
    ridge = peak_tflops / bandwidth_tb_s
    reach = [x for x, _ in points.values()] + [ridge]
    x = np.geomspace(min(reach) / 3, max(reach) * 4, 200)
    roof = np.minimum(peak_tflops, x * bandwidth_tb_s)
    axes.plot(x, roof, color="#000000", linewidth=1.6, label="_roof")
    bottom = min([y for _, y in points.values()] + [roof[0]]) / 1.5
    axes.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(bottom, peak_tflops * 2))
    axes.set(xlabel="operations a byte", ylabel="TFLOP/s")
    axes.plot([ridge, ridge], [bottom, peak_tflops], color=GUIDE, linewidth=0.9, linestyle=":", label="_ridge")
    axes.annotate(f"{ridge:.3g} operations a byte", (ridge, bottom), (5, 5), textcoords="offset points", fontsize=SMALL)
    axes.annotate(f"peak {peak_tflops:,.4g} TFLOP/s", (x[-1], peak_tflops * 1.12), ha="right", fontsize=SMALL)
    high = x[0] ** 0.2 * ridge**0.8  # near the top of the slope, where there is room beside it
    speed = f"{bandwidth_tb_s:.3g} TB/s" if bandwidth_tb_s >= 0.1 else f"{bandwidth_tb_s * 1000:.3g} GB/s"
    axes.annotate(speed, (high, high * bandwidth_tb_s), (-8, 6), ha="right", textcoords="offset points", fontsize=SMALL)
    for index, (name, (intensity, tflops)) in enumerate(points.items()):
        look = {**_look(index), "linestyle": "none", "markersize": 8}
        axes.plot([intensity], [tflops], label=str(name), markeredgecolor="white", zorder=3, **look)
    _name_points(axes, points)
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        _plain_ticks(axis, low, high)
    _finish(axes, title)
    return fig


def roofline_text(points, peak_tflops, bandwidth_tb_s):
    """The figure of `roofline` in words, for its alt text."""
    ridge = peak_tflops / bandwidth_tb_s
    parts = [
        f"{name}: {x:,.3g} operations a byte, {y:,.3g} TFLOP/s, "
        f"{100 * y / min(peak_tflops, x * bandwidth_tb_s):.0f} % of the roof"
        for name, (x, y) in points.items()
    ]
    return f"A roof that rises, then is flat from {ridge:.3g} operations a byte on. {'; '.join(parts)}."


def _name_points(axes, points):
    """A name to the lower right of each point, under the roof; one that would cover another goes further down."""
    width, height = SIZE[0] - 0.9, SIZE[1] - 0.9  # of the axes, in inches, about
    (left, right), (low, high) = np.log(axes.get_xlim()), np.log(axes.get_ylim())
    spots = {
        str(name): ((np.log(x) - left) / (right - left) * width, (np.log(y) - low) / (high - low) * height)
        for name, (x, y) in points.items()
    }
    letter, line = 0.62 * SMALL / 72, 1.35 * SMALL / 72
    taken = [(x - 0.07, x + 0.07, y - 0.07, y + 0.07) for x, y in spots.values()]
    for name, (x, y) in sorted(spots.items(), key=lambda item: -item[1][1]):
        start, wide, top = x + 0.16, letter * len(name), y - 0.06
        while any(start < b and a < start + wide and top - line < d and c < top for a, b, c, d in taken):
            top -= line / 3
        taken.append((start, start + wide, top - line, top))
        index = list(spots).index(name)
        axes.annotate(
            name, list(points.values())[index], (start / width, (top - line / 2) / height), textcoords="axes fraction",
            va="center", fontsize=SMALL, color=darker(LINE_COLOURS[index % len(LINE_COLOURS)], 0.35),
            arrowprops={"color": GUIDE, **LEADER},
        )  # fmt: skip


def _plain_ticks(axis, low, high):
    """1, 10, 100; with 2 and 5 between them where few powers of ten fit."""
    steps = (1, 2, 5) if np.log10(high / low) < 3 else (1,)
    ticks = [n * 10.0**e for e in range(-9, 12) for n in steps]
    axis.set_ticks([t for t in ticks if low <= t <= high])
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_locator(NullLocator())


# ---------------------------------------------------------------- recall


def recall_lines(
    distances, series, window=None, title="", ylabel="share of right answers", xlabel="how far back the answer stands"
):
    """Accuracy against distance: {name: (low (n,), mean (n,), high (n,))}, the spread of the runs as a band.

    distances (n,): rising, above 0; they stand on a logarithmic axis.
    window: how far back the model with a window can see, a distance; a dotted line marks it.
    """
    distances = np.asarray(distances, float)
    if distances.ndim != 1 or not len(distances) or (distances <= 0).any() or (np.diff(distances) <= 0).any():
        raise ValueError(f"distances: expected rising numbers above 0, got {distances.tolist()}.")
    fig = Figure(figsize=SIZE, facecolor="white", layout="constrained")
    axes = fig.subplots()
    axes.set(xscale="log", xlabel=xlabel, ylabel=ylabel, ylim=(-0.04, 1.14))
    ends = []
    for index, (name, bands) in enumerate(series.items()):
        bands = np.asarray(bands, float)
        if bands.shape != (3, len(distances)):
            raise ValueError(f"series {name!r}: expected (low, mean, high), {len(distances)} each, got {bands.shape}.")
        low, mean, high = bands
        look = _look(index)
        # Steps: each number is that of a whole band, and a slope between two would promise what nobody measured.
        axes.fill_between(distances, low, high, color=look["color"], alpha=0.18, linewidth=0, step="mid")
        axes.plot(distances, mean, label=str(name), drawstyle="steps-mid", **look)
        ends.append((str(name), distances[-1], mean[-1], look["color"]))
    if window is not None:
        axes.axvline(window, color=GUIDE, linestyle=":", linewidth=1.4, label="_window")
        axes.annotate(f"the window ends: {window:g}", (window, 1.13), (4, 0), textcoords="offset points",
                      fontsize=SMALL, va="top", color="#555555")  # fmt: skip
    axes.set_xticks(distances, [f"{d:g}" for d in distances])
    axes.set_yticks(np.arange(6) / 5)
    axes.xaxis.set_minor_locator(NullLocator())
    _name_ends(axes, ends)
    _finish(axes, title)
    return fig


def recall_text(distances, series):
    """The figure of `recall_lines` in words, for its alt text."""
    parts = [f"{name} from {mean[0]:.2f} to {mean[-1]:.2f}" for name, (_, mean, _) in series.items()]
    return f"Share of right answers, {distances[0]:g} to {distances[-1]:g} back: {'; '.join(parts)}."


# ---------------------------------------------------------------- many devices

SEEN = {"all": ("#56b4e9", ""), "triangle": ("#e69f00", ""), "none": ("#e8e8e8", "////")}  # colour, hatch


def ring_picture(world, title="", causal=True):
    """Whose keys each rank holds at each step of ring attention, and how many of them it may see.

    A grid: ranks are rows, steps are columns. K2 means: the keys of rank 2. Without causal all see all.
    """
    _check_ranks(world)
    fig, axes = _grid(world, [f"step {s}" for s in range(world)], [f"rank {r}" for r in range(world)])
    for rank in range(world):
        for step in range(world):
            source = (rank - step) % world  # after each step the keys go to rank + 1
            word = "triangle" if source == rank else "all" if source < rank else "none"
            word = word if causal else "all"
            colour, hatch = SEEN[word]
            _cell(axes, step, rank, f"K{source}\n{word}", colour, hatch)
    _title(axes, title)
    return fig


def head_split_picture(heads, world, title=""):
    """Which heads each rank computes, when the heads of one layer are shared out. All-reduce: the parts are added."""
    _check_ranks(world)
    if heads < 1 or heads % world or heads > 2 * MOST_RANKS:
        raise ValueError(f"heads: expected a multiple of {world} ranks, {2 * MOST_RANKS} at most, got {heads}.")
    each, wide = heads // world, max(1.5, heads / 4)  # of the column behind the heads
    fig, axes = _grid(heads + wide, [], [f"rank {r}" for r in range(world)])
    axes.set_xticks([heads / 2, heads + wide / 2], ["the heads that it computes", "added up by\nall-reduce"])
    for rank in range(world):
        for head in range(rank * each, (rank + 1) * each):
            _cell(axes, head, rank, f"H{head}", head_colour(head))
        _cell(axes, heads, rank, "its part of\nthe output", "#e8e8e8", wide=wide)
    _title(axes, title)
    return fig


def _check_ranks(world):
    if not 1 <= world <= MOST_RANKS:
        raise ValueError(f"world: expected 1 to {MOST_RANKS} ranks, to be drawn, got {world}.")


def _grid(columns, column_names, row_names):
    """An empty table, its names above and to the left, as wide as a page at most."""
    side = min(1.35, 6.4 / columns)
    size = (1.6 + side * max(columns, 2), 0.8 + 0.65 * len(row_names))
    fig = Figure(figsize=size, facecolor="white", layout="constrained")
    axes = fig.subplots()
    axes.set_xticks(np.arange(len(column_names)) + 0.5, column_names)
    axes.set_yticks(np.arange(len(row_names)) + 0.5, row_names)
    axes.set(xlim=(0, columns), ylim=(len(row_names), 0))
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=SMALL + 1)
    axes.spines[:].set_visible(False)
    return fig, axes


def _cell(axes, column, row, text, colour, hatch="", wide=1):
    axes.add_patch(Rectangle((column, row), wide, 1, facecolor=colour, edgecolor="white", linewidth=2, hatch=hatch))
    axes.text(column + wide / 2, row + 0.5, text, ha="center", va="center", fontsize=SMALL + 1)


def _finish(axes, title):
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=SMALL, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    _title(axes, title)
