"""Figures for the lessons: arrays in, a matplotlib Figure out.

Figures are made without pyplot, so nothing is kept in memory behind your back
and importing stays quick. Show one in a notebook with `figure(fig, alt="...")`.
"""

import io
import math
import warnings
from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from mha_lesson.show.figures.diagrams import course_map, head_tensor
from mha_lesson.show.palette import LINE_COLOURS

__all__ = [
    "bars",
    "course_map",
    "figure",
    "figure_bundle",
    "head_grid",
    "head_tensor",
    "heatmap",
    "lines",
    "position_bands",
    "show_map",
    "similarity_map",
    "spread",
    "summary",
    "tradeoff",
]

SMALL = 9  # the smallest font size used, in points
DPI = 110
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLES = ("-", "--", "-.", ":")


# ---------------------------------------------------------------- maps


def heatmap(
    matrix,
    rows=None,
    columns=None,
    title="",
    xlabel="key",
    ylabel="query",
    signed=None,
    annotate=None,
    keep=None,
    limit=None,
):
    """A matrix (L, S) as coloured cells, row 0 on top.

    rows, columns: names, L and S of them (columns=None takes `rows` if the matrix is square).
    signed: True uses two colours around a white 0; None decides by looking for negative numbers.
    annotate: write the numbers into the cells; None does so up to 8 x 8.
    keep: booleans, broadcastable to (L, S); cells that are False get a hatch.
    limit: the number with the strongest colour (None: the largest size in the matrix).
    """
    matrix = _two_axes(matrix)
    if columns is None and rows is not None and matrix.shape[0] == matrix.shape[1]:
        columns = rows
    rows = _names(rows, matrix.shape[0], "rows")
    columns = _names(columns, matrix.shape[1], "columns")
    fig, axes = _map_figure(matrix.shape, rows, columns)
    image = _draw_map(axes, matrix, signed, limit)
    fig.colorbar(image, ax=axes, shrink=0.85, pad=0.03).ax.tick_params(labelsize=SMALL)
    _name_cells(axes, rows, columns)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _title(axes, title)
    if keep is not None:
        _hatch(axes, _keep_like(keep, matrix.shape))
    if annotate if annotate is not None else max(matrix.shape) <= 8:
        _write_numbers(axes, image, matrix, keep)
    return fig


def head_grid(weights, tokens=None, title="", columns=4):
    """Attention weights (H, L, S), one small map for each head, all on the same colour scale.

    tokens: names of the L positions; used for the keys too when S = L.
    """
    weights = np.asarray(weights)
    if weights.ndim != 3:
        raise ValueError(
            f"weights has {weights.ndim} axes {weights.shape}: head_grid wants (heads, queries, "
            "keys). For one example of a batch take weights[0]; for one head use heatmap."
        )
    heads, length, keys = weights.shape
    names = _names(tokens, length, "tokens") if tokens is not None else None
    columns = max(1, min(columns, heads))
    lines_of_maps = math.ceil(heads / columns)
    words = names is not None and length <= 16
    side = 1.9 if words else 1.6
    fig = Figure(
        figsize=(columns * side + (1.6 if words else 1.0), lines_of_maps * (side + 0.25) + 1.2),
        facecolor="white",
        layout="compressed",
    )
    grid = fig.subplots(lines_of_maps, columns, squeeze=False, sharex=True, sharey=True)
    top = float(np.nanmax(weights))
    for head, axes in enumerate(grid.flat):
        if head >= heads:
            axes.set_visible(False)
            continue
        image = _draw_map(axes, weights[head], None if weights.min() < 0 else False, top)
        axes.set_title(f"head {head}", fontsize=10)
        axes.tick_params(labelsize=SMALL, length=2)
        if words:
            axes.set_yticks(range(length), names)
            if keys == length:
                # The lowest map of a column may be missing: then the one above it is named.
                axes.set_xticks(range(keys), names, rotation=90)
                axes.tick_params(labelbottom=head + columns >= heads)
    fig.colorbar(image, ax=grid, shrink=0.7, pad=0.02).ax.tick_params(labelsize=SMALL)
    fig.supxlabel("key", fontsize=10)
    fig.supylabel("query", fontsize=10)
    if title:
        fig.suptitle(title, fontsize=12)
    return fig


