"""Every head of a model: who looks at whom, and how much.

The weights travel to the browser once, two bytes each; head_viewer.js draws everything from them
there. So a word under the mouse shows its weights at once, without asking the kernel.
"""

import functools
from pathlib import Path

import numpy as np

from mha_lesson.show import palette
from mha_lesson.show.markup import BAR, BEST_BAR
from mha_lesson.show.widgets.base import LessonWidget, Stand, distinct, largest, plain

SCRIPT = Path(__file__).with_suffix(".js")
ONE = 65535  # how a weight of 1.0 travels
MOST_WORDS = 200  # beyond 40 or so the columns scroll; beyond this nobody finds a word
MOST_WEIGHTS = 5_000_000  # 10 MB on their way to the browser
DRAWN_WORDS = 60  # the picture joins words by lines up to here, and is a map beyond


class HeadViewer(LessonWidget):
    """Choose a layer and a head; point at a word and see which words it looks at.

    weights: (layers, H, L, S), or (H, L, S) of one layer; row = the word that looks (query), column =
    the word looked at (key). No batch axis. tokens: the L words. sources: the S words looked at, in
    cross-attention (None: the tokens themselves). layer, head, word: what is chosen at first, counted
    from 0.

        encoding = MiniLMEncoder()("Maya placed the book on the table, she left.")
        HeadViewer(encoding.weights, encoding.tokens, layer=5, head=5, word=9)

    Where there is no kernel, or no anywidget, its picture and its sentence are shown.
    """

    def __init__(self, weights, tokens, *, sources=None, layer=0, head=0, word=0):
        self.tokens = _words(tokens, "tokens")
        self.sources = self.tokens if sources is None else _words(sources, "sources")
        weights = _array(weights)
        self.has_layers = weights.ndim == 4
        _check_axes(weights, self.tokens, self.sources, sources is not None)
        _check_values(weights)
        self.weights = weights if self.has_layers else weights[None]  # (layers, H, L, S)
        start = {"layer": layer, "head": head, "word": word}
        _check_start(start, self.weights.shape)
        # The base class would add an HTML area that the kernel draws; here the browser draws.
        self.start, self.controls, self._png, self.output = start, {}, None, Stand()
        live = live_class()
        self.box = NoView() if live is None else live(**self.for_browser(), **start)

    def state(self):
        """What is chosen now, as arguments for describe."""
        return {name: getattr(self.box, name, value) for name, value in self.start.items()}

    def for_browser(self):
        """What head_viewer.js needs, ready to travel: {trait: value}."""
        return {
            "weights": packed(self.weights),
            "shape": list(self.weights.shape),
            "tokens": self.tokens,
            "sources": self.sources,
            "has_layers": self.has_layers,
            "colours": {"line": BAR, "best": BEST_BAR, "line_on_dark": palette.LINE_COLOURS[4]},
            "ramp": colour_ramp(),
        }

    def row(self, layer, head, word):
        """The weights (S,) of one word in one head: they say where it looks."""
        return self.weights[layer, head, word]

    def describe(self, layer, head, word):
        """The sentence that the browser shows too (head_viewer.js builds the same one)."""
        row = self.row(layer, head, word)
        best = largest(row)
        looks = f"looks most at {self.sources[best]}, {plain(row[best])}" if row[best] > 0 else "looks at no word"
        return f"{self.name(layer, head)}: {self.tokens[word]} {looks}."

    def name(self, layer, head):
        return f"Layer {layer}, head {head}" if self.has_layers else f"Head {head}"

    @property
    def text(self):
        """The counts and the start's largest weight, whatever is chosen."""
        layers, heads = self.weights.shape[:2]
        of_layers = f"{_count(layers, 'layer')} of " if self.has_layers else ""
        return f"HeadViewer: {of_layers}{_count(heads, 'head')}. {self.describe(**self.start)}"

    def render(self, **state):
        """The browser draws this widget; in Python there is only its sentence."""
        return self.describe(**state)

    def picture(self):
        """The start: its word joined to the words it looks at, and every head as a small map."""
        from matplotlib.figure import Figure

        from mha_lesson.show.figures import plots

        layer, head, word = self.start.values()
        length = max(len(self.tokens), len(self.sources))
        if length > DRAWN_WORDS:
            names = [self.tokens, self.sources]
            return plots.heatmap(self.weights[layer, head], *names, self.describe(**self.start), annotate=False)
        fig = Figure(figsize=(11, max(3.4, 0.24 * length + 1)), facecolor="white", layout="constrained")
        left, right = fig.subplots(1, 2, width_ratios=(1, 1))
        left.set_title(self.describe(**self.start), fontsize=11)
        draw_lines(left, self.row(**self.start), self.tokens, self.sources, word)
        right.set_title(f"every head, small (colours from 0 to {plain(self.weights.max())})", fontsize=11)
        draw_maps(right, self.weights, layer, head, self.has_layers)
        return fig

    def picture_alt(self):
        layers, heads = self.weights.shape[:2]
        maps = f"{layers} times {heads}" if self.has_layers else heads
        return (
            f"Two columns of words, joined by lines as strong as the attention weights of one head, "
            f"and {maps} small maps, one for each head. {self.describe(**self.start)}"
        )


