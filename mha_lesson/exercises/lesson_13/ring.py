"""Exercise 13.ring."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.gpu import ring_step
from mha_lesson.steps.masks import causal_mask


def _step_for_source(rank, step, world, n):
    source = (rank - step) % world
    return source, causal_mask(n, n) if step == rank else np.full((n, n), step < rank)


mistake = Mistakes()


mistake.edit(
    "other_direction",
    """Counting round the ring is right. But keys move on to the NEXT rank, so what arrives comes from the rank before:
    rank - step, not rank + step.""",
    old="(rank - step)",
    new="(rank + step)",
)

mistake.edit(
    "no_modulo",
    """Going back one rank a step is right. But it is a ring: before rank 0 comes the last one, % world.""",
    old="(rank - step) % world",
    new="rank - step",
)

mistake.edit(
    "one_step_too_far",
    """The direction is right. But at step 0 nothing has been sent yet: a rank holds its own keys.""",
    old="(rank - step)",
    new="(rank - step - 1)",
)

mistake.edit(
    "past_hidden",
    """The sources are right. But the pieces are the wrong way round: an earlier piece is the past, all of it may be
    seen; a later one is the future.""",
    old="source < rank",
    new="source > rank",
)

mistake.edit(
    "everything_seen",
    """The sources are right. But a later piece is the future: causal attention sees none of it.""",
    old="source < rank)",
    new="True)",
)

mistake.edit(
    "own_piece_full",
    """The other pieces are right. But within its own piece a query sees what came before it, not what comes after: a
    triangle.""",
    old="causal_mask(n, n)",
    new="np.ones((n, n), bool)",
)

mistake.edit(
    "own_piece_empty",
    """The other pieces are right. But its own piece is not skipped: there a query sees itself and what came before.""",
    old="causal_mask(n, n)",
    new="np.zeros((n, n), bool)",
)

mistake.edit(
    "not_itself",
    """The triangle stands in the right corner. But a token sees itself too: <= and not <.""",
    old="causal_mask(n, n)",
    new="np.tril(np.ones((n, n), bool), -1)",
)

mistake.edit(
    "triangle_turned",
    """The other pieces are right. But the triangle is turned: rows are queries, and they see the past.""",
    old="causal_mask(n, n)",
    new="causal_mask(n, n).T",
)

mistake.edit(
    "triangle_everywhere",
    """The sources are right. But the triangle belongs to its own piece alone: of an earlier piece all may be seen, of a
    later one nothing.""",
    old="np.full((n, n), source < rank)",
    new="causal_mask(n, n)",
)


@mistake
def inverted(*args):
    """The right places are marked. But keep is True where a query MAY look, and yours is True where it may not."""
    return (ring_step(*args)[0], ~ring_step(*args)[1])


mistake.function(
    "step_for_source",
    """The sources are right. But what may be seen depends on whose keys they are, not on the step: compare source with
    rank.""",
    _step_for_source,
)

mistake.edit(
    "past_hidden_too",
    """Its own piece is right, and so is the future. But of an earlier piece all may be seen: source < rank.""",
    old="source < rank)",
    new="False)",
)


@mistake
def swapped(*args):
    """Both are right. But in the other order: return source, keep."""
    return ring_step(*args)[::-1]


@mistake
def added(*args):
    """The right places are open. But this is a mask to add, 0 and -inf: return the boolean one, True where a query may
    look."""
    return (ring_step(*args)[0], np.where(ring_step(*args)[1], 0.0, -np.inf))


@mistake
def numbers(rank, step, world, n):
    """The right places are open. But a mask is boolean: make it with a comparison, or dtype bool."""
    return (
        ring_step(rank, step, world, n)[0],
        ring_step(rank, step, world, n)[1].astype(int),
    )


RING = Exercise(
    id="13.ring",
    signature="ring(rank, step, world, n)",
    solution=ring_step,
    probes=lambda: [
        Probe((1, 0, 3, 2), "rank 1 of 3, step 0: its own keys"),
        Probe((2, 1, 3, 2), "rank 2 of 3, step 1"),
        Probe((0, 1, 3, 2), "rank 0 of 3, step 1"),
        Probe((1, 2, 5, 3), "rank 1 of 5, step 2"),
        Probe((3, 2, 5, 3), "rank 3 of 5, step 2"),
        Probe((2, 2, 5, 3), "rank 2 of 5, step 2"),
    ],
    mistakes=mistake.all,
    forms={
        **usual_forms(ring_step),
        "by positions": lambda rank, step, world, n: (
            (rank - step) % world,
            ((rank - step) % world * n + np.arange(n))[None, :] <= (rank * n + np.arange(n))[:, None],
        ),
    },
    hints=(
        "Write it down for 3 ranks: at step 1 rank 1 has what rank 0 had. And rank 0?",
        "source = (rank - step) % world.",
        "An earlier piece (source < rank): all True. A later one: all False. Its own: causal, (n, n).",
    ),
    well_done="Compare positions and nothing else: that is all a mask ever was.",
)  # fmt: skip
