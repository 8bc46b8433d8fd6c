"""Exercises of lesson 09: switch heads off, compare them, find them, score induction."""

from typing import Any

import numpy as np

from mha_lesson.exercises.compare import NotPlain, plain
from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.heads import merge_heads, output_projection
from mha_lesson.steps.inspection import ablate_heads, find_head, head_distances, induction_scores
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.projections import project
from mha_lesson.steps.softmax import masked_softmax, softmax


def _rows(off, d_head):
    """The rows of w_o that belong to these heads."""
    return [h * d_head + i for h in off for i in range(d_head)]


def _with_columns_off(heads, w_o, b_o, off):
    w_o = w_o.copy()
    w_o[:, [c for c in _rows(off, heads.shape[2]) if c < w_o.shape[1]]] = 0
    return merge_heads(heads) @ w_o + b_o


def _with_outputs_off(heads, w_o, b_o, off):
    out = merge_heads(heads) @ w_o + b_o
    out[:, [c for c in _rows(off, heads.shape[2]) if c < w_o.shape[1]]] = 0
    return out


def _with_rows_shifted(heads, w_o, b_o, off):
    left = merge_heads(np.delete(heads, off, axis=0))
    return left @ w_o[: left.shape[1]] + b_o


def _with_means(heads, w_o, b_o, off):
    heads = heads.copy()
    heads[off] = heads[off].mean(axis=1, keepdims=True)
    return merge_heads(heads) @ w_o + b_o


def _with_features_off(heads, w_o, b_o, off):
    c = merge_heads(heads)
    c[:, off] = 0
    return c @ w_o + b_o


def _with_first_rows(heads, w_o, b_o, off):
    return sum(o @ w_o[: heads.shape[-1]] for h, o in enumerate(heads) if h not in off) + b_o


def _with_filled(fill):
    """What `fill` makes of the heads and of the list off stands in for the heads that are off."""

    def ablate(heads, w_o, b_o, off):
        kept = heads.copy()
        if len(off):
            kept[off] = fill(heads, off)
        return merge_heads(kept) @ w_o + b_o

    return ablate


def _head_by_head(heads, w_o, b_o, off):
    d = heads.shape[-1]
    parts = [o @ w_o[h * d : (h + 1) * d] for h, o in enumerate(heads) if h not in off]
    return sum(parts) + b_o


