"""Two drawings that explain: the map of the course, and what splitting into heads does."""

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from mha_lesson.show.origin import split_origin
from mha_lesson.show.palette import between, darker, head_colour, ink_on

# (text, lesson number or "", is it done once for each head?)
FLOW = (
    ("words", "", False),
    ("embeddings\n+ positions", "01", False),
    ("queries, keys,\nvalues", "02", True),
    ("scores\n$Q\\,K^T$", "03", True),
    ("scale\n$1/\\sqrt{d_{head}}$", "03", True),
    ("mask", "04", True),
    ("softmax:\nweights", "05", True),
    ("weighted sum\nof values", "06", True),
    ("concatenate\nthe heads", "06", False),
    ("output\nprojection", "06", False),
)

LATER = (
    ("self and cross\nattention", "07"),
    ("PyTorch and\ndebugging", "08"),
    ("real heads", "09"),
    ("applications", "10"),
    ("serving:\nKV cache", "11"),
    ("long context", "12"),
    ("GPU", "13"),
)

PLAIN, EACH_HEAD, USES, DONE = "#ffffff", "#d6e8f5", "#fbe6c8", "#bfe5d6"


def course_map(done=()):
    """The map of the course: the way of the data through multi-head attention.

    Every box names its lesson. done: numbers of finished lessons (1 or "01"); they get a tick.
    """
    done = {f"{int(lesson):02d}" for lesson in done}
    fig = Figure(figsize=(10, 5.6), facecolor="white")
    axes = fig.add_axes((0.005, 0.005, 0.99, 0.99))
    axes.set(xlim=(0, 100), ylim=(0, 56))
    axes.axis("off")
    axes.text(1.5, 53.5, "From words to the output of one layer", fontsize=13, weight="bold")
    corners = [(1.5 + 20 * (i % 5), 41.5 - 14.5 * (i // 5)) for i in range(len(FLOW))]
    for (text, lesson, each_head), corner in zip(FLOW, corners, strict=True):
        _box(axes, corner, 15.5, 10, text, lesson, EACH_HEAD if each_head else PLAIN, done)
    for start, end in pairwise(corners):
        _arrow(axes, start, end)
    axes.text(1.5, 20.5, "Then put it to work", fontsize=13, weight="bold")
    for index, (text, lesson) in enumerate(LATER):
        _box(axes, (1.5 + 14.1 * index, 8.5), 12.4, 10, text, lesson, USES, done)
    _legend(axes, bool(done))
    return fig


def _box(axes, corner, width, height, text, lesson, colour, done):
    left, bottom = corner
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=1.2",
            facecolor=DONE if lesson in done else colour,
            edgecolor="#333333",
            linewidth=1.2,
        )
    )
    if lesson:
        tick = "✓ " if lesson in done else ""
        axes.text(
            left + width - 0.8, bottom + height - 0.7, tick + lesson,
            ha="right", va="top", fontsize=11, weight="bold", color="#9a3d00",
        )  # fmt: skip
    axes.text(
        left + width / 2, bottom + height * (0.4 if lesson else 0.5), text,
        ha="center", va="center", fontsize=12 if width > 13 else 11, linespacing=1.15,
    )  # fmt: skip


def _arrow(axes, start, end):
    """An arrow between neighbours, or from the end of the first row to the second."""
    style = {"arrowstyle": "-|>", "mutation_scale": 13, "color": "#333333", "linewidth": 1.3}
    if start[1] == end[1]:
        points = [(start[0] + 15.5, start[1] + 5), (end[0], end[1] + 5)]
        axes.add_patch(FancyArrowPatch(*points, shrinkA=0, shrinkB=0, **style))
        return
    between_rows = (start[1] + end[1] + 10) / 2
    axes.plot(
        [start[0] + 7.75, start[0] + 7.75, end[0] + 7.75],
        [start[1], between_rows, between_rows],
        color="#333333",
        linewidth=1.3,
    )
    points = [(end[0] + 7.75, between_rows), (end[0] + 7.75, end[1] + 10)]
    axes.add_patch(FancyArrowPatch(*points, shrinkA=0, shrinkB=0, **style))


def _legend(axes, any_done):
    entries = [(EACH_HEAD, "done in every head, side by side"), (USES, "uses the whole layer")]
    if any_done:
        entries.append((DONE, "✓ finished"))
    left = 1.5
    for colour, text in entries:
        axes.add_patch(Rectangle((left, 3.2), 2.4, 2.2, facecolor=colour, edgecolor="#333333"))
        axes.text(left + 3.2, 4.3, text, fontsize=11, va="center")
        left += 6.5 + 1.05 * len(text)
    axes.text(98.2, 4.3, "numbers: lessons", fontsize=11, va="center", ha="right", color="#9a3d00")


def head_tensor(x, num_heads, token_labels=None, reshape_only=False):
    """How a matrix (L, E) is cut into num_heads parts (H, L, E / H): x above, its parts below.

    The colour says which head a feature belongs to, its depth which token the number came from.
    reshape_only=True draws what x.reshape(H, L, D) does instead: the tokens get mixed.
    """
    x = np.asarray(x)
    if x.ndim != 2:
        raise ValueError(f"x must have the shape (L, E), not {x.shape}: take one example, x[0].")
    length, features = x.shape
    if num_heads < 1 or features % num_heads:
        raise ValueError(f"{features} features can't be shared out evenly among {num_heads} heads.")
    names = [f"token {t}" for t in range(length)] if token_labels is None else list(token_labels)
    if len(names) != length:
        raise ValueError(f"token_labels has {len(names)} labels but x has {length} rows.")
    width, gap = features // num_heads, 0.4
    across = features + gap * (num_heads - 1)
    fig = Figure(figsize=(1.3 + 0.62 * across, 1.4 + 0.7 * length), facecolor="white", layout="constrained")
    top, bottom = fig.subplots(2, 1)
    origin = np.arange(length * features).reshape(length, features)
    shift = (across - features) / 2
    _cells(top, origin, x.shape, num_heads, shift)
    top.set_title(f"x: (L, E) = ({length}, {features})", fontsize=11)
    how = "x.reshape(H, L, D), tokens mixed" if reshape_only else "cut into heads"
    bottom.set_title(f"{how}: (H, L, D) = ({num_heads}, {length}, {width})", fontsize=11)
    for head, part in enumerate(split_origin(length, features, num_heads, reshape_only)):
        _cells(bottom, part, x.shape, num_heads, head * (width + gap))
    bottom.set_xticks(
        [head * (width + gap) + (width - 1) / 2 for head in range(num_heads)],
        [f"head {head}" for head in range(num_heads)],
    )
    top.set_xticks([])
    for axes in (top, bottom):
        axes.set(xlim=(-0.6, across - 0.4), ylim=(length - 0.4, -0.6))
        # After a plain reshape the rows no longer belong to the tokens: they keep bare numbers.
        mixed = reshape_only and axes is bottom
        axes.set_yticks(range(length), [f"row {t}" if mixed else str(names[t]) for t in range(length)])
        axes.tick_params(length=0, labelsize=10)
        axes.spines[:].set_visible(False)
    return fig


def _cells(axes, origin, shape, num_heads, shift):
    """Squares for a block of flat indices (rows, columns), moved `shift` units to the right.

    shape: (L, E), the shape of the matrix that the flat indices count through.
    """
    length, features = shape
    for (row, column), index in np.ndenumerate(origin):
        token, feature = divmod(int(index), features)
        colour = _shade(feature // (features // num_heads), token, length)
        axes.add_patch(
            Rectangle((shift + column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5)
        )
        axes.text(
            shift + column, row, f"t{token}·f{feature}",
            ha="center", va="center", fontsize=9, color=ink_on(colour),
        )  # fmt: skip


def _shade(head, token, length):
    """The head's colour, paler for the first tokens and darker for the last."""
    share = token / max(1, length - 1)
    if share < 0.5:
        return between((head_colour(head), "#ffffff"), 0.55 - 1.1 * share)
    return darker(head_colour(head), 0.9 * (share - 0.5))
