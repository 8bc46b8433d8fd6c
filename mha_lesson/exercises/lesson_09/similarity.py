"""Exercise 09.similarity."""

from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.compare import plain
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.inspection import head_distances
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.softmax import masked_softmax, softmax


def _kl(p, q):
    """Sum of p log2(p / q), 0 where p is 0, infinite where only q is 0."""
    return np.where(p > 0, p * np.log2(np.where(p > 0, p, 1) / np.where(p > 0, q, 1)), 0).sum(axis=-1)


def _js(p, q):
    return np.sqrt(np.maximum(_kl(p, (p + q) / 2) + _kl(q, (p + q) / 2), 0) / 2)


def _pairwise(compare):
    return lambda weights: np.array([[compare(p, q) for q in weights] for p in weights])


def _sums(p, q):
    """KL(P || P + Q) + KL(Q || P + Q), half of it: the divergence less 1."""
    return (_kl(p, p + q) + _kl(q, p + q)) / 2


def _terms(p, m):
    """p log2(p / m) without a look at zeros: NaN where p is 0."""
    return p * np.log2(p / m)


def _root(bits):
    return np.sqrt(np.maximum(bits, 0))


def _nan_left_out(p, q):
    m = (p + q) / 2
    return np.nanmean(_root((_terms(p, m) + _terms(q, m)).sum(axis=-1) / 2))


def _nansum_of_both(p, q):
    m = (p + q) / 2
    return _root(np.nansum(_terms(p, m) + _terms(q, m), axis=-1) / 2).mean()


def _nansums(p, q):
    m = (p + q) / 2
    return _root((np.nansum(_terms(p, m), axis=-1) + np.nansum(_terms(q, m), axis=-1)) / 2).mean()


def _simple_where(p, q):
    m = (p + q) / 2
    return _root(sum(np.where(a > 0, _terms(a, m), 0).sum(axis=-1) for a in (p, q)) / 2).mean()


def _cosine_of_maps(p, q):
    return _cosine(p.ravel(), q.ravel())


def _cosine(p, q):
    return ((p * q).sum(-1) / (np.linalg.norm(p, axis=-1) * np.linalg.norm(q, axis=-1))).mean()


def _entropy(p):
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(-1)


def _by_loops(weights):
    out = []
    for first in weights:
        row = []
        for second in weights:
            total = 0.0
            for p, q in zip(first.tolist(), second.tolist(), strict=True):
                total += _js_of_lists(p, q)
            row.append(total / len(first))
        out.append(row)
    return out


def _js_of_lists(p, q):
    bits = 0.0
    for a, b in zip(p, q, strict=True):
        bits += sum(x * np.log2(2 * x / (a + b)) for x in (a, b) if x) / 2
    return max(bits, 0.0) ** 0.5


def _read_distances(arguments: tuple, answer: Any) -> np.ndarray:
    """On the diagonal a rounding error e has become sqrt(e): up to 0.002 counts as 0 there."""
    d = np.asarray(plain(answer))
    if d.ndim == 2 and d.dtype.kind == "f":
        d = np.where(np.eye(*d.shape, dtype=bool) & (np.abs(d) < 2e-3), 0, d).astype(d.dtype)
    return d


mistake = Mistakes()


mistake.edit(
    "no_root",
    """This is the Jensen-Shannon divergence, and right. But the distance is its square root.""",
    old="np.sqrt(np.maximum(both, 0))",
    new="np.maximum(both, 0)",
)

mistake.edit(
    "natural_logarithm",
    """The formula is right. But with np.log the largest distance is 0.83; base 2, np.log2, brings it to 1.""",
    old="np.log2",
    new="np.log",
)

mistake.edit(
    "nan_where_weights_are_0",
    """Right where no weight is 0. But 0 * log 0 is NaN in NumPy, and a masked weight is 0: let such a term count as 0,
    with np.where.""",
    old="there = a > 0",
    new="there = True",
)

mistake.function(
    "one_sided",
    """Rows are compared query by query, good. But KL(P || Q) is one-sided, and infinite where Q alone is 0. Compare
    both with their middle (P + Q) / 2.""",
    _pairwise(lambda p, q: _kl(p, q).mean()),
)

mistake.function(
    "one_sided_with_nan",
    """Rows are compared query by query, good. But KL(P || Q) is one-sided, and NaN or infinite where a weight is 0.
    Compare both with their middle (P + Q) / 2, and let a term count as 0 where its weight is 0.""",
    _pairwise(lambda p, q: _terms(p, q).sum(axis=-1).mean()),
)

