"""Masks and weights at the border to nn.MultiheadAttention."""

import pytest

torch = pytest.importorskip("torch")

from mha_lesson.pytorch.interop import head_weights, key_padding_mask  # noqa: E402
from tests.exercises.lesson_08.helpers import module  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_padding_mask_hides_what_stands_in_the_padding():
    layer, x = module(), torch.randn(2, 5, 12, dtype=torch.float64)
    blocked = key_padding_mask([5, 3], 5)
    short = layer(x[1:, :3], x[1:, :3], x[1:, :3])[0]
    assert torch.allclose(layer(x, x, x, key_padding_mask=blocked)[0][1:, :3], short)


def test_the_weights_of_the_heads_make_the_mean():
    layer, x = module(), torch.randn(2, 5, 12, dtype=torch.float64)
    keep = torch.ones(5, 5, dtype=torch.bool).tril()
    weights = head_weights(layer, x, keep)
    assert weights.shape == (2, 3, 5, 5) and not weights.triu(1).any()
    assert torch.allclose(weights.mean(1), layer(x, x, x, attn_mask=~keep)[1])
