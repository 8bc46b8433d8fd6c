"""Tests and layers that several tests of lesson 08 use."""

import pytest

from mha_lesson.exercises import check

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import layer_checks  # noqa: E402


def failed(layer):
    with torch.no_grad():
        return {check.__name__ for check in layer_checks.CHECKS if not check(layer.eval())}


def sizes(layer):
    return torch.randn(2, 5, layer.d_model), torch.randn(2, 7, layer.d_model), torch.randn(2, 7, layer.d_model)


def each_head(layer):
    query, key, value = sizes(layer)
    return layer(query, key, value, need_weights=True)[1].shape == (2, layer.num_heads, 5, 7)


def without(*names):
    def test(layer):
        return all(check(layer.eval()) for check in layer_checks.CHECKS if check.__name__ not in names)

    return test


def no_eval(layer):
    return all(check(layer) for check in layer_checks.CHECKS)


def module(E=12, H=3, dtype="float64"):
    from mha_lesson.exercises.lesson_08.shared import _module

    return _module(E, H, dtype)


def blocked(lengths, S):
    return torch.arange(S) >= torch.tensor(lengths)[:, None]


def said(id, answer):
    result = check(id, answer)
    return result.mistake, result.message
