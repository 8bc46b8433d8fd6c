"""Exercise 10.choose."""

from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.compare import Difference, difference
from mha_lesson.steps.head_count import cheapest_as_good


def _read_name(arguments: tuple, answer: Any) -> np.ndarray:
    """Which of the names it is."""
    names = arguments[0]
    if isinstance(answer, np.ndarray) and answer.ndim == 0:
        answer = answer.item()
    if not isinstance(answer, str):
        kind = "a whole number" if isinstance(answer, (int, np.integer)) else f"a value of type {type(answer).__name__}"
        raise ValueError(f"expected a name, one of names, got {kind}; names[i] is the name of option i")
    if answer not in names:
        raise ValueError(f"expected one of the names {', '.join(names)}; got {answer}")
    return np.asarray(names.index(answer))


def _by_name(arguments: tuple, expected: np.ndarray, answer: np.ndarray) -> Difference | None:
    """Two places in the list of names, told by their names."""
    names = arguments[0]
    found = difference(expected, answer)
    if found is None or found.kind != "different":
        return found
    return Difference(found.kind, f"expected {names[int(expected)]}, got {names[int(answer)]}")


def _pick(names, allowed, costs):
    return names[int(np.argmin(np.where(allowed, costs, np.inf)))]


def _choose_by_loop(names, scores, costs):
    rows = [list(map(float, row)) for row in scores]
    best = max(rows, key=lambda row: sum(row) / len(row))
    left = [(cost, name) for name, row, cost in zip(names, rows, costs, strict=True) if max(row) >= min(best)]
    return min(left)[1]


def _choose_by_order(names, scores, costs):
    bar = scores[scores.mean(1).argmax()].min()
    for i in np.argsort(costs):
        if (scores[i] >= bar).any():
            return names[i]


_OPTIONS = ("mean of the words", "1 head", "2 heads", "4 heads", "8 heads", "16 heads", "32 heads")


def _options(scores, costs, note: str) -> Probe:
    scores = np.array(scores)
    return Probe((list(_OPTIONS[: len(scores)]), scores, np.array(costs)), note)


def _choose_probes() -> list[Probe]:
    return [
        _options([[0.81, 0.78, 0.77], [0.81, 0.77, 0.82], [0.82, 0.83, 0.78], [0.83, 0.74, 0.78], [0.8, 0.77, 0.75]],
                 [2, 5, 8, 11, 14], "5 options, 3 seeds; the plain baseline is as good as any"),
        _options([[0.62, 0.62, 0.61, 0.6, 0.56], [0.63, 0.61, 0.66, 0.61, 0.58], [0.65, 0.8, 0.71, 0.72, 0.61],
                  [0.69, 0.63, 0.72, 0.7, 0.62], [0.65, 0.7, 0.71, 0.6, 0.72], [0.76, 0.77, 0.77, 0.63, 0.71],
                  [0.8, 0.75, 0.77, 0.72, 0.69]],
                 [2, 11, 13, 7, 3, 5, 17], "7 options, 5 seeds; the last has the best mean"),
        _options([[0.76, 0.71, 0.64], [0.66, 0.84, 0.8], [0.72, 0.71, 0.79], [0.71, 0.74, 0.73], [0.63, 0.56, 0.6],
                  [0.68, 0.59, 0.71], [0.76, 0.75, 0.69]],
                 [11, 5, 13, 17, 7, 2, 3], "7 options, 3 seeds; the best mean has a wide range"),
        _options([[0.67, 0.65, 0.65, 0.54, 0.7, 0.57, 0.66], [0.77, 0.73, 0.7, 0.68, 0.79, 0.77, 0.73],
                  [0.72, 0.61, 0.71, 0.75, 0.58, 0.64, 0.72], [0.71, 0.63, 0.66, 0.64, 0.68, 0.63, 0.55],
                  [0.66, 0.7, 0.7, 0.74, 0.62, 0.73, 0.76]],
                 [11, 7, 2, 3, 5], "5 options, 7 seeds"),
        _options([[0.81, 0.82], [0.62, 0.59], [0.69, 0.75], [0.73, 0.87], [0.78, 0.72], [0.68, 0.75], [0.69, 0.64]],
                 [7, 3, 13, 2, 17, 5, 11], "7 options, 2 seeds"),
        _options([[0.88, 0.91, 0.81], [0.77, 0.75, 0.82], [0.69, 0.7, 0.7], [0.84, 0.69, 0.84], [0.67, 0.7, 0.63],
                  [0.69, 0.7, 0.72], [0.64, 0.67, 0.6]],
                 [7, 11, 17, 3, 5, 13, 2],
                 "7 options, 3 seeds; the baseline has the best mean, and is not the cheapest"),
        _options([[0.6, 0.62], [0.8, 0.83], [0.7, 0.72]], [10, 11, 12], "3 options, 2 seeds; all cost nearly the same"),
        _options([[0.5, 0.75, 0.6], [0.75, 0.9, 0.8]], [2, 3], "2 options, 3 seeds; the two ranges touch"),
    ]  # fmt: skip


mistake = Mistakes()


mistake.edit(
    "touching_ranges",
    """The bar is right, the worst seed of the option with the best mean. But 'below it' does not hold for a best seed
    that is exactly as high: compare with >=.""",
    old=">= bar",
    new="> bar",
)


