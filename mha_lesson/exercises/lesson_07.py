"""Exercises of lesson 07: cross-attention, its masks, its cost, and writing token by token."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mha_lesson.exercises import calls
from mha_lesson.exercises.compare import NotPlain, plain
from mha_lesson.exercises.engine import Exercise, Mistake, Probe
from mha_lesson.exercises.probes import usual_forms, wave
from mha_lesson.steps.encoder_decoder import cross_attention, cross_cost, encoder_decoder_masks, greedy_decode
from mha_lesson.steps.masks import causal_mask, padding_mask
from mha_lesson.steps.scores import attention_scores
from mha_lesson.steps.softmax import softmax

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
    mistakes=(
        Mistake(
            "roles_swapped",
            "Scores, softmax and mix are right. But the roles are swapped: one output row for each DECODER token is "
            "asked for. The decoder asks (queries xd), the encoder answers (keys and values xe).",
            function=lambda xd, xe: cross_attention(xe, xd),
        ),
        Mistake(
            "encoder_ignored",
            "This is self-attention, and right as such. But changing the encoder's tokens changes nothing: keys and "
            "values still come from the decoder. They are xe.",
            function=lambda xd, xe: cross_attention(xd, xd),
        ),
        Mistake(
            "decoder_ignored",
            "Keys and values come from the encoder, good. But so do the queries: this is the encoder's "
            "self-attention. The queries are xd.",
            function=lambda xd, xe: cross_attention(xe, xe),
        ),
        Mistake(
            "values_from_decoder",
            "The scores are right: xd asks, xe is compared. But what is mixed must come from the encoder too: "
            "weights @ xe. (S weights cannot mix L rows; only where L = S does it run at all.)",
            "weights @ xe", "weights @ xd",
        ),
        Mistake(
            "keys_from_decoder",
            "The encoder's tokens are mixed, good. But the decoder is compared with itself: keys and values belong "
            "to the same tokens, both xe.",
            "attention_scores(xd, xe)", "attention_scores(xd, xd)",
        ),
        Mistake(
            "no_scale",
            "The roles are right. But the scores are not divided by sqrt(E).",
            "attention_scores(xd, xe)", "xd @ xe.T",
        ),
        Mistake(
            "by_width",
            "The roles are right. But the scores are divided by E; it is sqrt(E), as in lesson 03. (If you call "
            "attention_scores: it divides already.)",
            "attention_scores(xd, xe)", "xd @ xe.T / xd.shape[-1]",
        ),
        Mistake(
            "by_keys",
            "The roles are right. But the scores are divided by the square root of the number of keys; it is that "
            "of the width, xd.shape[-1].",
            "attention_scores(xd, xe)", "xd @ xe.T / len(xe) ** 0.5",
        ),
        Mistake(
            "by_queries",
            "The roles are right. But the scores are divided by the square root of the number of queries (len(xd) "
            "counts tokens); it is that of the width, xd.shape[-1].",
            "attention_scores(xd, xe)", "xd @ xe.T / len(xd) ** 0.5",
        ),
        Mistake(
            "whole_matrix",
            "The roles and the scores are right. But the whole matrix shares one single 1; each decoder token has a 1 "
            "of its own to share out: softmax along the last axis, each row by itself.",
            "softmax(attention_scores(xd, xe))",
            "softmax(attention_scores(xd, xe).ravel()).reshape(len(xd), len(xe))",
        ),
        Mistake(
            "over_queries",
            "The roles and the scores are right. But softmax runs over the queries; each decoder token shares out "
            "its own 1 over the encoder's tokens: the last axis.",
            "softmax(attention_scores(xd, xe))", "softmax(attention_scores(xd, xe).T).T",
        ),
        Mistake(
            "no_softmax",
            "The roles and the scores are right. But scores are no shares: softmax over the last axis comes before "
            "the mix.",
            "softmax(attention_scores(xd, xe))", "attention_scores(xd, xe)",
        ),
        Mistake(
            "returns_weights",
            "These are the weights (L, S), and they are right: the alignment map of this lesson. One step is left: "
            "weights @ xe.",
            "weights @ xe", "weights",
        ),
        Mistake(
            "plain_mean",
            "The encoder's tokens are mixed, good. But each counts the same for every query; weight them by "
            "softmax(xd xe^T / sqrt(E)).",
            function=lambda xd, xe: np.tile(xe.mean(axis=0), (len(xd), 1)),
        ),
        Mistake(
            "causal",
            "The roles are right. But there is a causal mask on it: the whole source is known before the first "
            "word is written, so nothing of it is hidden.",
            function=lambda xd, xe: _masked_cross(xd, xe, np.tri(len(xd), len(xe), dtype=bool)),
        ),
        Mistake(
            "causal_lower_right",
            "The roles are right. But causal_mask(L, S) hides a part of the source, and nothing of the source lies "
            "in the future. Leave the mask out.",
            function=lambda xd, xe: _masked_cross(xd, xe, causal_mask(len(xd), len(xe))),
        ),
        Mistake(
            "both_as_keys",
            "The decoder asks, and the encoder answers. But the decoder's own tokens stand among the keys as well; "
            "its self-attention is another layer. Keys and values are xe alone.",
            function=lambda xd, xe: cross_attention(xd, np.concatenate([xd, xe])),
        ),
        Mistake(
            "residual",
            "The attention is right. But xd is added to it; asked for is the mix of the encoder's tokens alone, "
            "weights @ xe.",
            "weights @ xe", "xd + weights @ xe",
        ),
    ),
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


def _read_masks(arguments: tuple, answer: Any) -> tuple:
    """Three masks in their full shapes, so that (L, L) and (1, 1, L, L) are the same answer."""
    lengths, L, S = arguments
    if isinstance(answer, dict) or not hasattr(answer, "__len__"):
        raise ValueError(f"expected three masks, got a value of type {type(answer).__name__}. {_THREE}")
    if len(answer) != 3:
        raise ValueError(f"expected three masks (encoder, decoder, cross), got {len(answer)}. {_THREE}")
    full = [(len(lengths), 1, rows, keys) for rows, keys in ((S, S), (L, L), (L, S))]
    return tuple(_broadcast(mask, shape, *full) for mask, shape in zip(answer, full, strict=True))


_THREE = "Return three boolean masks with commas between: the encoder's, the decoder's, that of cross-attention."


def _broadcast(mask: Any, *shapes: tuple) -> np.ndarray:
    """The mask in the first of these shapes that it fits; as it is if there is none.

    A mask in another's place gets the other's shape. None lets everybody look everywhere.
    """
    try:
        mask = np.asarray(plain(True if mask is None else mask))
    except NotPlain:
        raise ValueError("one of the three masks is no array of True and False") from None
    for shape in shapes:
        with contextlib.suppress(ValueError):
            return np.broadcast_to(mask, shape)
    return mask


def _padding(lengths, n):
    """(B, 1, 1, n), also where a sequence has more than n tokens."""
    return (np.arange(n) < np.asarray(lengths)[:, None])[:, None, None, :]


MASKS = Exercise(
    id="07.masks",
    signature="masks(source_lengths, L, S)",
    solution=encoder_decoder_masks,
    helpers=(padding_mask, causal_mask),
    read=_read_masks,
    advice="Result 1 is the encoder's mask, 2 the decoder's, 3 that of cross-attention; shapes and places are those "
    "after broadcasting to (B, H, queries, keys), and the values are True and False. Print "
    "masks(np.array([1, 3]), 2, 3), small enough to be written by hand.",
    probes=lambda: [
        Probe((np.array([3, 5]), 2, 5), "lengths 3 and 5, L 2, S 5"),
        Probe((np.array([1, 3, 2]), 5, 3), "lengths 1, 3 and 2, L 5, S 3"),
        Probe((np.array([7, 4, 1, 6, 2]), 3, 7), "5 sequences, L 3, S 7"),
        Probe((np.array([4, 2, 3]), 5, 5), "lengths 4, 2 and 3, L = S = 5"),
    ],
    mistakes=(
        Mistake(
            "causal_on_cross",
            "Encoder and decoder are right, and no padding is seen. But cross-attention is causal too: the source "
            "is known from the start, so padding alone is hidden there.",
            "cross_keep = padding", "cross_keep = padding & causal_mask(L, S)",
        ),
        Mistake(
            "causal_on_cross_top_left",
            "Encoder and decoder are right, and no padding is seen. But cross-attention hides a triangle of the "
            "source: the source is known from the start, so padding alone is hidden there.",
            "cross_keep = padding", "cross_keep = padding & np.tri(L, S, dtype=bool)",
        ),
        Mistake(
            "only_causal_on_cross",
            "Encoder and decoder are right. But cross-attention got the causal mask; its keys are the "
            "encoder's tokens, so it takes the encoder's padding mask.",
            "cross_keep = padding", "cross_keep = causal_mask(L, S)",
        ),
        Mistake(
            "only_triangle_on_cross",
            "Encoder and decoder are right. But cross-attention got a triangle; its keys are the encoder's tokens, "
            "none of which lies in the future, so it takes the encoder's padding mask.",
            "cross_keep = padding", "cross_keep = np.tri(L, S, dtype=bool)[None, None]",
        ),
        Mistake(
            "decoder_mask_on_cross",
            "Encoder and decoder are right. But cross-attention got the decoder's mask, (L, L). A mask is about keys, "
            "and here these are the S tokens of the encoder: it takes the encoder's padding mask.",
            "cross_keep = padding", "cross_keep = decoder_keep",
        ),
        Mistake(
            "decoder_mask_too_on_cross",
            "Encoder and decoder are right, and cross-attention sees no padding. But it got the decoder's mask too, "
            "(L, L), which fits only where L = S. Nothing of the source lies in the future: padding alone is hidden.",
            "cross_keep = padding", "cross_keep = padding & decoder_keep",
        ),
        Mistake(
            "causal_on_encoder",
            "Decoder and cross-attention are right. But the encoder reads a finished text: it may look at both "
            "sides, so it needs no causal mask.",
            "encoder_keep = padding", "encoder_keep = padding & causal_mask(S, S)",
        ),
        Mistake(
            "no_padding_on_cross",
            "Encoder and decoder are right. But cross-attention sees the padding of the source: its keys are the "
            "encoder's tokens, so it takes the encoder's mask.",
            "cross_keep = padding", "cross_keep = np.ones_like(padding)",
        ),
        Mistake(
            "no_padding_on_encoder",
            "Decoder and cross-attention are right. But the encoder's tokens attend to their own padding: it "
            "needs the padding mask too.",
            "encoder_keep = padding", "encoder_keep = np.ones_like(padding)",
        ),
        Mistake(
            "decoder_sees_the_future",
            "Encoder and cross-attention are right. But the decoder may look at words that are not written yet: it "
            "needs causal_mask(L, L).",
            "causal_mask(L, L)", "np.ones((L, L), bool)",
        ),
        Mistake(
            "inverted",
            "Every mask is in its place. But all three say where NOT to look; here True means 'may attend'.",
            function=lambda source_lengths, L, S: tuple(~m for m in encoder_decoder_masks(source_lengths, L, S)),
        ),
        Mistake(
            "padding_inverted",
            "Every mask is in its place, and the causal one is right. But the padding mask is True for the padding, "
            "as key_padding_mask in nn.MultiheadAttention is; here True means 'may attend'.",
            "padding_mask(source_lengths, S)", "~padding_mask(source_lengths, S)",
        ),
        Mistake(
            "causal_inverted",
            "Every mask is in its place, and the padding is right. But the causal mask is True for the future; here "
            "True means 'may attend'.",
            "causal_mask(L, L)", "~causal_mask(L, L)",
        ),
        Mistake(
            "causal_reversed",
            "Encoder and cross-attention are right, and the decoder has a triangle. But it is the wrong one: rows "
            "are queries, and each looks back. Transpose it.",
            "causal_mask(L, L)", "causal_mask(L, L).T",
        ),
        Mistake(
            "not_itself",
            "Encoder and cross-attention are right, and the future is hidden. But each decoder token sees itself "
            "too: the diagonal is True.",
            "causal_mask(L, L)", "causal_mask(L, L) & ~np.eye(L, dtype=bool)",
        ),
        Mistake(
            "sees_the_next",
            "Encoder and cross-attention are right, and the decoder has a triangle. But it is one too wide: each token "
            "sees the one after it, the very one it should predict. The diagonal is the last True (k=0).",
            "causal_mask(L, L)", "np.tri(L, L, 1, dtype=bool)",
        ),
        Mistake(
            "one_key_too_many",
            "Every mask is in its place, and the causal one is right. But one token of padding is seen: places count "
            "from 0, so length 3 means places 0, 1, 2. Compare with <, not with <=.",
            "padding_mask(source_lengths, S)", "(np.arange(S) <= np.asarray(source_lengths)[:, None])",
        ),
        Mistake(
            "one_key_too_few",
            "Every mask is in its place, and the causal one is right. But the last true token of each sequence is "
            "hidden: places count from 0, so length 3 means places 0, 1, 2.",
            "padding_mask(source_lengths, S)", "(np.arange(S) < np.asarray(source_lengths)[:, None] - 1)",
        ),
        Mistake(
            "padding_on_queries",
            "The right masks are in their places. But the padding lies on the axis of the queries; it is keys "
            "that must not be seen: [:, None, None, :].",
            "[:, None, None, :]", "[:, None, :, None]",
        ),
        Mistake(
            "no_axes",
            "The right masks are in their places. But (B, S) does not line up with scores (B, H, L, S): give the "
            "padding mask two more axes, [:, None, None, :].",
            "[:, None, None, :]", "",
        ),
        Mistake(
            "keys_on_heads",
            "The right masks are in their places, with four axes. But in (B, S, 1, 1) the tokens lie on the axis of "
            "the heads; keys come last: [:, None, None, :].",
            "[:, None, None, :]", "[:, :, None, None]",
        ),
        Mistake(
            "no_head_axis",
            "The right masks are in their places. But a padding mask (B, 1, S) puts the sequences on the axis of "
            "the heads: [:, None, None, :].",
            "[:, None, None, :]", "[:, None, :]",
        ),
        Mistake(
            "batch_on_heads",
            "The right masks are in their places, with four axes. But the sequences lie on the axis of the heads; "
            "they come first: [:, None, None, :].",
            "[:, None, None, :]", "[None, :, None, :]",
        ),
        Mistake(
            "cross_by_targets",
            "Encoder and decoder are right. But the mask of cross-attention has L columns, one for each decoder token; "
            "its keys are the S tokens of the source.",
            function=lambda source_lengths, L, S: (
                *encoder_decoder_masks(source_lengths, L, S)[:2], _padding(source_lengths, L)
            ),
        ),
        Mistake(
            "source_padding_on_decoder",
            "Encoder and cross-attention are right, and the decoder is causal. But it got the padding of the source "
            "too; its keys are the target's own tokens.",
            function=lambda source_lengths, L, S: (
                lambda encoder, decoder, cross: (encoder, decoder & _padding(source_lengths, L), cross)
            )(*encoder_decoder_masks(source_lengths, L, S)),
        ),
        Mistake(
            "order",
            "All three masks are right. But the order is encoder, decoder, cross.",
            "return encoder_keep, decoder_keep, cross_keep", "return encoder_keep, cross_keep, decoder_keep",
        ),
        Mistake(
            "decoder_first",
            "All three masks are right. But the decoder's comes first; the order is encoder, decoder, cross.",
            "return encoder_keep, decoder_keep, cross_keep", "return decoder_keep, encoder_keep, cross_keep",
        ),
    ),
    forms={
        "full shapes": lambda source_lengths, L, S: _read_masks(
            (source_lengths, L, S), encoder_decoder_masks(source_lengths, L, S)
        ),
        "decoder (L, L), in a list": lambda source_lengths, L, S: [
            _padding(source_lengths, S), np.tril(np.ones((L, L), bool)), _padding(source_lengths, S)
        ],
        "a loop": lambda source_lengths, L, S: (
            [[[[j < n for j in range(S)]]] for n in source_lengths],
            [[j <= i for j in range(L)] for i in range(L)],
            [[[[j < n for j in range(S)] for _ in range(L)]] for n in source_lengths],
        ),
        **usual_forms(encoder_decoder_masks),
    },
    hints=(
        "For each of the three ask: whose tokens are the keys? Which of them may not be seen?",
        "Encoder and cross-attention have the same keys, the source. Decoder self-attention has the target's.",
        "Only the decoder writes word by word, so it alone has a future: causal_mask(L, L). "
        "Both masks of lesson 04: from mha_lesson.steps.masks import causal_mask, padding_mask",
        "Padding (B, S) gets axes for heads and queries: padding_mask(source_lengths, S)[:, None, None, :].",
    ),
    well_done="A mask is about keys: the encoder's padding for encoder and cross, the triangle for the decoder.",
)  # fmt: skip

_TOO_LONG = 40  # tokens; the longest answer that is asked for has 7


def _model(vocabulary: int, following: Callable[[list[int]], int], dtype=np.float64) -> Callable:
    """A step function: row i favours the token `following(prefix[: i + 1])`. As a causal decoder, it is pure."""

    def step(prefix):
        ids = [int(i) for i in np.asarray(prefix).ravel()]
        if len(ids) > _TOO_LONG:
            raise OverflowError(f"the prefix has more than {_TOO_LONG} tokens, and this model has no more positions")
        scores = wave(len(ids), vocabulary, size=0.5, step=1.9, dtype=dtype) - 1
        for i in range(len(ids)):
            scores[i, following(ids[: i + 1]) % vocabulary] += 2 + i % 2
        return scores

    return step


def _writes(*answer: int) -> Callable:
    """It writes these tokens one after the other, whatever the prefix is, and then stays with the last."""
    return lambda prefix: answer[min(len(prefix), len(answer)) - 1]


def _decode_probes() -> list[Probe]:
    return [
        Probe((_model(7, _writes(3, 1, 4, 2)), 0, 2, 6), "a model that writes 3, 1, 4 and then stop = 2"),
        Probe((_model(11, lambda prefix: 3 * sum(prefix) + len(prefix)), 1, 0, 5),
              "a model in which each token depends on all before it, longest 5"),
        Probe((_model(5, _writes(4, 3, 1, 1)), 2, 0, 7), "a model that never stops, longest 7"),
        Probe((_model(5, _writes(3, 4)), 1, 3, 7), "a model that stops at once"),
        Probe((_model(7, _writes(5, 6, 4, 3), np.float32), 6, 3, 5),
              "start = 6, a token that comes up again as a word, float32"),
        Probe((_model(5, _writes(4, 1, 2, 0)), 3, 0, 3), "exactly 3 tokens, and longest 3"),
    ]  # fmt: skip


def _read_ids(arguments: tuple, answer: Any) -> np.ndarray:
    """Token ids as whole numbers: an empty list has no type of its own."""
    try:
        ids = np.asarray(plain(answer))
    except (NotPlain, ValueError):
        raise ValueError(f"expected a list of token ids, got {_what_is_in(answer)}") from None
    whole = ids.dtype.kind in "iuf" and np.isfinite(ids).all() and (ids == np.round(ids)).all()
    return ids.astype(int) if whole else ids


def _what_is_in(answer: Any) -> str:
    """An answer that is no list of numbers, in words: the first thing in it that is no number, if there is one."""
    if isinstance(answer, (list, tuple, np.ndarray)):
        for i, item in enumerate(np.asarray(answer, dtype=object) if isinstance(answer, np.ndarray) else answer):
            if isinstance(item, str):
                return f"one that holds text: item {i} is {str(item)!r}. Whole numbers are wanted, int(...)"
            if not isinstance(item, (int, float, np.number)):
                return f"one in which item {i} is a value of type {type(item).__name__}, not a whole number"
    return f"a value of type {type(answer).__name__}"


def _prefix_stays(function: Callable) -> bool:
    """Is step asked more than once, and each time with a single token?"""
    lengths = []
    model = _model(7, _writes(3, 1, 4, 2))

    def step(prefix):
        lengths.append(np.size(prefix))
        if len(lengths) > _TOO_LONG:
            raise OverflowError("asked too often")
        return model(prefix)

    calls.call_all(function, [(step, 0, 2, 6)], calls.SECONDS)
    return len(lengths) > 1 and set(lengths) == {1}


def _runs_on(step, start, longest):
    return greedy_decode(step, start, None, longest)


def _at_stop_only(step, start, stop, longest):
    new = _runs_on(step, start, longest)
    return new[: new.index(stop)] if stop in new else None


def _decode_by_stop_alone(step, start, stop, longest):
    tokens = [start]
    while (best := int(np.argmax(step(tokens)[-1]))) != stop:
        tokens.append(best)
    return tokens[1:]


def _decode_recursively(step, start, stop, longest):
    def more(prefix, left):
        best = int(np.argmax(np.asarray(step(prefix))[-1]))
        return [] if left == 0 or best == stop else [best, *more([*prefix, best], left - 1)]

    return more([start], longest)


def _decode_then_trim(step, start, stop, longest):
    ids = np.array([start])
    while len(ids) - 1 < longest:
        ids = np.append(ids, step(ids)[-1].argmax())
    new = ids[1:].tolist()
    return new[: new.index(stop)] if stop in new else new


DECODE = Exercise(
    id="07.decode",
    signature="decode(step, start, stop, longest)",
    solution=greedy_decode,
    read=_read_ids,
    advice="Call your function with a small step of your own, and print the tokens at each turn of the loop.",
    probes=_decode_probes,
    mistakes=(
        Mistake(
            "first_row",
            "The loop and its end are right. But each token is chosen by the scores that follow the start (the "
            "first row); the new ones are in the last row: scores[-1], of step with all tokens so far.",
            "scores[-1]", "scores[0]",
        ),
        Mistake(
            "prefix_never_grows",
            "The last row is taken, and the loop ends as it should. But your prefix never grows: step gets [start] at "
            "each turn and gives the same answer. Append the new token to the list that step gets.",
            "step(tokens)", "step([start])",
            when=_prefix_stays,
        ),
        Mistake(
            "nothing_appended",
            "step is asked at each turn. But nothing is kept of what it says, so your prefix never grows and what "
            "comes back is empty: tokens.append(best), after the look for stop.",
            function=lambda step, start, stop, longest: [step([start]) for _ in range(longest)][:0],
            when=_prefix_stays,
        ),
        Mistake(
            "all_rows",
            "The loop and its end are right. But np.argmax(scores) looks at all rows and counts through them; take "
            "the last row first: np.argmax(scores[-1]).",
            "scores[-1]", "scores",
        ),
        Mistake(
            "lowest",
            "The last row is the right one. But you take its lowest score; the best token has the highest: np.argmax.",
            "np.argmax", "np.argmin",
        ),
        Mistake(
            "keeps_stop",
            "The tokens are right. But the stop token is among them: look whether best is stop before you append it.",
            "if best == stop:\n            break\n        tokens.append(best)",
            "tokens.append(best)\n        if best == stop:\n            break",
        ),
        Mistake(
            "keeps_start",
            "The tokens are right. But the start token is among them: return what comes after it, tokens[1:].",
            "return tokens[1:]", "return tokens",
        ),
        Mistake(
            "keeps_both",
            "The tokens between are right. But start and stop are among them: test for stop before you append, and "
            "return tokens[1:].",
            function=lambda step, start, stop, longest: [start, *_with_stop(step, start, stop, longest)],
        ),
        Mistake(
            "filters_start",
            "The choice and the end are right. But every start is filtered out, and start may come up again as a word; "
            "only the first start is left out: tokens[1:].",
            function=lambda step, start, stop, longest: [
                t for t in greedy_decode(step, start, stop, longest) if t != start
            ],
        ),
        Mistake(
            "filters_stop",
            "The choice is right, and no stop comes back. But stop is filtered out and the words after it stay; it is "
            "the end: leave the loop when the best token is stop.",
            function=lambda step, start, stop, longest: [t for t in _runs_on(step, start, longest) if t != stop],
        ),
        Mistake(
            "filters_both",
            "The choice is right. But start and stop are filtered out at the end. Words after stop must not come: "
            "leave the loop there. And start may come up again as a word; only the first start is left out: "
            "tokens[1:].",
            function=lambda step, start, stop, longest: [
                t for t in _runs_on(step, start, longest) if t not in (start, stop)
            ],
        ),
        Mistake(
            "never_stops",
            "The tokens are right as far as they should go. But stop does not end it: leave the loop when the best "
            "token is stop.",
            "if best == stop:", "if best is None:",
        ),
        Mistake(
            "stops_at_start",
            "The choice is right, and the loop can end early. But you compare with start; stop is the token that ends "
            "it.",
            "best == stop", "best == start",
        ),
        Mistake(
            "ignores_longest",
            "All is right where the model stops by itself. But a model may never write stop: after `longest` new "
            "tokens the loop must end.",
            function=_decode_by_stop_alone,
        ),
        Mistake(
            "one_too_many",
            "The tokens are right. But where the model does not stop there is one too many: `longest` new "
            "tokens at most.",
            "range(longest)", "range(longest + 1)",
        ),
        Mistake(
            "one_too_few",
            "The tokens are right. But where the model does not stop there is one too few. `longest` new tokens may "
            "come: start does not count, and a last token that is not stop stays.",
            "range(longest)", "range(longest - 1)",
        ),
        Mistake(
            "last_token_only",
            "The loop and its end are right. But step gets the last token alone, and has forgotten what came before "
            "it: give it all tokens so far.",
            "step(tokens)", "step(tokens[-1:])",
        ),
        Mistake(
            "only_the_last",
            "The right tokens are found. But the last one alone comes back: collect them in a list.",
            "return tokens[1:]", "return tokens[1:][-1:]",
        ),
        Mistake(
            "return_in_loop",
            "The first token is right. But `return` stands inside the loop and ends it at the first turn (and where "
            "stop comes at once, nothing is returned): move it to the left, in line with `for`.",
            "tokens.append(best)\n    return tokens[1:]", "tokens.append(best)\n        return tokens[1:]",
        ),
        Mistake(
            "first_token_alone",
            "The first token is right. But no second one comes. Does a `return` stand inside the loop? It ends the "
            "loop at the first turn: move it to the left, in line with `for`.",
            function=lambda step, start, stop, longest: greedy_decode(step, start, stop, min(longest, 1)),
        ),
        Mistake(
            "returns_at_stop_only",
            "All is right where the model writes stop. But after `longest` tokens the loop ends by itself, and then "
            "nothing is returned: put a `return` after the loop, in line with `for`.",
            function=_at_stop_only,
        ),
    ),
    forms={
        "recursive": _decode_recursively,
        "writes on, trims later": _decode_then_trim,
        "highest by sorting": lambda step, start, stop, longest: _by_sorting(step, start, stop, longest),
        "one call too many": lambda step, start, stop, longest: (
            greedy_decode(step, start, stop, longest + 1)[:longest]
        ),
        **usual_forms(greedy_decode),
    },
    hints=(
        "Keep a list of tokens that begins with start, and a loop that runs at most `longest` times.",
        "step(tokens) has one row for each token; the row that scores the next token is the last, [-1].",
        "best = int(np.argmax(scores[-1])). If it is stop, leave the loop; otherwise append it.",
        "start is the first of the list: return tokens[1:].",
    ),
    well_done="Word by word, the best one each time: the encoder is read once, the decoder runs for each word.",
)  # fmt: skip


def _with_stop(step, start, stop, longest):
    new = greedy_decode(step, start, stop, longest)
    return new if len(new) == longest else [*new, stop]


def _by_sorting(step, start, stop, longest):
    out = ()
    for _ in range(longest):
        row = list(step((start, *out))[-1])
        best = max(range(len(row)), key=row.__getitem__)
        if best == stop:
            return out
        out = (*out, best)
    return out


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

COST = Exercise(
    id="07.cost",
    signature="cost(L, S, E)",
    solution=cross_cost,
    read=_read_count,
    advice="List the six products with their shapes, and print each count by itself. (E squared is E**2 or E * E; "
    "E^2 is no power in Python.)",
    probes=lambda: [
        Probe((2, 3, 5), "L 2, S 3, E 5"),
        Probe((7, 5, 3), "L 7, S 5, E 3"),
        Probe((1, 11, 2), "a single query, S 11, E 2"),
        Probe((13, 13, 17), "self-attention, L = S = 13, E 17"),
        Probe((128, 1024, 512), "L 128, S 1024, E 512"),
    ],
    mistakes=(
        Mistake(
            "no_output",
            "Projections, scores and mix are right. But the output projection is missing: another L · E · E.",
            " + output", "",
        ),
        Mistake(
            "one_product",
            "The projections are right. But L · S · E comes twice: once for the scores, (L, E) @ (E, S), and once for "
            "the weighted sum of the values, (L, S) @ (S, E).",
            " + mixing", "",
        ),
        Mistake(
            "scores_without_width",
            "The projections and the weighted sum are right. But each of the L · S scores is a sum of E products: "
            "L · S · E.",
            function=lambda L, S, E: 2 * L * E * E + 2 * S * E * E + L * S * (E + 1),
        ),
        Mistake(
            "no_values",
            "Queries, scores and mix are right. But the source is projected twice, to keys and to "
            "values: 2 · S · E · E.",
            "2 * S * E * E", "S * E * E",
        ),
        Mistake(
            "keys_by_queries",
            "The terms are right in kind. But keys and values are made from the S tokens of the encoder: 2 · S · E · "
            "E, not 2 · L · E · E.",
            "2 * S * E * E", "2 * L * E * E",
        ),
        Mistake(
            "queries_by_keys",
            "The other terms are right. But one projection of the decoder is counted with S: queries and output have a "
            "row for each of the L decoder tokens, L · E · E each.",
            "queries = L * E * E", "queries = S * E * E",
        ),
        Mistake(
            "square_of_queries",
            "The projections are right. But L · L is self-attention; here L queries meet S keys: L · S · E, twice.",
            function=lambda L, S, E: 2 * L * E * E + 2 * S * E * E + 2 * L * L * E,
        ),
        Mistake(
            "square_of_keys",
            "The projections are right. But S · S is the encoder's own attention; here L queries meet S keys: L · S · "
            "E, twice.",
            function=lambda L, S, E: 2 * L * E * E + 2 * S * E * E + 2 * S * S * E,
        ),
        Mistake(
            "self_attention",
            "This is right for self-attention. But keys and values come from the S tokens of the encoder: 2 · S · E · "
            "E for them, and L · S · E twice.",
            function=lambda L, S, E: cross_cost(L, L, E),
        ),
        Mistake(
            "no_width",
            "The projections are right. But each of the L · S scores is a sum of E products, and so is the mix: "
            "L · S · E, twice.",
            function=lambda L, S, E: 2 * L * E * E + 2 * S * E * E + 2 * L * S,
        ),
        Mistake(
            "encoder_self_attention",
            "This is right for the encoder's self-attention. But here the L decoder tokens ask: L · E · E for the "
            "queries and for the output, and L · S · E twice.",
            function=lambda L, S, E: cross_cost(S, S, E),
        ),
        Mistake(
            "self_and_cross",
            "Cross-attention is counted right. But the decoder's self-attention is added to it; asked for is the one "
            "layer of cross-attention alone.",
            function=lambda L, S, E: cross_cost(L, L, E) + cross_cost(L, S, E),
        ),
        Mistake(
            "projections_only",
            "The four projections are right. But the attention itself is missing: L · S · E for the scores, and once "
            "more for the mix.",
            " + scores + mixing", "",
        ),
        Mistake(
            "no_projections",
            "Scores and mix are right. But the four projections are missing; in short sequences they cost the most.",
            function=lambda L, S, E: 2 * L * S * E,
        ),
        Mistake(
            "width_once",
            "Scores and mix are right. But a projection (L, E) @ (E, E) takes L · E · E, not L · E.",
            function=lambda L, S, E: 2 * L * E + 2 * S * E + 2 * L * S * E,
        ),
        Mistake(
            "everything_projected_for_both",
            "Scores, mix and output are right. But each side makes only what it needs: the decoder queries, the "
            "encoder keys and values.",
            function=lambda L, S, E: 3 * (L + S) * E * E + 2 * L * S * E + L * E * E,
        ),
        Mistake(
            "additions_too",
            "Every term is there. But you count the additions as well (FLOPs); asked for are the multiplications "
            "alone, half of it.",
            function=lambda L, S, E: 2 * cross_cost(L, S, E),
        ),
        *(
            Mistake(
                f"times_{h}_heads",
                f"Every term is there. But {h} heads do not cost {h} times as much: each is only E / {h} wide, and "
                "together they cost what one wide head costs.",
                function=lambda L, S, E, h=h: 2 * L * E * E + 2 * S * E * E + h * 2 * L * S * E,
            )
            for h in (4, 8)
        ),
        *(
            Mistake(
                f"caret_{how}",
                "Every term is there. But in Python E^2 is no power (^ compares bits): write E**2 or E * E.",
                function=function,
            )
            for how, function in _WITH_CARET.items()
        ),
    ),
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

EXERCISES = (CROSS, MASKS, COST, DECODE)
