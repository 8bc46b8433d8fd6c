"""Widgets about words: where they stand, what they look for, how they are cut into heads."""

import numpy as np

from mha_lesson.show import markup
from mha_lesson.show.origin import split_origin
from mha_lesson.show.palette import head_colour, signed_colour
from mha_lesson.show.widgets.base import WIDE, LessonWidget, distinct, ipywidgets, largest, plain, square


class PositionSlider(LessonWidget):
    """Choose a position; see which other positions its vector is similar to.

    positions (n, d): a position encoding. words: n words to name the positions, if there are any.
    """

    def __init__(self, positions, words=None):
        self.positions = np.asarray(positions, dtype=float)
        if self.positions.ndim != 2 or len(self.positions) < 2:
            raise ValueError(f"positions must have the shape (n, d) with n of at least 2, not {self.positions.shape}.")
        count = len(self.positions)
        if words is not None and len(words) != count:
            raise ValueError(f"there are {len(words)} words but {count} positions.")
        self.words = None if words is None else [str(word) for word in words]
        super().__init__({"position": count // 2})

    def controls_for(self, start):
        return {
            "position": ipywidgets.IntSlider(
                start["position"],
                0,
                len(self.positions) - 1,
                description="position",
                style=WIDE,
                layout=ipywidgets.Layout(width="420px"),
            )
        }

    def products(self, position):
        """The dot product of this position's vector with every position's (n,)."""
        return self.positions @ self.positions[position]

    def nearest(self, position):
        """The most similar other positions; two if they tie, as left and right neighbours do."""
        others = self.products(position).copy()
        others[position] = -np.inf
        return [int(p) for p in np.flatnonzero(others >= others.max() - 1e-9)]

    def name(self, position):
        return f"{position} ({self.words[position]})" if self.words else str(position)

    def describe(self, position):
        products, near = self.products(position), self.nearest(position)
        shown = " and ".join(self.name(p) for p in near[:3])
        if len(near) > 3:
            shown += f" and {len(near) - 3} more"
        return (
            f"Position {self.name(position)}: most similar {shown} "
            f"(dot product {plain(products[near[0]])}; with itself {plain(products[position])})."
        )

    def render(self, position):
        """HTML for a chosen position: its dot products, its vector, a sentence."""
        ends = (f"position {self.name(0)}", f"position {self.name(len(self.positions) - 1)}")
        strip = self.positions[position]
        top = np.abs(self.positions).max()
        return markup.page(
            "<p><strong>Dot product with every position</strong> (the chosen one in orange)</p>",
            markup.column_chart(
                self.products(position),
                f"dot products of position {position} with every position",
                best=position,
                ends=ends,
            ),
            f"<p><strong>Its vector</strong>, {len(strip)} numbers from −{plain(top, 2)} (purple) "
            f"to {plain(top, 2)} (orange)</p>",
            markup.colour_strip([signed_colour(value, top) for value in strip], f"vector of position {position}"),
            markup.sentence(self.describe(position)),
        )

    def picture(self):
        from mha_lesson.show.figures import plots

        position = self.start["position"]
        names = self.words or range(len(self.positions))
        if len(self.positions) <= 16:
            title = f"dot product of position {self.name(position)} with every position"
            return plots.bars(list(names), self.products(position), title, "dot product")
        return plots.lines(
            np.arange(len(self.positions)),
            {f"with position {position}": self.products(position)},
            "dot product with every position",
            "position",
            "dot product",
        )

    def picture_alt(self):
        return f"Dot products of one position with all the others; {self.describe(**self.start)}"


class WordScores(LessonWidget):
    """Click a word; see the scores of its query against every key.

    tokens: L words. scores (L, L): row = query, column = key. weights (L, L): shown beside, if given.
    word: the index of the word that is chosen at first.
    """

    def __init__(self, tokens, scores, weights=None, word=0):
        self.tokens = distinct(tokens)
        self.scores = square(scores, self.tokens, "scores")
        self.weights = None if weights is None else square(weights, self.tokens, "weights")
        super().__init__({"word": word})

    def controls_for(self, start):
        return {
            "word": ipywidgets.ToggleButtons(
                options=[(token, index) for index, token in enumerate(self.tokens)],
                value=start["word"],
                description="query",
                tooltips=[f"the query of {token}" for token in self.tokens],
                style={"button_width": "auto", "description_width": "initial"},
            )
        }

    def describe(self, word):
        best = largest(self.scores[word])
        weight = "" if self.weights is None else f", weight {plain(self.weights[word, best])}"
        return (
            f"The query of {self.tokens[word]} scores highest with the key of "
            f"{self.tokens[best]}: {plain(self.scores[word, best])}{weight}."
        )

    @property
    def text(self):
        """The best key of every query with its numbers, whatever is chosen."""
        found = []
        for word, token in enumerate(self.tokens):
            best = largest(self.scores[word])
            weight = "" if self.weights is None else f" (weight {plain(self.weights[word, best])})"
            found.append(f"{token} -> {self.tokens[best]} {plain(self.scores[word, best])}{weight}")
        return f"WordScores: highest score of each query: {'; '.join(found)}."

    def render(self, word):
        """HTML for a chosen word (its index): a bar for every key, and a sentence."""
        more = []
        if self.weights is not None:
            more.append(("weight", [markup.number(w) for w in self.weights[word]]))
        return markup.page(
            markup.bar_table(
                self.tokens,
                self.scores[word],
                f"Scores of the query of {self.tokens[word]} with every key",
                best=largest(self.scores[word]),
                more=more,
            ),
            markup.sentence(self.describe(word)),
        )

    def picture(self):
        from mha_lesson.show.figures import plots

        word = self.start["word"]
        return plots.bars(self.tokens, self.scores[word], f"scores of the query of {self.tokens[word]}", "score")

    def picture_alt(self):
        return f"Bars: the scores of one query with every key. {self.describe(**self.start)}"


class TensorSlicer(LessonWidget):
    """Follow every number of x (L, E) through the split into heads and back.

    tokens: L words. A cell "t2·f5" is feature 5 of token 2; the colour says whose head that
    feature belongs to.
    """

    STEPS = (
        ("1. x: (L, E)", "x"),
        ("2. x.reshape(L, H, D)", "reshape"),
        ("3. swap the axes: (H, L, D)", "swap"),
        ("4. merged again: (L, E)", "merged"),
        ("wrong: x.reshape(H, L, D)", "wrong"),
    )

    def __init__(self, tokens, d_model, num_heads):
        self.tokens = [str(token) for token in tokens]
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(
                f"d_model = {d_model} can't be shared out evenly among {num_heads} heads: "
                "choose numbers where d_model / num_heads is whole."
            )
        self.d_model, self.num_heads = d_model, num_heads
        self.width = d_model // num_heads
        super().__init__({"step": "swap", "head": 0})

    def controls_for(self, start):
        return {
            "step": ipywidgets.Dropdown(options=self.STEPS, value=start["step"], description="step", style=WIDE),
            "head": ipywidgets.IntSlider(start["head"], 0, self.num_heads - 1, description="frame head", style=WIDE),
        }

    def origin(self, step):
        """The flat index in x of every number at this step, in the step's shape."""
        length, heads = len(self.tokens), self.num_heads
        flat = np.arange(length * self.d_model)
        shapes = {
            "x": flat.reshape(length, self.d_model),
            "reshape": flat.reshape(length, heads, self.width),
            "swap": split_origin(length, self.d_model, heads),
            "merged": flat.reshape(length, self.d_model),
            "wrong": split_origin(length, self.d_model, heads, reshape_only=True),
        }
        if step not in shapes:
            raise ValueError(f"step is {step!r}: choose one of {', '.join(shapes)}.")
        return shapes[step]

    def cell(self, index):
        token, feature = divmod(int(index), self.d_model)
        return f"t{token}·f{feature}"

    def held_by(self, step, head):
        """The flat indices that a head has at this step (L, d)."""
        origin, columns = self.origin(step), slice(head * self.width, (head + 1) * self.width)
        if origin.ndim == 2:
            return origin[:, columns]
        return origin[:, head] if step == "reshape" else origin[head]

    def describe(self, step, head):
        shape = self.origin(step).shape
        held = self.held_by(step, head)
        # Row 0 of a plain reshape still looks right for head 0; row 1 shows the mistake.
        row = min(1, len(self.tokens) - 1) if step == "wrong" else 0
        first = ", ".join(self.cell(index) for index in held[row])
        tokens = sorted({int(index) // self.d_model for index in held.flat})
        where = {
            "x": f"the columns of head {head}, row 0",
            "reshape": f"token 0, head {head}",
            "swap": f"head {head}, token 0",
            "merged": f"the columns of head {head}, row 0",
            "wrong": f"head {head}, row {row}",
        }[step]
        text = f"Shape {shape}; {where}: {first}. "
        if step != "wrong":
            return text + f"Head {head} has its features of every token."
        names = ", ".join(f"t{token} ({self.tokens[token]})" for token in tokens)
        if len(tokens) == len(self.tokens) and self.num_heads == 1:
            return text + "With one head there is nothing to mix."
        return text + f"Mixed up: head {head} holds numbers of {names} only."

    def render(self, step, head):
        """HTML: the numbers at a step, those of one head framed, and a sentence."""
        origin = self.origin(step)
        framed = np.isin(origin, self.held_by(step, head))
        rows = [f"t{index} {token}" for index, token in enumerate(self.tokens)]
        if origin.ndim == 2:
            columns = [f"f{feature}" for feature in range(self.d_model)]
            return self._page(self._table(origin, framed, rows, columns, ""), step, head)
        # (L, H, D) and (H, L, D) are drawn as one block for each head; the order of axes is in the
        # caption, so the step from one to the other is a new name for the same blocks.
        blocks = []
        for number in range(self.num_heads):
            pick = (slice(None), number) if step == "reshape" else number
            caption = f"[:, {number}, :]" if step == "reshape" else f"[{number}, :, :]"
            names = rows if step != "wrong" else [f"row {r}" for r in range(len(rows))]
            blocks.append(self._table(origin[pick], framed[pick], names, None, f"{caption} head {number}"))
        return self._page(markup.side_by_side(*blocks), step, head)

    def _page(self, drawing, step, head):
        return markup.page(drawing, markup.sentence(self.describe(step, head)))

    def _table(self, origin, framed, rows, columns, caption):
        texts = [[self.cell(index) for index in row] for row in origin]
        colours = [[head_colour(int(index) % self.d_model // self.width) for index in row] for row in origin]
        return markup.colour_table(texts, colours, rows, columns, caption, framed)

    def picture(self):
        from mha_lesson.show.figures import plots

        shape = (len(self.tokens), self.d_model)
        return plots.head_tensor(np.zeros(shape), self.num_heads, self.tokens)

    def picture_alt(self):
        return (
            f"A matrix of {len(self.tokens)} tokens and {self.d_model} features is cut into "
            f"{self.num_heads} heads: each gets {self.width} neighbouring features of every token."
        )
