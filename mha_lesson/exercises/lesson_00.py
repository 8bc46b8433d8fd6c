"""Exercises of lesson 00: how an exercise works, and the soft look-up."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.lookup import double, soft_lookup

DOUBLE = Exercise(
    id="00.double",
    signature="double(x)",
    solution=double,
    probes=lambda: [
        Probe((np.array([1.0, 3.0, -5.0]),), "x = [1, 3, -5]"),
        Probe((wave(2, 3),), "x with 2 rows and 3 columns"),
        Probe((wave(5, dtype=np.float32),), "x of 5 numbers in float32"),
    ],
    mistakes=(
        Mistake(
            "adds_two",
            "You change every number of x, as asked. But you add 2; doubling multiplies: x * 2.",
            "x * 2", "x + 2",
        ),
        Mistake(
            "squares",
            "You use x twice, good. But x * x is the square; the double is x + x, or x * 2.",
            "x * 2", "x * x",
        ),
        Mistake(
            "halves",
            "2 is the right number. But you divide by it; multiply: x * 2.",
            "x * 2", "x / 2",
        ),
        Mistake(
            "unchanged",
            "Your function takes x and returns it, so the frame is right. Now multiply: return x * 2.",
            "x * 2", "x",
        ),
        Mistake(
            "two_copies",
            "You have x two times. But they lie side by side as two copies; add them: x + x.",
            function=lambda x: np.stack([x, x]),
        ),
    ),
    forms={
        "x + x": lambda x: x + x,
        "a loop": lambda x: [v * 2 for v in x],
        **usual_forms(double),
    },
    hints=(
        "NumPy multiplies a whole array at once: try x * 2 in a cell of its own.",
        "The function needs a line that begins with return.",
    ),
    well_done="Each exercise works like this: write, run, read what comes back, try again.",
)  # fmt: skip

LOOKUP = Exercise(
    id="00.lookup",
    signature="lookup(query, keys, values)",
    solution=soft_lookup,
    probes=lambda: [
        Probe((wave(3), wave(5, 3, step=0.9), wave(5, 2, step=0.4)), "3 features, 5 keys, values of width 2"),
        Probe((wave(3), wave(7, 3, step=1.3), wave(7, 3, step=0.2, size=4)), "7 keys, values as wide as keys"),
        Probe((wave(2, size=3, dtype=np.float32), wave(3, 2, dtype=np.float32), wave(3, 5, dtype=np.float32)),
              "float32, values of width 5"),
    ],
    mistakes=(
        Mistake(
            "hard",
            "You find the best matching key. But you return its value alone: a dictionary does that. "
            "A soft look-up mixes all values, each by its share.",
            function=lambda query, keys, values: values[np.argmax(keys @ query)],
        ),
        Mistake(
            "not_normalised",
            "The exponentials are right. But their sum is not 1, so they are no shares: divide by share.sum().",
            "share = share / share.sum()", "share = share",
        ),
        Mistake(
            "no_exp",
            "Dividing by the sum is right. But the matches themselves can be negative: take np.exp of "
            "them first.",
            "np.exp(match - match.max())", "match",
        ),
        Mistake(
            "raw_matches",
            "You weight each value by how well its key matches, good. But the matches are no shares: they"
            " can be negative, and their sum is not 1. Take np.exp of them, then divide by the sum.",
            function=lambda query, keys, values: (keys @ query) @ values,
        ),
        Mistake(
            "exponentials_only",
            "The exponentials are right. But their sum is not 1, so they are no shares: divide them by "
            "their sum before you mix.",
            function=lambda query, keys, values: np.exp(keys @ query) @ values,
        ),
        Mistake(
            "plain_mean",
            "You mix all values, good. But each one counts the same; weight them by softmax(keys @ query).",
            function=lambda query, keys, values: values.mean(axis=0),
        ),
        Mistake(
            "mixes_keys",
            "The shares are right. But you mix the keys with them; what is handed over are the values: share "
            "@ values.",
            "share @ values", "share @ keys",
        ),
        Mistake(
            "returns_shares",
            "The shares are right, and they add up to 1. One step is left: mix the values with them, share @ "
            "values.",
            "share @ values", "share",
        ),
        Mistake(
            "scaled",
            "This is attention as in lesson 03, with the matches divided by sqrt(D), and right there. But"
            " here the plain match keys @ query is asked for.",
            "keys @ query", "keys @ query / len(query) ** 0.5",
        ),
        Mistake(
            "distance",
            "Turning a comparison into shares is right. But you compare by distance; attention compares by "
            "dot product.",
            function=lambda query, keys, values: _share(-((keys - query) ** 2).sum(-1)) @ values,
        ),
    ),
    forms={
        "weights first": lambda query, keys, values: values.T @ _share(query @ keys.T),
        "a loop": lambda query, keys, values: sum(
            s * v for s, v in zip(_share([float(k @ query) for k in keys]), values, strict=True)
        ),
        **usual_forms(soft_lookup),
    },
    hints=(
        "Three lines: how well does each key match, which share is that, and the mix of the values.",
        "The matches are keys @ query: one number for each key.",
        "Shares: e = np.exp(match), then e / e.sum().",
        "The mix is share @ values.",
    ),
    well_done="That is attention for one query. The rest of the course does it for all words at once, and well.",
)  # fmt: skip


def _share(match):
    e = np.exp(np.asarray(match) - np.max(match))
    return e / e.sum()


EXERCISES = (DOUBLE, LOOKUP)