class NoView:
    """Stands in for the live widget where anywidget is missing."""

    def _repr_mimebundle_(self, **_):
        return {}


@functools.cache
def live_class():
    """The widget that the browser draws, or None where anywidget is missing.

    Made when first needed: anywidget would slow down the import of every other widget.
    """
    try:
        import anywidget
        import traitlets
    except ImportError:
        return None

    class LiveHeadViewer(anywidget.AnyWidget):
        _esm = SCRIPT.read_text(encoding="utf-8")
        weights = traitlets.Bytes().tag(sync=True)
        shape = traitlets.List(traitlets.Int()).tag(sync=True)
        tokens = traitlets.List(traitlets.Unicode()).tag(sync=True)
        sources = traitlets.List(traitlets.Unicode()).tag(sync=True)
        has_layers = traitlets.Bool(True).tag(sync=True)
        colours = traitlets.Dict().tag(sync=True)
        ramp = traitlets.Bytes().tag(sync=True)
        layer = traitlets.Int(0).tag(sync=True)
        head = traitlets.Int(0).tag(sync=True)
        word = traitlets.Int(0).tag(sync=True)

    return LiveHeadViewer


# ------------------------------------------------------------------------------ for the browser


def packed(weights):
    """Weights from 0 to 1 as bytes: whole numbers from 0 to 65535, two bytes each, low byte first.

    Nothing moves by more than 1/131070. float16 takes as much room and would move 0.531 to 0.5312.
    """
    return np.rint(np.clip(weights, 0, 1) * ONE).astype("<u2").tobytes()


def colour_ramp():
    """256 colours from small to large, red, green and blue: 768 bytes."""
    return b"".join(bytes.fromhex(palette.weight_colour(step, 255)[1:]) for step in range(256))


# ------------------------------------------------------------------------------ the picture


def draw_lines(axes, row, tokens, sources, word):
    """Words left and right; lines from one word, as wide and strong as its weights (S,)."""
    best = largest(row)
    for index, token in enumerate(tokens):
        chosen = index == word
        _write(axes, 0.27, index, token, ha="right", weight="bold" if chosen else "normal", alpha=1 if chosen else 0.7)
    for index, (source, weight) in enumerate(zip(sources, row, strict=True)):
        colour, bold = (BEST_BAR, "bold") if index == best and weight > 0 else (BAR, "normal")
        axes.plot([0.29, 0.61], [word, index], color=colour, alpha=_strength(weight), linewidth=0.6 + 6 * weight)
        _write(axes, 0.63, index, source, ha="left", weight=bold)
        _write(axes, 1.0, index, plain(weight), ha="right", weight=bold)
    axes.set(xlim=(0, 1.02), ylim=(max(len(tokens), len(sources)) - 0.5, -0.5))
    axes.axis("off")


def draw_maps(axes, weights, layer, head, has_layers):
    """Every head's weights as a small map, on one colour scale: weights (layers, H, L, S)."""
    layers, heads, length, keys = weights.shape
    high, wide = length + _gap(length), keys + _gap(keys)
    tiles = np.full((layers * high, heads * wide), np.nan)
    for (row, column), _ in np.ndenumerate(weights[:, :, 0, 0]):
        tiles[row * high : row * high + length, column * wide : column * wide + keys] = weights[row, column]
    axes.imshow(tiles, cmap="cividis", vmin=0, vmax=weights.max() or 1, interpolation="antialiased")
    axes.set_xticks(np.arange(heads) * wide + keys / 2 - 0.5, range(heads))
    axes.set_yticks(np.arange(layers) * high + length / 2 - 0.5, range(layers) if has_layers else [""])
    axes.tick_params(labelsize=9, length=0)
    axes.set(xlabel="head", ylabel="layer" if has_layers else "")
    axes.spines[:].set_visible(False)
    corner = (head * wide - 0.5, layer * high - 0.5)
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(corner, keys, length, fill=False, edgecolor=BEST_BAR, linewidth=2.5, clip_on=False))


def _write(axes, x, y, text, **style):
    shown = text if len(text) <= 18 else text[:17] + "…"
    axes.text(x, y, shown, va="center", fontsize=10, parse_math=False, **style)


def _strength(weight):
    """How solid a line is: a small weight is still to be seen. head_viewer.js does the same."""
    return 0.15 + 0.85 * float(min(weight, 1)) if weight > 0 else 0.0


