"""07.masks: masks in many shapes, and those that newcomers write."""

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY, adopt, check
from mha_lesson.steps.encoder_decoder import encoder_decoder_masks

# ---------------------------------------------------------------------------- answers in many shapes


def test_masks_may_come_in_any_shape_that_broadcasts():
    def masks(source_lengths, L, S):
        padding = np.arange(S) < source_lengths[:, None]
        return [padding[:, None, None], np.tri(L, dtype=bool), np.repeat(padding[:, None, None], L, axis=2)]

    assert check("07.masks", masks).status == "correct"
    found = adopt("07.masks", masks)(np.array([1, 3]), 2, 3)
    assert [m.shape for m in found] == [(2, 1, 3, 3), (2, 1, 2, 2), (2, 1, 2, 3)]


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda source_lengths, L, S: np.True_, "expected three masks, got a value of type"),
        (lambda source_lengths, L, S: (np.True_, None), "expected three masks (encoder, decoder, cross), got 2"),
        (lambda source_lengths, L, S: ("a", None, None), "no array of True and False"),
    ],
)
def test_what_is_no_mask_is_said(answer, said):
    result = check("07.masks", answer)
    assert result.mistake == "wrong_type" and said in result.message


def test_numbers_for_masks_are_told():
    def masks(source_lengths, L, S):
        return tuple(m.astype(float) for m in encoder_decoder_masks(source_lengths, L, S))

    result = check("07.masks", masks)
    assert result.mistake == "wrong_dtype" and "result 1 of 3" in result.message


# ---------------------------------------------------------------------------- 07, what a newcomer wrote


def padded(source_lengths, S):
    return (np.arange(S) < source_lengths[:, None])[:, None, None, :]


def triangle(n, k=0):
    return np.tri(n, n, k, dtype=bool)


def with_decoder_mask(source_lengths, L, S):
    padding = padded(source_lengths, S)
    return padding, triangle(L), padding & triangle(L)


NEWCOMER_MASKS = {
    "decoder_mask_on_cross": lambda source_lengths, L, S: (padded(source_lengths, S), triangle(L), triangle(L)),
    "decoder_mask_too_on_cross": with_decoder_mask,
    "decoder_first": lambda source_lengths, L, S: (
        triangle(L), np.repeat(padded(source_lengths, S), S, axis=2), padded(source_lengths, S)
    ),
    "sees_the_next": lambda source_lengths, L, S: (
        padded(source_lengths, S), triangle(L, k=1)[None, None], padded(source_lengths, S)
    ),
    "one_key_too_many": lambda source_lengths, L, S: (
        padded(source_lengths + 1, S), triangle(L)[None, None], padded(source_lengths + 1, S)
    ),
    "keys_on_heads": lambda source_lengths, L, S: (
        padded(source_lengths, S).swapaxes(1, 3), triangle(L), padded(source_lengths, S).swapaxes(1, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEWCOMER_MASKS)
def test_the_masks_of_a_newcomer_are_named(name):
    assert check("07.masks", NEWCOMER_MASKS[name]).mistake == name


def test_three_masks_are_not_asked_for_where_three_came():
    def one_wrong(source_lengths, L, S):
        encoder, _, cross = encoder_decoder_masks(source_lengths, L, S)
        return encoder, np.eye(L, dtype=bool), cross

    result = check("07.masks", one_wrong)
    assert result.mistake == "different" and "with commas between" not in result.message
    assert "2 the decoder's" in result.message and "result 2 of 3" in result.message
    assert "with commas between" in check("07.masks", lambda source_lengths, L, S: (True, True)).message
    assert any("from mha_lesson.steps.masks import causal_mask, padding_mask" in h for h in REGISTRY["07.masks"].hints)
