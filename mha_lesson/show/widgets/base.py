"""What all widgets share: controls on top, a drawing below, and a picture for where neither works.

A widget changes the `.value` of one HTML area and nothing else. Its `render(**state)` returns that
HTML and can be called without any browser; its `describe(**state)` says the same in one sentence.
"""

import functools

import numpy as np

from mha_lesson.show import markup

try:
    import ipywidgets
except ImportError:  # then there is the picture and the text
    ipywidgets = None

VIEW = "application/vnd.jupyter.widget-view+json"
WIDE = {"description_width": "initial"}


def shows_errors(callback):
    """Decorator for callbacks: an error appears in the widget instead of vanishing.

    ipywidgets drops what a button's callback raises (jupyter-widgets/ipywidgets#2949); the learner would see nothing
    happen.
    """

    @functools.wraps(callback)
    def guarded(self, *args, **kwargs):
        try:
            return callback(self, *args, **kwargs)
        except Exception as error:
            self.output.value = markup.error_box(error)

    return guarded


class Stand:
    """Stands in for an HTML area where ipywidgets is missing."""

    value = ""


class LessonWidget:
    """Base class. A subclass gives `start` (its state at first: name -> value) and methods

    controls_for(start) -> {name: ipywidgets control}, one for each entry of start
    render(**state) -> HTML
    describe(**state) -> one sentence with the numbers that matter
    picture() -> Figure, drawn once, for places without widgets
    picture_alt() -> that picture in words
    """

    def __init__(self, start):
        self.start = start
        self.controls, self._png = {}, None
        self.output = Stand() if ipywidgets is None else ipywidgets.HTML()
        if ipywidgets is not None:
            self.controls = self.controls_for(start)
            for control in self.controls.values():
                control.observe(self.update, names="value")
            self.box = ipywidgets.VBox([*self.arrange(), self.output])
        self.update()

    def state(self):
        """What the controls say now, as arguments for render."""
        return {**self.start, **{name: c.value for name, c in self.controls.items()}}

    @shows_errors
    def update(self, change=None):
        """Draw again; every control calls this."""
        self.output.value = self.render(**self.state())

    def arrange(self):
        """The rows of controls above the drawing."""
        wrap = ipywidgets.Layout(flex_flow="row wrap")
        return [ipywidgets.HBox(list(self.controls.values()), layout=wrap)]

    @property
    def text(self):
        """The text/plain output: fixed, so that a stored notebook can be compared with a new run."""
        return f"{type(self).__name__}: {self.describe(**self.start)}"

    def png(self):
        """The picture as PNG bytes, drawn when first needed."""
        if self._png is None:
            from mha_lesson.show.figures import plots

            self._png = plots.png(self.picture())
        return self._png

    def _repr_mimebundle_(self, include=None, exclude=None):
        """The live widget, and beside it the picture and the sentence for everywhere else."""
        data = {"text/plain": self.text, "image/png": self.png()}
        if ipywidgets is not None:
            view = self.box._repr_mimebundle_() or {}
            view = view[0] if isinstance(view, tuple) else view
            if VIEW in view:
                data[VIEW] = view[VIEW]
        return data, {"image/png": {"alt": self.picture_alt()}}

    def __repr__(self):
        return self.text


def distinct(tokens):
    """The tokens as strings; one that occurs twice carries its position: the (3), the (6)."""
    tokens = [str(token) for token in tokens]
    return [f"{token} ({index})" if tokens.count(token) > 1 else token for index, token in enumerate(tokens)]


def largest(values):
    """Index of the largest finite number, the first of those within 1e-9 of it."""
    values = np.asarray(values, dtype=float)
    finite = np.where(np.isfinite(values), values, -np.inf)
    return int(np.argmax(finite >= finite.max() - 1e-9))


def plain(value, digits=3):
    """A number for a sentence in text/plain."""
    return markup.number(value, digits).replace("−", "-")


def square(matrix, tokens, name):
    """The matrix as floats (L, L) with L = number of tokens, or an error that says what to do."""
    matrix = np.asarray(matrix, dtype=float)
    wanted = (len(tokens), len(tokens))
    if matrix.shape != wanted:
        hint = " Choose one example and one head, e.g. array[0, head]." if matrix.ndim > 2 else ""
        raise ValueError(f"{name} has the shape {matrix.shape}, but {len(tokens)} tokens need {wanted}.{hint}")
    return matrix