def _gap(length):
    return max(1, round(length / 8))


def _count(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"


# ------------------------------------------------------------------------------ what is refused


def _words(words, name):
    """The words as strings; equal ones carry their position."""
    if isinstance(words, str):
        raise TypeError(f"{name} must be a list of words, but is one string: {words[:40]!r}. Split it: {name}.split().")
    words = distinct(words)
    if not 0 < len(words) <= MOST_WORDS:
        raise ValueError(f"{name} holds {len(words)} words: the viewer shows 1 to {MOST_WORDS}. Choose a part of them.")
    return words


def _array(weights):
    """The weights as floats, or an error with the mend for tensors that NumPy can't read."""
    if weights is None:
        raise TypeError(
            "weights is None: ask the layer for its weights; nn.MultiheadAttention gives them per head with "
            "need_weights=True and average_attn_weights=False."
        )
    parts = weights if isinstance(weights, (list, tuple)) else [weights]
    if any(getattr(part, "requires_grad", False) for part in parts):
        raise TypeError(
            "weights is a tensor that needs gradients: expected plain numbers. "
            "Write weights.detach().cpu(), or compute them under torch.no_grad()."
        )
    try:
        return np.asarray(weights, dtype=float)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"weights can't be read as an array of numbers ({error}). Of a tensor give "
            "weights.detach().cpu().float(); of a list of layers, layers of one shape (H, L, S)."
        ) from None


def _check_axes(weights, tokens, sources, is_cross):
    """The axes and their lengths, before anything looks at the numbers."""
    shape = weights.shape
    if weights.ndim not in (3, 4):
        hints = {
            5: " A batch axis is left in: choose one sentence, weights[:, 0].",
            2: " Of one head give weights[None].",
        }
        expected = "expected (layers, H, L, S) or (H, L, S)."
        raise ValueError(f"weights has {weights.ndim} axes {shape}: {expected}{hints.get(weights.ndim, '')}")
    if 0 in shape:
        raise ValueError(f"weights has the shape {shape}: there is nothing to show.")
    wanted = (len(tokens), len(sources))
    if shape[-2:] != wanted:
        raise ValueError(
            f"weights has the shape {shape}, so {shape[-2]} words look at {shape[-1]}; "
            f"but there are {wanted[0]} tokens and {wanted[1]} {'sources' if is_cross else 'words to look at'}. "
            + _mend_of_count(shape, wanted, is_cross)
        )
    if weights.size > MOST_WEIGHTS:
        raise ValueError(
            f"weights holds {weights.size:,} numbers {shape}: up to {MOST_WEIGHTS:,} can be shown. "
            "Choose fewer layers, weights[:4], or a shorter text."
        )


def _mend_of_count(shape, wanted, is_cross):
    if shape[-2] == wanted[0] and not is_cross:
        return "In cross-attention name the words looked at: sources=[...]."
    if shape[-2:] == wanted[::-1]:
        return "tokens and sources are swapped: tokens are the words that look (queries)."
    return "Give one word for each position; marks such as [CLS], [SEP] and padding count too."


def _check_values(weights):
    """Weights are from 0 to 1, and a row sums to 1 at most (0: nothing was allowed)."""
    with np.errstate(invalid="ignore"):
        sums = weights.sum(-1)  # (..., L)
    _refuse(
        ~np.isfinite(weights).all(-1),
        weights,
        "a number that is not finite",
        "A softmax over keys that are all forbidden gives nan: such a row gets weights of 0",
    )
    _refuse(
        (weights < 0).any(-1),
        weights,
        "a negative number",
        "These look like scores: take their softmax over the last axis",
    )
    _refuse(
        sums > 1.02,  # float16 and bfloat16 round each weight: their rows miss 1 by less
        weights,
        "numbers whose sum is above 1",
        "Take the softmax over the last axis, and switch dropout off with layer.eval()",
    )


def _refuse(wrong, weights, holds, mend):
    """An error that shows the first wrong row, if there is one. wrong: booleans (..., L)."""
    if not wrong.any():
        return
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    row = " ".join(plain(weight) for weight in weights[place][:6]) + (" ..." if weights.shape[-1] > 6 else "")
    raise ValueError(
        f"weights[{', '.join(map(str, place))}] holds {holds}: {row}. Expected weights from 0 to 1 "
        f"whose sum is 1 (or 0 if no key is allowed). {mend}."
    )


def _check_start(start, shape):
    for (name, value), count in zip(start.items(), shape, strict=False):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"{name} must be a whole number, not {value!r}: it is the {name}'s place, counted from 0.")
        if not 0 <= value < count:
            raise ValueError(f"{name} is {value}, but they are counted from 0 to {count - 1}.")
        start[name] = int(value)
