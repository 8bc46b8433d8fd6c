"""Exercise 00.lookup."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.lookup import soft_lookup

mistake = Mistakes()


@mistake
def hard(query, keys, values):
    """You find the best matching key. But you return its value alone: a dictionary does that. A soft look-up mixes all
    values, each by its share."""
    return values[np.argmax(keys @ query)]


mistake.edit(
    "not_normalised",
    """The exponentials are right. But their sum is not 1, so they are no shares: divide by share.sum().""",
    old="share = share / share.sum()",
    new="share = share",
)

mistake.edit(
    "no_exp",
    """Dividing by the sum is right. But the matches themselves can be negative: take np.exp of them first.""",
    old="np.exp(match - match.max())",
    new="match",
)


@mistake
def raw_matches(query, keys, values):
    """You weight each value by how well its key matches, good. But the matches are no shares: they can be negative, and
    their sum is not 1. Take np.exp of them, then divide by the sum."""
    return (keys @ query) @ values


@mistake
def exponentials_only(query, keys, values):
    """The exponentials are right. But their sum is not 1, so they are no shares: divide them by their sum before you
    mix."""
    return np.exp(keys @ query) @ values


@mistake
def plain_mean(query, keys, values):
    """You mix all values, good. But each one counts the same; weight them by softmax(keys @ query)."""
    return values.mean(axis=0)


mistake.edit(
    "mixes_keys",
    """The shares are right. But you mix the keys with them; what is handed over are the values: share @ values.""",
    old="share @ values",
    new="share @ keys",
)

mistake.edit(
    "returns_shares",
    """The shares are right, and they add up to 1. One step is left: mix the values with them, share @ values.""",
    old="share @ values",
    new="share",
)

mistake.edit(
    "scaled",
    """This is attention as in lesson 03, with the matches divided by sqrt(D), and right there. But here the plain match
    keys @ query is asked for.""",
    old="keys @ query",
    new="keys @ query / len(query) ** 0.5",
)


@mistake
def distance(query, keys, values):
    """Turning a comparison into shares is right. But you compare by distance; attention compares by dot product."""
    return _share(-((keys - query) ** 2).sum(-1)) @ values


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
    mistakes=mistake.all,
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
