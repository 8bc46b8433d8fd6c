"""A widget about masks: paint who may attend to whom."""

import numpy as np

from mha_lesson.show import markup
from mha_lesson.show.palette import weight_colour
from mha_lesson.show.widgets.base import LessonWidget, distinct, ipywidgets, plain, shows_errors, square

MOST_TOKENS = 14


def even_weights(keep):
    """The same weight for every key that a query may attend to; 0 in a row without any."""
    keep = np.asarray(keep, dtype=float)
    return keep / np.maximum(keep.sum(-1, keepdims=True), 1.0)


class MaskPainter(LessonWidget):
    """Paint a mask cell by cell; see the weights, and what is wrong with the mask.

    tokens: L words. attend(keep) -> weights (L, L): what to do with the mask; None gives every
    allowed key the same weight. start: the name of the first mask, one of `presets`.
    After painting, `.keep` is the mask: booleans (L, L), True = this query may attend to this key.
    """

    def __init__(self, tokens, attend=None, start="causal"):
        self.tokens = distinct(tokens)
        if not 1 <= len(self.tokens) <= MOST_TOKENS:
            raise ValueError(f"{len(self.tokens)} tokens: choose 1 to {MOST_TOKENS}, every pair of them gets a button.")
        self.attend = attend or even_weights
        self.presets = self.presets_for(len(self.tokens))
        if start not in self.presets:
            raise ValueError(f"start is {start!r}: choose one of {', '.join(self.presets)}.")
        self.keep = self.presets[start].copy()
        self._painting = False
        super().__init__({"keep": self.keep.copy()})

    @staticmethod
    def presets_for(length):
        """Well-known masks (L, L), and one well-known mistake, by name."""
        query, key = np.arange(length)[:, None], np.arange(length)
        return {
            "all": np.ones((length, length), bool),
            "causal": key <= query,
            "reversed causal": key >= query,
            "window 2": (key <= query) & (key > query - 2),
            "padding last 2": np.broadcast_to(key < max(length - 2, 0), (length, length)).copy(),
        }

    def controls_for(self, start):
        """No control has a simple value here: the cells are kept in `self.cells` (L x L)."""
        self.cells = [[self._cell(query, key) for key in range(len(self.tokens))] for query in range(len(self.tokens))]
        return {}

    def _cell(self, query, key):
        cell = ipywidgets.ToggleButton(bool(self.keep[query, key]), layout=self._square(), style={"font_size": "13px"})
        self._label(cell, query, key)
        cell.observe(lambda change: self.toggle(query, key, change["new"]), names="value")
        return cell

    def _square(self):
        if not hasattr(self, "_layout"):  # one layout for all cells: quicker to build
            self._layout = ipywidgets.Layout(width="auto", height="28px", margin="1px", padding="0")
        return self._layout

    def _label(self, cell, query, key):
        allowed = bool(self.keep[query, key])
        cell.description = "✓" if allowed else "·"
        verb = "may attend to" if allowed else "may not attend to"
        cell.tooltip = f"{self.tokens[query]} {verb} {self.tokens[key]}"

    def arrange(self):
        self.preset_buttons = {}
        for name in self.presets:
            button = ipywidgets.Button(
                description=name, tooltip=f"mask: {name}", layout=ipywidgets.Layout(width="auto")
            )
            button.on_click(lambda _, name=name: self.choose(name))
            self.preset_buttons[name] = button
        wrap = ipywidgets.Layout(flex_flow="row wrap")
        heads = [ipywidgets.Label("query \\ key")]
        heads += [ipywidgets.Label(token, layout={"justify_content": "center"}) for token in self.tokens]
        places = list(heads)
        for token, row in zip(self.tokens, self.cells, strict=True):
            places += [ipywidgets.Label(token, layout={"justify_content": "flex-end"}), *row]
        longest = max(map(len, self.tokens))
        grid = ipywidgets.GridBox(
            places,
            layout=ipywidgets.Layout(
                grid_template_columns=f"{max(80, 8 * longest + 10)}px "
                + f"repeat({len(self.tokens)}, minmax(26px, {max(36, 7 * longest + 8)}px))",
                width="100%",
            ),
        )
        return [ipywidgets.HBox(list(self.preset_buttons.values()), layout=wrap), grid]

    def state(self):
        return {"keep": self.keep}

    @shows_errors
    def toggle(self, query, key, allowed):
        """One cell was pressed."""
        self.keep[query, key] = allowed
        self._label(self.cells[query][key], query, key)
        if not self._painting:
            self.update()

    @shows_errors
    def choose(self, name):
        """A preset was pressed."""
        self.paint(self.presets[name])

    def paint(self, keep):
        """Show this mask, booleans (L, L)."""
        keep = np.asarray(keep)
        if keep.dtype != bool or keep.shape != self.keep.shape:
            raise ValueError(f"keep must be booleans of shape {self.keep.shape}, not {keep.dtype} {keep.shape}.")
        self._painting = True  # draw once at the end, not after every cell
        try:
            for query, row in enumerate(self.cells):
                for key, cell in enumerate(row):
                    cell.value = bool(keep[query, key])
        finally:
            self._painting = False
        self.update()

    def empty_rows(self, keep):
        """The queries that may attend to no key."""
        return [int(query) for query in np.flatnonzero(~np.asarray(keep).any(-1))]

    def sees_future(self, keep):
        """The queries that may attend to a key that comes after them."""
        later = np.triu(np.ones(self.keep.shape, bool), 1)
        return [int(query) for query in np.flatnonzero((np.asarray(keep) & later).any(-1))]

    def warnings(self, keep):
        """What to look out for in this mask, in sentences."""
        found = []
        if empty := self.empty_rows(keep):
            found.append(
                f"Empty row: {self._list(empty)} may attend to nothing. A plain softmax gives nan "
                "here; this course sets such weights to 0."
            )
        if future := self.sees_future(keep):
            found.append(
                f"This mask lets {self._list(future)} see the future. Fine for reading a whole "
                "text, a leak for predicting the next word."
            )
        return found

    def _list(self, positions):
        names = [f"position {p} ({self.tokens[p]})" for p in positions[:3]]
        more = f" and {len(positions) - 3} more" if len(positions) > 3 else ""
        return ", ".join(names) + more

    def counts(self, keep):
        """The mask in one sentence."""
        keep = np.asarray(keep)
        return (
            f"{int(keep.sum())} of {keep.size} pairs are allowed; empty rows: "
            f"{len(self.empty_rows(keep))}; positions that see the future: "
            f"{len(self.sees_future(keep))}."
        )

    def describe(self, keep):
        weights = self.weights(keep)
        row = "unknown" if weights is None else " ".join(plain(weight) for weight in weights[-1])
        return f"{self.counts(keep)} Weights of the last word: {row}."

    def weights(self, keep):
        """What attend makes of the mask (L, L); None if it fails (render shows how)."""
        try:
            return self._attended(keep)
        except Exception:
            return None

    def _attended(self, keep):
        # A copy: attend may be a learner's first try and write into its argument.
        return square(self.attend(np.array(keep)), self.tokens, "what attend(keep) returned")

    def render(self, keep):
        """HTML: the weights under this mask (L, L), warnings, a sentence."""
        keep = np.asarray(keep, dtype=bool)
        weights = self._attended(keep)
        finite = weights[np.isfinite(weights)]
        top = float(finite.max()) if finite.size else 1.0
        texts = [[markup.number(weight, 2) for weight in row] for row in weights]
        colours = [[weight_colour(max(weight, 0.0), top) for weight in row] for row in weights]
        return markup.page(
            markup.colour_table(texts, colours, self.tokens, self.tokens, "Weights, query by key"),
            *(markup.note(text) for text in self.warnings(keep)),
            markup.sentence(self.counts(keep)),
        )

    def picture(self):
        from mha_lesson.show.figures import plots

        keep = self.start["keep"]
        weights = self.weights(keep)
        return plots.heatmap(
            even_weights(keep) if weights is None else weights,
            self.tokens,
            title="weights; hatched: not allowed",
            keep=keep,
        )

    def picture_alt(self):
        return f"A mask over {len(self.tokens)} words: {self.describe(**self.start)}"
