"""08.load: weights out of PyTorch."""

import numpy as np
import pytest

from mha_lesson.attention import multi_head_attention, params_from_torch
from mha_lesson.exercises import REGISTRY, adopt, check

torch = pytest.importorskip("torch")

from tests.exercises.lesson_08.helpers import module, said  # noqa: E402

pytestmark = pytest.mark.torch


# -- weights and masks at the border ---------------------------------------------------------


def test_loaded_weights_give_the_output_of_pytorch():
    layer, x = module(), torch.randn(2, 5, 12, dtype=torch.float64)
    want = layer(x, x, x)[0].detach().numpy()
    assert np.abs(multi_head_attention(x.numpy(), params_from_torch(layer), 3) - want).max() < 1e-12
    mine = adopt("08.load", REGISTRY["08.load"].forms["tensors, by slices"])
    assert np.abs(multi_head_attention(x.numpy(), mine(layer), 3) - want).max() < 1e-12


def test_no_bias_is_none():
    params = params_from_torch(torch.nn.MultiheadAttention(6, 2, bias=False))
    assert all(params[f"b_{n}"] is None for n in "qkvo")


def test_a_dictionary_is_told_what_is_wrong_with_it():
    right = REGISTRY["08.load"].solution

    def says(change):
        result = check("08.load", lambda layer: change(right(layer)))
        return result.mistake, result.message

    def fewer(params):
        del params["b_o"]
        return {**params, "bias": 0}

    names = "w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o"
    assert says(fewer)[0] == "wrong_names"
    assert f"expected the names {names}: b_o missing, and bias not asked for." in says(fewer)[1]
    assert f"names {names}, got one with a NoneType for b_v" in says(lambda p: {**p, "b_v": None})[1]
    assert f"expected a dictionary of arrays with the names {names}, got a list" in says(lambda p: list(p.values()))[1]
    assert says(lambda p: {**p, "w_k": p["w_k"][:2]})[0] == "wrong_shape"
    assert "w_k: expected shape (6, 6), got (2, 6)" in says(lambda p: {**p, "w_k": p["w_k"][:2]})[1]
    assert says(lambda p: {**p, "w_k": p["w_k"] * 2})[0] == "different"


# -- what a newcomer was told, and should have been -------------------------------------------


def test_weights_rounded_on_the_way_are_not_right():
    name, text = said("08.load", lambda layer: {n: p.astype(np.float32) for n, p in params_from_torch(layer).items()})
    assert name == "wrong_dtype" and "w_q: the numbers are right, but rounded to float32" in text
    assert "leave out .float()" in text
    name, text = said("08.load", lambda layer: {**params_from_torch(layer), "b_o": layer.out_proj.bias.float()})
    assert name == "wrong_dtype" and "b_o: the numbers" in text
    wider = lambda layer: {n: p.astype(np.float64) for n, p in params_from_torch(layer).items()}  # noqa: E731
    assert check("08.load", wider).status == "correct"
