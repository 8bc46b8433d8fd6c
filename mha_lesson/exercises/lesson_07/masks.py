"""Exercise 07.masks."""

import contextlib
from typing import Any

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol
from mha_lesson.exercises.engine.compare import NotPlain, plain
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.encoder_decoder import encoder_decoder_masks
from mha_lesson.steps.masks import causal_mask, padding_mask


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


mistake = Mistakes()


mistake.edit(
    "causal_on_cross",
    """Encoder and decoder are right, and no padding is seen. But cross-attention is causal too: the source is known
    from the start, so padding alone is hidden there.""",
    old="cross_keep = padding",
    new="cross_keep = padding & causal_mask(L, S)",
)

mistake.edit(
    "causal_on_cross_top_left",
    """Encoder and decoder are right, and no padding is seen. But cross-attention hides a triangle of the source: the
    source is known from the start, so padding alone is hidden there.""",
    old="cross_keep = padding",
    new="cross_keep = padding & np.tri(L, S, dtype=bool)",
)

mistake.edit(
    "only_causal_on_cross",
    """Encoder and decoder are right. But cross-attention got the causal mask; its keys are the encoder's tokens, so it
    takes the encoder's padding mask.""",
    old="cross_keep = padding",
    new="cross_keep = causal_mask(L, S)",
)

mistake.edit(
    "only_triangle_on_cross",
    """Encoder and decoder are right. But cross-attention got a triangle; its keys are the encoder's tokens, none of
    which lies in the future, so it takes the encoder's padding mask.""",
    old="cross_keep = padding",
    new="cross_keep = np.tri(L, S, dtype=bool)[None, None]",
)

mistake.edit(
    "decoder_mask_on_cross",
    """Encoder and decoder are right. But cross-attention got the decoder's mask, (L, L). A mask is about keys, and here
    these are the S tokens of the encoder: it takes the encoder's padding mask.""",
    old="cross_keep = padding",
    new="cross_keep = decoder_keep",
)

mistake.edit(
    "decoder_mask_too_on_cross",
    """Encoder and decoder are right, and cross-attention sees no padding. But it got the decoder's mask too, (L, L),
    which fits only where L = S. Nothing of the source lies in the future: padding alone is hidden.""",
    old="cross_keep = padding",
    new="cross_keep = padding & decoder_keep",
)

mistake.edit(
    "causal_on_encoder",
    """Decoder and cross-attention are right. But the encoder reads a finished text: it may look at both sides, so it
    needs no causal mask.""",
    old="encoder_keep = padding",
    new="encoder_keep = padding & causal_mask(S, S)",
)

mistake.edit(
    "no_padding_on_cross",
    """Encoder and decoder are right. But cross-attention sees the padding of the source: its keys are the encoder's
    tokens, so it takes the encoder's mask.""",
    old="cross_keep = padding",
    new="cross_keep = np.ones_like(padding)",
)

mistake.edit(
    "no_padding_on_encoder",
    """Decoder and cross-attention are right. But the encoder's tokens attend to their own padding: it needs the padding
    mask too.""",
    old="encoder_keep = padding",
    new="encoder_keep = np.ones_like(padding)",
)

mistake.edit(
    "decoder_sees_the_future",
    """Encoder and cross-attention are right. But the decoder may look at words that are not written yet: it needs
    causal_mask(L, L).""",
    old="causal_mask(L, L)",
    new="np.ones((L, L), bool)",
)


@mistake
def inverted(source_lengths, L, S):
    """Every mask is in its place. But all three say where NOT to look; here True means 'may attend'."""
    return tuple(~m for m in encoder_decoder_masks(source_lengths, L, S))


mistake.edit(
    "padding_inverted",
    """Every mask is in its place, and the causal one is right. But the padding mask is True for the padding, as
    key_padding_mask in nn.MultiheadAttention is; here True means 'may attend'.""",
    old="padding_mask(source_lengths, S)",
    new="~padding_mask(source_lengths, S)",
)

mistake.edit(
    "causal_inverted",
    """Every mask is in its place, and the padding is right. But the causal mask is True for the future; here True means
    'may attend'.""",
    old="causal_mask(L, L)",
    new="~causal_mask(L, L)",
)

mistake.edit(
    "causal_reversed",
    """Encoder and cross-attention are right, and the decoder has a triangle. But it is the wrong one: rows are queries,
    and each looks back. Transpose it.""",
    old="causal_mask(L, L)",
    new="causal_mask(L, L).T",
)

mistake.edit(
    "not_itself",
    """Encoder and cross-attention are right, and the future is hidden. But each decoder token sees itself too: the
    diagonal is True.""",
    old="causal_mask(L, L)",
    new="causal_mask(L, L) & ~np.eye(L, dtype=bool)",
)