ABLATE = Exercise(
    id="09.ablate",
    signature="ablate(heads, w_o, b_o, off)",
    solution=ablate_heads,
    helpers=(merge_heads, output_projection, project),
    probes=lambda: [
        Probe((np.array([[[1.0], [2], [3]], [[10], [20], [40]]]), np.array([[1.0, 2], [3, 5]]),
               np.array([100.0, 200]), [0]), "2 heads of width 1, 3 tokens, off = [0]"),
        Probe((wave(3, 5, 2), wave(6, 7, step=0.4), wave(7, step=1.3), [2, 0]),
              "3 heads of width 2, 5 tokens, W_O (6, 7), off = [2, 0]"),
        Probe((wave(5, 7, 3), wave(15, 15, step=0.45), wave(15, step=1.1), []), "5 heads of width 3, none off"),
        Probe((wave(5, 2, 3), wave(15, 15, step=0.85), wave(15, step=0.9), [3, 1]), "5 heads of width 3, off = [3, 1]"),
        Probe((wave(2, 5, 3, dtype=np.float32), wave(6, 6, step=0.4, dtype=np.float32), wave(6, dtype=np.float32), [1]),
              "2 heads of width 3, float32, off = [1]"),
    ],
    mistakes=(
        Mistake(
            "no_bias",
            "The right heads are off. But the bias b_o is gone too: it belongs to no head, so it stays.",
            "output_projection(merge_heads(kept), w_o, b_o)", "output_projection(merge_heads(kept), w_o)",
        ),
        Mistake(
            "scaled_up",
            "The right heads are off. But you made the others larger to make up for it (as dropout does in training); "
            "switched off means missing, nothing else changes.",
            "kept[off] = 0", "kept[off] = 0; kept = kept * (len(kept) / (len(kept) - len(off)))",
        ),
        Mistake(
            "output_scaled_up",
            "The right heads are off. But you scaled the output up to make up for it, bias and all; switched off means "
            "missing, nothing else changes.",
            function=lambda heads, w_o, b_o, off: (
                ablate_heads(heads, w_o, b_o, off) * (len(heads) / (len(heads) - len(off)))
            ),
        ),
        Mistake(
            "outputs_off",
            "Features are cut into heads in the right way. But you set outputs to 0 after W_O, and W_O has mixed the "
            "heads by then: switch a head off before it.",
            function=_with_outputs_off,
        ),
        Mistake(
            "columns_off",
            "A part of W_O is set to 0, a good way. But its columns are outputs, and they hold all heads; a head owns "
            "rows: w_o[h * D : (h + 1) * D].",
            function=_with_columns_off,
        ),
        Mistake(
            "only_these",
            "Heads are switched, and the bias is there. But it is the other way round: the heads in off are the ones "
            "that must be silent.",
            "kept[off] = 0", "kept[[h for h in range(len(kept)) if h not in off]] = 0",
        ),
        Mistake(
            "nothing_off",
            "This is the layer's whole output, and right. But off has no effect: set these heads to 0 first.",
            "kept[off] = 0", "pass",
        ),
        Mistake(
            "no_projection",
            "The right heads are silent. But the output projection is missing: @ w_o + b_o.",
            "output_projection(merge_heads(kept), w_o, b_o)", "merge_heads(kept)",
        ),
        Mistake(
            "interleaved",
            "The right heads are silent. But the features are shuffled: those of one head lie side by side, so "
            "swap heads and tokens, then flatten (merge of lesson 06).",
            "merge_heads(kept)", "kept.transpose(1, 2, 0).reshape(kept.shape[1], -1)",
        ),
        Mistake(
            "one_reshape",
            "The right heads are silent. But they are joined by a reshape alone, which mixes tokens: swap heads and "
            "tokens first (merge of lesson 06).",
            "merge_heads(kept)", "kept.reshape(kept.shape[1], -1)",
        ),
        Mistake(
            "rows_shifted",
            "The right heads are left. But each met the rows of another in W_O: with a head removed the others "
            "move up. "
            "Set it to 0 instead, or remove its rows of w_o too.",
            function=_with_rows_shifted,
        ),
        Mistake(
            "mean_instead",
            "The right heads are changed. But you put their mean over the tokens in place (mean ablation, a good "
            "experiment too); here they are set to 0.",
            function=_with_means,
        ),
        Mistake(
            "tokens_off",
            "Numbers are set to 0 before W_O, good. But off numbers the heads, the first axis; you silenced tokens.",
            "kept[off] = 0", "kept[:, off] = 0",
        ),
        Mistake(
            "counted_from_one",
            "The steps are right. But the heads beside those in off are silent: heads count from 0.",
            "kept[off] = 0", "kept[[h - 1 for h in off]] = 0",
        ),
        Mistake(
            "only_one_off",
            "Right where one head is off. But of several only one is silent: copy heads once before the loop, "
            "and let `return` stand behind it.",
            "kept[off] = 0", "kept[off[-1:]] = 0",
        ),
        Mistake(
            "only_the_last_off",
            "Right where one head is off. But only the one named last is silent: copy heads once, before the loop.",
            function=lambda heads, w_o, b_o, off: ablate_heads(heads, w_o, b_o, off[-1:]),
        ),
        Mistake(
            "bias_for_each_head",
            "The sum over the heads that are left is right. But each brings the bias with it: add b_o once, at "
            "the end.",
            function=lambda heads, w_o, b_o, off: (
                ablate_heads(heads, w_o, b_o, off) + (len(heads) - len(off) - 1) * b_o
            ),
        ),
        Mistake(
            "bias_in_parts",
            "The sum over the heads that are left is right. But you took a part of the bias away with each head; it "
            "belongs to none, so the whole of b_o stays.",
            function=lambda heads, w_o, b_o, off: (
                ablate_heads(heads, w_o, b_o, off) - len(off) / len(heads) * b_o
            ),
        ),
        Mistake(
            "features_off",
            "Numbers are set to 0 between heads and W_O, a good place. But a column of the merged heads is one "
            "feature; head h owns D of them, h * D to (h + 1) * D. Easier before the merge: kept[off] = 0.",
            function=_with_features_off,
        ),
        Mistake(
            "minus_infinity",
            "The right heads are meant. But -inf is for scores, where softmax makes 0 of it; what a head found goes "
            "into a sum, and there 0 is nothing.",
            "kept[off] = 0", "kept[off] = -np.inf",
        ),
        Mistake(
            "off_0_alone",
            "Right where one head is off. But off is a list of any length, and off[0] is its first number (an empty "
            "list has none): kept[off] = 0 takes them all.",
            function=lambda heads, w_o, b_o, off: ablate_heads(heads, w_o, b_o, [off[0]]),
        ),
        Mistake(
            "w_o_transposed",
            "The right heads are silent. But W_O is transposed: it is stored (in, out) here, so @ w_o, without .T.",
            "w_o, b_o)", "w_o.T, b_o)",
        ),
        Mistake(
            "mean_of_the_heads",
            "The right heads are changed. But the mean over the heads says something still; switched off means 0.",
            function=_with_filled(lambda heads, off: heads.mean(axis=0)),
        ),
        Mistake(
            "mean_of_the_others",
            "The right heads are changed. But the mean of the others in their place says something still; switched "
            "off means 0.",
            function=_with_filled(lambda heads, off: np.delete(heads, off, axis=0).mean(axis=0)),
        ),
        Mistake(
            "first_rows_for_all",
            "The heads that are left are added up, and the bias comes once. But all of them meet w_o[:D], the rows of "
            "head 0; head h owns w_o[h * D : (h + 1) * D].",
            function=_with_first_rows,
        ),
    ),
    forms={
        "head by head": _head_by_head,
        "rows of W_O": lambda heads, w_o, b_o, off: (
            merge_heads(heads) @ np.where(np.isin(np.arange(len(w_o)) // heads.shape[2], off)[:, None], 0, w_o) + b_o
        ),
        "einsum with gates": lambda heads, w_o, b_o, off: np.einsum(
            "hld,hde,h->le", heads, w_o.reshape(len(heads), -1, w_o.shape[1]), ~np.isin(np.arange(len(heads)), off)
        ) + b_o,
        "all less the off ones": lambda heads, w_o, b_o, off: merge_heads(heads) @ w_o + b_o - sum(
            heads[h] @ w_o[h * heads.shape[2] : (h + 1) * heads.shape[2]] for h in off
        ),
        **usual_forms(ablate_heads),
    },
    hints=(
        "The output is a sum: head 0 through its rows of W_O, head 1 through its own, ..., and the bias.",
        "First a copy, so that the caller's array stays as it is: kept = heads.copy(). In it set what the heads in "
        "off found to 0: kept[off] = 0.",
        "Then as in lesson 06: lay the heads side by side, (L, H * D), and project with @ w_o + b_o.",
        "kept.transpose(1, 0, 2).reshape(L, H * D) @ w_o + b_o",
    ),
    well_done="Now you can ask what a head is good for, not only where it looks.",
)  # fmt: skip


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


SIMILARITY = Exercise(
    id="09.similarity",
    signature="similarity(weights)",
    solution=head_distances,
    read=_read_distances,
    probes=lambda: [
        Probe((softmax(wave(2, 3, 5, size=2)),), "2 heads, 3 queries, 5 keys"),
        Probe((softmax(wave(5, 2, 3, step=1.3, size=3)),), "5 heads, 2 queries, 3 keys"),
        Probe((masked_softmax(wave(3, 5, 7, step=1.1, size=2), causal_mask(5, 7)),),
              "3 heads, causal, so that some weights are 0"),
        Probe((np.array([[[1.0, 0, 0], [0.5, 0.5, 0]], [[0, 1, 0], [0.5, 0.5, 0]], [[0, 0, 1], [0, 0, 1]]]),),
              "heads 0 and 1 look at different keys in query 0 and at the same ones in query 1; head 2 at another"),
        Probe((softmax(wave(2, 7, 3, step=0.9, size=2, dtype=np.float32)),), "2 heads, 7 queries, 3 keys, float32"),
    ],
    mistakes=(
        Mistake(
            "no_root",
            "This is the Jensen-Shannon divergence, and right. But the distance is its square root.",
            "np.sqrt(np.maximum(both, 0))", "np.maximum(both, 0)",
        ),
        Mistake(
            "natural_logarithm",
            "The formula is right. But with np.log the largest distance is 0.83; base 2, np.log2, brings it to 1.",
            "np.log2", "np.log",
        ),
        Mistake(
            "nan_where_weights_are_0",
            "Right where no weight is 0. But 0 * log 0 is NaN in NumPy, and a masked weight is 0: let such a "
            "term count "
            "as 0, with np.where.",
            "there = a > 0", "there = True",
        ),
        Mistake(
            "one_sided",
            "Rows are compared query by query, good. But KL(P || Q) is one-sided, and infinite where Q alone is 0. "
            "Compare both with their middle (P + Q) / 2.",
            function=_pairwise(lambda p, q: _kl(p, q).mean()),
        ),
        Mistake(
            "one_sided_with_nan",
            "Rows are compared query by query, good. But KL(P || Q) is one-sided, and NaN or infinite where a weight "
            "is 0. Compare both with their middle (P + Q) / 2, and let a term count as 0 where its weight is 0.",
            function=_pairwise(lambda p, q: _terms(p, q).sum(axis=-1).mean()),
        ),
        Mistake(
            "root_of_one_sided",
            "Rows are compared query by query, and the root is there. But KL(P || Q) is one-sided, and infinite where "
            "Q alone is 0. Compare both with their middle (P + Q) / 2.",
            function=_pairwise(lambda p, q: np.sqrt(np.maximum(_kl(p, q), 0)).mean()),
        ),
        Mistake(
            "both_sides_without_middle",
            "It is the same in both directions, good. But KL(P || Q) is infinite where Q alone is 0. Compare each with "
            "their middle (P + Q) / 2.",
            function=_pairwise(lambda p, q: (_kl(p, q) + _kl(q, p)).mean() / 2),
        ),
        Mistake(
            "both_sides_without_middle_with_nan",
            "It is the same in both directions, good. But KL(P || Q) is NaN or infinite where a weight is 0. Compare "
            "each with their middle (P + Q) / 2, and let a term count as 0 where its weight is 0.",
            function=_pairwise(lambda p, q: (_terms(p, q) + _terms(q, p)).sum(axis=-1).mean() / 2),
        ),
        Mistake(
            "half_of_it",
            "The middle is right. But only P is compared with it; Q must be too, and the mean of the two taken.",
            "(divergence(p) + divergence(q)) / 2", "divergence(p)",
        ),
        Mistake(
            "half_of_one_side",
            "The middle is right, and so is the 2. But half of the sum is missing: Q is compared with the middle too.",
            "(divergence(p) + divergence(q)) / 2", "divergence(p) / 2",
        ),
        Mistake(
            "sum_of_both",
            "Both are compared with their middle, good. But take the mean of the two, not the sum: divide by 2.",
            "(divergence(p) + divergence(q)) / 2", "(divergence(p) + divergence(q))",
        ),
        Mistake(
            "middle_is_the_sum",
            "Both sides are there. But the middle of P and Q is (P + Q) / 2; their sum adds up to 2, and below the "
            "root comes a number less than 0: NaN.",
            function=_pairwise(lambda p, q: np.sqrt(_sums(p, q)).mean()),
        ),
        Mistake(
            "middle_is_the_sum_without_root",
            "Both sides are there. But the middle of P and Q is (P + Q) / 2; their sum adds up to 2, and all comes out "
            "1 too small. Then take the square root.",
            function=_pairwise(lambda p, q: _sums(p, q).mean()),
        ),
        Mistake(
            "mean_over_keys",
            "Both are compared with their middle. But the divergence is a sum over the keys; with the mean it depends "
            "on how many keys there are.",
            ".sum(axis=-1)", ".mean(axis=-1)",
        ),
        Mistake(
            "nan_left_out",
            "Right where no weight is 0. But np.nanmean leaves out each query with a weight of 0, and under a mask "
            "that is nearly all of them: let the single TERM be 0, with np.where.",
            function=_pairwise(_nan_left_out),
        ),
        Mistake(
            "nansum_of_both",
            "Right where no weight is 0. But NaN + a number is NaN, so np.nansum over P's and Q's terms together loses "
            "both where only one is NaN: two sums, one for each.",
            function=_pairwise(_nansum_of_both),
        ),
        Mistake(
            "queries_averaged_first",
            "The distance is right. But you averaged each head over its queries first, and then heads that look "
            "at different keys may seem alike. Compare query by query, then take the mean.",
            function=lambda weights: head_distances(weights.mean(axis=1, keepdims=True)),
        ),
        Mistake(
            "root_at_the_end",
            "The divergence is right. But the root comes after the mean over queries (or all rows were laid end to end "
            "as one distribution). Each query has a distance of its own; then the mean.",
            function=_pairwise(lambda p, q: np.sqrt((_js(p, q) ** 2).mean())),
        ),
        Mistake(
            "summed_over_queries",
            "Each query's distance is right. But you added them up; the mean keeps the result between 0 and 1.",
            "distance.mean(axis=-1)", "distance.sum(axis=-1)",
        ),
        Mistake(
            "largest_query",
            "Each query's distance is right. But you took the largest; asked for is the mean over queries.",
            "distance.mean(axis=-1)", "distance.max(axis=-1)",
        ),
        Mistake(
            "for_each_query",
            "Each query's distance is right. One step is left: the mean over the queries, the last axis, so "
            "that (H, H) "
            "remains.",
            "distance.mean(axis=-1)", "distance",
        ),
        Mistake(
            "over_queries",
            "The formula is right. But it runs down the columns; a distribution is a row, one query's weights over the "
            "keys: the last axis.",
            function=lambda weights: head_distances(weights.swapaxes(-1, -2)),
        ),
        Mistake(
            "one_minus",
            "The distances are right. But you took them from 1; asked for is the distance, 0 for a head with itself.",
            "return distance.mean(axis=-1)", "return 1 - distance.mean(axis=-1)",
        ),
        Mistake(
            "cosine",
            "Heads are compared query by query, good. But the cosine knows nothing of shares; take the Jensen-Shannon "
            "distance, 0 for heads that are alike.",
            function=_pairwise(_cosine),
        ),
        Mistake(
            "cosine_distance",
            "It is 0 for heads that are alike, good. But the cosine knows nothing of shares; take the Jensen-Shannon "
            "distance.",
            function=_pairwise(lambda p, q: 1 - _cosine(p, q)),
        ),
        Mistake(
            "cosine_of_maps",
            "Each pair of heads gets one number, good. But the cosine of two whole maps knows nothing of shares; "
            "compare query by query with the Jensen-Shannon distance, 0 for heads that are alike.",
            function=_pairwise(_cosine_of_maps),
        ),
        Mistake(
            "cosine_distance_of_maps",
            "It is 0 for heads that are alike, good. But the cosine of two whole maps knows nothing of shares; compare "
            "query by query with the Jensen-Shannon distance.",
            function=_pairwise(lambda p, q: 1 - _cosine_of_maps(p, q)),
        ),
        Mistake(
            "total_variation",
            "It goes from 0 to 1, and query by query, good. But half the sum of |P - Q| is another distance (total "
            "variation); take Jensen-Shannon.",
            function=_pairwise(lambda p, q: np.abs(p - q).sum(-1).mean() / 2),
        ),
        *(
            Mistake(
                f"only_{side}",
                f"The distances are right. But they stand only {side} the diagonal: fill in both [a, b] and [b, a].",
                function=lambda weights, keep=keep: keep(head_distances(weights)),
            )
            for side, keep in (("above", np.triu), ("below", np.tril))
        ),
    ),
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


def _find_probes() -> list[Probe]:
    small = np.full((2, 3, 5, 7), 0.1)
    small[1, 2, 4, 0], small[0, 1, 4, 3], small[0, 0, 0, 4], small[1, 0, 2, 6] = 0.4, 0.3, 0.35, 0.5
    return [
        Probe((small, 4, 0), "2 layers, 3 heads; 0.4 from word 4 to word 0 in layer 1, head 2"),
        Probe((softmax(wave(5, 3, 2, 7, step=2.3, size=2)), 1, 0), "5 layers, 3 heads, 2 queries, 7 keys"),
        Probe((softmax(wave(3, 5, 7, 2, step=1.7, size=3)), 1, 0), "3 layers, 5 heads, 7 queries, 2 keys"),
        Probe((softmax(wave(2, 7, 5, 3, step=2.9, size=2)), 2, 1), "2 layers, 7 heads, 5 queries, 3 keys"),
        Probe((softmax(wave(7, 2, 3, 5, step=1.3, size=2, dtype=np.float32)), 0, 2), "7 layers, 2 heads, float32"),
    ]


def _best(links):
    return tuple(int(i) for i in np.unravel_index(np.argmax(links), links.shape))


def _best_by_loop(weights, query, key):
    best, place = -1.0, None
    for layer, heads in enumerate(weights):
        for head, rows in enumerate(heads):
            if rows[query][key] > best:
                best, place = rows[query][key], (layer, head)
    return place


def _read_place(arguments: tuple, answer: Any) -> Any:
    """The answer as it is, if it is made of numbers."""
    try:
        if not isinstance(plain(answer), dict):
            return answer
    except NotPlain:
        pass
    kind = type(answer).__name__
    raise ValueError(f"expected two numbers, (layer, head), got {'an' if kind[0] in 'aeiou' else 'a'} {kind}")


FIND = Exercise(
    id="09.find",
    signature="find(weights, query, key)",
    solution=find_head,
    read=_read_place,
    probes=_find_probes,
    mistakes=(
        Mistake(
            "query_and_key_swapped",
            "Layer and head are looked for in the right way. But you looked at the weight from key to query: rows are "
            "queries, columns are keys, [..., query, key].",
            "query, key]", "key, query]",
        ),
        Mistake(
            "order",
            "The right head is found. But the order is (layer, head).",
            "return int(layer), int(head)", "return int(head), int(layer)",
        ),
        Mistake(
            "flat_index",
            "The largest weight is found. But np.argmax counts through all heads of all layers; "
            "np.unravel_index(number, (layers, heads)) makes (layer, head) of it.",
            function=lambda weights, query, key: int(np.argmax(weights[:, :, query, key])),
        ),
        Mistake(
            "unravelled_by_layers",
            "The largest weight is found. But its number is divided by the number of layers; in one layer there are "
            "H heads: divmod(number, H).",
            function=lambda weights, query, key: divmod(int(np.argmax(weights[:, :, query, key])), len(weights)),
        ),
        Mistake(
            "twelve_heads",
            "The largest weight is found. But // 12 and % 12 are right for the lesson's model alone; in one layer "
            "there are H = weights.shape[1] heads: divmod(number, H).",
            function=lambda weights, query, key: divmod(int(np.argmax(weights[:, :, query, key])), 12),
        ),
        Mistake(
            "best_head_of_each_layer",
            "The best head of each layer is right. But one head of all layers is asked for: which of these has the "
            "largest weight? np.argmax without an axis looks through the whole table.",
            function=lambda weights, query, key: weights[:, :, query, key].argmax(axis=1),
        ),
        Mistake(
            "a_pair_for_each_layer",
            "The best head of each layer is right. But one pair (layer, head) is asked for, that with the largest "
            "weight of all.",
            function=lambda weights, query, key: np.array(list(enumerate(weights[:, :, query, key].argmax(axis=1)))),
        ),
        Mistake(
            "heads_averaged_first",
            "The weight from query to key is the right one. But you chose the layer by the mean over its heads, and "
            "the mean hides the one head that matters.",
            function=lambda weights, query, key: (
                lambda links: (int(links.mean(1).argmax()), int(links[links.mean(1).argmax()].argmax()))
            )(weights[:, :, query, key]),
        ),
        Mistake(
            "layers_averaged_first",
            "The weight from query to key is the right one. But you chose the head by its mean over the layers; head 3 "
            "of one layer has nothing to do with head 3 of the next. Look for the largest of all.",
            function=lambda weights, query, key: (
                lambda links: (int(links[:, links.mean(0).argmax()].argmax()), int(links.mean(0).argmax()))
            )(weights[:, :, query, key]),
        ),
        Mistake(
            "each_axis_alone",
            "The weight from query to key is the right one. But layer and head are chosen apart, each by its "
            "mean; they "
            "must be those of one and the same weight.",
            function=lambda weights, query, key: (
                lambda links: (int(links.mean(1).argmax()), int(links.mean(0).argmax()))
            )(weights[:, :, query, key]),
        ),
        Mistake(
            "any_words",
            "Layer and head come from one weight, good. But it is the largest of all weights; only the one from "
            "query to "
            "key counts.",
            "weights[:, :, query, key]", "weights.max(axis=(2, 3))",
        ),
        Mistake(
            "any_key",
            "The row of the query is right. But you took its largest weight, to whatever key; only the one to `key` "
            "counts.",
            "weights[:, :, query, key]", "weights[:, :, query].max(axis=-1)",
        ),
        Mistake(
            "any_query",
            "The column of the key is right. But you took its largest weight, from whatever query; only the one from "
            "`query` counts.",
            "weights[:, :, query, key]", "weights[:, :, :, key].max(axis=-1)",
        ),
        Mistake(
            "queries_averaged",
            "The column of the key is right. But you took the mean over all queries; only the weight from `query` "
            "counts.",
            "weights[:, :, query, key]", "weights[:, :, :, key].mean(axis=-1)",
        ),
        Mistake(
            "both_ways",
            "The weight from query to key is in it. But you added the one from key to query; a head looks one way.",
            function=lambda weights, query, key: _best(weights[:, :, query, key] + weights[:, :, key, query]),
        ),
        Mistake(
            "smallest",
            "The weight from query to key is the right one. But you found its smallest; np.argmax finds the largest.",
            "np.argmax", "np.argmin",
        ),
        Mistake(
            "last_layer",
            "The right head of the last layer. But the others count too: look through all layers.",
            function=lambda weights, query, key: (len(weights) - 1, int(weights[-1, :, query, key].argmax())),
        ),
        Mistake(
            "first_layer",
            "The right head of the first layer. But the others count too: look through all layers.",
            function=lambda weights, query, key: (0, int(weights[0, :, query, key].argmax())),
        ),
        Mistake(
            "counted_from_one",
            "The right head is found. But you count from 1; layers and heads are numbered from 0.",
            "return int(layer), int(head)", "return int(layer) + 1, int(head) + 1",
        ),
        Mistake(
            "the_weight_itself",
            "That is how large the weight is. But asked for is where it stands: (layer, head), with np.argmax.",
            function=lambda weights, query, key: weights[:, :, query, key].max(),
        ),
    ),
    forms={
        "a loop": _best_by_loop,
        "divmod": lambda weights, query, key: divmod(
            int(weights[..., query, key].ravel().argmax()), weights.shape[1]
        ),
        "argwhere": lambda weights, query, key: np.argwhere(
            weights[..., query, key] == weights[..., query, key].max()
        )[0],
        "a sorted list": lambda weights, query, key: max(
            (w, (i, j)) for i, row in enumerate(weights[:, :, query, key].tolist()) for j, w in enumerate(row)
        )[1],
        **usual_forms(find_head),
    },
    hints=(
        "One number for each head of each layer: the weight from query to key.",
        "links = weights[:, :, query, key] has shape (layers, H).",
        "np.argmax(links) counts through the whole table; np.unravel_index(that, links.shape) gives row and column.",
    ),
    well_done="Found in one sentence; whether it does the same in others is the next question.",
)  # fmt: skip


def _causal_weights(num_heads: int, n: int, step: float, dtype=np.float64) -> np.ndarray:
    return masked_softmax(wave(num_heads, n, n, step=step, size=2, dtype=dtype), causal_mask(n, n))


def _scores_with(weights, tokens, choose):
    """The mean over repeated positions of what `choose(weights, i, earlier)` gives for each head."""
    found = []
    for i, token in enumerate(tokens):
        earlier = [j for j in range(i) if tokens[j] == token]
        if earlier:
            found.append(choose(weights, i, earlier))
    return np.mean(found, axis=0) if found else np.zeros(len(weights), weights.dtype)


def _scores_at(weights, tokens, places):
    """The mean of the weights at `places(i)`, over the positions i that have such places."""
    found = [weights[:, i, at].sum(axis=-1) for i in range(len(tokens)) if (at := places(i))]
    return np.mean(found, axis=0) if found else np.zeros(len(weights), weights.dtype)


def _places_by(tokens_fit):
    """A score that looks at the places j for which `tokens_fit(tokens, i, j)`, within the sequence."""
    return lambda weights, tokens: _scores_at(
        weights, tokens, lambda i: [j for j in range(len(tokens)) if tokens_fit(tokens, i, j)]
    )


def _error_without_repeats(weights, tokens):
    if not _repeats(tokens):
        raise ZeroDivisionError
    return induction_scores(weights, tokens)


def _repeats(tokens):
    return sum(token in tokens[:i] for i, token in enumerate(tokens))


def _pairs(tokens):
    return sum(tokens[:i].count(token) for i, token in enumerate(tokens))


def _induction_by_matrix(weights, tokens):
    ids = np.array(tokens)
    same = np.tril(ids[:, None] == ids[None], -1)  # (i, j): j is an earlier copy of i
    after = np.zeros_like(same)
    after[:, 1:] = same[:, :-1]
    rows = same.any(axis=1)
    return (weights * after).sum(-1)[:, rows].sum(-1) / max(rows.sum(), 1)


def _induction_by_places(weights, tokens):
    total, n, seen = [0.0] * len(weights), 0, {}
    for i, token in enumerate(tokens):
        if token in seen:
            n += 1
            total = [t + sum(float(w[i, j + 1]) for j in seen[token]) for t, w in zip(total, weights, strict=True)]
        seen.setdefault(token, []).append(i)
    return [t / n for t in total] if n else total


INDUCTION = Exercise(
    id="09.induction",
    signature="induction(weights, tokens)",
    solution=induction_scores,
    probes=lambda: [
        Probe((_causal_weights(2, 5, 1.3), [7, 3, 5, 7, 3]), "2 heads, tokens 7 3 5 7 3"),
        Probe((_causal_weights(5, 7, 0.9), [2, 2, 5, 2, 5, 5, 3]), "5 heads, tokens 2 2 5 2 5 5 3"),
        Probe((_causal_weights(3, 11, 1.7), [4, 1, 4, 6, 1, 4, 4, 6, 0, 9, 1]), "3 heads, 11 tokens"),
        Probe((_causal_weights(3, 5, 1.1), [1, 2, 3, 4, 5]), "no token repeats"),
        Probe((_causal_weights(2, 7, 2.1, np.float32), [3, 1, 3, 1, 3, 1, 2]), "2 heads, 7 tokens, float32"),
    ],
    mistakes=(
        Mistake(
            "at_the_copy",
            "The right positions are counted. But you look at the earlier copy itself; an induction head looks at what "
            "came after it, one place further.",
            "[j + 1 for", "[j for",
        ),
        Mistake(
            "before_the_copy",
            "The right positions are counted. But you look one place before the earlier copy; an induction head looks "
            "at what came after it.",
            function=lambda weights, tokens: _scores_with(
                weights, tokens, lambda w, i, earlier: w[:, i, [j - 1 for j in earlier if j]].sum(-1)
            ),
        ),
        Mistake(
            "before_the_copy_only_if_there",
            "Weights are added up and averaged in the right way. But you look one place before the earlier copy; an "
            "induction head looks at what came after it: tokens[j - 1] == tokens[i].",
            function=_places_by(lambda tokens, i, j: j + 1 < i and tokens[j + 1] == tokens[i]),
        ),
        Mistake(
            "before_the_copy_and_before_itself",
            "Weights are added up and averaged in the right way. But you look one place before, and the token counts "
            "as its own copy; an induction head looks at what came AFTER an EARLIER one: tokens[j - 1] == tokens[i].",
            function=_places_by(lambda tokens, i, j: j < i and tokens[j + 1] == tokens[i]),
        ),
        Mistake(
            "two_after_the_copy",
            "The right positions are counted. But you look two places behind the earlier copy; what came right "
            "after it "
            "is at j + 1.",
            function=lambda weights, tokens: _scores_with(
                weights, tokens, lambda w, i, earlier: w[:, i, [j + 2 for j in earlier if j + 2 < w.shape[2]]].sum(-1)
            ),
        ),
        Mistake(
            "looks_ahead",
            "The right positions are counted. But you look at what comes after position i, the future: there all "
            "weights are 0, and the last token has none. What came after the EARLIER copy is at j + 1.",
            function=lambda weights, tokens: _scores_with(weights, tokens, lambda w, i, earlier: w[:, i, i + 1]),
        ),
        Mistake(
            "previous_token",
            "This is the score of a previous-token head, the other half of the pair. An induction head looks at the "
            "place after the earlier copy of the token.",
            function=lambda weights, tokens: np.mean([weights[:, i, i - 1] for i in range(1, len(tokens))], axis=0),
        ),
        Mistake(
            "previous_token_at_repeats",
            "The right positions are counted. But you look at the token just before; an induction head looks at the "
            "place after the earlier copy.",
            function=lambda weights, tokens: _scores_with(weights, tokens, lambda w, i, earlier: w[:, i, i - 1]),
        ),
        Mistake(
            "itself",
            "The right positions are counted. But you look at the weight of the token to itself; an induction "
            "head looks "
            "at the place after the earlier copy.",
            function=lambda weights, tokens: _scores_with(weights, tokens, lambda w, i, earlier: w[:, i, i]),
        ),
        Mistake(
            "first_copy_only",
            "Right where a token occurred once before. But after several copies only the first counts (list.index "
            "finds no other): add up the weights after all of them.",
            "weights[:, i, after]", "weights[:, i, after[:1]]",
        ),
        Mistake(
            "last_copy_only",
            "Right where a token occurred once before. But after several copies only the last counts: add up the "
            "weights after all of them.",
            "weights[:, i, after]", "weights[:, i, after[-1:]]",
        ),
        Mistake(
            "mean_over_copies",
            "Right where a token occurred once before. But with several copies a head may share its look among them: "
            "add these weights up, and take the mean over positions only.",
            ".sum(axis=-1)", ".mean(axis=-1)",
        ),
        Mistake(
            "largest_copy",
            "Right where a token occurred once before. But with several copies a head may share its look among them: "
            "add these weights up in place of taking the largest.",
            ".sum(axis=-1)", ".max(axis=-1)",
        ),
        Mistake(
            "divided_by_pairs",
            "The weights are the right ones. But you divide by the number of pairs; divide by the number of positions "
            "whose token occurred before.",
            function=lambda weights, tokens: (
                induction_scores(weights, tokens) * _repeats(tokens) / max(_pairs(tokens), 1)
            ),
        ),
        Mistake(
            "divided_by_all",
            "The weights are the right ones. But you divide by all L positions; the mean is over those whose token "
            "occurred before, the others have nothing to find.",
            function=lambda weights, tokens: induction_scores(weights, tokens) * _repeats(tokens) / len(tokens),
        ),
        Mistake(
            "summed",
            "The weights are the right ones. But the sum over positions grows with the text: take the mean.",
            "np.mean(found, axis=0)", "np.sum(found, axis=0)",
        ),
        Mistake(
            "queries_and_keys_swapped",
            "The right pairs are found. But you look from the earlier place forward, and there a causal mask has put "
            "0: rows are queries, weights[:, i, j + 1].",
            "weights[:, i, after]", "weights[:, after, i]",
        ),
        Mistake(
            "not_doubled_tokens",
            "Nearly all copies are found. But not the one just before (as in 'very very'): what came after it is the "
            "token itself, and it counts. Earlier places are range(i).",
            "range(i)", "range(i - 1)",
        ),
        Mistake(
            "wraps_around",
            "The place after an earlier copy is the right one. But with j = 0 you ask tokens[-1], and that is the LAST "
            "token: let j begin at 1.",
            "j + 1 for j in range(i) if tokens[j] == token", "j for j in range(i + 1) if tokens[j - 1] == token",
        ),
        Mistake(
            "wraps_around_and_not_doubled_tokens",
            "Most places are right. But j runs from 1 to i, both included: with j = 0 you ask tokens[-1], the LAST "
            "token, and j = i is what came after a copy just before.",
            "j + 1 for j in range(i) if tokens[j] == token", "j for j in range(i) if tokens[j - 1] == token",
        ),
        Mistake(
            "later_copies",
            "The weights after earlier copies are the right ones. But copies further on count too, and a token that "
            "comes for the first time has nothing to find yet: j <= i.",
            function=_places_by(lambda tokens, i, j: j and j - 1 != i and tokens[j - 1] == tokens[i]),
        ),
        Mistake(
            "later_copies_past_the_end",
            "The place after a copy is the right one. But copies further on count too, until one is the last token and "
            "nothing comes after it: j <= i.",
            "range(i) if", "range(len(tokens)) if j != i and",
        ),
        Mistake(
            "divided_by_all_that_repeat",
            "The weights are the right ones. But you divide by all positions whose token comes more than once, the "
            "first copy too; it has nothing to find yet. Count those with an EARLIER copy.",
            function=lambda weights, tokens: induction_scores(weights, tokens) * _repeats(tokens) / max(
                sum(tokens.count(token) > 1 for token in tokens), 1
            ),
        ),
        Mistake(
            "its_own_copy",
            "The weights after earlier copies are in it. But each token counts as a copy of itself, so that nearly "
            "every position is in the mean: j <= i.",
            function=_places_by(lambda tokens, i, j: j and tokens[j - 1] == tokens[i]),
        ),
        Mistake(
            "matches_the_next_token",
            "Earlier places are compared, good. But you look for the token that comes next, tokens[i + 1], and query i "
            "cannot know it. Look for copies of tokens[i], and then one place further.",
            function=_places_by(
                lambda tokens, i, j: j <= i and i + 1 < len(tokens) and tokens[j] == tokens[i + 1]
            ),
        ),
        Mistake(
            "matches_the_next_token_before",
            "Earlier places are compared, good. But you look for the token that comes next, tokens[i + 1], and query i "
            "cannot know it. Look for copies of tokens[i] before i, and then one place further.",
            function=_places_by(
                lambda tokens, i, j: j < i and i + 1 < len(tokens) and tokens[j] == tokens[i + 1]
            ),
        ),
        Mistake(
            "share_of_largest",
            "The right places are found. But you count how often the LARGEST weight is at one of them; asked for is "
            "how much weight they get together: add it up.",
            "weights[:, i, after].sum(axis=-1)", "np.isin(weights[:, i].argmax(axis=-1), after) * 1.0",
        ),
        Mistake(
            "nan_alone_without_repeats",
            "Right where a token repeats. But where no token does, the mean of an empty list is one NaN: return a "
            "zero for each head then.",
            "np.zeros(len(weights), weights.dtype)", "np.nan",
        ),
        Mistake(
            "one_zero_without_repeats",
            "Right where a token repeats. But where no token does you return a single 0; it is one for each head: "
            "np.zeros(H).",
            "np.zeros(len(weights), weights.dtype)", "0.0",
        ),
        Mistake(
            "error_without_repeats",
            "Right where a token repeats. But where no token does you divide by 0: return a zero for each head then.",
            function=_error_without_repeats,
        ),
        Mistake(
            "nan_without_repeats",
            "Right where a token repeats. But where no token does you divide 0 by 0: return zeros then.",
            "np.zeros(len(weights), weights.dtype)", "np.full(len(weights), np.nan)",
        ),
        Mistake(
            "heads_averaged",
            "The weights are the right ones. But you averaged over the heads as well; each has a score of its "
            "own, (H,).",
            function=lambda weights, tokens: induction_scores(weights, tokens).mean(),
        ),
    ),
    forms={
        "matrices": _induction_by_matrix,
        "a dictionary of places": _induction_by_places,
        "by definition": lambda weights, tokens: _scores_with(
            weights, tokens, lambda w, i, earlier: sum(w[:, i, j + 1] for j in earlier)
        ),
        "whole zeros without a repeat": lambda weights, tokens: (
            induction_scores(weights, tokens).tolist() if _repeats(tokens) else [0] * len(weights)
        ),
        **usual_forms(induction_scores),
    },
    hints=(
        "For each position i: which places j come right after an earlier copy of its token? 1 <= j <= i and "
        "tokens[j - 1] == tokens[i]. (With j = 0, tokens[-1] would be the last token.)",
        "places = [j for j in range(1, i + 1) if tokens[j - 1] == tokens[i]]. How much weight does query i give to "
        "them, all together?",
        "weights[:, i, places].sum(axis=-1) has one number for each head.",
        "Take the mean over the positions that have an earlier copy, and zeros if there is none.",
    ),
    well_done="A head near 1 here continues what it has seen before: an induction head.",
)  # fmt: skip

EXERCISES = (FIND, SIMILARITY, ABLATE, INDUCTION)
