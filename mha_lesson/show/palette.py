"""Colours that stay apart for colour-blind readers, for plots and widgets.

A colour here is a string like "#0072b2".
"""

from functools import lru_cache

import numpy as np

# Okabe and Ito's colours, in an order that keeps neighbours apart.
# Their yellow is left out: it can't be seen on white.
LINE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")

# Nine points of matplotlib's "cividis" (small to large) and "PuOr" turned round
# (negative purple, zero white, positive orange). Widgets use them without loading matplotlib.
SEQUENTIAL = (
    "#00224e", "#1a386f", "#434e6c", "#61656f", "#7d7c78",
    "#9b9476", "#bcae6c", "#dec958", "#fee838",
)  # fmt: skip
DIVERGING = (
    "#2d004b", "#5f3a91", "#9990bf", "#cfcfe5", "#f7f7f6",
    "#fed59f", "#ee9b39", "#bd6109", "#7f3b08",
)  # fmt: skip

# One pale and one strong tone for each head: the number is written on it in black.
HEAD_COLOURS = ("#7fb8de", "#f2b48c", "#7fd1b6", "#e5b8d2", "#f3d37a", "#bfc5cc", "#b9d98a", "#c8b6e8")


def head_colour(head):
    """The background colour of head number `head`; colours repeat after eight heads."""
    return HEAD_COLOURS[head % len(HEAD_COLOURS)]


def _rgb(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=float)


def _hex(rgb):
    return "#" + "".join(f"{round(float(c)):02x}" for c in rgb)


def between(colours, fraction):
    """The colour at `fraction` (0 = first, 1 = last) of a list of colours."""
    place = min(max(float(fraction), 0.0), 1.0) * (len(colours) - 1)
    left = min(int(place), len(colours) - 2)
    share = place - left
    return _hex((1 - share) * _rgb(colours[left]) + share * _rgb(colours[left + 1]))


@lru_cache(maxsize=1024)
def _between_256(colours, step):
    return between(colours, step / 255)


def _step_of(colours, fraction):
    """Like `between`, in 256 steps: each colour is worked out once, so tables are quick."""
    return _between_256(colours, round(255 * min(max(float(fraction), 0.0), 1.0)))


def darker(colour, share):
    """The same colour mixed with black: share 0 changes nothing, 1 gives black."""
    return _hex(_rgb(colour) * (1 - share))


@lru_cache(maxsize=1024)
def ink_on(colour):
    """Black or white, whichever reads better on the given background."""
    linear = np.where((c := _rgb(colour) / 255) <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ np.array([0.2126, 0.7152, 0.0722]))
    # WCAG contrast ratios against white and against black; take the larger one.
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def weight_colour(value, largest):
    """Background for a number between 0 and `largest`; grey where it is not finite."""
    if not np.isfinite(value):
        return "#cccccc"
    return _step_of(SEQUENTIAL, value / largest if largest > 0 else 0.0)


def signed_colour(value, largest):
    """Background for a number between -largest and largest, white at 0; grey where not finite."""
    if not np.isfinite(value):
        return "#cccccc"
    return _step_of(DIVERGING, 0.5 + 0.5 * value / largest if largest > 0 else 0.5)
