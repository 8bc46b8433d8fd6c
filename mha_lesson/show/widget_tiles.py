"""A widget that steps through softmax in one pass: tile after tile, with what is kept between them."""

from dataclasses import dataclass

import numpy as np

from . import markup
from .palette import weight_colour
from .widget_base import WIDE, LessonWidget, ipywidgets, plain


@dataclass(frozen=True)
class TileStep:
    """One tile: which queries and keys, and what is kept after it, for the queries of its block."""

    rows: slice
    keys: slice
    m: np.ndarray  # (n,) largest score so far
    l: np.ndarray  # (n,) sum of exp(score - m)
    o: np.ndarray  # (n,) sum of exp(score - m) · value
    before: np.ndarray  # (n,) m before this tile
    shrink: np.ndarray  # (n,) exp(before - m): what the sums so far were multiplied by


def tile_steps(scores, values, block_q, block_k, causal=False):
    """Every tile in order, for scores (L, S) and values (S,); those wholly in the future are left out."""
    scores, values = np.asarray(scores, float), np.asarray(values, float)
    if scores.ndim != 2 or values.shape != scores.shape[1:]:
        raise ValueError(f"expected scores (L, S) and values (S,), got {scores.shape} and {values.shape}.")
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block_q, block_k: expected 1 or more, got {block_q} and {block_k}.")
    L, S = scores.shape
    seen = np.arange(S) <= np.arange(L)[:, None] + S - L if causal else np.ones((L, S), bool)
    steps = []
    for top in range(0, L, block_q):
        rows = slice(top, min(top + block_q, L))
        m = np.full(rows.stop - top, -np.inf)
        l, o = np.zeros_like(m), np.zeros_like(m)
        for left in range(0, S, block_k):
            keys = slice(left, min(left + block_k, S))
            if not seen[rows, keys].any():
                continue
            tile = np.where(seen[rows, keys], scores[rows, keys], -np.inf)
            before, m = m, np.maximum(m, tile.max(1))
            safe = np.where(np.isneginf(m), 0, m)
            shrink, p = np.exp(before - safe), np.exp(tile - safe[:, None])
            l, o = l * shrink + p.sum(1), o * shrink + p @ values[keys]
            steps.append(TileStep(rows, keys, m, l, o, before, shrink))
    return steps


class TileStepper(LessonWidget):
    """Go through the tiles of a score matrix: which one is computed, and what is kept.

    scores (L, S), values (S,): small, so that all numbers can be read.
    """

    def __init__(self, scores, values, block_q=2, block_k=2, causal=False):
        self.scores, self.values, self.causal = np.asarray(scores, float), np.asarray(values, float), causal
        self.steps = tile_steps(scores, values, block_q, block_k, causal)
        super().__init__({"tile": 1})

    def controls_for(self, start):
        return {
            "tile": ipywidgets.IntSlider(
                start["tile"], min=1, max=len(self.steps), description=f"tile (of {len(self.steps)})", style=WIDE,
                layout=ipywidgets.Layout(width="420px"),
            )
        }  # fmt: skip

    def describe(self, tile):
        step = self.steps[tile - 1]
        queries, keys = _span("query", "queries", step.rows), _span("key", "keys", step.keys)
        text = f"Tile {tile} of {len(self.steps)}: {queries} meet {keys}."
        rose = np.flatnonzero(np.isfinite(step.before) & (step.m > step.before))
        if len(rose):
            i = int(rose[0])
            text += (
                f" The maximum of query {step.rows.start + i} rose from {plain(step.before[i], 1)} to "
                f"{plain(step.m[i], 1)}, so what was summed shrinks by exp({plain(step.before[i], 1)} - "
                f"{plain(step.m[i], 1)}) = {plain(step.shrink[i])}."
            )
        elif np.isneginf(step.before).all():
            text += " It is the first of its row: nothing has to shrink yet."
        else:
            text += " No maximum rose, so nothing shrinks."
        done = [s for s in self.steps[:tile] if s.rows == step.rows]
        last = tile == len(self.steps) or self.steps[tile].rows != step.rows
        if last:
            answers = ", ".join(plain(a) for a in step.o / step.l)
            text += f" The row is done after {len(done)} {'tile' if len(done) == 1 else 'tiles'}: o / l = {answers}."
        return text

    def render(self, tile):
        """HTML: the scores with the present tile marked, what is kept, a sentence."""
        step = self.steps[tile - 1]
        inside = np.zeros(self.scores.shape, bool)
        inside[step.rows, step.keys] = True
        done = np.zeros(self.scores.shape, bool)
        for other in self.steps[: tile - 1]:
            done[other.rows, other.keys] = True
        texts, colours = [], []
        L, S = self.scores.shape
        for i in range(L):
            future = [self.causal and j > i + S - L for j in range(S)]
            texts.append(["·" if f else markup.number(x, 1) for f, x in zip(future, self.scores[i], strict=True)])
            colours.append([
                "#bbbbbb" if f else "#ffd37a" if inside[i, j] else weight_colour(0.75, 1) if done[i, j] else "#ffffff"
                for j, f in enumerate(future)
            ])  # fmt: skip
        names = [f"query {i}" for i in range(L)]
        kept = [[markup.number(x, 2) for x in row] for row in zip(step.m, step.l, step.o, strict=True)]
        return markup.page(
            markup.side_by_side(
                markup.colour_table(
                    texts, colours, names, [f"key {j}" for j in range(S)],
                    "Scores: this tile is light orange, tiles that are done are olive, the future is grey",
                    strong=inside,
                ),
                markup.colour_table(
                    kept, [["#ffffff"] * 3] * len(kept), names[step.rows],
                    ["m (largest)", "l (sum)", "o (sum of values)"], "All that is kept",
                ),
            ),
            markup.sentence(self.describe(tile)),
        )  # fmt: skip

    def picture(self):
        from . import plots

        order = np.full(self.scores.shape, np.nan)
        for number, step in enumerate(self.steps, start=1):
            order[step.rows, step.keys] = number
        L, S = self.scores.shape
        return plots.heatmap(
            np.nan_to_num(order), [f"query {i}" for i in range(L)], [f"key {j}" for j in range(S)],
            title="The order of the tiles (hatched: never computed)", keep=np.isfinite(order),
        )  # fmt: skip

    def picture_alt(self):
        return (
            f"A grid of {self.scores.shape[0]} queries and {self.scores.shape[1]} keys, cut into tiles that are "
            f"computed in {len(self.steps)} steps, row after row."
        )


def _span(one, many, part):
    """"queries 2 and 3", "keys 0 to 2", "key 5"."""
    first, last = part.start, part.stop - 1
    if first == last:
        return f"{one} {first}"
    return f"{many} {first} {'and' if last == first + 1 else 'to'} {last}"
