"""Figures about cost: time and memory against length, the roofline, recall, the ring.

Like `plots`: arrays in, a matplotlib Figure out.
"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from .palette import LINE_COLOURS
from .plots import MARKERS, SMALL, STYLES

GUIDE = "#8c8c8c"


def slope_of(lengths, values) -> float:
    """The power p in value ~ length^p, from the last two points: where fixed costs matter least."""
    (a, b), (x, y) = np.asarray(lengths, float)[-2:], np.asarray(values, float)[-2:]
    return float(np.log(y / x) / np.log(b / a))


def cost_lines(lengths, series, ylabel="", title="", slopes=(1, 2), xlabel="length N"):
    """Cost against length, both logarithmic: a power of N is a straight line, and its slope is the power.

    series: {name: values (n,)}; NaN where something was not measured. slopes: thin lines to compare with.
    The legend says each line's slope between its last two points.
    """
    lengths = np.asarray(lengths, float)
    if len(lengths) < 2 or not series:
        raise ValueError("expected two lengths or more and one series or more: a slope needs two points.")
    fig = Figure(figsize=(7.6, 4.3), facecolor="white", layout="constrained")
    axes = fig.subplots()
    for index, (name, values) in enumerate(series.items()):
        values = np.asarray(values, float)
        if values.shape != lengths.shape:
            raise ValueError(f"series {name!r}: expected {len(lengths)} values, got {values.shape}.")
        there = np.isfinite(values)
        label = str(name)
        if there.sum() > 1:
            label += f" (slope {slope_of(lengths[there], values[there]):.1f})"
        axes.plot(
            lengths[there], values[there], label=label,
            color=LINE_COLOURS[index % len(LINE_COLOURS)], marker=MARKERS[index % len(MARKERS)],
            linestyle=STYLES[index % len(STYLES)],
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    low, high = axes.get_ylim()
    for slope in slopes:
        start = low * 1.3
        line = start * (lengths / lengths[0]) ** slope
        axes.plot(lengths, line, color=GUIDE, linewidth=0.9, zorder=0)
        axes.annotate(f"slope {slope}", (lengths[-1], min(line[-1], high)), color="#555555", fontsize=SMALL,
                      ha="right", va="bottom")  # fmt: skip
    axes.set_ylim(low, high)
    axes.set_xticks(lengths, [f"{int(n):,}" for n in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    _finish(fig, axes, title)
    return fig


def roofline(points, peak_tflops, bandwidth_tb_s, title=""):
    """What a device can reach at so many operations a byte: memory limits on the left, arithmetic on the right.

    points: {name: (operations a byte, TFLOP/s)}.
    """
    fig = Figure(figsize=(7.6, 4.3), facecolor="white", layout="constrained")
    axes = fig.subplots()
    ridge = peak_tflops / bandwidth_tb_s
    reach = [x for x, _ in points.values()] + [ridge]
    x = np.geomspace(min(reach) / 3, max(reach) * 3, 200)
    axes.plot(x, np.minimum(peak_tflops, x * bandwidth_tb_s), color="#000000", linewidth=1.6, label="_roof")
    axes.axvline(ridge, color=GUIDE, linewidth=0.9, linestyle=":")
    axes.annotate(f"{ridge:.0f} operations a byte", (ridge, peak_tflops * 1.12), ha="center", fontsize=SMALL)
    for index, (name, (intensity, tflops)) in enumerate(points.items()):
        axes.plot(
            [intensity], [tflops], marker=MARKERS[index % len(MARKERS)], markersize=8, linestyle="none",
            color=LINE_COLOURS[index % len(LINE_COLOURS)], label=str(name),
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="TFLOP/s")
    axes.set_ylim(top=peak_tflops * 2)
    _finish(fig, axes, title)
    return fig


def recall_lines(
    distances, series, window=None, title="", ylabel="right answers", xlabel="how far back the answer stands"
):
    """Accuracy against distance: {name: (low (n,), mean (n,), high (n,))}, the spread of the runs as a band.

    window: how far back the model with a window can see; a dotted line marks it.
    """
    fig = Figure(figsize=(7.6, 4.3), facecolor="white", layout="constrained")
    axes = fig.subplots()
    places = np.arange(len(distances))
    for index, (name, (low, mean, high)) in enumerate(series.items()):
        colour = LINE_COLOURS[index % len(LINE_COLOURS)]
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(places, mean, color=colour, marker=MARKERS[index % len(MARKERS)],
                  linestyle=STYLES[index % len(STYLES)], label=str(name))  # fmt: skip
    if window is not None:
        axes.axvline(window, color=GUIDE, linestyle=":", linewidth=1.2)
        axes.annotate("edge of the window", (window, 1.02), fontsize=SMALL, ha="center", color="#555555")
    axes.set_xticks(places, [str(d) for d in distances])
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(-0.03, 1.1))
    _finish(fig, axes, title)
    return fig


SEEN = {"all": ("#56b4e9", "all"), "triangle": ("#e69f00", "triangle"), "none": ("#e8e8e8", "none")}


def ring_picture(world, title=""):
    """Whose keys each rank holds at each step of causal ring attention, and which it may see.

    A grid: ranks are rows, steps are columns. K2 means: the keys of rank 2.
    """
    if world < 1:
        raise ValueError(f"world: expected 1 rank or more, got {world}.")
    fig = Figure(figsize=(1.6 + 1.35 * world, 1.2 + 0.75 * world), facecolor="white", layout="constrained")
    axes = fig.subplots()
    for rank in range(world):
        for step in range(world):
            source = (rank - step) % world
            colour, word = SEEN["triangle" if source == rank else "all" if source < rank else "none"]
            hatch = "////" if word == "none" else None
            axes.add_patch(Rectangle((step, rank), 1, 1, facecolor=colour, edgecolor="white", linewidth=2, hatch=hatch))
            axes.text(step + 0.5, rank + 0.5, f"K{source}\n{word}", ha="center", va="center", fontsize=SMALL + 1)
    axes.set_xticks(np.arange(world) + 0.5, [f"step {s}" for s in range(world)])
    axes.set_yticks(np.arange(world) + 0.5, [f"rank {r}" for r in range(world)])
    axes.set(xlim=(0, world), ylim=(world, 0))
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=SMALL + 1)
    axes.spines[:].set_visible(False)
    if title:
        axes.set_title(title, fontsize=12)
    return fig


def _finish(fig, axes, title):
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=SMALL, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        fig.legend(fontsize=SMALL, loc="outside right upper", frameon=False)
    if title:
        axes.set_title(title, fontsize=12)
