"""A widget that steps through softmax in one pass: tile after tile, with what is kept between them.

For each query of a tile, with s its new scores and v their values:

    m_new  = max(m, max s)                        the largest score so far
    shrink = exp(m - m_new)                       what was summed so far stood under the old maximum
    l_new  = l · shrink + sum exp(s - m_new)
    o_new  = o · shrink + sum exp(s - m_new) · v  the answer so far is o / l

    scores (L, S): L queries, S keys    values (S,), or (S, V) for rows of V numbers

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022,
"FlashAttention", algorithm 1.
"""

from dataclasses import dataclass
from html import escape

import numpy as np

from mha_lesson.show import markup
from mha_lesson.show.widgets.base import WIDE, LessonWidget, ipywidgets, plain

LARGEST = 12  # queries, and keys, that a table can show
GREATEST_WIDTH = 3  # numbers of a value

NOW, DONE, HATCH = "#ffd37a", "#9ec1d9", "repeating-linear-gradient(45deg,#8886 0 2px,transparent 2px 7px)"
STYLE = f"""<style>
.mha-lesson td.tile {{min-width: 34px; text-align: center; background-clip: padding-box;
  font-variant-numeric: tabular-nums;}}
.mha-lesson .top {{border-top: 5px solid transparent !important;}}
.mha-lesson .left {{border-left: 5px solid transparent !important;}}
.mha-lesson td.now {{background-color: {NOW}; color: #000; font-weight: 700;}}
.mha-lesson td.done {{background-color: {DONE}; color: #000;}}
.mha-lesson td.later {{background-color: #8883;}}
.mha-lesson td.skipped {{background-image: {HATCH};}}
</style>"""
MEANINGS = (
    ("now", "this tile"),
    ("done", "done, thrown away"),
    ("later", "to come"),
    ("skipped", "never computed"),
)


@dataclass(frozen=True)
class TileStep:
    """One tile: which queries and keys, and what is kept after it, for the n queries of its block."""

    rows: slice
    keys: slice
    m: np.ndarray  # (n,) largest score so far
    l: np.ndarray  # (n,) sum of exp(score - m)
    o: np.ndarray  # (n,) or (n, V) sum of exp(score - m) · value
    before: np.ndarray  # (n,) m before this tile
    shrink: np.ndarray  # (n,) exp(before - m): what the sums so far were multiplied by
    last: bool  # the last tile of its queries

    @property
    def answer(self):
        """o / l (n,) or (n, V), for the keys so far; 0 for a query that has seen no key."""
        l = np.where(self.l > 0, self.l, 1.0)
        return (self.o.T / l).T  # .T: one l for each row of o, if o has rows


def tile_steps(scores, values, block_q, block_k, causal=False):
    """Every tile in order, for scores (L, S) and values (S,) or (S, V); those wholly in the future are left out.

    The answers of the steps that are `last` are softmax(scores) @ values, block after block.
    """
    scores, values = np.asarray(scores, float), np.asarray(values, float)
    check_tiles(scores, values, block_q, block_k)
    seen = seen_by(scores.shape, causal)
    steps = []
    for top in range(0, len(scores), block_q):
        rows = slice(top, min(top + block_q, len(scores)))
        m = np.full(rows.stop - top, -np.inf)  # (n,) nothing seen yet
        l, o = np.zeros_like(m), np.zeros((len(m), *values.shape[1:]))  # (n,), (n,) or (n, V)
        blocks = [slice(left, min(left + block_k, len(values))) for left in range(0, len(values), block_k)]
        blocks = [keys for keys in blocks if seen[rows, keys].any()]
        for keys in blocks:
            tile = np.where(seen[rows, keys], scores[rows, keys], -np.inf)  # (n, block_k)
            before, m = m, np.maximum(m, tile.max(1))
            safe = np.where(np.isneginf(m), 0, m)  # -inf - -inf is nan
            shrink, p = np.exp(before - safe), np.exp(tile - safe[:, None])
            l = l * shrink + p.sum(1)
            o = (o.T * shrink).T + p @ values[keys]
            steps.append(TileStep(rows, keys, m, l, o, before, shrink, keys == blocks[-1]))
    return steps


def seen_by(shape, causal):
    """Booleans (L, S), True = this query may attend to this key. Causal: the last query sees all keys."""
    L, S = shape
    return np.tri(L, S, S - L, dtype=bool) if causal else np.ones(shape, bool)


def check_tiles(scores, values, block_q, block_k):
    """An error where these can't be cut into tiles."""
    if scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(f"scores: expected (L, S), one query and one key at least, got {scores.shape}.")
    if values.ndim not in (1, 2) or len(values) != scores.shape[1]:
        raise ValueError(
            f"values: expected (S,) or (S, V) with S = {scores.shape[1]}, one for each key, got {values.shape}."
        )
    if not (np.isfinite(scores).all() and np.isfinite(values).all()):
        raise ValueError("scores, values: expected finite numbers. For a mask pass causal=True.")
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block_q, block_k: expected 1 or more, got {block_q} and {block_k}.")