mistake.edit(
    "sees_the_next",
    """Encoder and cross-attention are right, and the decoder has a triangle. But it is one too wide: each token sees
    the one after it, the very one it should predict. The diagonal is the last True (k=0).""",
    old="causal_mask(L, L)",
    new="np.tri(L, L, 1, dtype=bool)",
)

mistake.edit(
    "one_key_too_many",
    """Every mask is in its place, and the causal one is right. But one token of padding is seen: places count from 0,
    so length 3 means places 0, 1, 2. Compare with <, not with <=.""",
    old="padding_mask(source_lengths, S)",
    new="(np.arange(S) <= np.asarray(source_lengths)[:, None])",
)

mistake.edit(
    "one_key_too_few",
    """Every mask is in its place, and the causal one is right. But the last true token of each sequence is hidden:
    places count from 0, so length 3 means places 0, 1, 2.""",
    old="padding_mask(source_lengths, S)",
    new="(np.arange(S) < np.asarray(source_lengths)[:, None] - 1)",
)

mistake.edit(
    "padding_on_queries",
    """The right masks are in their places. But the padding lies on the axis of the queries; it is keys that must not be
    seen: [:, None, None, :].""",
    old="[:, None, None, :]",
    new="[:, None, :, None]",
)

mistake.edit(
    "no_axes",
    """The right masks are in their places. But (B, S) does not line up with scores (B, H, L, S): give the padding mask
    two more axes, [:, None, None, :].""",
    old="[:, None, None, :]",
    new="",
)

mistake.edit(
    "keys_on_heads",
    """The right masks are in their places, with four axes. But in (B, S, 1, 1) the tokens lie on the axis of the heads;
    keys come last: [:, None, None, :].""",
    old="[:, None, None, :]",
    new="[:, :, None, None]",
)

mistake.edit(
    "no_head_axis",
    """The right masks are in their places. But a padding mask (B, 1, S) puts the sequences on the axis of the heads:
    [:, None, None, :].""",
    old="[:, None, None, :]",
    new="[:, None, :]",
)

mistake.edit(
    "batch_on_heads",
    """The right masks are in their places, with four axes. But the sequences lie on the axis of the heads; they come
    first: [:, None, None, :].""",
    old="[:, None, None, :]",
    new="[None, :, None, :]",
)


@mistake
def cross_by_targets(source_lengths, L, S):
    """Encoder and decoder are right. But the mask of cross-attention has L columns, one for each decoder token; its
    keys are the S tokens of the source."""
    return (*encoder_decoder_masks(source_lengths, L, S)[:2], _padding(source_lengths, L))


@mistake
def source_padding_on_decoder(source_lengths, L, S):
    """Encoder and cross-attention are right, and the decoder is causal. But it got the padding of the source too; its
    keys are the target's own tokens."""
    return (lambda encoder, decoder, cross: (encoder, decoder & _padding(source_lengths, L), cross))(
        *encoder_decoder_masks(source_lengths, L, S)
    )


mistake.edit(
    "order",
    """All three masks are right. But the order is encoder, decoder, cross.""",
    old="return encoder_keep, decoder_keep, cross_keep",
    new="return encoder_keep, cross_keep, decoder_keep",
)

mistake.edit(
    "decoder_first",
    """All three masks are right. But the decoder's comes first; the order is encoder, decoder, cross.""",
    old="return encoder_keep, decoder_keep, cross_keep",
    new="return decoder_keep, encoder_keep, cross_keep",
)


MASKS = Exercise(
    id="07.masks",
    signature="masks(source_lengths, L, S)",
    solution=encoder_decoder_masks,
    helpers=(padding_mask, causal_mask),
    protocol=Protocol(read=_read_masks),
    advice="Result 1 is the encoder's mask, 2 the decoder's, 3 that of cross-attention; shapes and places are those "
    "after broadcasting to (B, H, queries, keys), and the values are True and False. Print masks(np.array([1, 3]), 2, "
    "3), small enough to be written by hand.",
    probes=lambda: [
        Probe((np.array([3, 5]), 2, 5), "lengths 3 and 5, L 2, S 5"),
        Probe((np.array([1, 3, 2]), 5, 3), "lengths 1, 3 and 2, L 5, S 3"),
        Probe((np.array([7, 4, 1, 6, 2]), 3, 7), "5 sequences, L 3, S 7"),
        Probe((np.array([4, 2, 3]), 5, 5), "lengths 4, 2 and 3, L = S = 5"),
    ],
    mistakes=mistake.all,
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
        "Only the decoder writes word by word, so it alone has a future: causal_mask(L, L). Both masks of lesson 04: "
        "from mha_lesson.steps.masks import causal_mask, padding_mask",
        "Padding (B, S) gets axes for heads and queries: padding_mask(source_lengths, S)[:, None, None, :].",
    ),
    well_done="A mask is about keys: the encoder's padding for encoder and cross, the triangle for the decoder.",
)  # fmt: skip
