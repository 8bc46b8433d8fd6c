"""PyTorch's fused attention: how it is called."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch import MultiHeadAttention  # noqa: E402


@pytest.mark.parametrize(
    ("L", "S", "options", "is_causal", "mask"),
    [
        (5, 5, {"causal": True}, True, None),
        (5, 5, {}, False, None),
        (3, 5, {}, False, None),
        (1, 5, {"causal": True}, False, None),  # the last query, alone: nothing is hidden from it
        (3, 5, {"causal": True}, False, (3, 5)),
        (5, 5, {"causal": True, "keep": torch.ones(2, 1, 1, 5, dtype=torch.bool)}, False, (2, 1, 5, 5)),
        (5, 5, {"keep": torch.ones(2, 1, 1, 5, dtype=torch.bool)}, False, (2, 1, 1, 5)),  # not B L S of them
    ],
)
def test_sdpa_is_called_once_with_the_least_mask(monkeypatch, L, S, options, is_causal, mask):
    calls = []
    honest = F.scaled_dot_product_attention

    def spy(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **others):
        calls.append((is_causal, None if attn_mask is None else tuple(attn_mask.shape)))
        return honest(q, k, v, attn_mask, dropout_p, is_causal, **others)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    x, memory = torch.randn(2, L, 6), torch.randn(2, S, 6)
    MultiHeadAttention(6, 2)(x, memory, need_weights=True, **options)
    assert calls == [(is_causal, mask)]
    MultiHeadAttention(6, 2)(x * math.nan, memory, **options)  # a query that holds NaN has nothing to mend
    assert len(calls) == 2