def tile_states(shape, steps, tile):
    """Of each score (L, S), when step number `tile` (from 1) runs: "now", "done", "later" or "skipped"."""
    states = np.full(shape, "skipped", dtype=object)
    for number, step in enumerate(steps, start=1):
        states[step.rows, step.keys] = "now" if number == tile else "done" if number < tile else "later"
    return states


class TileStepper(LessonWidget):
    """Go through the tiles of a score matrix: which one is computed, and what is kept.

    scores (L, S), values (S,) or (S, V): small, so that all numbers can be read.
    """

    def __init__(self, scores, values, block_q=2, block_k=2, causal=False):
        self.scores, self.values = np.asarray(scores, float), np.asarray(values, float)
        self.block_q, self.block_k = block_q, block_k
        self.steps = tile_steps(self.scores, self.values, block_q, block_k, causal)
        if max(self.scores.shape) > LARGEST:
            raise ValueError(f"scores: expected {LARGEST} queries and keys at most, to be read, got {scores.shape}.")
        if self.values.ndim == 2 and self.values.shape[1] > GREATEST_WIDTH:
            raise ValueError(f"values: expected {GREATEST_WIDTH} numbers a key at most, got {self.values.shape}.")
        self.seen = seen_by(self.scores.shape, causal)
        self.answer = final_answer(self.scores, self.values, self.seen)
        # Numbers are written with one decimal if that is all they have, so that sums in words come out right.
        self.digits = 1 if np.array_equal(self.scores, self.scores.round(1)) else 2
        super().__init__({"tile": 1})

    def controls_for(self, start):
        return {
            "tile": ipywidgets.IntSlider(
                start["tile"], min=1, max=len(self.steps), description=f"tile (of {len(self.steps)})", style=WIDE,
                layout=ipywidgets.Layout(width="420px"),
            )
        }  # fmt: skip

    def arrange(self):
        """The slider, with a button at each side."""
        back, on = (
            ipywidgets.Button(description=text, tooltip=tip, layout=ipywidgets.Layout(width="auto"))
            for text, tip in (("◀ back", "the tile before"), ("next ▶", "the next tile"))
        )
        back.on_click(lambda _: self.go(-1))
        on.on_click(lambda _: self.go(1))
        wrap = ipywidgets.Layout(flex_flow="row wrap")
        return [ipywidgets.HBox([back, self.controls["tile"], on], layout=wrap)]

    def go(self, by):
        """So many tiles on, or back; the ends stay."""
        slider = self.controls["tile"]
        slider.value = min(max(slider.value + by, slider.min), slider.max)

    def describe(self, tile):
        step = self.steps[tile - 1]
        queries, keys = _span("query", "queries", step.rows), _span("key", "keys", step.keys)
        verb = "meets" if step.rows.stop - step.rows.start == 1 else "meet"
        text = f"Tile {tile} of {len(self.steps)}: {queries} {verb} {keys}. {self._what_happened(step)}"
        if step.last:
            answers = ", ".join(_row_text(row, plain) for row in step.answer)
            count = sum(other.rows == step.rows for other in self.steps)
            done = f"{queries} {'is' if verb == 'meets' else 'are'} done after {count} {_tiles(count)}"
            text += f" {done[0].upper()}{done[1:]}: o / l = {answers}."
        return text

    def _what_happened(self, step):
        """What the tile did to the maxima, and so to the sums."""
        if np.isneginf(step.before).all():
            return "It is the first: nothing has to shrink yet."
        rose = np.flatnonzero(np.isfinite(step.before) & (step.m > step.before))
        if not len(rose):
            return "No maximum rose, so nothing shrinks."
        i = int(rose[0])
        old, new = plain(step.before[i], self.digits), plain(step.m[i], self.digits)
        minus = f"({new})" if new.startswith("-") else new
        more = f" (So for {len(rose) - 1} more.)" if len(rose) > 1 else ""
        return (
            f"The maximum of query {step.rows.start + i} rose from {old} to {new}, so what was summed shrinks by "
            f"exp({old} - {minus}) = {plain(step.shrink[i])}.{more}"
        )

    def render(self, tile):
        """HTML: the scores as tiles, what is kept for the queries of this one, a sentence."""
        step = self.steps[tile - 1]
        return markup.page(
            STYLE,
            markup.side_by_side(self._score_table(tile), self._kept_table(step)),
            self._legend(tile),
            markup.sentence(self.describe(tile)),
        )

    def _score_table(self, tile):
        """The scores, each in the look of its tile; a gap runs between tiles."""
        L, S = self.scores.shape
        states = tile_states((L, S), self.steps, tile)
        head = "".join(f'<th scope="col"{"" if j % self.block_k else " class=left"}>key {j}</th>' for j in range(S))
        body = []
        for i in range(L):
            top = " top" if i % self.block_q == 0 else ""
            cells = [
                f'<td class="tile {states[i, j]}{top}{"" if j % self.block_k else " left"}">'
                f"{markup.number(self.scores[i, j], self.digits) if self.seen[i, j] else '·'}</td>"
                for j in range(S)
            ]
            body.append(f'<tr><th scope="row" class="{top}">query {i}</th>{"".join(cells)}</tr>')
        return (
            f"<table><caption>Scores, cut into tiles (·: in the future)</caption>"
            f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        )

    def _legend(self, tile):
        """What the looks of the tiles mean, those that are there."""
        present = set(tile_states(self.scores.shape, self.steps, tile).flat)
        cells = (f'<td class="tile {key}">0.0</td><td>{text}</td>' for key, text in MEANINGS if key in present)
        return f"<table><tr>{''.join(cells)}</tr></table>"

    def _kept_table(self, step):
        """m, l, o of the queries of this tile, and how far the answer is."""
        heads = ("m", "shrink", "l", "o", "o / l so far", "in the end")
        columns = (step.m, step.shrink, step.l, step.o, step.answer, self.answer[step.rows])
        rows = []
        for i in range(len(step.m)):
            texts = [_row_text(column[i], lambda x: markup.number(x, 2)).replace("inf", "∞") for column in columns]
            cells = "".join(f'<td class="number">{escape(text)}</td>' for text in texts)
            rows.append(f'<tr><th scope="row">query {step.rows.start + i}</th>{cells}</tr>')
        top = "".join(f'<th scope="col">{head}</th>' for head in heads)
        return (
            f"<table><caption>All that is kept: m, l, o</caption>"
            f"<thead><tr><td></td>{top}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )

    def picture(self):
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        L, S = self.scores.shape
        fig = Figure(figsize=(1.4 + 0.6 * S, 1.3 + 0.5 * L), facecolor="white", layout="constrained")
        axes = fig.subplots()
        axes.add_patch(Rectangle((0, 0), S, L, facecolor="white", edgecolor="#999999", hatch="///", linewidth=0))
        for number, step in enumerate(self.steps, start=1):
            wide, tall = step.keys.stop - step.keys.start, step.rows.stop - step.rows.start
            left, top = step.keys.start, step.rows.start
            axes.add_patch(Rectangle((left, top), wide, tall, facecolor=DONE, edgecolor="black", linewidth=2))
            axes.text(left + 0.06, top + 0.06, str(number), va="top", weight="bold", fontsize=9)
            for i, j in np.ndindex(tall, wide):
                row, key = top + i, left + j
                text = plain(self.scores[row, key], self.digits) if self.seen[row, key] else "·"
                axes.text(key + 0.55, row + 0.55, text, ha="center", va="center", fontsize=10)
        axes.set_xticks(np.arange(S) + 0.5, [f"key {j}" for j in range(S)])
        axes.set_yticks(np.arange(L) + 0.5, [f"query {i}" for i in range(L)])
        axes.set(xlim=(0, S), ylim=(L, 0))
        axes.tick_params(length=0, labelsize=9)
        axes.spines[:].set_visible(False)
        skipped = len(self.steps) < _number_of(L, self.block_q) * _number_of(S, self.block_k)
        note = "; hatched: never computed" if skipped else ""
        axes.set_title(f"Tiles, in their order{note}", fontsize=11)
        return fig

    def picture_alt(self):
        L, S = self.scores.shape
        whole = _number_of(L, self.block_q) * _number_of(S, self.block_k)
        skipped = f" {whole - len(self.steps)} of {whole} lie in the future and are skipped."
        return (
            f"A grid of {L} queries and {S} keys, cut into tiles of {self.block_q} by {self.block_k} that are "
            f"computed in {len(self.steps)} steps, row after row.{skipped if whole > len(self.steps) else ''}"
        )


def final_answer(scores, values, seen):
    """The softmax of whole rows, times the values: what the tiles must arrive at. 0 where nothing is seen."""
    scores = np.where(seen, scores, -np.inf)  # (L, S)
    top = np.where(seen.any(1), scores.max(1), 0.0)
    p = np.exp(scores - top[:, None])
    total = np.where(seen.any(1), p.sum(1), 1.0)
    return (p / total[:, None]) @ values  # (L,) or (L, V)


def _row_text(row, write):
    """One number, or a row of them in brackets."""
    return write(row) if np.ndim(row) == 0 else f"({', '.join(map(write, row))})"


def _number_of(length, block):
    return -(-length // block)


def _tiles(count):
    return "tile" if count == 1 else "tiles"


def _span(one, many, part):
    """ "queries 2 and 3", "keys 0 to 2", "key 5"."""
    first, last = part.start, part.stop - 1
    if first == last:
        return f"{one} {first}"
    return f"{many} {first} {'and' if last == first + 1 else 'to'} {last}"