@mistake
def best_mean(names, scores, costs):
    """This is the option with the best mean. But others may be as good within the range of their seeds: of these take
    the cheapest."""
    return names[int(scores.mean(axis=1).argmax())]


mistake.edit(
    "cheapest_of_all",
    """Costs count, good. But this is the cheapest of all, even if it is clearly worse: leave those out first.""",
    old="np.where(as_good, costs, np.inf)",
    new="costs",
)


@mistake
def best_single_seed(names, scores, costs):
    """Higher is better, yes. But the highest score of a single seed may be luck: compare means, and look at the
    ranges."""
    return names[int(scores.max(axis=1).argmax())]


@mistake
def first_seed_alone(names, scores, costs):
    """Higher is better, yes. But only the first seed is looked at: take the mean over all of them, axis 1."""
    return names[int(scores[:, 0].argmax())]


@mistake
def best_worst_seed(names, scores, costs):
    """A sound rule where failures are dear. But asked for is the cheapest option whose range reaches that of the best
    mean."""
    return names[int(scores.min(axis=1).argmax())]


@mistake
def costliest(names, scores, costs):
    """The options that are as good as the best are the right ones. But of these you took the costliest; the cheapest is
    as good."""
    return _pick(names, _as_good(scores), -costs)


mistake.edit(
    "means_compared_only",
    """The bar, the worst seed of the best option, is right. But you ask whether an option's MEAN reaches it; the ranges
    overlap as soon as its best seed does.""",
    old="scores.max(axis=1) >= bar",
    new="scores.mean(axis=1) >= bar",
)

mistake.edit(
    "worst_seeds_compared",
    """The bar, the worst seed of the best option, is right. But you ask every seed of an option to reach it; the ranges
    overlap as soon as its best seed does.""",
    old="scores.max(axis=1) >= bar",
    new="scores.min(axis=1) >= bar",
)

mistake.edit(
    "bar_at_the_mean",
    """The best seed of each option is compared, good. But the bar is not the best mean itself: it is the worst seed of
    that option.""",
    old="scores[best].min()",
    new="scores[best].mean()",
)

mistake.edit(
    "bar_of_the_luckiest",
    """Ranges are compared, good. But with the option that has the best single seed; it is the best MEAN that sets the
    bar.""",
    old="np.argmax(scores.mean(axis=1))",
    new="np.argmax(scores.max(axis=1))",
)


@mistake
def one_deviation(names, scores, costs):
    """You allow for luck, good. But by one standard deviation from the best mean; here the rule is: ranges that do not
    overlap."""
    return _pick(names, scores.mean(1) >= scores.mean(1).max() - scores[scores.mean(1).argmax()].std(), costs)


@mistake
def score_per_cost(names, scores, costs):
    """Both count, good. But score divided by cost makes a cheap and bad option win: first leave out what is clearly
    worse, then take the cheapest."""
    return names[int((scores.mean(axis=1) / costs).argmax())]


@mistake
def lower_is_better(names, scores, costs):
    """Ranges are compared, and the cheapest is taken. But these are scores, not losses: higher is better."""
    return cheapest_as_good(names, -scores, costs)


@mistake
def first_as_good(names, scores, costs):
    """The options that are as good as the best are the right ones. But you took the first in the list; take the
    cheapest, whatever the order is."""
    return names[int(np.argmax(_as_good(scores)))]


@mistake
def last_as_good(names, scores, costs):
    """The options that are as good as the best are the right ones. But you took the last in the list; take the
    cheapest, whatever the order is."""
    return names[int(np.flatnonzero(_as_good(scores))[-1])]


@mistake
def costliest_of_all(names, scores, costs):
    """Costs are looked at. But this is the costliest; what costs more is not always better. Asked for is the cheapest
    that is as good as the best."""
    return names[int(costs.argmax())]


CHOOSE = Exercise(
    id="10.choose",
    signature="choose(names, scores, costs)",
    solution=cheapest_as_good,
    protocol=Protocol(read=_read_name, differ=_by_name),
    probes=_choose_probes,
    advice="Write the mean, the lowest and the highest score beside each row of this probe: which ranges overlap?",
    mistakes=mistake.all,
    forms={
        "a loop": _choose_by_loop,
        "by rising cost": _choose_by_order,
        "masked array": lambda names, scores, costs: names[
            np.ma.masked_array(costs, ~_as_good(scores)).argmin()
        ],
        "an array of names": lambda names, scores, costs: np.array(names)[_as_good(scores)][
            costs[_as_good(scores)].argmin()
        ],
        "a name in an array": lambda names, scores, costs: np.array(cheapest_as_good(names, scores, costs)),
    },
    hints=(
        "Two steps: leave out what is clearly worse than the best, then take the cheapest that is left.",
        "The best is the row with the highest mean: best = scores.mean(axis=1).argmax(). Its worst seed is the bar.",
        "An option is clearly worse if even its best seed is below the bar: scores.max(axis=1) < bar.",
        "np.where(as_good, costs, np.inf).argmin() is the place of the cheapest; names[...] is its name.",
    ),
    well_done="Cheap, and not clearly worse: if that is the baseline, the heads have not earned their cost.",
)  # fmt: skip


def _as_good(scores):
    return scores.max(axis=1) >= scores[scores.mean(axis=1).argmax()].min()
