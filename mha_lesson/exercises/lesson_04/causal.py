"""Exercise 04.causal."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.masks import causal_mask

mistake = Mistakes()


@mistake
def future(L, S):
    """A triangle of the right shape. But your mask keeps the future and hides the past: take the lower triangle."""
    return np.triu(np.ones((L, S), bool))


@mistake
def future_with_cache(L, S):
    """You shift the diagonal by S - L, as one must with a cache. But the triangle is the upper one: it keeps the future
    and hides the past. Take the lower one, np.tril."""
    return np.triu(np.ones((L, S), bool), S - L)


mistake.edit(
    "inverted",
    """The triangle has its edge in the right place. But True should mean 'may attend'; yours means 'blocked', as in
    nn.MultiheadAttention. Turn it round: ~mask.""",
    old="key_place <= query_place",
    new="key_place > query_place",
)

mistake.edit(
    "not_itself",
    """The past is seen and the future hidden. But each token must be able to see itself; your first row is empty.
    Include the diagonal.""",
    old="<=",
    new="<",
)

mistake.edit(
    "top_left",
    """Right for square masks. But with a cache the queries are the LAST tokens: shift the diagonal by S - L.""",
    old=" + (S - L)",
    new="",
)

mistake.edit(
    "shifted_other_way",
    """Right for square masks, and you shift for the others. But the shift goes in the wrong direction: by S - L, not L
    - S.""",
    old="+ (S - L)",
    new="- (S - L)",
)

mistake.edit(
    "one_ahead",
    """The past is seen. But each token also sees the one after it: one diagonal less.""",
    old="<=",
    new="<= 1 +",
)

mistake.edit(
    "everything",
    """The shape is right. But nothing is hidden: a query must not see keys that come after it.""",
    old="key_place <= query_place",
    new="(key_place <= query_place) | True",
)

mistake.edit(
    "only_itself",
    """Each token sees itself, good. But it may look back too: everything up to its own place.""",
    old="<=",
    new="==",
)


@mistake
def swapped_axes(L, S):
    """The comparison is right. But rows are queries and columns keys: the shape is (L, S)."""
    return causal_mask(L, S).T


CAUSAL = Exercise(
    id="04.causal",
    signature="causal(L, S)",
    solution=causal_mask,
    probes=lambda: [
        Probe((3, 3), "L = S = 3"),
        Probe((2, 5), "L = 2 new queries, S = 5 keys"),
        Probe((7, 7), "L = S = 7"),
        Probe((4, 9), "L = 4 new queries, S = 9 keys"),
        Probe((1, 4), "a single new query, S = 4 keys"),
    ],
    mistakes=mistake.all,
    forms={
        "tril": lambda L, S: np.tril(np.ones((L, S), bool), S - L),
        "not triu": lambda L, S: ~np.triu(np.ones((L, S), bool), S - L + 1),
        "a loop": lambda L, S: [[j <= i + S - L for j in range(S)] for i in range(L)],
        "the last rows of the square": lambda L, S: np.tri(S, dtype=bool)[-L:],
        **usual_forms(causal_mask),
    },
    hints=(
        "Draw it for L = S = 3: which of the nine places may be True?",
        "Compare a column of query places with a row of key places: np.arange(L)[:, None] and np.arange(S)[None, :].",
        "With S > L the first query does not stand at place 0 but at place S - L.",
    ),
    well_done="The last query sees all keys, also when there are more keys than queries.",
)  # fmt: skip
