"""08.load, 08.blocked, 08.per_head: what newcomers write has a name."""

import numpy as np
import pytest

from mha_lesson.attention import params_from_torch

torch = pytest.importorskip("torch")

from tests.exercises.lesson_08.helpers import said  # noqa: E402

pytestmark = pytest.mark.torch


def asking(mask, **changed):
    options = {"average_attn_weights": False, **changed}
    return lambda layer, x, keep: layer(x, x, x, attn_mask=mask(keep), **options)[1]


def in_training(layer, x, keep):
    layer.train()
    return layer(x, x, x, attn_mask=~keep, average_attn_weights=False)[1]


def first_bias(layer):
    params = params_from_torch(layer)
    return params | {"b_k": params["b_q"], "b_v": params["b_q"]}


def swapped_biases(layer):
    params = params_from_torch(layer)
    return params | {"b_k": params["b_q"], "b_q": params["b_k"]}


NEWCOMERS = [
    ("08.per_head", asking(lambda keep: (~keep).double()), "mask_as_float64"),
    ("08.per_head", asking(lambda keep: (~keep).float()), "mask_as_float32"),
    ("08.per_head", asking(lambda keep: keep.double()), "keep_as_float64"),
    ("08.per_head", asking(lambda keep: keep.float()), "keep_as_float32"),
    ("08.per_head", asking(lambda keep: ~keep.T), "mask_transposed"),
    ("08.per_head", asking(lambda keep: (~keep).mT), "mask_transposed"),
    ("08.per_head", asking(lambda keep: ~keep.T, average_attn_weights=True), "averaged+mask_transposed"),
    ("08.per_head", in_training, "training_mode"),
    ("08.load", first_bias, "one_bias_for_all"),
    ("08.load", swapped_biases, "biases_kqv"),
    ("08.blocked", lambda lengths, S: torch.arange(S) >= torch.tensor(lengths), "no_column"),
    ("08.blocked", lambda lengths, S: np.arange(S) >= np.array(lengths), "no_column"),
]


@pytest.mark.parametrize("id, answer, name", NEWCOMERS, ids=[f"{id}-{i}" for i, (id, _, _) in enumerate(NEWCOMERS)])
def test_what_newcomers_write_has_a_name(id, answer, name):
    assert said(id, answer)[0] == name