def similarity_map(vectors, labels, title=""):
    """Cosine similarity of every pair of vectors (n, d), in the order given.

    A vector of length 0 has no direction: its row and column are grey.
    """
    vectors = np.asarray(vectors, dtype=float)
    if vectors.ndim != 2:
        raise ValueError(f"vectors must have the shape (n, d), not {vectors.shape}.")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        directions = vectors / np.where(lengths > 0, lengths, np.nan)
        cosines = directions @ directions.T
    return heatmap(cosines, labels, labels, title, xlabel="", ylabel="", signed=True, limit=1.0)


def position_bands(positions, title=""):
    """A position encoding (n, d): the whole matrix, and a few of its channels as curves."""
    positions = np.asarray(positions, dtype=float)
    if positions.ndim != 2:
        raise ValueError(f"positions must have the shape (number of positions, d), not {positions.shape}.")
    count, width = positions.shape
    fig = Figure(figsize=(9, 3.8), facecolor="white", layout="constrained")
    left, right = fig.subplots(1, 2)
    image = _draw_map(left, positions, True, None)
    left.set_aspect("auto")
    left.set(xlabel="channel", ylabel="position")
    left.set_title("every position, every channel", fontsize=10)
    fig.colorbar(image, ax=left, pad=0.02).ax.tick_params(labelsize=SMALL)
    for index, channel in enumerate(sorted({0, width // 4, width // 2, 3 * width // 4})):
        right.plot(
            range(count),
            positions[:, channel],
            color=LINE_COLOURS[index],
            linestyle=STYLES[index % len(STYLES)],
            marker=MARKERS[index] if count <= 40 else None,
            markersize=4,
            label=f"channel {channel}",
        )
    right.set(xlabel="position", ylabel="value")
    right.set_title("a few channels", fontsize=10)
    right.grid(alpha=0.3)
    right.legend(fontsize=SMALL, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    for axes in (left, right):
        axes.tick_params(labelsize=SMALL)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.yaxis.set_major_locator(MaxNLocator(integer=True))
    if title:
        fig.suptitle(title, fontsize=12)
    return fig


# ---------------------------------------------------------------- lines and bars


def lines(x, series, title="", xlabel="", ylabel="", logx=False, logy=False):
    """Curves over the same x (n,): `series` maps each name to its n values.

    Each curve has its own colour, marker and line style. logx, logy: logarithmic axes.
    """
    x = np.asarray(x)
    fig = Figure(figsize=(6.4, 3.8), facecolor="white", layout="constrained")
    axes = fig.subplots()
    for index, (name, values) in enumerate(series.items()):
        values = np.asarray(values)
        if values.shape != x.shape:
            raise ValueError(
                f"series {name!r} has the shape {values.shape} but x has {x.shape}: give one value for each x."
            )
        axes.plot(
            x,
            values,
            color=LINE_COLOURS[index % len(LINE_COLOURS)],
            linestyle=STYLES[index % len(STYLES)],
            marker=MARKERS[index % len(MARKERS)] if x.size <= 40 else None,
            markersize=5,
            label=str(name),
        )
    _log_axes(axes, x, logx, logy)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.tick_params(labelsize=SMALL)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if series:
        # Beside the curves, so that it never covers one.
        fig.legend(fontsize=10, loc="outside right upper", frameon=False)
    _title(axes, title)
    return fig


def bars(labels, values, title="", ylabel=""):
    """One bar for each label; a dict of name -> values draws a group of bars at each label."""
    groups = values if isinstance(values, dict) else {"": values}
    fig = Figure(
        figsize=(min(10, max(4.2, 1.4 + 0.45 * len(labels) * max(1, len(groups)))), 3.6),
        facecolor="white",
        layout="constrained",
    )
    axes = fig.subplots()
    width = 0.8 / max(1, len(groups))
    places = np.arange(len(labels))
    hatches = ("", "//", "..", "xx", "\\\\", "++", "oo")
    for index, (name, heights) in enumerate(groups.items()):
        heights = np.asarray(heights, dtype=float)
        if heights.shape != (len(labels),):
            raise ValueError(
                f"values{f' of {name!r}' if name else ''} have the shape {heights.shape}: "
                f"there are {len(labels)} labels, give one number for each."
            )
        drawn = axes.bar(
            places + (index - (len(groups) - 1) / 2) * width,
            heights,
            width * 0.92,
            color=LINE_COLOURS[index % len(LINE_COLOURS)],
            hatch=hatches[index % len(hatches)],
            edgecolor="white",
            label=str(name) or None,
        )
        if len(labels) * len(groups) <= 16:
            axes.bar_label(drawn, [_short(h, _whole(heights)) for h in heights], padding=2, fontsize=SMALL)
    axes.margins(y=0.12)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(places, [str(label) for label in labels])
    _turn_if_long(axes, labels)
    axes.set_ylabel(ylabel)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    if isinstance(values, dict):
        fig.legend(fontsize=10, loc="outside right upper", frameon=False)
    _title(axes, title)
    return fig


def spread(groups, title="", xlabel=""):
    """Every single value as a dot, one row for each name: `groups` maps names to their values.

    A stroke marks the mean. Bars of means would hide how far the runs of one name lie apart.
    """
    if not groups:
        raise ValueError("groups is empty: there is nothing to draw.")
    fig = Figure(figsize=(6.8, 1.1 + 0.32 * len(groups)), facecolor="white", layout="constrained")
    axes = fig.subplots()
    for row, values in enumerate(groups.values()):
        values = np.asarray(values, dtype=float)
        colour = LINE_COLOURS[row % len(LINE_COLOURS)]
        axes.plot(values, np.full(values.shape, row), MARKERS[row % len(MARKERS)], color=colour, alpha=0.75)
        axes.plot([values.mean()] * 2, [row - 0.3, row + 0.3], "-", color="black", linewidth=1.6)
    axes.set_yticks(range(len(groups)), [str(name) for name in groups])
    axes.invert_yaxis()  # the first name on top
    axes.set_xlabel(xlabel)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    _title(axes, title)
    return fig


def tradeoff(points, title="", xlabel="", ylabel="", logx=True):
    """Cost against quality, one labelled point for each name: `points` maps names to (cost, low, mean, high).

    The vertical stroke goes from the worst run to the best.
    """
    if not points:
        raise ValueError("points is empty: there is nothing to draw.")
    fig = Figure(figsize=(7.4, 4.2), facecolor="white", layout="constrained")
    axes = fig.subplots()
    for index, (name, (cost, low, mean, high)) in enumerate(points.items()):
        colour = LINE_COLOURS[index % len(LINE_COLOURS)]
        marker = MARKERS[index % len(MARKERS)]
        # Colours and markers repeat after seven names; the second round is hollow.
        face = colour if index < len(LINE_COLOURS) else "white"
        error = [[mean - low], [high - mean]]
        axes.errorbar(cost, mean, error, fmt=marker, color=colour, mfc=face, capsize=3, label=str(name))
    if logx:
        costs = [cost for cost, *_ in points.values() if cost > 0]
        axes.set_xscale("log")
        ticks = [n * 10.0**e for e in range(-6, 9) for n in (1, 2, 5)]
        axes.set_xticks([t for t in ticks if min(costs) / 2 <= t <= max(costs) * 2])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3, which="both")
    axes.tick_params(labelsize=SMALL, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    fig.legend(fontsize=9, loc="outside right upper", frameon=False)
    _title(axes, title)
    return fig


# ---------------------------------------------------------------- into the notebook


def figure(fig, alt, text=None):
    """Show a Figure in the notebook.

    alt: a sentence for readers who can't see the picture.
    text: what stands in the text output beside it (None: the same sentence). Make it say
    the picture's numbers, for example with `summary`: then a test of the stored outputs
    notices when they change.
    """
    from IPython.display import display

    data, metadata = figure_bundle(fig, alt, text)
    display(data, raw=True, metadata=metadata)


def figure_bundle(fig, alt, text=None):
    """What `figure` hands to Jupyter: ({mime type: content}, {mime type: metadata})."""
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError("alt is empty: say in one sentence what the picture shows, for readers who can't see it.")
    data = {"image/png": png(fig), "text/plain": text or alt}
    return data, {"image/png": {"alt": alt}}


def png(fig):
    """The bytes of a Figure as a PNG file, the same bytes for the same picture."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks becomes a small box; the text beside the picture has it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        fig.savefig(
            buffer,
            format="png",
            dpi=DPI,
            bbox_inches="tight",  # nothing cut off, no empty borders
            pad_inches=0.12,
            metadata={"Software": None},  # else the file changes with each matplotlib release
        )
    return buffer.getvalue()


def show_map(matrix, rows=None, columns=None, title="", *, alt, **options):
    """heatmap, figure and summary in one: shows the matrix (L, S) with its numbers in the text."""
    fig = heatmap(matrix, rows, columns, title, **options)
    figure(fig, alt, f"{title or 'map'}: {summary(matrix)}")


def summary(matrix):
    """The numbers of a matrix in one line that is the same on every machine.

    "3x3, min 0.000, max 0.731, row sums 1.000, argmax [0 1 2]". Ties within 1e-9 go to the
    first. Also takes a vector (n,) or a stack (..., L, S).
    """
    matrix = np.asarray(matrix, dtype=float)
    parts = ["x".join(map(str, matrix.shape)) or "one number"]
    numbers = matrix[~np.isnan(matrix)]
    if numbers.size < matrix.size:
        parts.append(f"nan {matrix.size - numbers.size}")
    if numbers.size:
        parts += [f"min {_three(numbers.min())}", f"max {_three(numbers.max())}"]
    if matrix.ndim:
        with np.errstate(invalid="ignore"):
            sums = sorted({_three(s) for s in np.ravel(matrix.sum(-1))}, key=_as_number)
        named = "sum" if matrix.ndim == 1 else "row sums"
        parts.append(f"{named} {sums[0]}" + (f" to {sums[-1]}" if len(sums) > 1 else ""))
        parts.append(f"argmax {_argmax_text(matrix)}")
    return ", ".join(parts)


# ---------------------------------------------------------------- small helpers


def _two_axes(matrix):
    """The matrix as a NumPy array with exactly two axes, or an error that says what to choose."""
    matrix = np.asarray(matrix)
    if matrix.dtype == bool:
        matrix = matrix.astype(float)
    if matrix.ndim == 2:
        if 0 in matrix.shape:
            raise ValueError(f"this has the shape {matrix.shape}: there is nothing to draw.")
        return matrix
    start = f"this has {matrix.ndim} {'axis' if matrix.ndim == 1 else 'axes'} {matrix.shape}: "
    if matrix.ndim == 4:
        raise ValueError(
            start + "choose one example and one head, e.g. weights[0, head]; "
            "or draw all heads of one example with head_grid(weights[0], tokens)."
        )
    if matrix.ndim == 3:
        raise ValueError(
            start + "choose one head, e.g. weights[0, head] of (batch, heads, queries, keys); "
            "if it came from nn.MultiheadAttention its first axis is the batch and it is the "
            "mean over heads unless average_attn_weights=False."
        )
    raise ValueError(start + "a heatmap wants 2, (queries, keys).")


def _names(names, count, which):
    """`count` labels as strings; numbers 0, 1, 2, ... when there are none."""
    if names is None:
        return [str(index) for index in range(count)]
    names = [str(name) for name in names]
    if len(names) != count:
        raise ValueError(f"{which} has {len(names)} labels but the matrix has {count} {which}.")
    # A "$" would start a formula.
    return [name.replace("$", r"\$") for name in names]


def _map_figure(shape, rows, columns):
    """A Figure that suits the number of cells and the length of the labels."""
    height, width = shape
    cell = 0.55 if max(shape) <= 8 else min(0.42, 7.0 / max(shape))
    side = 0.085 * max(map(len, rows))
    below = 0.085 * max(map(len, columns)) if _too_long(columns) else 0.2
    size = (
        min(10.0, max(3.6, 1.8 + side + cell * width)),
        min(9.0, max(2.6, 1.1 + below + cell * height)),
    )
    fig = Figure(figsize=size, facecolor="white", layout="compressed")
    return fig, fig.subplots()


def _draw_map(axes, matrix, signed, limit):
    finite = matrix[np.isfinite(matrix)]
    signed = bool(finite.size and finite.min() < 0) if signed is None else signed
    if limit is None:
        limit = float(np.abs(finite).max()) if finite.size else 1.0
    limit = limit or 1.0
    shown = np.ma.masked_invalid(np.asarray(matrix, dtype=float))
    image = axes.imshow(
        shown,
        cmap="PuOr_r" if signed else "cividis",
        vmin=-limit if signed else 0.0,
        vmax=limit,
        interpolation="nearest",
    )
    axes.set_facecolor("#cccccc")  # shines through where a number is nan or infinite
    return image


def _name_cells(axes, rows, columns):
    """Labels at every cell, or at some when they would run into each other."""
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        step = math.ceil(len(names) / 32)
        axis.set_ticks(range(0, len(names), step), names[::step])
    axes.tick_params(labelsize=SMALL if max(len(rows), len(columns)) > 8 else 10)
    if _too_long(columns):
        axes.tick_params(axis="x", rotation=90)


def _too_long(names):
    return max(map(len, names)) > (5 if len(names) <= 8 else 2)


def _turn_if_long(axes, labels):
    if max((len(str(label)) for label in labels), default=0) * len(labels) > 60:
        for text in axes.get_xticklabels():
            text.set(rotation=35, ha="right", rotation_mode="anchor")


def _keep_like(keep, shape):
    keep = np.asarray(keep)
    if keep.dtype != bool:
        raise ValueError(
            f"keep has the type {keep.dtype}: it must be booleans, True where the query may "
            "attend to the key. For a mask of 0 and 1 write mask.astype(bool)."
        )
    try:
        return np.broadcast_to(keep, shape)
    except ValueError:
        raise ValueError(f"keep has the shape {keep.shape}: it must fit {shape}.") from None


def _hatch(axes, keep):
    for row, column in zip(*np.nonzero(~keep), strict=True):
        axes.add_patch(
            Rectangle(
                (column - 0.5, row - 0.5),
                1,
                1,
                facecolor="none",
                edgecolor="#b0b0b0",
                hatch="////",
                linewidth=0,
            )
        )


def _write_numbers(axes, image, matrix, keep):
    hatched = ~_keep_like(keep, matrix.shape) if keep is not None else np.zeros(matrix.shape, bool)
    whole = _whole(matrix)
    for (row, column), value in np.ndenumerate(matrix):
        if hatched[row, column] and not value:
            continue  # a forbidden 0 is what the hatch says already
        red, green, blue, _ = image.cmap(image.norm(value)) if np.isfinite(value) else (1, 1, 1, 1)
        dark = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.18
        axes.text(
            column,
            row,
            _short(value, whole),
            ha="center",
            va="center",
            fontsize=SMALL,
            color="white" if dark and not hatched[row, column] else "black",
            # On a hatch a number needs its own ground.
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1} if hatched[row, column] else None,
        )


def _log_axes(axes, x, logx, logy):
    if logx:
        axes.set_xscale("log", base=2 if _powers_of_two(x) else 10)
        if _powers_of_two(x) and x.size <= 16:
            axes.set_xticks(x, [f"{value:g}" for value in x])
            axes.xaxis.set_minor_locator(NullLocator())
    if logy:
        axes.set_yscale("log")


def _powers_of_two(x):
    with np.errstate(all="ignore"):
        exponents = np.log2(np.asarray(x, dtype=float))
    return bool(x.size and np.all(np.isfinite(exponents) & (exponents == np.round(exponents))))


def _title(axes, title):
    if title:
        letters = int(9.5 * axes.figure.get_figwidth())  # that many fit into the width
        axes.set_title("\n".join(wrap(title, letters)), fontsize=12)


def _short(value, whole=False):
    """A number for a small space: 0.53, 12.3, 1234; whole numbers without a point."""
    value = float(value)
    if not np.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "nan")
    digits = 0 if whole or abs(value) >= 100 else 2 if abs(value) < 10 else 1
    return f"{_no_minus_zero(value, digits):.{digits}f}"


def _whole(numbers):
    """Are all finite numbers of the array whole? Then they are written without a point."""
    finite = numbers[np.isfinite(numbers)]
    return bool(np.all(finite == np.round(finite)))


def _no_minus_zero(value, digits):
    """Rounded, and 0.0 where rounding gives -0.0: a tiny sign differs between machines."""
    return round(float(value), digits) + 0.0


def _three(value):
    return f"{_no_minus_zero(value, 3):.3f}"


def _as_number(text):
    return -math.inf if text == "nan" else float(text)


def _argmax_text(matrix):
    """The place of the largest number of each row; the first of those within 1e-9 of it."""
    if matrix.shape[-1] == 0:
        return "-"
    filled = np.where(np.isnan(matrix), -np.inf, matrix)
    best = filled.max(-1, keepdims=True)
    places = np.argmax(filled >= best - 1e-9, axis=-1)
    if matrix.ndim == 1:
        return str(int(places))
    if matrix.ndim == 2:
        return "[" + " ".join(map(str, places)) + "]"
    return "[" + " ".join(_argmax_text(part) for part in matrix) + "]"
