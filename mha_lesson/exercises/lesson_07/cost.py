"""Exercise 07.cost."""

from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.compare import NotPlain, plain
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.encoder_decoder import cross_cost


def _read_count(arguments: tuple, answer: Any) -> Any:
    """An array with one element, or a list, as the number in it."""
    try:
        value = plain(answer)
    except NotPlain:
        return answer
    return value.item() if isinstance(value, np.ndarray) and value.ndim and value.size == 1 else answer


# Each is a usual way to write the formula; ^ comes after + and *, so they do not give the same.
_WITH_CARET = {
    "in_terms": lambda L, S, E: L * E ^ 2 + 2 * S * E ^ 2 + L * S * E + L * S * E + L * E ^ 2,
    "doubled": lambda L, S, E: 2 * L * E ^ 2 + 2 * S * E ^ 2 + 2 * L * S * E,
    "gathered": lambda L, S, E: 2 * (L + S) * E ^ 2 + 2 * L * S * E,
    "line_by_line": lambda L, S, E: 2 * (L * E ^ 2) + (2 * S * E ^ 2) + 2 * L * S * E,
    "in_brackets": lambda L, S, E: 2 * (L + S) * (E ^ 2) + 2 * L * S * E,
}


mistake = Mistakes()


mistake.edit(
    "no_output",
    """Projections, scores and mix are right. But the output projection is missing: another L · E · E.""",
    old=" + output",
    new="",
)

mistake.edit(
    "one_product",
    """The projections are right. But L · S · E comes twice: once for the scores, (L, E) @ (E, S), and once for the
    weighted sum of the values, (L, S) @ (S, E).""",
    old=" + mixing",
    new="",
)


@mistake
def scores_without_width(L, S, E):
    """The projections and the weighted sum are right. But each of the L · S scores is a sum of E products: L · S ·
    E."""
    return 2 * L * E * E + 2 * S * E * E + L * S * (E + 1)


mistake.edit(
    "no_values",
    """Queries, scores and mix are right. But the source is projected twice, to keys and to values: 2 · S · E · E.""",
    old="2 * S * E * E",
    new="S * E * E",
)

mistake.edit(
    "keys_by_queries",
    """The terms are right in kind. But keys and values are made from the S tokens of the encoder: 2 · S · E · E, not 2
    · L · E · E.""",
    old="2 * S * E * E",
    new="2 * L * E * E",
)

mistake.edit(
    "queries_by_keys",
    """The other terms are right. But one projection of the decoder is counted with S: queries and output have a row for
    each of the L decoder tokens, L · E · E each.""",
    old="queries = L * E * E",
    new="queries = S * E * E",
)


@mistake
def square_of_queries(L, S, E):
    """The projections are right. But L · L is self-attention; here L queries meet S keys: L · S · E, twice."""
    return 2 * L * E * E + 2 * S * E * E + 2 * L * L * E


@mistake
def square_of_keys(L, S, E):
    """The projections are right. But S · S is the encoder's own attention; here L queries meet S keys: L · S · E,
    twice."""
    return 2 * L * E * E + 2 * S * E * E + 2 * S * S * E


@mistake
def self_attention(L, S, E):
    """This is right for self-attention. But keys and values come from the S tokens of the encoder: 2 · S · E · E for
    them, and L · S · E twice."""
    return cross_cost(L, L, E)


@mistake
def no_width(L, S, E):
    """The projections are right. But each of the L · S scores is a sum of E products, and so is the mix: L · S · E,
    twice."""
    return 2 * L * E * E + 2 * S * E * E + 2 * L * S


@mistake
def encoder_self_attention(L, S, E):
    """This is right for the encoder's self-attention. But here the L decoder tokens ask: L · E · E for the queries and
    for the output, and L · S · E twice."""
    return cross_cost(S, S, E)


@mistake
def self_and_cross(L, S, E):
    """Cross-attention is counted right. But the decoder's self-attention is added to it; asked for is the one layer of
    cross-attention alone."""
    return cross_cost(L, L, E) + cross_cost(L, S, E)


mistake.edit(
    "projections_only",
    """The four projections are right. But the attention itself is missing: L · S · E for the scores, and once more for
    the mix.""",
    old=" + scores + mixing",
    new="",
)


@mistake
def no_projections(L, S, E):
    """Scores and mix are right. But the four projections are missing; in short sequences they cost the most."""
    return 2 * L * S * E


@mistake
def width_once(L, S, E):
    """Scores and mix are right. But a projection (L, E) @ (E, E) takes L · E · E, not L · E."""
    return 2 * L * E + 2 * S * E + 2 * L * S * E


@mistake
def everything_projected_for_both(L, S, E):
    """Scores, mix and output are right. But each side makes only what it needs: the decoder queries, the encoder keys
    and values."""
    return 3 * (L + S) * E * E + 2 * L * S * E + L * E * E


@mistake
def additions_too(L, S, E):
    """Every term is there. But you count the additions as well (FLOPs); asked for are the multiplications alone, half
    of it."""
    return 2 * cross_cost(L, S, E)


for h in (4, 8):
    mistake.function(
        f"times_{h}_heads",
        f"Every term is there. But {h} heads do not cost {h} times as much: each is only E / {h} wide, and together "
        "they cost what one wide head costs.",
        lambda L, S, E, h=h: 2 * L * E * E + 2 * S * E * E + h * 2 * L * S * E,
    )

for how, function in _WITH_CARET.items():
    mistake.function(
        f"caret_{how}",
        """Every term is there. But in Python E^2 is no power (^ compares bits): write E**2 or E * E.""",
        function,
    )


COST = Exercise(
    id="07.cost",
    signature="cost(L, S, E)",
    solution=cross_cost,
    protocol=Protocol(read=_read_count),
    advice="List the six products with their shapes, and print each count by itself. (E squared is E**2 or E * E; "
    "E^2 is no power in Python.)",
    probes=lambda: [
        Probe((2, 3, 5), "L 2, S 3, E 5"),
        Probe((7, 5, 3), "L 7, S 5, E 3"),
        Probe((1, 11, 2), "a single query, S 11, E 2"),
        Probe((13, 13, 17), "self-attention, L = S = 13, E 17"),
        Probe((128, 1024, 512), "L 128, S 1024, E 512"),
    ],
    mistakes=mistake.all,
    forms={
        "gathered": lambda L, S, E: 2 * E * (L * E + S * E + L * S),
        "by shapes": lambda L, S, E: sum(
            a * b * c for a, b, c in [(L, E, E), (S, E, E), (S, E, E), (L, E, S), (L, S, E), (L, E, E)]
        ),
        "an array of one": lambda L, S, E: np.array([2 * (L + S) * E**2 + 2 * L * S * E]),
        "a float": lambda L, S, E: 2.0 * (L + S) * E**2 + 2.0 * L * S * E,
        **usual_forms(cross_cost),
    },
    hints=(
        "(a, b) @ (b, c) takes a · b · c multiplications. List the six products and their shapes.",
        "Four projections: queries and output have L rows, keys and values have S rows, all with an (E, E) matrix.",
        "Two products without a weight matrix: the scores (L, E) @ (E, S) and the mix (L, S) @ (S, E).",
        "2 · L · E · E + 2 · S · E · E + 2 · L · S · E. The number of heads is not in it.",
    ),
    well_done="The projections grow with L + S, the attention with L · S: when both are long, it is the second that "
    "hurts.",
)  # fmt: skip
