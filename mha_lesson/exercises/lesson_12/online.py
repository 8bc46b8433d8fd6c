"""Exercise 12.online."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.exercises.lesson_12.shared import INF
from mha_lesson.steps.long_context import merge, online_softmax, partial


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


mistake = Mistakes()


mistake.edit(
    "nothing_shrunk",
    """Each block is right by itself. But when a later one has a larger maximum, what you already summed must shrink by
    exp(old maximum - new maximum). Falling scores hide this.""",
    old="shrink = np.exp(m - m_new)",
    new="shrink = 1.0",
)

mistake.edit(
    "only_o_shrunk",
    """The sum of values shrinks when the maximum grows. But so must the sum of exponentials, l.""",
    old="l = l * shrink",
    new="l = l",
)

mistake.edit(
    "only_l_shrunk",
    """The sum of exponentials shrinks when the maximum grows. But so must the sum of values, o.""",
    old="o = o * shrink",
    new="o = o",
)

mistake.function(
    "shrink_upside_down",
    UPSIDE_DOWN,
    _one_pass(_grown_later),
)

mistake.function(
    "shrink_upside_down_later",
    UPSIDE_DOWN,
    _one_pass(_grown_later, guarded=True),
)

mistake.edit(
    "infinite_factor",
    INFINITE,
    old="np.exp(m - m_new)",
    new="np.exp(m_new - m)",
)

mistake.function(
    "infinite_factor_unguarded",
    INFINITE,
    _one_pass(_grown),
)

mistake.edit(
    "shrink_by_block",
    """Both sums shrink when a block has a larger maximum. But they also grow when it has a smaller one: the factor is
    exp(old - new) with new = max(old, the block's).""",
    old="np.exp(m - m_new)",
    new="np.exp(m - s.max())",
)

mistake.function(
    "averaged",
    """Each block has its own softmax. But blocks do not count equally: combine them by their sums of exponentials, not
    by a plain mean.""",
    _averaged,
)

mistake.edit(
    "rest_dropped",
    """Full blocks are right. But the tail of the sequence is missing: len(s) // block leaves out a partial block.
    range(0, len(s), block) does not.""",
    old="range(0, len(scores), block)",
    new="range(0, len(scores) // block * block, block)",
)

mistake.edit(
    "last_block_only",
    """The last block is right. But what was summed before it is thrown away: add to l and o, do not replace them.""",
    old="l = l * shrink + p.sum()\n        o = o * shrink + p @ v",
    new="l = p.sum()\n        o = p @ v",
)

mistake.edit(
    "l_replaced",
    """The sum of values is right. But l holds the last block alone: l = l * shrink + p.sum().""",
    old="l * shrink + p.sum()",
    new="p.sum()",
)

mistake.edit(
    "o_replaced",
    """The sum of exponentials is right. But o holds the last block alone: o = o * shrink + p @ v.""",
    old="o * shrink + p @ v",
    new="p @ v",
)

mistake.function(
    "no_maximum",
    NO_MAXIMUM,
    lambda s, v, block: np.exp(s) @ v / np.exp(s).sum(),
)

mistake.function(
    "no_maximum_by_block",
    NO_MAXIMUM,
    _no_maximum,
)

mistake.edit(
    "no_maximum_guarded",
    """Small scores come out right, and so do those of which all are -inf. But exp(1000) overflows, and exp(-1000) is 0:
    subtract the maximum so far.""",
    old="np.maximum(m, s.max())",
    new="0.0",
)

mistake.function(
    "starts_at_zero",
    """Where scores reach above 0 all is right. But the maximum starts at 0 and stays there if they do not: exp(-1000)
    is 0, and 0 / 0 is NaN. Start at -inf.""",
    _one_pass(_shrunk, start=0.0),
)

mistake.edit(
    "starts_at_zero_guarded",
    """Where scores reach above 0 all is right. But the maximum starts at 0 and stays there if they do not: exp(-1000)
    is 0, and it looks as if nothing were allowed. Start at -inf.""",
    old="m, l, o = -np.inf",
    new="m, l, o = 0.0",
)

mistake.edit(
    "minus_infinity",
    """Rising and falling scores are right. But while everything so far is -inf, exp(-inf - (-inf)) is NaN: skip such a
    block.""",
    old="if m_new == -np.inf:",
    new="if False:",
)

mistake.edit(
    "stops_at_empty_block",
    """Rising and falling scores are right. But where the first blocks hold nothing you end up with 0: the loop was left
    (`continue`, not `break`), or a NaN became 0 at the end. Later blocks may hold something.""",
    old="continue",
    new="break",
)

mistake.function(
    "two_passes",
    """Every answer is right. But there are two passes: first the maximum of all, then the sums. Begin with the maximum
    of the first block, and correct l and o when a later one is larger.""",
    _in_two_passes,
)

mistake.function(
    "stops_at_hidden_block",
    """Rising and falling scores are right. But a block that is all -inf ends the loop, and what comes behind it is
    missing: `continue`, not `break`.""",
    _stopping,
)

mistake.edit(
    "nothing_allowed",
    NOTHING_ALLOWED,
    old="if l == 0:",
    new="if False:",
)

mistake.function(
    "nothing_allowed_nan",
    NOTHING_ALLOWED,
    lambda s, v, block: _softmax(s) @ v,
)

mistake.edit(
    "maximum_of_block",
    """The sums are corrected. But the maximum must not fall: the new one is the larger of the old one and the block's,
    max(m, s.max()). Otherwise exp(old - new) overflows.""",
    old="np.maximum(m, s.max())",
    new="s.max()",
)

mistake.edit(
    "own_maximum",
    """The old sums shrink as they should. But the new block is measured against its own maximum, not against the common
    one: p = exp(s - m_new).""",
    old="np.exp(s - m_new)",
    new="np.exp(s - s.max())",
)

mistake.edit(
    "maximum_not_kept",
    """The last block is right. But it is all that counts: m stays -inf, so what came before shrinks to 0. m = m_new at
    the end of the loop.""",
    old="        m = m_new\n",
    new="",
)

mistake.edit(
    "not_divided",
    """Both sums are right. But o is a sum with weights that add up to l: divide, o / l.""",
    old="return o / l",
    new="return o",
)

mistake.function(
    "divided_each_time",
    """With one block it is right. But o is divided in each of them, and then again: keep the plain sum, and divide
    once, at the end.""",
    _divided_each_time,
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
    mistakes=mistake.all,
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
