"""08.blocked: masks of many kinds."""

import numpy as np
import pytest

from mha_lesson.exercises import check

torch = pytest.importorskip("torch")

from mha_lesson.pytorch.interop import head_weights  # noqa: E402
from tests.exercises.lesson_08.helpers import blocked, module, said  # noqa: E402

pytestmark = pytest.mark.torch


def test_masks_of_numbers_are_told_what_pytorch_does_with_their_kind():
    kinds = {
        "int": lambda mask: mask.int(),
        "list": lambda mask: mask.int().tolist(),
        "numpy": lambda mask: mask.numpy().astype(np.uint8),
    }
    for kind in kinds.values():
        name, text = said("08.blocked", lambda lengths, S, kind=kind: kind(blocked(lengths, S)))
        assert name == "whole_zeros_and_ones" and "refuses" in text and "ADDED" not in text
        name, text = said("08.blocked", lambda lengths, S, kind=kind: kind(~blocked(lengths, S)))
        assert name == "whole_tokenizer_mask" and "refuses" in text and "add it" not in text
    name, text = said("08.blocked", lambda lengths, S: blocked(lengths, S).double().tolist())
    assert name == "zeros_and_ones" and "ADDED" in text
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    with pytest.raises(AssertionError, match="only bool and floating types"):
        module()(x, x, x, key_padding_mask=blocked([3, 1], 3).int())


@pytest.mark.parametrize("large", [-np.inf, -1e4, -1e9, torch.finfo(torch.float32).min])
def test_an_additive_mask_is_told_how_it_becomes_boolean(large):
    for name, places, mend in (
        ("additive", blocked, lambda mask: mask < 0),
        ("additive_inverted", lambda lengths, S: ~blocked(lengths, S), lambda mask: mask == 0),
    ):
        answer = lambda lengths, S, p=places: torch.zeros(len(lengths), S).masked_fill(p(lengths, S), large)  # noqa: E731
        found, text = said("08.blocked", answer)
        assert found == name and ("mask < 0" in text) == (name == "additive") and "astype" not in text
        assert check("08.blocked", lambda lengths, S, a=answer, m=mend: m(a(lengths, S))).status == "correct"
        assert said("08.blocked", lambda lengths, S, a=answer: a(lengths, S).numpy())[0] == name


def test_other_numbers_for_a_mask_are_not_told_to_be_cast():
    name, text = said("08.blocked", lambda lengths, S: torch.rand(len(lengths), S))
    assert name == "wrong_dtype" and "A mask is the answer of a comparison" in text and "bool)" not in text


def test_a_changed_argument_is_called_what_it_is():
    def writes(lengths, S):
        mask = blocked(lengths, S)
        lengths[0] = 17
        return mask

    name, text = said("08.blocked", writes)
    assert name == "changes_input" and "the caller's list is changed" in text and "`lengths = list(lengths)`" in text

    def sorts(lengths, S):
        mask = blocked(lengths, S)
        lengths.sort()
        return mask

    assert said("08.blocked", sorts)[0] == "changes_input"

    def inverts(layer, x, keep):
        weights = head_weights(layer, x, keep.clone())
        keep.logical_not_()
        return weights

    assert "the caller's tensor is changed" in said("08.per_head", inverts)[1]
