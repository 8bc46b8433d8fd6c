"""07.cross: what newcomers write."""

import numpy as np

from mha_lesson.exercises import check
from mha_lesson.steps.encoder_decoder import cross_attention


def test_the_softmax_and_the_divisor_of_a_newcomer_are_named():
    def whole(xd, xe):
        e = np.exp(xd @ xe.T / np.sqrt(xd.shape[1]))
        return e / e.sum() @ xe

    def by_tokens(xd, xe):
        e = np.exp(xd @ xe.T / np.sqrt(xd.shape[0]))
        return e / e.sum(-1, keepdims=True) @ xe

    assert check("07.cross", whole).mistake == "whole_matrix"
    assert check("07.cross", by_tokens).mistake == "by_queries"
    said = check("07.cross", lambda xd, xe: xd + cross_attention(xd, xe))
    assert said.mistake == "residual" and "residual" not in said.message and "block" not in said.message
