"""Exercises of lesson 10: what a layer costs, what its heads bring, and which to choose."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_lesson.exercises.compare import Difference, NotPlain, plain
from mha_lesson.exercises.engine import Exercise, Mistake, Probe, Result
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.head_count import cheapest_as_good, layer_parameters, sweep_heads

PARAMETERS = Exercise(
    id="10.parameters",
    signature="parameters(d_model, num_heads, num_kv_heads)",
    solution=layer_parameters,
    probes=lambda: [
        Probe((6, 3, 1), "d_model 6, 3 heads, 1 head of keys and values"),
        Probe((30, 15, 5), "d_model 30, 15 heads, 5 of keys and values"),
        Probe((70, 10, 2), "d_model 70, 10 heads, 2 of keys and values"),
        Probe((512, 8, 8), "d_model 512, 8 heads, each with its own keys and values"),
    ],
    mistakes=(
        Mistake(
            "no_biases",
            "All four matrices are right. But each has a bias too, one number for each of its columns.",
            function=lambda d_model, num_heads, num_kv_heads: (
                2 * d_model**2 + 2 * d_model * num_kv_heads * (d_model // num_heads)
            ),
        ),
        Mistake(
            "full_biases",
            "All four matrices are right, and there are biases. But those of keys and values are only as long as "
            "W_K and W_V are wide: num_kv_heads * d_head.",
            "d_model * kv_width + kv_width", "d_model * kv_width + d_model",
        ),
        Mistake(
            "no_output_bias",
            "Nearly all is there. But W_O has a bias too: d_model more.",
            "output = d_model * d_model + d_model", "output = d_model * d_model",
        ),
        Mistake(
            "no_output",
            "Queries, keys and values are right. But W_O and its bias are missing: d_model * d_model + d_model.",
            " + output", "",
        ),
        Mistake(
            "kv_heads_ignored",
            "Right for a layer in which each head has its own keys and values. But with num_kv_heads of them "
            "W_K and W_V "
            "are narrower: (d_model, num_kv_heads * d_head).",
            "num_kv_heads * d_head", "num_heads * d_head",
        ),
        Mistake(
            "no_values",
            "Queries, keys and output are right. But values have a matrix and a bias of their own: twice what "
            "keys take.",
            "2 * (d_model * kv_width + kv_width)", "(d_model * kv_width + kv_width)",
        ),
        Mistake(
            "heads_multiply",
            "One layer is counted right. But you took it times the number of heads; the heads share these matrices, "
            "each has d_model / num_heads of their columns.",
            function=lambda d_model, num_heads, num_kv_heads: (
                num_heads * layer_parameters(d_model, num_heads, num_kv_heads)
            ),
        ),
        Mistake(
            "wide_heads",
            "The four matrices are in it. But every head is as wide as the model here; it is only "
            "d_head = d_model // num_heads wide.",
            function=lambda d_model, num_heads, num_kv_heads: (
                (d_model + 1) * d_model * (num_heads + 2 * num_kv_heads) + num_heads * d_model * d_model + d_model
            ),
        ),
        Mistake(
            "wide_kv_heads",
            "Queries and output are right. But each head of keys is only d_head wide: W_K is "
            "(d_model, num_kv_heads * d_head).",
            "d_head = d_model // num_heads", "d_head = d_model",
        ),
        Mistake(
            "one_kv_head",
            "Queries and output are right. But keys and values have num_kv_heads heads, not one: their width is "
            "num_kv_heads * d_head.",
            "num_kv_heads * d_head", "d_head",
        ),
        Mistake(
            "split_among_kv_heads",
            "Queries and output are right. But keys and values do not share out d_model among num_kv_heads "
            "(num_heads / num_kv_heads is how many query heads use the same keys): their width is num_kv_heads "
            "* d_head.",
            "num_kv_heads * d_head", "num_heads // num_kv_heads * d_head",
        ),
        Mistake(
            "narrow_output",
            "Queries, keys and values are right. But W_O reads the query heads side by side, all d_model numbers: it "
            "stays (d_model, d_model).",
            "output = d_model * d_model + d_model", "output = kv_width * d_model + d_model",
        ),
        Mistake(
            "square_heads",
            "Biases and output are right. But each head's matrix reads the whole token: (d_model, d_head), "
            "not (d_head, d_head).",
            function=lambda d_model, num_heads, num_kv_heads: (
                lambda d: (num_heads + 2 * num_kv_heads) * (d * d + d) + d_model * d_model + d_model
            )(d_model // num_heads),
        ),
    ),
    forms={
        "matrix by matrix": lambda d_model, num_heads, num_kv_heads: sum(
            rows * columns + columns
            for rows, columns in [
                (d_model, d_model),
                *[(d_model, num_kv_heads * (d_model // num_heads))] * 2,
                (d_model, d_model),
            ]
        ),
        "head by head": lambda d_model, num_heads, num_kv_heads: (
            (num_heads + 2 * num_kv_heads) * (d_model + 1) * (d_model // num_heads) + (d_model + 1) * d_model
        ),
        "real arrays": lambda d_model, num_heads, num_kv_heads: sum(
            np.zeros((d_model + 1, heads * d_model // num_heads)).size
            for heads in (num_heads, num_kv_heads, num_kv_heads, num_heads)
        ),
        "a float": lambda d_model, num_heads, num_kv_heads: (
            2 * (d_model + 1) * d_model * (1 + num_kv_heads / num_heads)
        ),
        **usual_forms(layer_parameters),
    },
    hints=(
        "Four matrices: W_Q, W_K, W_V, W_O. Which shape has each? A bias has one number for each column.",
        "W_Q and W_O are (d_model, d_model), however many heads there are.",
        "W_K and W_V have num_kv_heads heads of width d_model // num_heads: that many columns, and biases.",
    ),
    well_done="More heads cost no parameters; fewer heads of keys and values save some.",
)  # fmt: skip


def _trained(n: int, step: float) -> Callable:
    """A stand-in for training: a score that depends on the heads and on the seed."""
    table = wave(31, 101, step=step, size=0.1)

    def train(heads, seed):
        return 0.7 + 0.02 * heads / n + float(table[heads % 31, seed % 101])

    return train


def _read_table(arguments: tuple, answer: Any) -> np.ndarray:
    """Rows heads, mean, low, high, fewest heads first; from rows, or from heads -> (mean, low, high)."""
    if isinstance(answer, dict):
        answer = [[heads, *np.ravel(plain(numbers))] for heads, numbers in answer.items()]
    elif isinstance(answer, list):
        answer = [_flat(row) for row in answer]
    try:
        table = np.asarray(plain(answer))
    except NotPlain:
        raise ValueError(
            f"expected a row (heads, mean, lowest, highest) for each number of heads, got a value of type "
            f"{type(answer).__name__}"
        ) from None
    table = table.astype(float) if table.dtype.kind in "iu" else table
    return table[np.argsort(table[:, 0])] if table.ndim == 2 else table


def _flat(row: Any) -> Any:
    """(heads, (mean, low, high)) is a row of four numbers too."""
    if isinstance(row, (tuple, list)) and len(row) == 2 and np.ndim(row[1]) == 1:
        return [row[0], *row[1]]
    return row


def _rows(summary: Callable) -> Callable:
    """A sweep that puts `summary(scores)` behind each number of heads."""
    return lambda train, head_counts, seeds: np.array(
        [[heads, *summary(np.array([train(heads, seed) for seed in seeds]))] for heads in head_counts], dtype=float
    )


def _pooled(train, head_counts, seeds):
    scores, rows = [], []
    for heads in head_counts:
        scores += [train(heads, seed) for seed in seeds]
        rows.append([heads, np.mean(scores), min(scores), max(scores)])
    return np.array(rows)


def _sweep_by_running(train, head_counts, seeds):
    table = {}
    for heads in head_counts:
        total, low, high = 0.0, float("inf"), float("-inf")
        for seed in seeds:
            score = train(heads, seed)
            total, low, high = total + score, min(low, score), max(high, score)
        table[heads] = (total / len(seeds), low, high)
    return table


SWEEP = Exercise(
    id="10.sweep",
    signature="sweep(train, head_counts, seeds)",
    solution=sweep_heads,
    read=_read_table,
    advice="A row is [heads, mean, lowest, highest]; a dictionary heads -> (mean, lowest, highest) is fine too.",
    probes=lambda: [
        Probe((_trained(8, 0.7), [1, 2, 8], [3, 5, 11, 7, 2]), "1, 2 and 8 heads, 5 seeds"),
        Probe((_trained(4, 1.3), [4, 16, 1, 2, 8], [13, 0, 1]), "5 numbers of heads, seeds 13, 0 and 1"),
        Probe((_trained(2, 1.9), [3, 6], [4, 9, 6, 1, 23, 42, 77]), "3 and 6 heads, 7 seeds"),
    ],
    mistakes=(
        Mistake(
            "best_seed",
            "Every model is trained. But you report the best seed as if it were typical: in the place of the mean "
            "stands the highest score.",
            "np.mean(scores)", "max(scores)",
        ),
        Mistake(
            "worst_seed",
            "Every model is trained. But in the place of the mean stands the lowest score.",
            "np.mean(scores)", "min(scores)",
        ),
        Mistake(
            "median",
            "Every model is trained, and the range is right. But you took the median; here the mean is asked for.",
            "np.mean(scores)", "np.median(scores)",
        ),
        Mistake(
            "middle_of_range",
            "Every model is trained, and the range is right. But the middle of the range is not the mean: "
            "np.mean of all "
            "the scores.",
            "np.mean(scores)", "(min(scores) + max(scores)) / 2",
        ),
        Mistake(
            "first_seed_only",
            "Every number of heads is trained. But all its runs have the first seed, so the range is 0: give "
            "each run its "
            "own seed.",
            "for seed in seeds]", "for seed in seeds[:1]]",
        ),
        Mistake(
            "last_seed_only",
            "Every number of heads is trained. But only the last seed is left: collect the scores in a list.",
            "for seed in seeds]", "for seed in seeds[-1:]]",
        ),
        Mistake(
            "places_for_seeds",
            "The table is built right. But the seeds are counted, 0, 1, 2, ...; use those that are given: "
            "for seed in seeds.",
            "for seed in seeds]", "for seed in range(len(seeds))]",
        ),
        Mistake(
            "arguments_swapped",
            "The table is built right. But train is called with the seed as number of heads: train(heads, seed).",
            "train(heads, seed)", "train(seed, heads)",
        ),
        Mistake(
            "standard_deviation",
            "The mean is right. But mean ± standard deviation is no range: return the lowest and the highest score.",
            function=_rows(lambda s: (s.mean(), s.mean() - s.std(), s.mean() + s.std())),
        ),
        Mistake(
            "sample_deviation",
            "The mean is right. But mean ± standard deviation (with n - 1) is no range: return the lowest and "
            "the highest "
            "score.",
            function=_rows(lambda s: (s.mean(), s.mean() - s.std(ddof=1), s.mean() + s.std(ddof=1))),
        ),
        Mistake(
            "standard_error",
            "The mean is right. But mean ± standard error says how sure the mean is; return the lowest and the highest "
            "score.",
            function=_rows(lambda s: (
                s.mean(), s.mean() - s.std(ddof=1) / len(s) ** 0.5, s.mean() + s.std(ddof=1) / len(s) ** 0.5
            )),
        ),
        Mistake(
            "high_before_low",
            "All the numbers are right. But the order is heads, mean, lowest, highest.",
            "min(scores), max(scores)", "max(scores), min(scores)",
        ),
        Mistake(
            "mean_last",
            "All the numbers are right. But the order is heads, mean, lowest, highest.",
            "np.mean(scores), min(scores), max(scores)", "min(scores), max(scores), np.mean(scores)",
        ),
        Mistake(
            "mean_between",
            "All the numbers are right. But the order is heads, mean, lowest, highest.",
            "np.mean(scores), min(scores)", "min(scores), np.mean(scores)",
        ),
        Mistake(
            "distances",
            "Mean and spread are right. But lowest and highest are asked for as scores, not as distances from "
            "the mean.",
            function=_rows(lambda s: (s.mean(), s.mean() - s.min(), s.max() - s.mean())),
        ),
        Mistake(
            "width_of_range",
            "The mean is right. But you return the width of the range; return its two ends, lowest and highest.",
            function=_rows(lambda s: (s.mean(), s.max() - s.min())),
        ),
        Mistake(
            "means_only",
            "The means are right. But without the range nobody can tell a difference from luck: lowest and "
            "highest too.",
            function=_rows(lambda s: (s.mean(),)),
        ),
        Mistake(
            "all_scores",
            "Every model is trained. One step is left: mean, lowest and highest of each row.",
            function=_rows(lambda s: s),
        ),
        Mistake(
            "list_not_emptied",
            "The first row is right. But the scores of one number of heads are still in the list when the next "
            "begins: start it anew inside the loop.",
            function=_pooled,
        ),
        Mistake(
            "no_heads",
            "All the scores are right. But each row begins with its number of heads, or nobody knows which is which.",
            "[heads, np", "[np",
        ),
    ),
    forms={
        "a dictionary": _sweep_by_running,
        "a dictionary, sorted": lambda train, head_counts, seeds: {
            heads: np.array([f([train(heads, seed) for seed in seeds]) for f in (np.mean, np.min, np.max)])
            for heads in sorted(head_counts)
        },
        "rows of pairs": lambda train, head_counts, seeds: [
            (heads, (np.mean(s), s[0], s[-1]))
            for heads in head_counts
            for s in [sorted(train(heads, seed) for seed in seeds)]
        ],
        "columns": lambda train, head_counts, seeds: (
            lambda s: np.column_stack([head_counts, s.mean(1), s.min(1), s.max(1)])
        )(np.array([[train(heads, seed=seed) for seed in seeds] for heads in head_counts])),
        **usual_forms(sweep_heads),
    },
    hints=(
        "Two loops: over the numbers of heads, and inside it over the seeds.",
        "scores = [train(heads, seed) for seed in seeds] is one row of experiments.",
        "A row of the answer: [heads, np.mean(scores), min(scores), max(scores)].",
    ),
    well_done="A mean and a range for each: now a difference can be told from luck.",
)  # fmt: skip


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


class NameAnswer(Exercise):
    """An exercise whose answer is one of the names in its first argument."""

    def _unknown(self, function, judged, differences) -> Result:
        named = [
            Difference(d.kind, f"expected {p.args[0][int(want.value)]}, got {p.args[0][int(have.value)]}")
            if d and d.kind == "different"
            else d
            for p, want, have, d in zip(self.probe_list, self.expected, judged, differences, strict=True)
        ]
        return super()._unknown(function, judged, named)


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


CHOOSE = NameAnswer(
    id="10.choose",
    signature="choose(names, scores, costs)",
    solution=cheapest_as_good,
    read=_read_name,
    probes=_choose_probes,
    advice="Write the mean, the lowest and the highest score beside each row of this probe: which ranges overlap?",
    mistakes=(
        Mistake(
            "touching_ranges",
            "The bar is right, the worst seed of the option with the best mean. But 'below it' does not hold for a "
            "best seed that is exactly as high: compare with >=.",
            ">= bar", "> bar",
        ),
        Mistake(
            "best_mean",
            "This is the option with the best mean. But others may be as good within the range of their seeds: of "
            "these take the cheapest.",
            function=lambda names, scores, costs: names[int(scores.mean(axis=1).argmax())],
        ),
        Mistake(
            "cheapest_of_all",
            "Costs count, good. But this is the cheapest of all, even if it is clearly worse: leave those out first.",
            "np.where(as_good, costs, np.inf)", "costs",
        ),
        Mistake(
            "best_single_seed",
            "Higher is better, yes. But the highest score of a single seed may be luck: compare means, and look at the "
            "ranges.",
            function=lambda names, scores, costs: names[int(scores.max(axis=1).argmax())],
        ),
        Mistake(
            "first_seed_alone",
            "Higher is better, yes. But only the first seed is looked at: take the mean over all of them, axis 1.",
            function=lambda names, scores, costs: names[int(scores[:, 0].argmax())],
        ),
        Mistake(
            "best_worst_seed",
            "A sound rule where failures are dear. But asked for is the cheapest option whose range reaches "
            "that of the "
            "best mean.",
            function=lambda names, scores, costs: names[int(scores.min(axis=1).argmax())],
        ),
        Mistake(
            "costliest",
            "The options that are as good as the best are the right ones. But of these you took the costliest; the "
            "cheapest is as good.",
            function=lambda names, scores, costs: _pick(names, _as_good(scores), -costs),
        ),
        Mistake(
            "means_compared_only",
            "The bar, the worst seed of the best option, is right. But you ask whether an option's MEAN reaches "
            "it; the "
            "ranges overlap as soon as its best seed does.",
            "scores.max(axis=1) >= bar", "scores.mean(axis=1) >= bar",
        ),
        Mistake(
            "worst_seeds_compared",
            "The bar, the worst seed of the best option, is right. But you ask every seed of an option to reach "
            "it; the "
            "ranges overlap as soon as its best seed does.",
            "scores.max(axis=1) >= bar", "scores.min(axis=1) >= bar",
        ),
        Mistake(
            "bar_at_the_mean",
            "The best seed of each option is compared, good. But the bar is not the best mean itself: it is the worst "
            "seed of that option.",
            "scores[best].min()", "scores[best].mean()",
        ),
        Mistake(
            "bar_of_the_luckiest",
            "Ranges are compared, good. But with the option that has the best single seed; it is the best MEAN that "
            "sets the bar.",
            "np.argmax(scores.mean(axis=1))", "np.argmax(scores.max(axis=1))",
        ),
        Mistake(
            "one_deviation",
            "You allow for luck, good. But by one standard deviation from the best mean; here the rule is: ranges that "
            "do not overlap.",
            function=lambda names, scores, costs: _pick(
                names, scores.mean(1) >= scores.mean(1).max() - scores[scores.mean(1).argmax()].std(), costs
            ),
        ),
        Mistake(
            "score_per_cost",
            "Both count, good. But score divided by cost makes a cheap and bad option win: first leave out what "
            "is clearly "
            "worse, then take the cheapest.",
            function=lambda names, scores, costs: names[int((scores.mean(axis=1) / costs).argmax())],
        ),
        Mistake(
            "lower_is_better",
            "Ranges are compared, and the cheapest is taken. But these are scores, not losses: higher is better.",
            function=lambda names, scores, costs: cheapest_as_good(names, -scores, costs),
        ),
        Mistake(
            "first_as_good",
            "The options that are as good as the best are the right ones. But you took the first in the list; take the "
            "cheapest, whatever the order is.",
            function=lambda names, scores, costs: names[int(np.argmax(_as_good(scores)))],
        ),
        Mistake(
            "last_as_good",
            "The options that are as good as the best are the right ones. But you took the last in the list; take the "
            "cheapest, whatever the order is.",
            function=lambda names, scores, costs: names[int(np.flatnonzero(_as_good(scores))[-1])],
        ),
        Mistake(
            "costliest_of_all",
            "Costs are looked at. But this is the costliest; what costs more is not always better. Asked for is the "
            "cheapest that is as good as the best.",
            function=lambda names, scores, costs: names[int(costs.argmax())],
        ),
    ),
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


EXERCISES = (PARAMETERS, SWEEP, CHOOSE)