mistake.function(
    "root_of_one_sided",
    """Rows are compared query by query, and the root is there. But KL(P || Q) is one-sided, and infinite where Q alone
    is 0. Compare both with their middle (P + Q) / 2.""",
    _pairwise(lambda p, q: np.sqrt(np.maximum(_kl(p, q), 0)).mean()),
)

mistake.function(
    "both_sides_without_middle",
    """It is the same in both directions, good. But KL(P || Q) is infinite where Q alone is 0. Compare each with their
    middle (P + Q) / 2.""",
    _pairwise(lambda p, q: (_kl(p, q) + _kl(q, p)).mean() / 2),
)

mistake.function(
    "both_sides_without_middle_with_nan",
    """It is the same in both directions, good. But KL(P || Q) is NaN or infinite where a weight is 0. Compare each with
    their middle (P + Q) / 2, and let a term count as 0 where its weight is 0.""",
    _pairwise(lambda p, q: (_terms(p, q) + _terms(q, p)).sum(axis=-1).mean() / 2),
)

mistake.edit(
    "half_of_it",
    """The middle is right. But only P is compared with it; Q must be too, and the mean of the two taken.""",
    old="(divergence(p) + divergence(q)) / 2",
    new="divergence(p)",
)

mistake.edit(
    "half_of_one_side",
    """The middle is right, and so is the 2. But half of the sum is missing: Q is compared with the middle too.""",
    old="(divergence(p) + divergence(q)) / 2",
    new="divergence(p) / 2",
)

mistake.edit(
    "sum_of_both",
    """Both are compared with their middle, good. But take the mean of the two, not the sum: divide by 2.""",
    old="(divergence(p) + divergence(q)) / 2",
    new="(divergence(p) + divergence(q))",
)

mistake.function(
    "middle_is_the_sum",
    """Both sides are there. But the middle of P and Q is (P + Q) / 2; their sum adds up to 2, and below the root comes
    a number less than 0: NaN.""",
    _pairwise(lambda p, q: np.sqrt(_sums(p, q)).mean()),
)

mistake.function(
    "middle_is_the_sum_without_root",
    """Both sides are there. But the middle of P and Q is (P + Q) / 2; their sum adds up to 2, and all comes out 1 too
    small. Then take the square root.""",
    _pairwise(lambda p, q: _sums(p, q).mean()),
)

mistake.edit(
    "mean_over_keys",
    """Both are compared with their middle. But the divergence is a sum over the keys; with the mean it depends on how
    many keys there are.""",
    old=".sum(axis=-1)",
    new=".mean(axis=-1)",
)

mistake.function(
    "nan_left_out",
    """Right where no weight is 0. But np.nanmean leaves out each query with a weight of 0, and under a mask that is
    nearly all of them: let the single TERM be 0, with np.where.""",
    _pairwise(_nan_left_out),
)

mistake.function(
    "nansum_of_both",
    """Right where no weight is 0. But NaN + a number is NaN, so np.nansum over P's and Q's terms together loses both
    where only one is NaN: two sums, one for each.""",
    _pairwise(_nansum_of_both),
)


@mistake
def queries_averaged_first(weights):
    """The distance is right. But you averaged each head over its queries first, and then heads that look at different
    keys may seem alike. Compare query by query, then take the mean."""
    return head_distances(weights.mean(axis=1, keepdims=True))


mistake.function(
    "root_at_the_end",
    """The divergence is right. But the root comes after the mean over queries (or all rows were laid end to end as one
    distribution). Each query has a distance of its own; then the mean.""",
    _pairwise(lambda p, q: np.sqrt((_js(p, q) ** 2).mean())),
)

mistake.edit(
    "summed_over_queries",
    """Each query's distance is right. But you added them up; the mean keeps the result between 0 and 1.""",
    old="distance.mean(axis=-1)",
    new="distance.sum(axis=-1)",
)

mistake.edit(
    "largest_query",
    """Each query's distance is right. But you took the largest; asked for is the mean over queries.""",
    old="distance.mean(axis=-1)",
    new="distance.max(axis=-1)",
)

mistake.edit(
    "for_each_query",
    """Each query's distance is right. One step is left: the mean over the queries, the last axis, so that (H, H)
    remains.""",
    old="distance.mean(axis=-1)",
    new="distance",
)


