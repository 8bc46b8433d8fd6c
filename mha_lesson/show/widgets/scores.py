"""Widgets about numbers: what the scale does to scores, what the softmax does to large ones."""

from functools import lru_cache

import numpy as np

from mha_lesson.show import markup
from mha_lesson.show.widgets.base import WIDE, LessonWidget, ipywidgets, largest, plain

SAMPLES, KEYS, LARGEST_D = 200, 8, 1024


@lru_cache(maxsize=1)
def _standard_sample():
    """200 queries (200, 1024) and 8 keys for each (200, 8, 1024): normal numbers, fixed seed."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((SAMPLES, LARGEST_D))
    return queries, rng.standard_normal((SAMPLES, KEYS, LARGEST_D))


@lru_cache(maxsize=32)
def _standard_scores(d):
    """Dot products (200, 8) of the first d numbers of every query and key."""
    return _scores(*_standard_sample(), d)


def _scores(queries, keys, d):
    return (keys[:, :, :d] @ queries[:, :d, None])[..., 0]


def _softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


class ScaleSlider(LessonWidget):
    """Move d from 4 to 1024; see scores, weights and gradient, with and without 1/sqrt(d).

    sample: (queries (n, D), keys (n, m, D)) to use instead of normal random numbers.
    """

    def __init__(self, sample=None):
        self.sample = sample
        largest_d = LARGEST_D
        if sample is not None:
            queries, keys = (np.asarray(part, dtype=float) for part in sample)
            if (
                queries.ndim != 2
                or keys.ndim != 3
                or (len(queries), queries.shape[1])
                != (
                    len(keys),
                    keys.shape[2],
                )
            ):
                raise ValueError(
                    f"sample must be queries (n, D) and keys (n, m, D), not {queries.shape} and {keys.shape}."
                )
            self.sample, largest_d = (queries, keys), queries.shape[1]
        self.sizes = [2**p for p in range(2, 21) if 2**p <= largest_d]
        if not self.sizes:
            raise ValueError(f"the vectors have {largest_d} numbers: 4 are the fewest.")
        super().__init__({"d": min(64, self.sizes[-1]), "scaled": False})
        for d in self.sizes:  # the first move of the slider is as fast as the others
            self.compute(d, False, self.sample)

    def controls_for(self, start):
        return {
            "d": ipywidgets.SelectionSlider(
                options=self.sizes,
                value=start["d"],
                description="d (numbers in a query)",
                style=WIDE,
                layout=ipywidgets.Layout(width="420px"),
            ),
            "scaled": ipywidgets.Checkbox(start["scaled"], description="scale by 1/√d", indent=False),
        }

    @staticmethod
    def compute(d, scaled=True, sample=None):
        """The numbers behind the picture, as a dict:

        scores (n, m); weights (n, m); spread: standard deviation of all scores;
        top_weight: the largest weight of a query, mean over queries;
        gradient: sum of |dw_i/ds_j| over the entries of diag(w) - w w^T, mean over queries.
        """
        scores = _standard_scores(d) if sample is None else _scores(*sample, d)
        scores = scores / np.sqrt(d) if scaled else scores
        weights = _softmax(scores)
        squares = (weights**2).sum(-1)
        # The diagonal holds w_i (1 - w_i); the rest of row i sums to the same size, with a minus.
        return {
            "d": d,
            "scaled": bool(scaled),
            "scores": scores,
            "weights": weights,
            "spread": float(scores.std()),
            "top_weight": float(weights.max(-1).mean()),
            "gradient": float(2 * (1 - squares).mean()),
        }

    def describe(self, d, scaled):
        found = self.compute(d, scaled, self.sample)
        return (
            f"With d = {d}, {'scaled' if scaled else 'not scaled'}: the scores spread by "
            f"{plain(found['spread'])}, the mean top weight of {found['weights'].shape[1]} keys is "
            f"{plain(found['top_weight'])}, the mean softmax gradient {plain(found['gradient'])}."
        )

    def render(self, d, scaled):
        """HTML: histogram of all scores, weights of the first query, a sentence."""
        found = self.compute(d, scaled, self.sample)
        # One axis for every d and both settings, so that the eye can compare.
        reach = 3 * self.compute(self.sizes[-1], False, self.sample)["spread"] or 1.0
        counts, _ = np.histogram(np.clip(found["scores"], -reach, reach), 61, (-reach, reach))
        keys = [f"key {index}" for index in range(found["weights"].shape[1])]
        return markup.page(
            markup.side_by_side(
                "<p><strong>How far the scores spread</strong></p>"
                + markup.column_chart(
                    counts,
                    f"histogram of the scores, standard deviation {found['spread']:.3f}",
                    size=(280, 150),
                    ends=(f"−{reach:.0f}", f"{reach:.0f}"),
                ),
                markup.bar_table(
                    keys,
                    found["weights"][0],
                    "Weights of one query",
                    best=largest(found["weights"][0]),
                ),
            ),
            markup.sentence(self.describe(d, scaled)),
        )

    def picture(self):
        from mha_lesson.show.figures import plots

        series = {}
        for scaled in (False, True):
            runs = [self.compute(d, scaled, self.sample) for d in self.sizes]
            name = "scaled" if scaled else "not scaled"
            series[f"top weight, {name}"] = [run["top_weight"] for run in runs]
            series[f"gradient, {name}"] = [run["gradient"] for run in runs]
        return plots.lines(
            self.sizes,
            series,
            "Mean top weight and softmax gradient against d",
            "d (numbers in a query)",
            logx=True,
        )

    def picture_alt(self):
        first, last = self.sizes[0], self.sizes[-1]
        parts = []
        for scaled in (False, True):
            a, b = (self.compute(d, scaled, self.sample) for d in (first, last))
            parts.append(
                f"{'scaled' if scaled else 'not scaled'}, the mean top weight goes from "
                f"{a['top_weight']:.2f} to {b['top_weight']:.2f} and the softmax gradient from "
                f"{a['gradient']:.2f} to {b['gradient']:.2f}"
            )
        return f"From d = {first} to d = {last}: " + "; ".join(parts) + "."


class SoftmaxExplorer(LessonWidget):
    """Bend a softmax until it breaks: temperature, large scores, small number formats.

    scores: a few numbers, one for each key.
    """

    TYPES = ("float64", "float32", "float16")

    def __init__(self, scores=(1.0, 2.0, 3.0, 0.5)):
        self.scores = np.asarray(scores, dtype=float)
        if self.scores.ndim != 1 or self.scores.size == 0:
            raise ValueError(f"scores must be a list of numbers, not of shape {self.scores.shape}.")
        super().__init__({"temperature": 1.0, "shift": 0.0, "subtract": False, "dtype": "float64"})

    def controls_for(self, start):
        wide = ipywidgets.Layout(width="360px")
        return {
            "temperature": ipywidgets.FloatLogSlider(
                start["temperature"],
                min=-2,
                max=2,
                step=0.1,
                readout_format=".2f",
                description="temperature",
                style=WIDE,
                layout=wide,
            ),
            "shift": ipywidgets.FloatSlider(
                start["shift"],
                min=0,
                max=2000,
                step=10,
                readout_format=".0f",
                description="add to all scores",
                style=WIDE,
                layout=wide,
            ),
            "subtract": ipywidgets.Checkbox(start["subtract"], description="subtract the maximum", indent=False),
            "dtype": ipywidgets.Dropdown(options=self.TYPES, value=start["dtype"], description="numbers", style=WIDE),
        }

    def compute(self, temperature=1.0, shift=0.0, subtract=False, dtype="float64"):
        """Every step in the chosen number format, as a dict of arrays (n,):

        z: (scores + shift) / temperature, minus their maximum if asked; powers: exp(z);
        total: their sum; weights: powers / total; notes: a list of sentences that say what went
        wrong, or why it did not.
        """
        kind = np.dtype(dtype).type
        with np.errstate(all="ignore"):
            exact = (self.scores + shift) / temperature
            held = exact.astype(kind)
            z = held - held.max() if subtract else held
            powers = np.exp(z)
            total = powers.sum(dtype=kind)
            weights = powers / total
        found = {"z": z, "powers": powers, "total": total, "weights": weights}
        found["notes"] = self._notes(exact, held, found, subtract, dtype)
        return found

    @staticmethod
    def _notes(exact, held, found, subtract, dtype):
        kind, notes = np.finfo(dtype), []
        with np.errstate(all="ignore"):
            moved = np.abs((held - held.max()).astype(float) - (exact - exact.max()))
        if np.isinf(held).any():
            largest_number = f"{float(kind.max):,.0f}" if dtype == "float16" else f"{kind.max:.1e}"
            notes.append(
                f"{exact.max():,.0f} is more than {dtype} can hold (up to {largest_number}): "
                "it became inf before the softmax began, and inf − inf or inf / inf is nan."
            )
        elif moved.max() > 0.01:
            # spacing() of a number is the distance to the next one that the format can hold
            gap = float(np.spacing(np.abs(held).max()))
            notes.append(
                f"In {dtype}, numbers near {float(held.max()):,.0f} are {gap:g} apart: the "
                "differences between the scores were rounded before the softmax began."
            )
        if np.isinf(found["powers"]).any() and not np.isinf(held).any():
            limit = float(np.log(float(kind.max)))
            notes.append(
                f"exp(z) is inf for z above {limit:.1f} in {dtype}. "
                "A finite number / inf is 0 and inf / inf is nan. Subtract the maximum."
            )
        if float(found["total"]) == 0.0:
            notes.append("Every exp(z) is too small and became 0: 0 / 0 is nan.")
        if subtract and not notes and exact.max() > np.log(float(kind.max)):
            notes.append(
                "The largest z is 0 now, so exp(z) is at most 1: nothing can overflow, and the "
                "weights are the same, because the factor exp(−maximum) cancels."
            )
        return notes

    def describe(self, temperature, shift, subtract, dtype):
        found = self.compute(temperature, shift, subtract, dtype)
        weights = ", ".join(plain(weight) for weight in found["weights"])
        how = "maximum subtracted" if subtract else "maximum not subtracted"
        return (
            f"Temperature {temperature:.2f}, {shift:.0f} added to all scores, {dtype}, {how}: "
            f"weights {weights}; their sum is {plain(found['weights'].sum(dtype=float))}."
        )

    def render(self, temperature, shift, subtract, dtype):
        """HTML: weights as bars, every step as a column, what went wrong, a sentence."""
        found = self.compute(temperature, shift, subtract, dtype)
        weights = found["weights"].astype(float)
        broken = not np.isfinite(weights).all()
        return markup.page(
            markup.bar_table(
                [f"score {score:g}" for score in self.scores],
                weights,
                "Weights",
                best=None if broken else largest(weights),
                more=[
                    ("z", [markup.number(z, 2) for z in found["z"]]),
                    ("exp(z)", [_power_text(power) for power in found["powers"]]),
                ],
                heading="weight",
            ),
            *(markup.note(text) for text in found["notes"]),
            markup.sentence(self.describe(temperature, shift, subtract, dtype)),
        )

    def picture(self):
        from mha_lesson.show.figures import plots

        labels = [f"score {score:g}" for score in self.scores]
        groups = {f"temperature {t:g}": self.compute(temperature=t, subtract=True)["weights"] for t in (0.25, 1.0, 4.0)}
        return plots.bars(labels, groups, "A low temperature sharpens, a high one flattens", "weight")

    def picture_alt(self):
        parts = [
            f"temperature {t:g}: "
            + ", ".join(f"{w:.2f}" for w in self.compute(temperature=t, subtract=True)["weights"])
            for t in (0.25, 1.0, 4.0)
        ]
        return "Softmax weights at three temperatures. " + "; ".join(parts) + "."


def _power_text(power):
    """exp(z) is often far too large or small for fixed decimals."""
    power = float(power)
    if not np.isfinite(power):
        return str(power)
    return markup.number(power) if power == 0 or 1e-3 <= power < 1e5 else f"{power:.2e}"
