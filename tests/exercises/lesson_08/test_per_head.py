"""08.per_head: weights of each head, and masks."""

import pytest

from mha_lesson.exercises import check

torch = pytest.importorskip("torch")

from mha_lesson.pytorch.interop import head_weights  # noqa: E402
from tests.exercises.lesson_08.helpers import said  # noqa: E402

pytestmark = pytest.mark.torch


# -- weights and masks at the border ---------------------------------------------------------


def test_writing_into_a_tensor_gets_a_mend_for_tensors():
    def writes(layer, x, keep):
        weights = head_weights(layer, x, keep.clone())
        keep.logical_not_()
        return weights

    result = check("08.per_head", writes)
    assert result.mistake == "changes_input" and "`keep = keep.clone()`" in result.message


def test_an_error_comes_with_plain_shapes():
    said = check("08.per_head", lambda layer, x, keep: layer(x, x, x, attn_mask=keep[:2])).message
    assert "The shapes that came in: x (3, 4, 10), keep (4, 4)." in said


# -- what a newcomer was told, and should have been -------------------------------------------


def test_weights_that_were_not_asked_for_are_told_from_a_missing_return():
    def unasked(layer, x, keep):
        _, weights = layer(x, x, x, attn_mask=~keep, need_weights=False)
        return weights

    assert said("08.per_head", unasked)[0] == "not_asked"
    assert said("08.per_head", lambda layer, x, keep: layer(x, x, x, None, False)[1])[0] == "not_asked"
    name, text = said("08.per_head", lambda layer, x, keep: None)
    assert name == "returns_none" and "Is there a `return`" in text
    assert said("08.per_head", lambda layer, x, keep: print(layer(x, x, x)))[0] == "prints"


def test_a_padding_mask_in_place_of_an_attention_mask_has_a_name():
    name, text = said("08.per_head", lambda layer, x, keep: layer(
        x, x, x, key_padding_mask=~keep, average_attn_weights=False)[1])  # fmt: skip
    assert name == "key_padding_mask" and "use attn_mask, not key_padding_mask" in text
