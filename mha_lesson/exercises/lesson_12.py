"""Exercises of lesson 12: softmax in one pass, two partial answers merged, attention without a softmax."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.long_context import (
    features,
    finite,
    linear_attention,
    linear_attention_chunked,
    merge,
    online_softmax,
    partial,
)

INF = np.inf

# ------------------------------------------------------------------------------ one pass


class AlreadyGone(LookupError):
    """A score was asked for that had been seen before others."""


class ThroughASlot:
    """Scores of which only `width` can be seen at once, and no earlier ones after later ones.

    Whoever computes with the whole row, or goes through it twice, is found out. A slice of at most `width` is an
    array; a longer one is again seen through the slot. It has a length, and can be gone through one by one.
    """

    def __init__(self, scores, width: int, first: int = 0, state: dict | None = None):
        self._scores, self._width, self._first = scores, width, first
        self._state = {"at": 0} if state is None else state  # where the piece begins that was seen last
        self.shape, self.size, self.ndim, self.dtype = scores.shape, scores.size, scores.ndim, scores.dtype

    def __len__(self) -> int:
        return len(self._scores)

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, place):
        part, places = self._scores[place], np.atleast_1d(np.arange(self._first, self._first + len(self))[place])
        if np.size(part) > self._width:
            return ThroughASlot(part, self._width, int(places[0]), self._state)
        if places.size and places.max() < self._state["at"]:
            raise AlreadyGone(
                f"s goes by once: place {places.min()} was asked for after place {self._state['at']}. Keep m, l and o "
                f"of what has gone by, and correct them."
            )
        self._state["at"] = int(places.min()) if places.size else self._state["at"]
        return part

    def copy(self) -> "ThroughASlot":
        return ThroughASlot(self._scores.copy(), self._width, self._first, self._state)

    def astype(self, dtype) -> "ThroughASlot":
        return ThroughASlot(self._scores.astype(dtype), self._width, self._first, self._state)

    def swapaxes(self, *_) -> "ThroughASlot":  # np.array_split asks for it
        return self

    def __array__(self, dtype=None, copy=None):
        return self._refuse("all of them at once")

    def __getattr__(self, name: str):
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        return self._refuse(f"s.{name}, of all of them,")

    def __sub__(self, other):
        return self._refuse("the difference of all of them")

    def _refuse(self, asked: str):
        raise ValueError(
            f"here s shows at most block = {self._width} scores at a time, and {asked} was asked for. Take a piece, "
            f"s[start : start + block], use it, and go on."
        )


def _starts(scores, block):
    return range(0, len(scores), block)


def _averaged(scores, values, block):
    """The plain mean of the answers of the blocks."""
    pieces = [slice(i, i + block) for i in _starts(scores, block)]
    return np.mean([_softmax(scores[piece]) @ values[piece] for piece in pieces], axis=0)


def _softmax(scores):
    e = np.exp(scores - scores.max())
    return e / e.sum()


def _one_pass(factor, start=-INF, guarded=False):
    """Softmax in one pass, where what was summed so far is multiplied by factor(m, m_new).

    guarded: a block is skipped while all so far is -inf, and the answer is 0 if nothing was added up.
    """

    def online(scores, values, block):
        m, l, o = start, 0.0, 0.0
        for i in _starts(scores, block):
            m_new = max(m, scores[i : i + block].max())
            if guarded and m_new == -INF:
                continue
            p = np.exp(scores[i : i + block] - m_new)
            l, o = l * factor(m, m_new) + p.sum(), o * factor(m, m_new) + p @ values[i : i + block]
            m = m_new
        return 0.0 if guarded and l == 0 else o / l

    return online


def _shrunk(m, m_new):
    return np.exp(m - m_new)


def _grown(m, m_new):
    """Upside down, and infinite at the first block."""
    return np.exp(m_new - m)


def _grown_later(m, m_new):
    """Upside down, but knows that there is nothing to correct at first."""
    return 1.0 if m == -INF else np.exp(m_new - m)


def _divided_each_time(scores, values, block):
    """Right as long as there is one block: then the answer so far is divided again."""
    m, l, o = -INF, 0.0, 0.0
    for i in _starts(scores, block):
        m_new = max(m, scores[i : i + block].max())
        if m_new == -INF:
            continue
        p = np.exp(scores[i : i + block] - m_new)
        l = l * np.exp(m - m_new) + p.sum()
        o = (o * np.exp(m - m_new) + p @ values[i : i + block]) / l
        m = m_new
    return o


def _stopping(scores, values, block):
    """Ends at the first block that holds nothing."""
    pieces = [slice(i, i + block) for i in _starts(scores, block)]
    hidden = [i for i, piece in enumerate(pieces) if np.max(scores[piece]) == -INF]
    end = pieces[hidden[0]].start if hidden else len(scores)
    return _log_sum_exp(scores[:end], values[:end], block)


def _in_two_passes(scores, values, block):
    """The maximum first, then the sums."""
    m = max(scores[i : i + block].max() for i in _starts(scores, block))
    if m == -INF:
        return 0.0
    p = [np.exp(scores[i : i + block] - m) for i in _starts(scores, block)]
    o = sum(x @ values[i : i + block] for x, i in zip(p, _starts(scores, block), strict=True))
    return o / sum(x.sum() for x in p)


def _log_sum_exp(scores, values, block):
    """Right: keeps the log of the sum and the answer so far, instead of m, l, o."""
    lse, answer = -INF, 0.0
    for i in _starts(scores, block):
        s, v = scores[i : i + block], values[i : i + block]
        if s.max() == -INF:
            continue
        new = np.logaddexp(lse, np.logaddexp.reduce(s))
        answer = answer * np.exp(lse - new) + np.exp(s - new) @ v
        lse = new
    return answer


def _merged(scores, values, block):
    so_far = partial(scores[:block], values[:block, None])
    for i in range(block, len(scores), block):
        so_far = merge(*so_far, *partial(scores[i : i + block], values[i : i + block, None]))
    _, l, o = so_far
    return o[0] / l if l > 0 else 0.0


def _no_maximum(scores, values, block):
    pieces = [(np.exp(scores[i : i + block]), values[i : i + block]) for i in _starts(scores, block)]
    return sum(e @ v for e, v in pieces) / sum(e.sum() for e, _ in pieces)


UPSIDE_DOWN = "Both sums are corrected. But the wrong way round: the factor is exp(old - new), at most 1."
INFINITE = (
    "Three numbers are kept. But the first maximum is -inf, and in one exponent it stands on the wrong side: exp(inf) "
    "is inf. Old sums shrink by exp(m - m_new), and a new block is measured as exp(s - m_new)."
)
NO_MAXIMUM = "Small scores come out right. But exp(1000) overflows, and exp(-1000) is 0: subtract the maximum so far."
NOTHING_ALLOWED = (
    "Where one score is allowed all is right. But if all of them are -inf, nothing was added up, and 0 / 0 is no "
    "answer: return 0, as everywhere in this course."
)

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
        Probe((np.array([0.5, 1, 2, -1, -INF, -INF]), np.arange(3.0, 9), 2), "the last block is -inf"),
        Probe((np.array([1000.0, 1001, 1003]), np.array([1.0, 2, 4]), 1), "scores around 1000"),
        Probe((np.array([900.0, 0.0, 899]), np.array([1.0, 2, 4]), 1), "scores that fall by 900"),
        Probe((np.array([-1000.0, -1001, -1003]), np.array([1.0, 2, 4]), 2), "scores around -1000"),
        Probe((wave(7, size=3, dtype=np.float32), wave(7, step=1.1, dtype=np.float32), 3), "7 scores, float32"),
        Probe((np.full(3, -INF), np.array([1.0, 2, 4]), 2), "all scores are -inf",
              "If no score is allowed, the answer is 0."),
        Probe((ThroughASlot(wave(7, size=3), 2), wave(7, step=1.1), 2), "7 scores, shown 2 at a time, and once"),
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
            UPSIDE_DOWN,
            function=_one_pass(_grown_later),
        ),
        Mistake("shrink_upside_down_later", UPSIDE_DOWN, function=_one_pass(_grown_later, guarded=True)),
        Mistake(
            "infinite_factor",
            INFINITE,
            "np.exp(m - m_new)", "np.exp(m_new - m)",
        ),
        Mistake("infinite_factor_unguarded", INFINITE, function=_one_pass(_grown)),
        Mistake(
            "shrink_by_block",
            "Both sums shrink when a block has a larger maximum. But they also grow when it has a smaller one: the "
            "factor is exp(old - new) with new = max(old, the block's).",
            "np.exp(m - m_new)", "np.exp(m - s.max())",
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
            "range(0, len(scores), block)", "range(0, len(scores) // block * block, block)",
        ),
        Mistake(
            "last_block_only",
            "The last block is right. But what was summed before it is thrown away: add to l and o, do not replace "
            "them.",
            "l = l * shrink + p.sum()\n        o = o * shrink + p @ v", "l = p.sum()\n        o = p @ v",
        ),
        Mistake(
            "l_replaced",
            "The sum of values is right. But l holds the last block alone: l = l * shrink + p.sum().",
            "l * shrink + p.sum()", "p.sum()",
        ),
        Mistake(
            "o_replaced",
            "The sum of exponentials is right. But o holds the last block alone: o = o * shrink + p @ v.",
            "o * shrink + p @ v", "p @ v",
        ),
        Mistake(
            "no_maximum",
            NO_MAXIMUM,
            function=lambda s, v, block: np.exp(s) @ v / np.exp(s).sum(),
        ),
        Mistake("no_maximum_by_block", NO_MAXIMUM, function=_no_maximum),
        Mistake(
            "no_maximum_guarded",
            "Small scores come out right, and so do those of which all are -inf. But exp(1000) overflows, and "
            "exp(-1000) is 0: subtract the maximum so far.",
            "np.maximum(m, s.max())", "0.0",
        ),
        Mistake(
            "starts_at_zero",
            "Where scores reach above 0 all is right. But the maximum starts at 0 and stays there if they do not: "
            "exp(-1000) is 0, and 0 / 0 is NaN. Start at -inf.",
            function=_one_pass(_shrunk, start=0.0),
        ),
        Mistake(
            "starts_at_zero_guarded",
            "Where scores reach above 0 all is right. But the maximum starts at 0 and stays there if they do not: "
            "exp(-1000) is 0, and it looks as if nothing were allowed. Start at -inf.",
            "m, l, o = -np.inf", "m, l, o = 0.0",
        ),
        Mistake(
            "minus_infinity",
            "Rising and falling scores are right. But while everything so far is -inf, exp(-inf - (-inf)) is NaN: skip "
            "such a block.",
            "if m_new == -np.inf:", "if False:",
        ),
        Mistake(
            "stops_at_empty_block",
            "Rising and falling scores are right. But where the first blocks hold nothing you end up with 0: the loop "
            "was left (`continue`, not `break`), or a NaN became 0 at the end. Later blocks may hold something.",
            "continue", "break",
        ),
        Mistake(
            "two_passes",
            "Every answer is right. But there are two passes: first the maximum of all, then the sums. Begin with the "
            "maximum of the first block, and correct l and o when a later one is larger.",
            function=_in_two_passes,
        ),
        Mistake(
            "stops_at_hidden_block",
            "Rising and falling scores are right. But a block that is all -inf ends the loop, and what comes behind it "
            "is missing: `continue`, not `break`.",
            function=_stopping,
        ),
        Mistake("nothing_allowed", NOTHING_ALLOWED, "if l == 0:", "if False:"),
        Mistake(
            "nothing_allowed_nan",
            NOTHING_ALLOWED,
            function=lambda s, v, block: _softmax(s) @ v,
        ),
        Mistake(
            "maximum_of_block",
            "The sums are corrected. But the maximum must not fall: the new one is the larger of the old one and the "
            "block's, max(m, s.max()). Otherwise exp(old - new) overflows.",
            "np.maximum(m, s.max())", "s.max()",
        ),
        Mistake(
            "own_maximum",
            "The old sums shrink as they should. But the new block is measured against its own maximum, not against "
            "the common one: p = exp(s - m_new).",
            "np.exp(s - m_new)", "np.exp(s - s.max())",
        ),
        Mistake(
            "maximum_not_kept",
            "The last block is right. But it is all that counts: m stays -inf, so what came before shrinks to 0. "
            "m = m_new at the end of the loop.",
            "        m = m_new\n", "",
        ),
        Mistake(
            "not_divided",
            "Both sums are right. But o is a sum with weights that add up to l: divide, o / l.",
            "return o / l", "return o",
        ),
        Mistake(
            "divided_each_time",
            "With one block it is right. But o is divided in each of them, and then again: keep the plain sum, and "
            "divide once, at the end.",
            function=_divided_each_time,
        ),
    ),
    forms={
        "log-sum-exp": _log_sum_exp,
        "by merging": _merged,
        "one score at a time": lambda s, v, block: online_softmax(s, v, 1),
        **usual_forms(online_softmax),
    },
    hints=(
        "Keep three numbers: the maximum so far, the sum of exp(s - maximum), and the sum of exp(s - maximum) · v.",
        "A new block: m_new = max(m, s.max()). What was summed against m must be multiplied by exp(m - m_new).",
        "A block that is all -inf adds nothing: skip it while m_new is -inf, or exp(-inf + inf) is NaN.",
        "l = l * exp(m - m_new) + p.sum(), o = o * exp(m - m_new) + p @ v with p = exp(s - m_new). At the end o / l, "
        "and 0 if l is 0.",
    ),
    well_done="Any block, exact, in one pass. With nothing kept but m, l and o, this is the heart of FlashAttention.",
)  # fmt: skip


# ------------------------------------------------------------------------------ merge


def _parts(first, second, values1, values2) -> tuple:
    return (*partial(np.array(first, float), values1), *partial(np.array(second, float), values2))


def _by_row(m1, l1, o1, m2, l2, o2):
    """Right: one query after the other, with Python's own numbers."""
    rows = []
    for i in range(len(m1)):
        m = max(m1[i], m2[i])
        a = np.exp(m1[i] - m) if l1[i] else 0.0
        b = np.exp(m2[i] - m) if l2[i] else 0.0
        rows.append((m, a * l1[i] + b * l2[i], a * o1[i] + b * o2[i]))
    return tuple(np.array(x) for x in zip(*rows, strict=True))


