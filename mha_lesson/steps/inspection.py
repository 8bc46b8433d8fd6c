"""Lesson 09. Looking at trained heads: switch them off, compare them, find them.

    ablate_heads      the layer's output without some of its heads
    head_distances    how differently two heads look, 0 = alike, 1 = nowhere at the same key
    find_head         which head sends the most from one word to another
    induction_scores  how much a head looks at what came after the same token before

A map of weights shows where a head looks, not what the layer's output owes to it: other weights
can give the same output (Jain and Wallace 2019, "Attention is not Explanation"). To learn what a
head does, switch it off.
"""

# Quoted word for word by exercises/lesson_09/ablate.py, exercises/lesson_09/find.py, exercises/lesson_09/induction.py,
# exercises/lesson_09/similarity.py and tests/faults/faults.py: change them together.

import numpy as np

from mha_lesson.steps.heads import merge_heads, output_projection
from mha_lesson.steps.typing import Array, Float


def ablate_heads(
    heads: Float[Array, "H L D"], w_o: Float[Array, "A E"], b_o: Float[Array, "E"], off
) -> Float[Array, "L E"]:
    """The layer's output with the heads in `off` switched off: sum of O_h W_O[h] over the others, + b_O.

    heads is what each head found, w_o is (H·D, E) and applied as x @ w_o; head h owns its rows
    h·D to (h + 1)·D. The bias stays, and nothing is scaled up for what is missing.

    Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?"; Voita et al. 2019.
    """
    off = sorted(off)
    if off and not (off[0] >= 0 and off[-1] < len(heads)):
        raise ValueError(f"off: expected head numbers from 0 to {len(heads) - 1}, got {off}.")
    kept = heads.copy()
    kept[off] = 0
    return output_projection(merge_heads(kept), w_o, b_o)  # (L, E)


def head_distances(weights: Float[Array, "H L S"]) -> Float[Array, "H H"]:
    """Jensen-Shannon distance of every two heads, the mean over queries; from 0 (alike) to 1.

        M = (P + Q) / 2
        divergence = (KL(P || M) + KL(Q || M)) / 2       KL(P || M) = sum of P log2(P / M)
        distance   = sqrt(divergence)

    P and Q are one query's rows in the two heads. With the logarithm to base 2 the divergence
    goes up to 1, and 0 log 0 counts as 0, so masked keys do no harm.

    Source: Lin 1991; its square root is a metric (Endres and Schindelin 2003).
    """
    p, q = weights[:, None], weights[None]  # (H, 1, L, S), (1, H, L, S)
    middle = (p + q) / 2  # (H, H, L, S)

    def divergence(a):
        there = a > 0  # elsewhere log(1 / 1) = 0 stands in for 0 log 0
        return (a * np.log2(np.where(there, a, 1) / np.where(there, middle, 1))).sum(axis=-1)  # (H, H, L)

    both = (divergence(p) + divergence(q)) / 2
    distance = np.sqrt(np.maximum(both, 0))  # rounding may leave a little less than 0
    return distance.mean(axis=-1)  # (H, H)


def find_head(weights: Float[Array, "N H L S"], query: int, key: int) -> tuple[int, int]:
    """(layer, head) with the largest weight from token `query` to token `key`, of N layers."""
    links = weights[:, :, query, key]  # (N, H)
    layer, head = np.unravel_index(np.argmax(links), links.shape)
    return int(layer), int(head)


def induction_scores(weights: Float[Array, "H L L"], tokens) -> Float[Array, "H"]:
    """How much each head looks at the token after an earlier copy of the present one.

    ... Maya Lind ... Maya -> looks at "Lind". At each position whose token has occurred before:
    the weights that go to the positions right after those occurrences, added up. The score is
    the mean over these positions, 0 where no token repeats.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching).
    """
    found = []
    for i, token in enumerate(tokens):
        after = [j + 1 for j in range(i) if tokens[j] == token]
        if after:
            found.append(weights[:, i, after].sum(axis=-1))  # (H,)
    return np.mean(found, axis=0) if found else np.zeros(len(weights), weights.dtype)
