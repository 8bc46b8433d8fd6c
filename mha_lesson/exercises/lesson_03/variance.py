"""Exercise 03.variance."""

import math

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.scores import dot_product_variance

mistake = Mistakes()


@mistake
def standard_deviation(d):
    """sqrt(d) is the standard deviation, and the scaled value is right. But the variance is asked for: its square,
    d."""
    return (math.sqrt(d), 1.0)


@mistake
def spreads(d):
    """sqrt(d) is the standard deviation before scaling, good. But the variance is asked for, d; and after the division
    by sqrt(d) it is d / sqrt(d)² = 1."""
    return (math.sqrt(d), 1 / math.sqrt(d))


@mistake
def one_over_root(d):
    """The first number is right. But dividing by sqrt(d) divides the variance by d: d / d = 1, not 1/sqrt(d)."""
    return (float(d), 1 / math.sqrt(d))


mistake.edit(
    "square_forgotten",
    """The first number is right. But dividing numbers by c divides their variance by c², and sqrt(d)² = d.""",
    old="math.sqrt(d) ** 2",
    new="math.sqrt(d)",
)

mistake.edit(
    "divided_by_d",
    """The first number is right. But the scores are divided by sqrt(d), not by d; then the variance is divided by
    d.""",
    old="math.sqrt(d) ** 2",
    new="d**2",
)


@mistake
def d_squared(d):
    """The variance grows with d, yes. But variances of independent terms add up: d times 1, not d²."""
    return (float(d**2), 1.0)


@mistake
def d_squared_over_d(d):
    """Dividing by sqrt(d) divides the variance by d, good. But variances of independent terms add up: it is d before,
    not d², and so 1 after."""
    return (float(d**2), float(d))


@mistake
def constant(d):
    """The scaled variance is right. But without scaling each of the d terms adds its own variance of 1."""
    return (1.0, 1.0)


mistake.edit(
    "swapped",
    """Both numbers are right. But the order is: before scaling first, after scaling second.""",
    old="return raw, scaled",
    new="return scaled, raw",
)


VARIANCE = Exercise(
    id="03.variance",
    signature="variance(d)",
    solution=dot_product_variance,
    probes=lambda: [Probe((d,), f"d = {d}") for d in (2, 7, 64, 1024)],
    mistakes=mistake.all,
    forms={
        "whole numbers": lambda d: (d, 1),
        "a list": lambda d: [float(d), d / d],
        "an array": lambda d: np.array([d, 1.0]),
        **usual_forms(dot_product_variance),
    },
    hints=(
        "q · k is a sum of d products. What is the variance of one product of two independent numbers of mean 0 and "
        "variance 1?",
        "Each product has variance 1. Variances of independent terms add up.",
        "Var(x / c) = Var(x) / c², here with c = sqrt(d).",
    ),
    well_done="d before, 1 after: now measure it in the next cell.",
)  # fmt: skip
