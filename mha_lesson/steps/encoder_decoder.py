"""Lesson 07. Self-attention and cross-attention: where queries, keys and values come from.

    self-attention     Q, K, V all from one sequence             weights (L, L)
    cross-attention    Q from the decoder, K and V from the      weights (L, S)
                       encoder: the decoder asks, the encoder answers

    xd (L, E)   the decoder's tokens, written so far
    xe (S, E)   the encoder's tokens, the whole source

An encoder-decoder has three attentions, each with a mask of its own (`encoder_decoder_masks`),
and writes one token at a time (`greedy_decode`).

Source: Vaswani et al. 2017, sections 3.1 and 3.2.3.
"""

# Quoted word for word by exercises/lesson_07/cost.py, exercises/lesson_07/cross.py, exercises/lesson_07/decode.py,
# exercises/lesson_07/masks.py and tests/faults/faults.py: change them together.

from collections.abc import Callable

import numpy as np

from mha_lesson.steps.masks import causal_mask, padding_mask
from mha_lesson.steps.scores import attention_scores
from mha_lesson.steps.softmax import softmax
from mha_lesson.steps.typing import Array, Bool, Float


def cross_attention(xd: Float[Array, "L E"], xe: Float[Array, "S E"]) -> Float[Array, "L E"]:
    """softmax(xd xe^T / sqrt(E)) xe: one mix of the encoder's tokens for each decoder token.

    Queries are xd, keys and values are xe, without projections. With the roles swapped there is
    one row for each encoder token instead (rexrex9/nlp_torchtext#2); with keys and values from
    xd the source is never read (keitakurita/Practical_NLP_in_PyTorch#1).

    Source: Vaswani et al. 2017, section 3.2.3, "encoder-decoder attention".
    """
    weights = softmax(attention_scores(xd, xe))  # (L, S): rows are the decoder's, columns the encoder's
    return weights @ xe  # (L, E)


def encoder_decoder_masks(
    source_lengths, L: int, S: int
) -> tuple[Bool[Array, "B 1 1 S"], Bool[Array, "1 1 L L"], Bool[Array, "B 1 1 S"]]:
    """(encoder_keep, decoder_keep, cross_keep), True = may attend.

        encoder  looks at the source   all of it, but no padding
        decoder  looks at the target   itself and what is written before it
        cross    looks at the source   all of it, but no padding: the source is known from the
                                       start, so nothing of it lies in the future

    A mask is about keys: cross-attention has the keys of the encoder, so it takes its mask too.
    The batch's source sequences have `source_lengths` (B,) tokens, padded to S at the end.

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    padding = padding_mask(source_lengths, S)[:, None, None, :]  # (B, 1, 1, S)
    encoder_keep = padding
    decoder_keep = causal_mask(L, L)[None, None]  # (1, 1, L, L)
    cross_keep = padding
    return encoder_keep, decoder_keep, cross_keep


def greedy_decode(step: Callable, start: int, stop: int, longest: int) -> list[int]:
    """Write token after token, each time the one with the highest score.

    step(prefix) takes the ids so far, start first, and returns scores (len(prefix), V): row i
    scores the token that follows prefix[i]. The last row is the one that is new.
    Returns the new ids without start and stop, `longest` of them at most.
    """
    tokens = [start]
    for _ in range(longest):
        scores = step(tokens)  # (len(tokens), V)
        best = int(np.argmax(scores[-1]))
        if best == stop:
            break
        tokens.append(best)
    return tokens[1:]


def cross_cost(L: int, S: int, E: int) -> int:
    """Multiplications of one cross-attention layer; of self-attention, with S = L.

    A product (a, b) @ (b, c) takes a · b · c of them. The number of heads does not matter:
    H heads of width E / H cost together what one of width E costs. Nor does it matter which of the
    two sequences is the longer one: each is projected twice. Softmax and biases are left out.

    Source: Vaswani et al. 2017, section 3.2.2 and table 1, which counts the L · S part alone.
    """
    queries = L * E * E
    keys_values = 2 * S * E * E
    scores = L * S * E
    mixing = S * L * E
    output = E * L * E
    return queries + keys_values + scores + mixing + output
