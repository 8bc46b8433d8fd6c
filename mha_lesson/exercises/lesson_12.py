"""Exercises of lesson 12: softmax in one pass, two partial answers merged, attention without a softmax."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.long_context import features, linear_attention, merge, online_softmax, partial
from mha_lesson.steps.softmax import masked_softmax

INF = np.inf

# ------------------------------------------------------------------------------ one pass


def _without_rest(scores, values, block):
    whole = len(scores) // block * block
    return online_softmax(scores[:whole], values[:whole], block)


def _averaged(scores, values, block):
    """The plain mean of the answers of the blocks."""
    starts = range(0, len(scores), block)
    return np.mean([_softmax(scores[i : i + block]) @ values[i : i + block] for i in starts], axis=0)


def _softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def _log_sum_exp(scores, values, block):
    """Right: keeps the log of the sum and the answer so far, instead of m, l, o."""
    lse, answer = -INF, 0.0
    for i in range(0, len(scores), block):
        s, v = scores[i : i + block], values[i : i + block]
        if s.max() == -INF:
            continue
        new = np.logaddexp(lse, np.logaddexp.reduce(s))
        answer = answer * np.exp(lse - new) + np.exp(s - new) @ v
        lse = new
    return answer


ONLINE = Exercise(
    id="12.online",
    signature="online_softmax(s, v, block)",
    solution=online_softmax,
    probes=lambda: [
        Probe((np.array([0, 1, 3, 2.7]), np.array([1.0, 2, 100, 200]), 2), "scores 0, 1, 3, 2.7 in blocks of 2"),
        Probe((np.array([3.0, 2, 1, 0]), np.array([1.0, 2, 100, 200]), 2), "falling scores 3, 2, 1, 0"),
        Probe((np.array([0, 1, 3, 2.7, 3.3]), np.array([1.0, 2, 100, 200, 1000]), 2), "one in the last block"),
        Probe((np.array([1, -INF, -INF, -INF, 2]), np.array([5.0, 6, 7, 8, 9]), 2), "a whole block is -inf"),
        Probe((np.array([-INF, -INF, 0.5, 1]), np.array([5.0, 6, 7, 8]), 2), "the first block is -inf"),
        Probe((np.array([1000.0, 1001, 1003]), np.array([1.0, 2, 4]), 1), "scores around 1000"),
        Probe((np.array([900.0, 0.0, 899]), np.array([1.0, 2, 4]), 1), "scores that fall by 900"),
        Probe((np.array([-1000.0, -1001, -1003]), np.array([1.0, 2, 4]), 2), "scores around -1000"),
    ],
    mistakes=(
        Mistake(
            "nothing_shrunk",
            "Each block is right by itself. But when a later one has a larger maximum, what you already summed must "
            "shrink by exp(old maximum - new maximum). Falling scores hide this.",
            "shrink = np.exp(m - m_new)", "shrink = 1.0",
        ),
        Mistake(
            "only_o_shrunk",
            "The sum of values shrinks when the maximum grows. But so must the sum of exponentials, l.",
            "l = l * shrink", "l = l",
        ),
        Mistake(
            "only_l_shrunk",
            "The sum of exponentials shrinks when the maximum grows. But so must the sum of values, o.",
            "o = o * shrink", "o = o",
        ),
        Mistake(
            "shrink_upside_down",
            "Both sums are corrected. But the wrong way round: the factor is exp(old - new), at most 1.",
            "np.exp(m - m_new)", "np.exp(m_new - m)",
        ),
        Mistake(
            "averaged",
            "Each block has its own softmax. But blocks do not count equally: combine them by their sums of "
            "exponentials, not by a plain mean.",
            function=_averaged,
        ),
        Mistake(
            "rest_dropped",
            "Full blocks are right. But the tail of the sequence is missing: len(s) // block leaves out a partial "
            "block. range(0, len(s), block) does not.",
            function=_without_rest,
        ),
        Mistake(
            "no_maximum",
            "Small scores come out right. But exp(1000) overflows, and exp(-1000) is 0: subtract the maximum so far.",
            function=lambda s, v, block: np.exp(s) @ v / np.exp(s).sum(),
        ),
        Mistake(
            "starts_at_zero",
            "Where scores reach above 0 all is right. But the maximum starts at 0 and stays there if they do not: "
            "exp(-1000) is 0, and 0 / 0 is NaN. Start at -inf.",
            "m, l, o = -np.inf", "m, l, o = 0.0",
        ),
        Mistake(
            "empty_block",
            "Rising and falling scores are right. But while everything so far is -inf, exp(-inf - (-inf)) is NaN: skip "
            "such a block.",
            "if m_new == -np.inf:", "if False:",
        ),
        Mistake(
            "maximum_of_block",
            "The sums shrink. But the maximum must not fall: the new one is the larger of the old one and the block's, "
            "max(m, s.max()).",
            "max(m, s.max())", "s.max()",
        ),
        Mistake(
            "maximum_not_kept",
            "The last block is right. But it is all that counts: m stays -inf, so what came before shrinks to 0. "
            "m = m_new at the end of the loop; and the sums are added to, not replaced.",
            "        m = m_new\n", "",
        ),
        Mistake(
            "not_divided",
            "Both sums are right. But o is a sum with weights that add up to l: divide, o / l.",
            "return o / l if", "return o if",
        ),
    ),
    forms={
        "softmax of the whole": lambda s, v, block: masked_softmax(s, True) @ v,
        "log-sum-exp": _log_sum_exp,
        "by merging": lambda s, v, block: _merged(s, v, block),
        **usual_forms(online_softmax),
    },
    hints=(
        "Keep three numbers: the maximum so far, the sum of exp(s - maximum), and the sum of exp(s - maximum) · v.",
        "A new block: m_new = max(m, s.max()). What was summed against m must be multiplied by exp(m - m_new).",
        "A block that is all -inf adds nothing: skip it while m_new is -inf, or exp(-inf + inf) is NaN.",
        "l = l * exp(m - m_new) + p.sum(), o = o * exp(m - m_new) + p @ v with p = exp(s - m_new). At the end o / l.",
    ),
    well_done="One pass, any block, exact. This is the heart of FlashAttention.",
)  # fmt: skip


def _merged(scores, values, block):
    so_far = partial(scores[:block], values[:block, None])
    for i in range(block, len(scores), block):
        so_far = merge(*so_far, *partial(scores[i : i + block], values[i : i + block, None]))
    _, l, o = so_far
    return (o / l)[0]


# ------------------------------------------------------------------------------ merge


def _parts(first, second, values1, values2) -> tuple:
    return (*partial(np.array(first, float), values1), *partial(np.array(second, float), values2))


MERGE = Exercise(
    id="12.merge",
    signature="merge(m1, l1, o1, m2, l2, o2)",
    solution=merge,
    probes=lambda: [
        Probe(_parts([[0, 1], [3, 1]], [[2, 2.5, 1], [0, 0.5, 1]], wave(2, 3), wave(3, 3, step=1.1)),
              "two queries: the larger maximum in the second part, and in the first"),
        Probe(_parts([[700.0, 701]] * 2, [[-300.0], [705]], wave(2, 2), wave(1, 2)), "maxima far apart"),
        Probe(_parts([[-INF, -INF], [1, 0]], [[1, 2], [-INF, -INF]], wave(2, 2), wave(2, 2, start=1.0)),
              "one part holds nothing"),
        Probe(_parts([[-INF], [1]], [[-INF], [2]], wave(1, 2), wave(1, 2, start=1.0)),
              "a query that may see nothing in either part"),
    ],
    mistakes=(
        Mistake(
            "plain_sum",
            "Sums are added, good. But they are measured against different maxima: multiply each by exp(its m - the "
            "larger m) first.",
            function=lambda m1, l1, o1, m2, l2, o2: (np.maximum(m1, m2), l1 + l2, o1 + o2),
        ),
        Mistake(
            "only_l",
            "m and l are right. But o is measured against the same maximum: it must shrink too.",
            "o = o1 * shrink1[..., None] + o2 * shrink2[..., None]", "o = o1 + o2",
        ),
        Mistake(
            "only_o",
            "m and o are right. But l is measured against the same maximum: it must shrink too.",
            "l = l1 * shrink1 + l2 * shrink2", "l = l1 + l2",
        ),
        Mistake(
            "second_not_shrunk",
            "The first part shrinks. But the second may be the smaller one: both are multiplied, the one with the "
            "larger maximum by exp(0) = 1.",
            function=lambda m1, l1, o1, m2, l2, o2: _shrunk(m1, l1, o1, m2, l2, o2, first=True, second=False),
        ),
        Mistake(
            "first_not_shrunk",
            "The second part shrinks. But the first may be the smaller one: both are multiplied, the one with the "
            "larger maximum by exp(0) = 1.",
            function=lambda m1, l1, o1, m2, l2, o2: _shrunk(m1, l1, o1, m2, l2, o2, first=False, second=True),
        ),
        Mistake(
            "upside_down",
            "Both are corrected. But the wrong way round: exp(its m - the larger m) is at most 1.",
            "np.exp(m1 - highest), np.exp(m2 - highest)", "np.exp(highest - m1), np.exp(highest - m2)",
        ),
        Mistake(
            "smaller_maximum",
            "The parts are brought to one maximum. But to the smaller one, and exp of the difference overflows: "
            "np.maximum.",
            "np.maximum(m1, m2)", "np.minimum(m1, m2)",
        ),
        Mistake(
            "nan_when_empty",
            "Where there is something all is right. But if both parts are empty, -inf - (-inf) is NaN: replace a "
            "maximum of -inf by 0 before you subtract it.",
            "highest = _finite(m)", "highest = m",
        ),
        Mistake(
            "divided",
            "m and l are right. But o is divided already: the parts hold sums, and so must their merger, to be merged "
            "again.",
            "return m, l, o", "return m, l, o / np.where(l == 0, 1, l)[..., None]",
        ),
        Mistake(
            "averaged",
            "The maximum is right. But l and o were averaged: they are sums, and add up.",
            "return m, l, o", "return m, l / 2, o / 2",
        ),
        Mistake(
            "maximum_of_first",
            "The sums are right for a common maximum. But the m that you return is the first one's: return the larger.",
            "return m, l, o", "return m1 + 0 * m2 if np.isfinite(m2).all() else m1, l, o",
        ),
        Mistake(
            "maxima_added",
            "The sums are right. But the maximum of both is the larger one, not their sum.",
            "return m, l, o", "return m1 + m2, l, o",
        ),
    ),
    forms={
        "multiplied where it is seen": lambda m1, l1, o1, m2, l2, o2: _shrunk(m1, l1, o1, m2, l2, o2, True, True),
        **usual_forms(merge),
    },
    hints=(
        "Both parts must be measured against the same maximum. Which?",
        "A sum that was measured against m1 is brought to m by exp(m1 - m).",
        "If both are -inf the difference is NaN: use np.where(np.isneginf(m), 0, m) for the subtraction.",
        "l = l1 * exp(m1 - m) + l2 * exp(m2 - m), and o the same with [..., None] behind the factors.",
    ),
    well_done="In any order, in any grouping. Attention over several devices is this.",
)  # fmt: skip


def _shrunk(m1, l1, o1, m2, l2, o2, first: bool, second: bool):
    """Merged, with one of the parts not brought to the common maximum, or neither, or both."""
    m = np.maximum(m1, m2)
    highest = np.where(np.isneginf(m), 0, m)
    a = np.where(l1 > 0, np.exp(m1 - highest) if first else 1.0, 0.0)
    b = np.where(l2 > 0, np.exp(m2 - highest) if second else 1.0, 0.0)
    return m, l1 * a + l2 * b, o1 * a[..., None] + o2 * b[..., None]


# ------------------------------------------------------------------------------ linear attention


def _weighed(query, key, value, weigh, keep=np.tril, divide=True):
    """By the whole table: weights weigh(query, key), of which `keep` leaves some."""
    weights = keep(weigh(query, key))
    mix = weights @ value
    return mix / weights.sum(axis=1, keepdims=True) if divide else mix


def _phi(query, key):
    return features(query) @ features(key).T


def _with_features(phi):
    return lambda query, key, value: _weighed(query, key, value, lambda q, k: phi(q) @ phi(k).T)


def _cumulated(query, key, value):
    """Right: running sums of all tokens at once."""
    query, key = features(query), features(key)
    states = np.cumsum(key[:, :, None] * value[:, None, :], axis=0)  # (L, D, V)
    totals = np.cumsum(key, axis=0)  # (L, D)
    return np.einsum("ld,ldv->lv", query, states) / np.einsum("ld,ld->l", query, totals)[:, None]


LINEAR = Exercise(
    id="12.linear",
    signature="linear(q, k, v)",
    solution=linear_attention,
    helpers=(features,),
    probes=lambda: [
        Probe((wave(5, 3), wave(5, 3, step=0.9, start=0.1), wave(5, 2, step=1.3)), "5 tokens, values of width 2"),
        Probe((wave(7, 2, size=2.0), wave(7, 2, step=1.7, size=2.0), wave(7, 5)), "7 tokens, values of width 5"),
        Probe((wave(4, 3), wave(4, 3, step=0.9, start=0.1), wave(4, 3, step=1.3)), "values as wide as keys"),
    ],
    mistakes=(
        Mistake(
            "not_causal",
            "Features and sums are right. But each token sees the whole text: state and total may hold only tokens up "
            "to its own.",
            function=lambda q, k, v: _weighed(q, k, v, _phi, keep=lambda w: w),
        ),
        Mistake(
            "not_itself",
            "The state runs along. But you read it before the token's own key and value are in: a token sees itself "
            "too. Add first, then read.",
            function=lambda q, k, v: np.concatenate(
                [v[:1] * np.nan, _weighed(q[1:], k[:-1], v[:-1], _phi)]
            ),
        ),
        Mistake(
            "total_of_all",
            "The state runs along. But the denominator is the sum over all keys: it runs along too, z_t.",
            function=lambda q, k, v: _weighed(q, k, v, _phi, divide=False) / _phi(q, k).sum(1, keepdims=True),
        ),
        Mistake(
            "not_divided",
            "The numerator is right. But the weights do not add up to 1 by themselves: divide by phi(q) · z.",
            " / (query[t] @ total)", "",
        ),
        Mistake(
            "divided_by_count",
            "The numerator is right. But the weights add up to phi(q) · z, not to the number of tokens.",
            " / (query[t] @ total)", " / (t + 1)",
        ),
        Mistake(
            "softmax",
            "This is exact causal attention. But linear attention is asked for: phi(q) · phi(k) in place of "
            "exp(q · k / sqrt(D)), so that a running sum is enough.",
            function=lambda q, k, v: _weighed(q, k, v, lambda q, k: np.exp(q @ k.T / np.sqrt(q.shape[1]))),
        ),
        Mistake(
            "no_features",
            "The sums run along. But q and k went in as they are: products may be negative, and the denominator may "
            "vanish. phi(x) = x + 1 for x > 0, exp(x) otherwise, for both.",
            "features(query), features(key)", "query, key",
        ),
        Mistake(
            "features_of_keys_only",
            "The keys have their features. But the query needs them too: phi(q).",
            "features(query), features(key)", "query, features(key)",
        ),
        Mistake(
            "features_of_queries_only",
            "The queries have their features. But the keys need them too: phi(k).",
            "features(query), features(key)", "features(query), key",
        ),
        Mistake(
            "relu",
            "The sums run along. But phi is elu(x) + 1, which is exp(x) below 0, and not 0: with relu a query may see "
            "nothing at all.",
            function=_with_features(lambda x: np.maximum(x, 0)),
        ),
        Mistake(
            "relu_plus_one",
            "Above 0 the features are right. But below 0 phi is exp(x), not 1.",
            function=_with_features(lambda x: np.maximum(x, 0) + 1),
        ),
        Mistake(
            "elu",
            "The shape of phi is right. But it is elu(x) + 1: without the 1 it is negative below 0.",
            function=_with_features(lambda x: features(x) - 1),
        ),
        Mistake(
            "elu_plus_two",
            "Above 0 you add 1, good. But below 0 phi is exp(x) as it is, without another 1.",
            function=_with_features(lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)) + 1)),
        ),
        Mistake(
            "exponential",
            "Features are positive, good. But phi is x + 1 above 0; you took exp(x) everywhere.",
            function=_with_features(np.exp),
        ),
        Mistake(
            "scaled",
            "The sums run along. But there is no 1 / sqrt(D) here: without an exponential nothing saturates, and phi "
            "is not linear, so it changes the result.",
            "features(query), features(key)", "features(query / np.sqrt(query.shape[1])), features(key)",
        ),
        Mistake(
            "future",
            "The sums run along. But from the end: each token sees itself and what comes after.",
            function=lambda q, k, v: _weighed(q, k, v, _phi, keep=np.triu),
        ),
        Mistake(
            "last_only",
            "Features are right. But the state holds the last token alone: add to it, state += ...",
            function=lambda q, k, v: v.copy(),
        ),
    ),
    forms={
        "the table": lambda q, k, v: _weighed(q, k, v, _phi),
        "cumulated": _cumulated,
        **usual_forms(linear_attention),
    },
    hints=(
        "Write phi first: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))).",
        "Go through the tokens. state (D, V) += np.outer(phi(k_t), v_t), and total (D,) += phi(k_t).",
        "Then out_t = phi(q_t) @ state / (phi(q_t) @ total).",
    ),
    well_done="Its memory is D · V + D numbers, however long the text.",
)  # fmt: skip

EXERCISES = (ONLINE, MERGE, LINEAR)
