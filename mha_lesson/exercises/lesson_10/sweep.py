"""Exercise 10.sweep."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.compare import NotPlain, plain
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.head_count import sweep_heads


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


mistake = Mistakes()


mistake.edit(
    "best_seed",
    """Every model is trained. But you report the best seed as if it were typical: in the place of the mean stands the
    highest score.""",
    old="np.mean(scores)",
    new="max(scores)",
)

mistake.edit(
    "worst_seed",
    """Every model is trained. But in the place of the mean stands the lowest score.""",
    old="np.mean(scores)",
    new="min(scores)",
)

mistake.edit(
    "median",
    """Every model is trained, and the range is right. But you took the median; here the mean is asked for.""",
    old="np.mean(scores)",
    new="np.median(scores)",
)

mistake.edit(
    "middle_of_range",
    """Every model is trained, and the range is right. But the middle of the range is not the mean: np.mean of all the
    scores.""",
    old="np.mean(scores)",
    new="(min(scores) + max(scores)) / 2",
)

mistake.edit(
    "first_seed_only",
    """Every number of heads is trained. But all its runs have the first seed, so the range is 0: give each run its own
    seed.""",
    old="for seed in seeds]",
    new="for seed in seeds[:1]]",
)

mistake.edit(
    "last_seed_only",
    """Every number of heads is trained. But only the last seed is left: collect the scores in a list.""",
    old="for seed in seeds]",
    new="for seed in seeds[-1:]]",
)

mistake.edit(
    "places_for_seeds",
    """The table is built right. But the seeds are counted, 0, 1, 2, ...; use those that are given: for seed in
    seeds.""",
    old="for seed in seeds]",
    new="for seed in range(len(seeds))]",
)

mistake.edit(
    "arguments_swapped",
    """The table is built right. But train is called with the seed as number of heads: train(heads, seed).""",
    old="train(heads, seed)",
    new="train(seed, heads)",
)

mistake.function(
    "standard_deviation",
    """The mean is right. But mean ± standard deviation is no range: return the lowest and the highest score.""",
    _rows(lambda s: (s.mean(), s.mean() - s.std(), s.mean() + s.std())),
)

mistake.function(
    "sample_deviation",
    """The mean is right. But mean ± standard deviation (with n - 1) is no range: return the lowest and the highest
    score.""",
    _rows(lambda s: (s.mean(), s.mean() - s.std(ddof=1), s.mean() + s.std(ddof=1))),
)

mistake.function(
    "standard_error",
    """The mean is right. But mean ± standard error says how sure the mean is; return the lowest and the highest
    score.""",
    _rows(lambda s: (s.mean(), s.mean() - s.std(ddof=1) / len(s) ** 0.5, s.mean() + s.std(ddof=1) / len(s) ** 0.5)),
)

mistake.edit(
    "high_before_low",
    """All the numbers are right. But the order is heads, mean, lowest, highest.""",
    old="min(scores), max(scores)",
    new="max(scores), min(scores)",
)

mistake.edit(
    "mean_last",
    """All the numbers are right. But the order is heads, mean, lowest, highest.""",
    old="np.mean(scores), min(scores), max(scores)",
    new="min(scores), max(scores), np.mean(scores)",
)

mistake.edit(
    "mean_between",
    """All the numbers are right. But the order is heads, mean, lowest, highest.""",
    old="np.mean(scores), min(scores)",
    new="min(scores), np.mean(scores)",
)

mistake.function(
    "distances",
    """Mean and spread are right. But lowest and highest are asked for as scores, not as distances from the mean.""",
    _rows(lambda s: (s.mean(), s.mean() - s.min(), s.max() - s.mean())),
)

mistake.function(
    "width_of_range",
    """The mean is right. But you return the width of the range; return its two ends, lowest and highest.""",
    _rows(lambda s: (s.mean(), s.max() - s.min())),
)

mistake.function(
    "means_only",
    """The means are right. But without the range nobody can tell a difference from luck: lowest and highest too.""",
    _rows(lambda s: (s.mean(),)),
)

mistake.function(
    "all_scores",
    """Every model is trained. One step is left: mean, lowest and highest of each row.""",
    _rows(lambda s: s),
)

mistake.function(
    "list_not_emptied",
    """The first row is right. But the scores of one number of heads are still in the list when the next begins: start
    it anew inside the loop.""",
    _pooled,
)

mistake.edit(
    "no_heads",
    """All the scores are right. But each row begins with its number of heads, or nobody knows which is which.""",
    old="[heads, np",
    new="[np",
)


SWEEP = Exercise(
    id="10.sweep",
    signature="sweep(train, head_counts, seeds)",
    solution=sweep_heads,
    protocol=Protocol(read=_read_table),
    advice="A row is [heads, mean, lowest, highest]; a dictionary heads -> (mean, lowest, highest) is fine too.",
    probes=lambda: [
        Probe((_trained(8, 0.7), [1, 2, 8], [3, 5, 11, 7, 2]), "1, 2 and 8 heads, 5 seeds"),
        Probe((_trained(4, 1.3), [4, 16, 1, 2, 8], [13, 0, 1]), "5 numbers of heads, seeds 13, 0 and 1"),
        Probe((_trained(2, 1.9), [3, 6], [4, 9, 6, 1, 23, 42, 77]), "3 and 6 heads, 7 seeds"),
    ],
    mistakes=mistake.all,
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