@mistake
def over_queries(weights):
    """The formula is right. But it runs down the columns; a distribution is a row, one query's weights over the keys:
    the last axis."""
    return head_distances(weights.swapaxes(-1, -2))


mistake.edit(
    "one_minus",
    """The distances are right. But you took them from 1; asked for is the distance, 0 for a head with itself.""",
    old="return distance.mean(axis=-1)",
    new="return 1 - distance.mean(axis=-1)",
)

mistake.function(
    "cosine",
    """Heads are compared query by query, good. But the cosine knows nothing of shares; take the Jensen-Shannon
    distance, 0 for heads that are alike.""",
    _pairwise(_cosine),
)

mistake.function(
    "cosine_distance",
    """It is 0 for heads that are alike, good. But the cosine knows nothing of shares; take the Jensen-Shannon
    distance.""",
    _pairwise(lambda p, q: 1 - _cosine(p, q)),
)

mistake.function(
    "cosine_of_maps",
    """Each pair of heads gets one number, good. But the cosine of two whole maps knows nothing of shares; compare query
    by query with the Jensen-Shannon distance, 0 for heads that are alike.""",
    _pairwise(_cosine_of_maps),
)

mistake.function(
    "cosine_distance_of_maps",
    """It is 0 for heads that are alike, good. But the cosine of two whole maps knows nothing of shares; compare query
    by query with the Jensen-Shannon distance.""",
    _pairwise(lambda p, q: 1 - _cosine_of_maps(p, q)),
)

mistake.function(
    "total_variation",
    """It goes from 0 to 1, and query by query, good. But half the sum of |P - Q| is another distance (total variation);
    take Jensen-Shannon.""",
    _pairwise(lambda p, q: np.abs(p - q).sum(-1).mean() / 2),
)

for side, keep in (("above", np.triu), ("below", np.tril)):
    mistake.function(
        f"only_{side}",
        f"The distances are right. But they stand only {side} the diagonal: fill in both [a, b] and [b, a].",
        lambda weights, keep=keep: keep(head_distances(weights)),
    )


SIMILARITY = Exercise(
    id="09.similarity",
    signature="similarity(weights)",
    solution=head_distances,
    protocol=Protocol(read=_read_distances),
    probes=lambda: [
        Probe((softmax(wave(2, 3, 5, size=2)),), "2 heads, 3 queries, 5 keys"),
        Probe((softmax(wave(5, 2, 3, step=1.3, size=3)),), "5 heads, 2 queries, 3 keys"),
        Probe((masked_softmax(wave(3, 5, 7, step=1.1, size=2), causal_mask(5, 7)),),
              "3 heads, causal, so that some weights are 0"),
        Probe((np.array([[[1.0, 0, 0], [0.5, 0.5, 0]], [[0, 1, 0], [0.5, 0.5, 0]], [[0, 0, 1], [0, 0, 1]]]),),
              "heads 0 and 1 look at different keys in query 0 and at the same ones in query 1; head 2 at another"),
        Probe((softmax(wave(2, 7, 3, step=0.9, size=2, dtype=np.float32)),), "2 heads, 7 queries, 3 keys, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "loops": _by_loops,
        "pairs": _pairwise(lambda p, q: _js(p, q).mean()),
        "by entropies": _pairwise(
            lambda p, q: np.sqrt(np.maximum(_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2, 0)).mean()
        ),
        "np.where around the term": _pairwise(_simple_where),
        "np.nansum": _pairwise(_nansums),
        "natural, then divided": _pairwise(
            lambda p, q: np.sqrt(np.maximum(_js(p, q) ** 2 * np.log(2), 0) / np.log(2)).mean()
        ),
        **usual_forms(head_distances),
    },
    hints=(
        "Two heads, one query: two rows that add up to 1. Write the distance of two such rows first.",
        "With m = (p + q) / 2 the divergence is half of sum(p * log2(p / m)) plus half of sum(q * log2(q / m)).",
        "Where p is 0 the term is 0: np.where(p > 0, p * np.log2(p / m), 0). NumPy may print a warning, for it "
        "computes 0 / 0 all the same; np.where does not take it.",
        "Square root for each query, then the mean over queries, for every pair of heads.",
    ),
    well_done="0 for heads that look alike, 1 for heads that never share a key, and no NaN under a mask.",
)  # fmt: skip
