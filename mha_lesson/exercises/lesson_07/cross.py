"""Exercise 07.cross."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.encoder_decoder import cross_attention
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.scores import attention_scores
from mha_lesson.steps.softmax import softmax

mistake = Mistakes()


@mistake
def roles_swapped(xd, xe):
    """Scores, softmax and mix are right. But the roles are swapped: one output row for each DECODER token is asked for.
    The decoder asks (queries xd), the encoder answers (keys and values xe)."""
    return cross_attention(xe, xd)


@mistake
def encoder_ignored(xd, xe):
    """This is self-attention, and right as such. But changing the encoder's tokens changes nothing: keys and values
    still come from the decoder. They are xe."""
    return cross_attention(xd, xd)


@mistake
def decoder_ignored(xd, xe):
    """Keys and values come from the encoder, good. But so do the queries: this is the encoder's self-attention. The
    queries are xd."""
    return cross_attention(xe, xe)


mistake.edit(
    "values_from_decoder",
    """The scores are right: xd asks, xe is compared. But what is mixed must come from the encoder too: weights @ xe. (S
    weights cannot mix L rows; only where L = S does it run at all.)""",
    old="weights @ xe",
    new="weights @ xd",
)

mistake.edit(
    "keys_from_decoder",
    """The encoder's tokens are mixed, good. But the decoder is compared with itself: keys and values belong to the same
    tokens, both xe.""",
    old="attention_scores(xd, xe)",
    new="attention_scores(xd, xd)",
)

mistake.edit(
    "no_scale",
    """The roles are right. But the scores are not divided by sqrt(E).""",
    old="attention_scores(xd, xe)",
    new="xd @ xe.T",
)

mistake.edit(
    "by_width",
    """The roles are right. But the scores are divided by E; it is sqrt(E), as in lesson 03. (If you call
    attention_scores: it divides already.)""",
    old="attention_scores(xd, xe)",
    new="xd @ xe.T / xd.shape[-1]",
)

mistake.edit(
    "by_keys",
    """The roles are right. But the scores are divided by the square root of the number of keys; it is that of the
    width, xd.shape[-1].""",
    old="attention_scores(xd, xe)",
    new="xd @ xe.T / len(xe) ** 0.5",
)

mistake.edit(
    "by_queries",
    """The roles are right. But the scores are divided by the square root of the number of queries (len(xd) counts
    tokens); it is that of the width, xd.shape[-1].""",
    old="attention_scores(xd, xe)",
    new="xd @ xe.T / len(xd) ** 0.5",
)

mistake.edit(
    "whole_matrix",
    """The roles and the scores are right. But the whole matrix shares one single 1; each decoder token has a 1 of its
    own to share out: softmax along the last axis, each row by itself.""",
    old="softmax(attention_scores(xd, xe))",
    new="softmax(attention_scores(xd, xe).ravel()).reshape(len(xd), len(xe))",
)

mistake.edit(
    "over_queries",
    """The roles and the scores are right. But softmax runs over the queries; each decoder token shares out its own 1
    over the encoder's tokens: the last axis.""",
    old="softmax(attention_scores(xd, xe))",
    new="softmax(attention_scores(xd, xe).T).T",
)

mistake.edit(
    "no_softmax",
    """The roles and the scores are right. But scores are no shares: softmax over the last axis comes before the
    mix.""",
    old="softmax(attention_scores(xd, xe))",
    new="attention_scores(xd, xe)",
)

mistake.edit(
    "returns_weights",
    """These are the weights (L, S), and they are right: the alignment map of this lesson. One step is left: weights @
    xe.""",
    old="weights @ xe",
    new="weights",
)


@mistake
def plain_mean(xd, xe):
    """The encoder's tokens are mixed, good. But each counts the same for every query; weight them by softmax(xd xe^T /
    sqrt(E))."""
    return np.tile(xe.mean(axis=0), (len(xd), 1))


@mistake
def causal(xd, xe):
    """The roles are right. But there is a causal mask on it: the whole source is known before the first word is
    written, so nothing of it is hidden."""
    return _masked_cross(xd, xe, np.tri(len(xd), len(xe), dtype=bool))


@mistake
def causal_lower_right(xd, xe):
    """The roles are right. But causal_mask(L, S) hides a part of the source, and nothing of the source lies in the
    future. Leave the mask out."""
    return _masked_cross(xd, xe, causal_mask(len(xd), len(xe)))


@mistake
def both_as_keys(xd, xe):
    """The decoder asks, and the encoder answers. But the decoder's own tokens stand among the keys as well; its
    self-attention is another layer. Keys and values are xe alone."""
    return cross_attention(xd, np.concatenate([xd, xe]))


mistake.edit(
    "residual",
    """The attention is right. But xd is added to it; asked for is the mix of the encoder's tokens alone, weights @
    xe.""",
    old="weights @ xe",
    new="xd + weights @ xe",
)


CROSS = Exercise(
    id="07.cross",
    signature="cross(xd, xe)",
    solution=cross_attention,
    helpers=(softmax, attention_scores),
    probes=lambda: [
        Probe((wave(2, 3), wave(5, 3, step=0.9, start=0.1, size=2)), "2 decoder tokens, 5 encoder tokens, E 3"),
        Probe((wave(7, 2), wave(3, 2, step=1.3, size=3)), "7 decoder tokens, 3 encoder tokens, E 2"),
        Probe((wave(3, 5), wave(3, 5, step=0.4, start=0.9, size=2)), "as many decoder as encoder tokens, E 5"),
        Probe((wave(5, 7, dtype=np.float32), wave(2, 7, step=1.1, dtype=np.float32)), "5 and 2 tokens, E 7, float32"),
    ],
    mistakes=mistake.all,
    forms={
        "einsum": lambda xd, xe: np.einsum(
            "ls,se->le", softmax(np.einsum("le,se->ls", xd, xe) / np.sqrt(xd.shape[1])), xe
        ),
        "query by query": lambda xd, xe: [softmax(xe @ q / np.sqrt(len(q))) @ xe for q in xd],
        "keys first": lambda xd, xe: (xe.T @ softmax((xe @ xd.T).T / xe.shape[-1] ** 0.5).T).T,
        "exponentials": lambda xd, xe: (
            lambda e: e @ xe / e.sum(1, keepdims=True)
        )(np.exp(xd @ xe.T / np.sqrt(xd.shape[1]))),
        **usual_forms(cross_attention),
    },
    hints=(
        "The same three steps as ever: scores, softmax, mix. The one question is which array goes where.",
        "The decoder asks: its tokens are the queries. The encoder answers: its tokens are keys and values.",
        "Scores (L, S): xd @ xe.T / np.sqrt(E). Softmax over the last axis, the encoder's tokens.",
        "The mix is weights @ xe, (L, S) @ (S, E).",
    ),
    well_done="The decoder asks, the encoder answers: one row for each decoder token.",
)  # fmt: skip


def _masked_cross(xd, xe, keep):
    scores = np.where(keep, attention_scores(xd, xe), -1e30)  # a query without keys gets their mean
    return softmax(scores) @ xe
