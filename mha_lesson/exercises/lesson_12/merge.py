"""Exercise 12.merge."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.exercises.lesson_12.shared import INF
from mha_lesson.steps.long_context import finite, merge, partial


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


mistake = Mistakes()


@mistake
def plain_sum(m1, l1, o1, m2, l2, o2):
    """Sums are added, good. But they are measured against different maxima: multiply each by exp(its m - the larger m)
    first."""
    return (np.maximum(m1, m2), l1 + l2, o1 + o2)


mistake.edit(
    "only_l",
    """m and l are right. But o is measured against the same maximum: it must shrink too.""",
    old=SUM_OF_O,
    new="o1 + o2",
)

mistake.edit(
    "only_o",
    """m and o are right. But l is measured against the same maximum: it must shrink too.""",
    old="l1 * shrink1 + l2 * shrink2",
    new="l1 + l2",
)

mistake.edit(
    "second_not_shrunk",
    """The first part shrinks. But the second may be the smaller one: both are multiplied, the one with the larger
    maximum by exp(0) = 1.""",
    old=SHRINKS,
    new="np.exp(m1 - highest), np.ones_like(m2)",
)

mistake.edit(
    "first_not_shrunk",
    """The second part shrinks. But the first may be the smaller one: both are multiplied, the one with the larger
    maximum by exp(0) = 1.""",
    old=SHRINKS,
    new="np.ones_like(m1), np.exp(m2 - highest)",
)

mistake.edit(
    "crossed",
    """Both factors are right. But each multiplies the other's sums: exp(m1 - m) belongs to l1 and o1.""",
    old=SHRINKS,
    new="np.exp(m2 - highest), np.exp(m1 - highest)",
)

mistake.edit(
    "upside_down",
    """Both are corrected. But the wrong way round: exp(its m - the larger m) is at most 1.""",
    old=SHRINKS,
    new="np.exp(highest - m1), np.exp(highest - m2)",
)

mistake.edit(
    "smaller_maximum",
    """The parts are brought to one maximum. But to the smaller one, and exp of the difference overflows:
    np.maximum.""",
    old="np.maximum(m1, m2)",
    new="np.minimum(m1, m2)",
)

mistake.edit(
    "first_maximum",
    """The sums fit together: both are measured against the first part's maximum. But where the second one is much
    larger, or the first part is empty, exp(m2 - m1) overflows: measure against the larger.""",
    old="np.maximum(m1, m2)",
    new="m1",
)

mistake.edit(
    "one_maximum_for_all",
    """The sums fit together. But the largest score of ALL queries was taken: each query has its own maximum,
    np.maximum(m1, m2).""",
    old="np.maximum(m1, m2)",
    new="np.maximum(m1, m2).max() + 0 * l1",
)

mistake.edit(
    "nan_when_empty",
    """Where there is something all is right. But if both parts are empty, -inf - (-inf) is NaN: replace a maximum of
    -inf by 0 before you subtract it.""",
    old="highest = finite(m)",
    new="highest = m",
)

mistake.edit(
    "empty_maximum",
    """Where there is something all is right. But if both parts are empty, their maximum is -inf, and you return 0: that
    is only for the subtraction.""",
    old="return m, l, o",
    new="return highest, l, o",
)

mistake.edit(
    "divided",
    DIVIDED,
    old="return m, l, o",
    new="return m, l, o / l[..., None]",
)

mistake.edit(
    "divided_guarded",
    DIVIDED,
    old="return m, l, o",
    new="return m, l, o / np.where(l == 0, 1, l)[..., None]",
)

mistake.edit(
    "answer_alone",
    """The answer itself is right. But m and l are needed beside it, to merge again: return m, l, o, and o not
    divided.""",
    old="return m, l, o",
    new="return o / l[..., None]",
)

mistake.edit(
    "averaged",
    """The maximum is right. But l and o were averaged: they are sums, and add up.""",
    old="return m, l, o",
    new="return m, l / 2, o / 2",
)

mistake.edit(
    "order",
    """All three are right. But they come in another order: return m, l, o.""",
    old="return m, l, o",
    new="return l, m, o",
)

mistake.edit(
    "maximum_of_first",
    """The sums are right for a common maximum. But the m that you return is the first one's: return the larger.""",
    old="return m, l, o",
    new="return m1, l, o",
)

mistake.edit(
    "maxima_added",
    """The sums are right. But the maximum of both is the larger one, not their sum.""",
    old="return m, l, o",
    new="return m1 + m2, l, o",
)

mistake.edit(
    "no_new_axis",
    """m and l are right. But the factors (L,) multiply the columns of o (L, V), or do not fit: a query is a row. Give
    them an axis, shrink[..., None].""",
    old=SUM_OF_O,
    new="o1 * shrink1 + o2 * shrink2",
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
    mistakes=mistake.all,
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