def _stacked(m1, l1, o1, m2, l2, o2):
    """Right: all parts on one axis, which is then summed away. As many parts as one likes."""
    ms, ls, os = np.stack([m1, m2]), np.stack([l1, l2]), np.stack([o1, o2])
    m = ms.max(0)
    shrink = np.where(ls > 0, np.exp(ms - m), 0)
    return m, (shrink * ls).sum(0), np.einsum("pl,plv->lv", shrink, os)


SHRINKS = "np.exp(m1 - highest), np.exp(m2 - highest)"
SUM_OF_O = "o1 * shrink1[..., None] + o2 * shrink2[..., None]"
DIVIDED = (
    "m and l are right. But o is divided already: the parts hold sums, and so must their merger, to be merged again."
)

MERGE = Exercise(
    id="12.merge",
    signature="merge(m1, l1, o1, m2, l2, o2)",
    solution=merge,
    helpers=(finite,),
    probes=lambda: [
        Probe(_parts([[0, 1], [3, 1]], [[2, 2.5, 1], [0, 0.5, 1]], wave(2, 3), wave(3, 3, step=1.1)),
              "two queries: the larger maximum in the second part, and in the first"),
        Probe(_parts([[700.0, 701]] * 2, [[-300.0], [705]], wave(2, 2), wave(1, 2)), "maxima far apart"),
        Probe(_parts([[-800.0], [0]], [[300], [-900]], wave(1, 3), wave(1, 3, start=1.0)),
              "one part counts for nothing"),
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
            SUM_OF_O, "o1 + o2",
        ),
        Mistake(
            "only_o",
            "m and o are right. But l is measured against the same maximum: it must shrink too.",
            "l1 * shrink1 + l2 * shrink2", "l1 + l2",
        ),
        Mistake(
            "second_not_shrunk",
            "The first part shrinks. But the second may be the smaller one: both are multiplied, the one with the "
            "larger maximum by exp(0) = 1.",
            SHRINKS, "np.exp(m1 - highest), np.ones_like(m2)",
        ),
        Mistake(
            "first_not_shrunk",
            "The second part shrinks. But the first may be the smaller one: both are multiplied, the one with the "
            "larger maximum by exp(0) = 1.",
            SHRINKS, "np.ones_like(m1), np.exp(m2 - highest)",
        ),
        Mistake(
            "crossed",
            "Both factors are right. But each multiplies the other's sums: exp(m1 - m) belongs to l1 and o1.",
            SHRINKS, "np.exp(m2 - highest), np.exp(m1 - highest)",
        ),
        Mistake(
            "upside_down",
            "Both are corrected. But the wrong way round: exp(its m - the larger m) is at most 1.",
            SHRINKS, "np.exp(highest - m1), np.exp(highest - m2)",
        ),
        Mistake(
            "smaller_maximum",
            "The parts are brought to one maximum. But to the smaller one, and exp of the difference overflows: "
            "np.maximum.",
            "np.maximum(m1, m2)", "np.minimum(m1, m2)",
        ),
        Mistake(
            "first_maximum",
            "The sums fit together: both are measured against the first part's maximum. But where the second one is "
            "much larger, or the first part is empty, exp(m2 - m1) overflows: measure against the larger.",
            "np.maximum(m1, m2)", "m1",
        ),
        Mistake(
            "one_maximum_for_all",
            "The sums fit together. But the largest score of ALL queries was taken: each query has its own maximum, "
            "np.maximum(m1, m2).",
            "np.maximum(m1, m2)", "np.maximum(m1, m2).max() + 0 * l1",
        ),
        Mistake(
            "nan_when_empty",
            "Where there is something all is right. But if both parts are empty, -inf - (-inf) is NaN: replace a "
            "maximum of -inf by 0 before you subtract it.",
            "highest = finite(m)", "highest = m",
        ),
        Mistake(
            "empty_maximum",
            "Where there is something all is right. But if both parts are empty, their maximum is -inf, and you return "
            "0: that is only for the subtraction.",
            "return m, l, o", "return highest, l, o",
        ),
        Mistake("divided", DIVIDED, "return m, l, o", "return m, l, o / l[..., None]"),
        Mistake("divided_guarded", DIVIDED, "return m, l, o", "return m, l, o / np.where(l == 0, 1, l)[..., None]"),
        Mistake(
            "answer_alone",
            "The answer itself is right. But m and l are needed beside it, to merge again: return m, l, o, and o not "
            "divided.",
            "return m, l, o", "return o / l[..., None]",
        ),
        Mistake(
            "averaged",
            "The maximum is right. But l and o were averaged: they are sums, and add up.",
            "return m, l, o", "return m, l / 2, o / 2",
        ),
        Mistake(
            "order",
            "All three are right. But they come in another order: return m, l, o.",
            "return m, l, o", "return l, m, o",
        ),
        Mistake(
            "maximum_of_first",
            "The sums are right for a common maximum. But the m that you return is the first one's: return the larger.",
            "return m, l, o", "return m1, l, o",
        ),
        Mistake(
            "maxima_added",
            "The sums are right. But the maximum of both is the larger one, not their sum.",
            "return m, l, o", "return m1 + m2, l, o",
        ),
        Mistake(
            "no_new_axis",
            "m and l are right. But the factors (L,) multiply the columns of o (L, V), or do not fit: a query is a "
            "row. Give them an axis, shrink[..., None].",
            SUM_OF_O, "o1 * shrink1 + o2 * shrink2",
        ),
    ),
    forms={
        "row by row": _by_row,
        "stacked": _stacked,
        "the second one first": lambda m1, l1, o1, m2, l2, o2: merge(m2, l2, o2, m1, l1, o1),
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


# ------------------------------------------------------------------------------ linear attention


def _weighed(query, key, value, weigh, keep=np.tril):
    """By the whole table: weights weigh(query, key), of which `keep` leaves some."""
    weights = keep(weigh(query, key))
    return weights @ value / weights.sum(axis=1, keepdims=True)


def _divided_by_columns(query, key, value):
    weights = np.tril(_phi(query, key))
    return weights / weights.sum(axis=0) @ value


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


def _with_ones(query, key, value, more=0.0):
    """Right: the denominator is a column of the state, for values that are all 1."""
    weights = np.tril(_phi(query, key))
    mix = weights @ np.hstack([value, np.ones((len(value), 1))])
    return mix[:, :-1] / (mix[:, -1:] + more)


def _earlier(query, key, value, first):
    """Each token reads the state before its own key and value are in it; `first` is what the first one gets."""
    return np.concatenate([np.full((1, value.shape[1]), first), _weighed(query[1:], key[:-1], value[:-1], _phi)])


def _state_transposed(query, key, value):
    """v k^T in place of k v^T: fits only if keys and values have the same width."""
    query, key = features(query), features(key)
    states = np.cumsum(value[:, :, None] * key[:, None, :], axis=0)  # (L, V, D)
    totals = np.cumsum(key, axis=0)  # (L, D)
    return np.stack([q @ s / (q @ z) for q, s, z in zip(query, states, totals, strict=True)])


LINEAR = Exercise(
    id="12.linear",
    signature="linear(q, k, v)",
    solution=linear_attention,
    helpers=(features,),
    probes=lambda: [
        Probe((wave(5, 3), wave(5, 3, step=0.9, start=0.1), wave(5, 2, step=1.3)), "5 tokens, values of width 2"),
        Probe((wave(7, 2, size=2.0), wave(7, 2, step=1.7, size=2.0), wave(7, 5)), "7 tokens, values of width 5"),
        Probe((wave(4, 3), wave(4, 3, step=0.9, start=0.1), wave(4, 3, step=1.3)), "values as wide as keys"),
        Probe((wave(5, 3, step=1.1, start=0.2, dtype=np.float32), wave(5, 3, step=0.6, start=0.4, dtype=np.float32),
               wave(5, 2, dtype=np.float32)), "5 tokens, float32"),
    ],
    mistakes=(
        Mistake(
            "not_causal",
            "Features and sums are right. But each token sees the whole text: state and total may hold only tokens up "
            "to its own. (You keep a list of states? += changes the one array in all its places: append a copy.)",
            function=lambda q, k, v: _weighed(q, k, v, _phi, keep=lambda w: w),
        ),
        Mistake(
            "not_itself",
            "The state runs along. But you read it before the token's own key and value are in: a token sees itself "
            "too (the first one sees nothing, and 0 / 0 is NaN). Add first, then read.",
            function=lambda q, k, v: _earlier(q, k, v, np.nan),
        ),
        Mistake(
            "not_itself_guarded",
            "The state runs along. But you read it before the token's own key and value are in: a token sees itself "
            "too, and the first one need not get 0. Add first, then read.",
            function=lambda q, k, v: _earlier(q, k, v, 0.0),
        ),
        Mistake(
            "total_of_all",
            "The state runs along. But the denominator is the sum over all keys: it runs along too, z_t.",
            "total += key[t]", "total = key.sum(0)",
        ),
        Mistake(
            "state_of_all",
            "The denominator runs along. But the state holds the whole text from the start: it runs along too, S_t.",
            "state += np.outer(key[t], value[t])", "state = key.T @ value",
        ),
        Mistake(
            "total_of_last",
            "The state adds up. But the denominator is that of the last key alone: total += phi(k_t).",
            "total += key[t]", "total = key[t]",
        ),
        Mistake(
            "state_of_last",
            "The denominator adds up. But the state holds the last token alone: state += np.outer(...).",
            "state += np.outer(key[t], value[t])", "state = np.outer(key[t], value[t])",
        ),
        Mistake(
            "state_transposed",
            "Sums and features are right. But the state is v k^T: it fits only where keys and values have the same "
            "width, and mixes them. np.outer(phi(k_t), v_t), (D, V).",
            function=_state_transposed,
        ),
        Mistake(
            "not_divided",
            "The numerator is right. But the weights do not add up to 1 by themselves: divide by phi(q) · z.",
            " / max(query[t] @ total, TINY)", "",
        ),
        Mistake(
            "divided_by_count",
            "The numerator is right. But the weights add up to phi(q) · z, not to the number of tokens.",
            " / max(query[t] @ total, TINY)", " / (t + 1)",
        ),
        Mistake(
            "divided_by_columns",
            "The weights are right before they are divided. But each column was made to add up to 1: it is the row, "
            "the weights of one query, axis 1.",
            function=_divided_by_columns,
        ),
        Mistake(
            "divided_by_keys",
            "The numerator is right. But the denominator is the sum of the keys' features alone: the query's belong "
            "to it, phi(q) · z.",
            "query[t] @ total", "total.sum()",
        ),
        Mistake(
            "values_too",
            "The sums run along. But phi is for queries and keys, which make the weights: values go in as they are.",
            "value[t])", "features(value[t]))",
        ),
        Mistake(
            "softmax",
            "This is exact causal attention. But linear attention is asked for: phi(q) · phi(k) in place of "
            "exp(q · k / sqrt(D)), so that a running sum is enough.",
            function=lambda q, k, v: _weighed(q, k, v, lambda q, k: np.exp(q @ k.T / np.sqrt(q.shape[1]))),
        ),
        Mistake(
            "softmax_unscaled",
            "This is causal attention with exp(q · k). But linear attention is asked for: phi(q) · phi(k) in its "
            "place, so that a running sum is enough.",
            function=lambda q, k, v: _weighed(q, k, v, lambda q, k: np.exp(q @ k.T)),
        ),
        Mistake(
            "no_features",
            "The sums run along. But q and k went in as they are: products may be negative, and the denominator may "
            "vanish. phi(x) = x + 1 for x > 0, exp(x) otherwise, for both.",
            function=lambda q, k, v: _weighed(q, k, v, lambda q, k: q @ k.T),
        ),
        Mistake(
            "features_of_keys_only",
            "The keys have their features. But the query needs them too: phi(q).",
            function=lambda q, k, v: _weighed(q, k, v, lambda q, k: q @ features(k).T),
        ),
        Mistake(
            "features_of_queries_only",
            "The queries have their features. But the keys need them too: phi(k).",
            function=lambda q, k, v: _weighed(q, k, v, lambda q, k: features(q) @ k.T),
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
            "softmax_of_width",
            "Features are positive, good. But you took a softmax over the width; phi looks at each number by itself, "
            "x + 1 above 0 and exp(x) below.",
            function=_with_features(lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
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
            "The result is a mean of values. But of one: each token gets its own value alone. Keep what came before, "
            "state += ... and total += ...",
            function=lambda q, k, v: v.copy(),
        ),
    ),
    forms={
        "the table": lambda q, k, v: _weighed(q, k, v, _phi),
        "cumulated": _cumulated,
        "in chunks": lambda q, k, v: linear_attention_chunked(q, k, v, 2),
        "a column of ones": lambda q, k, v: _with_ones(q, k, v),
        "a tiny number in the denominator": lambda q, k, v: _with_ones(q, k, v, 1e-8),
        **usual_forms(linear_attention),
    },
    hints=(
        "Write phi first: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))).",
        "Go through the tokens. state (D, V) += np.outer(phi(k_t), v_t), and total (D,) += phi(k_t).",
        "Then out_t = phi(q_t) @ state / (phi(q_t) @ total).",
    ),
    well_done="The numbers are right. Where sums run along and no (L, L) table is made, D · V + D numbers are all the "
    "memory, however long the text.",
)  # fmt: skip

EXERCISES = (ONLINE, MERGE, LINEAR)
