"""Lesson 08: a test that tells right attention layers from wrong ones, the scoreboard, and life without torch."""

import subprocess
import sys

import numpy as np
import pytest

from mha_lesson.attention import multi_head_attention, params_from_torch
from mha_lesson.exercises import REGISTRY, adopt, check, hint, scoreboard, solution
from mha_lesson.exercises.engine import sandbox
from mha_lesson.exercises.lesson_08 import BLOCKED, LOAD, WORKS
from mha_lesson.exercises.lesson_08 import scoreboard as board_file
from mha_lesson.exercises.lesson_08.works import RIGHT, WRONG

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from mha_lesson.exercises.lesson_08 import broken_layers  # noqa: E402
from mha_lesson.pytorch import layer_checks  # noqa: E402
from mha_lesson.pytorch.interop import head_weights, key_padding_mask  # noqa: E402

pytestmark = pytest.mark.torch

# Which of the eight checks each wrong layer fails. Dropout is left to chance: it fails nearly all.
FAILS = {
    "no_scale": {"formula_holds"},
    "softmax_over_queries": {"weights_are_shares", "formula_holds", "empty_rows_are_zero"},
    "keep_reversed": {"formula_holds", "padding_is_hidden", "future_is_hidden", "empty_rows_are_zero"},
    "causal_upper_left": {"future_is_hidden"},
    "merged_by_reshape": {
        "formula_holds", "weights_make_the_output", "order_is_free", "future_is_hidden", "empty_rows_are_zero",
    },
    "weights_averaged": {"weights_are_shares", "weights_make_the_output"},
    "value_ignored": {"formula_holds", "weights_make_the_output", "future_is_hidden"},
    "nan_in_empty_rows": {"empty_rows_are_zero"},
    "weights_change_the_output": {"answers_stay_the_same"},
}  # fmt: skip


def failed(layer):
    with torch.no_grad():
        return {check.__name__ for check in layer_checks.CHECKS if not check(layer.eval())}


# -- the layers and the eight checks ---------------------------------------------------------


def test_the_layers_are_those_of_the_table():
    assert list(broken_layers.right_layers()) == list(RIGHT) and len(RIGHT) == 6
    assert list(broken_layers.wrong_layers()) == list(WRONG) and len(WRONG) == 10
    assert all(layer.fault == "" for layer in broken_layers.right_layers().values())


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_layer_passes_every_check(name):
    layer = broken_layers.right_layers()[name]
    assert failed(layer) == set()
    assert layer_checks.works(layer) is True
    assert layer_checks.works(layer.double()), "in float64, too"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layer_fails_the_checks_that_look_at_its_fault(name):
    layer = broken_layers.wrong_layers()[name]
    if name == "dropout_in_evaluation":
        assert failed(layer) >= {"answers_stay_the_same", "formula_holds"}
    else:
        assert failed(layer) == FAILS[name]
    assert layer_checks.works(layer) is False


def test_four_of_the_checks_find_what_no_other_finds_and_all_find_something():
    alone = {next(iter(names)) for names in FAILS.values() if len(names) == 1}
    assert alone == {"formula_holds", "future_is_hidden", "empty_rows_are_zero", "answers_stay_the_same"}
    assert (
        set().union(*FAILS.values()) == {check.__name__ for check in layer_checks.CHECKS}
        and len(layer_checks.CHECKS) == 8
    )


def test_a_wrong_layer_is_a_right_one_with_one_method_changed():
    assert failed(broken_layers.StepByStep(8, 2)) == set()
    for layer in broken_layers.wrong_layers().values():
        changed = [name for name, value in vars(type(layer)).items() if callable(value)]
        assert len(changed) == 1 and type(layer).__bases__ == (broken_layers.StepByStep,)


def test_a_test_leaves_the_layer_as_it_was():
    layer = broken_layers.right_layers()["training_mode"]
    before = {name: p.clone() for name, p in layer.state_dict().items()}
    assert layer_checks.works(layer) and layer.training
    assert all(torch.equal(p, before[name]) for name, p in layer.state_dict().items())


def test_right_layers_hide_nan_in_padding():
    for layer in broken_layers.right_layers().values():
        query, key, value = layer_checks.inputs(layer)
        keep = (torch.arange(7) < 4)[None, None, None].expand(3, 1, 1, 7)
        want = layer.eval()(query, key, value, keep)
        have = layer(query, key.masked_fill(~keep[:, 0, 0, :, None], torch.nan), value, keep)
        assert layer_checks.close(want, have)


# -- wrong layers that are not on the scoreboard ----------------------------------------------


class ForgetsKeepWhenCausal(broken_layers.StepByStep):
    def mask(self, keep, causal, L, S):
        return super().mask(None if causal else keep, causal, L, S)


class ForgetsCausalBesideKeep(broken_layers.StepByStep):
    def mask(self, keep, causal, L, S):
        return super().mask(keep, causal and keep is None, L, S)


class KeepOrCausal(broken_layers.StepByStep):
    def mask(self, keep, causal, L, S):
        both = keep is not None and causal
        return keep | super().mask(None, True, L, S) if both else super().mask(keep, causal, L, S)


class ForgetsKeepWhenAskedForWeights(broken_layers.StepByStep):
    def _attend(self, query, key, value, keep, causal, need_weights):
        return super()._attend(query, key, value, None if need_weights else keep, causal, need_weights)


class ReportsWeightsBeforeCausal(broken_layers.StepByStep):
    def _attend(self, query, key, value, keep, causal, need_weights):
        output, _ = super()._attend(query, key, value, keep, causal, False)
        return output, super()._attend(query, key, value, keep, False, need_weights)[1]


class NaNOnlyInGradients(broken_layers.StepByStep):
    """An additive mask, and nan_to_num behind the softmax."""

    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(-1)
        added = torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
        return (scores + added).softmax(-1).nan_to_num(0)


class KeepOfHeadZero(broken_layers.StepByStep):
    def mask(self, keep, causal, L, S):
        return super().mask(keep[:, :1] if keep is not None and keep.dim() == 4 else keep, causal, L, S)


class KeepOfSampleZero(broken_layers.StepByStep):
    def mask(self, keep, causal, L, S):
        return super().mask(keep[:1] if keep is not None and keep.dim() == 4 else keep, causal, L, S)


class SamplesMixed(broken_layers.StepByStep):
    """Takes the batch for the sequence, in causal self-attention alone."""

    def _attend(self, query, key, value, keep, causal, need_weights):
        if not causal or keep is not None or query.shape != key.shape:
            return super()._attend(query, key, value, keep, causal, need_weights)
        turned = (x.transpose(0, 1) for x in (query, key, value))
        output, weights = super()._attend(*turned, keep, causal, need_weights)
        return output.transpose(0, 1), weights


HOLES = {
    ForgetsKeepWhenCausal: {"padding_is_hidden"},
    ForgetsCausalBesideKeep: {"future_is_hidden"},
    KeepOrCausal: {"future_is_hidden", "padding_is_hidden"},
    ForgetsKeepWhenAskedForWeights: {"padding_is_hidden", "empty_rows_are_zero"},
    ReportsWeightsBeforeCausal: {"weights_make_the_output"},
    NaNOnlyInGradients: {"empty_rows_are_zero"},
    KeepOfHeadZero: {"formula_holds"},
    KeepOfSampleZero: {"formula_holds", "padding_is_hidden"},
    SamplesMixed: {"answers_stay_the_same"},
}


@pytest.mark.parametrize("wrong", HOLES, ids=lambda wrong: wrong.__name__)
def test_what_a_newcomer_got_past_the_checks_is_found(wrong):
    layer = broken_layers._filled(wrong(12, 4))
    assert failed(layer) == HOLES[wrong]
    assert layer_checks.works(layer) is False
    assert layer.training is False and all(p.grad is None for p in layer.parameters())


def test_neighbours_share_a_head_and_nan_is_close_to_nothing():
    assert layer_checks.works(broken_layers._filled(broken_layers.Fused(12, 4, 2))), "heads 0 and 1 share, and 2 and 3"
    nan = torch.full((2,), torch.nan)
    assert layer_checks.close(torch.ones(2), torch.ones(2)) and not layer_checks.close(nan, nan)


def test_the_gradient_is_asked_for_in_a_frozen_layer_too():
    layer = broken_layers._filled(broken_layers.StepByStep(12, 4)).requires_grad_(False)
    assert layer_checks.works(layer)
    assert not layer_checks.works(broken_layers._filled(NaNOnlyInGradients(12, 4)).requires_grad_(False))


# -- tests as learners write them ------------------------------------------------------------


def sizes(layer):
    return torch.randn(2, 5, layer.d_model), torch.randn(2, 7, layer.d_model), torch.randn(2, 7, layer.d_model)


def shape_of_output(layer):
    query, key, value = sizes(layer)
    return layer(query, key, value).shape == query.shape


def exact(layer):
    query, key, value = layer_checks.inputs(layer.eval())
    q, k, v = (
        layer_checks.heads(layer, project(x)).double()
        for project, x in ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, value))
    )
    return torch.equal(layer(query, key, value), layer_checks.joined(layer, (q @ k.mT).softmax(-1).float() @ v.float()))


def averaged(layer):
    query, key, value = sizes(layer)
    return layer(query, key, value, need_weights=True)[1].shape == (2, 5, 7)


def each_head(layer):
    query, key, value = sizes(layer)
    return layer(query, key, value, need_weights=True)[1].shape == (2, layer.num_heads, 5, 7)


def sums(layer):
    _, weights = layer.eval()(*sizes(layer), need_weights=True)
    return torch.allclose(weights.sum(-1), torch.ones(()))


def each_head_and_sums(layer):
    return each_head(layer) and sums(layer)


def formula(layer):
    query, key, value = layer_checks.inputs(layer.eval())
    parts = ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, value))
    q, k, v = (layer_checks.heads(layer, project(x)) for project, x in parts)
    return layer_checks.close(
        layer(query, key, value), layer_checks.joined(layer, F.scaled_dot_product_attention(q, k, v))
    )


def formula_of_x(layer):
    x = torch.randn(3, 6, layer.d_model)
    q, k, v = (layer_checks.heads(layer, project(x)) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    want = layer_checks.joined(layer, F.scaled_dot_product_attention(q, k, v))
    return torch.allclose(layer.eval()(x), want, atol=1e-5)


def formula_of_one_head(layer):
    x = torch.randn(3, 6, layer.d_model)
    want = layer.out_proj(F.scaled_dot_product_attention(layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)))
    return torch.allclose(layer.eval()(x), want, atol=1e-5)


def without(*names):
    def test(layer):
        return all(check(layer.eval()) for check in layer_checks.CHECKS if check.__name__ not in names)

    return test


def same_without_causal(layer):
    x, _, _ = layer_checks.inputs(layer.eval())
    return layer_checks.close(layer(x), layer(x)) and layer_checks.close(layer(x), layer(x, need_weights=True)[0])


def no_causal(layer):
    return without("future_is_hidden", "answers_stay_the_same")(layer) and same_without_causal(layer)


def no_masks(layer):
    return formula(layer) and layer_checks.weights_are_shares(layer) and same_without_causal(layer)


def no_keep(layer):
    query, key, value = layer_checks.inputs(layer.eval())
    other = value + torch.eye(7)[6, :, None]  # at the last key
    before, after = layer(query, key, value, causal=True), layer(query, key, other, causal=True)
    corner = layer_checks.close(before[:, :4], after[:, :4]) and not layer_checks.close(before[:, 4], after[:, 4])
    return no_masks(layer) and corner and layer_checks.answers_stay_the_same(layer)


def sample_for_weights(layer):
    query, key, value = sizes(layer)
    weights = layer.eval()(query, key, value)[1]
    return weights.shape == (2, layer.num_heads, 5, 7) and layer_checks.works(layer)


def no_eval(layer):
    return all(check(layer) for check in layer_checks.CHECKS)


def square(layer):
    """Everything that shows in self-attention."""
    x = torch.randn(3, 6, layer.d_model)
    later = x.clone()
    later[:, 4:] += 1
    out, again = layer.eval()(x, causal=True)[:, :4], layer(later, causal=True)[:, :4]
    keep = (torch.arange(6) < 4)[None, None, None]
    hidden = layer(x, keep=keep.expand(3, 1, 1, 6)), layer(later, keep=keep.expand(3, 1, 1, 6))
    _, weights = layer(x, need_weights=True)
    return (
        torch.allclose(out, again, atol=1e-5) and formula_of_x(layer) and weights.shape == (3, layer.num_heads, 6, 6)
        and torch.allclose(hidden[0][:, :4], hidden[1][:, :4], atol=1e-5)
        and layer_checks.empty_rows_are_zero(layer) and layer_checks.answers_stay_the_same(layer)
    )  # fmt: skip


def cut_into_num_heads(layer):
    _, key, _ = sizes(layer)
    shape = (2, 7, layer.num_heads, layer.d_model // layer.num_heads)
    return layer.k_proj(key).view(shape).shape == shape and layer_checks.works(layer)


def upside_down(layer):
    return not layer_checks.works(layer)


LEARNERS = {
    "cannot_fail": shape_of_output,
    "always_false": exact,
    "inverted": upside_down,
    "expects_averaged": averaged,
    "one_head": formula_of_one_head,
    "shared_heads_crash": cut_into_num_heads,
    "training_mode": no_eval,
    "shape_of_weights": each_head,
    "sums_only": sums,
    "shares_only": each_head_and_sums,
    "formula_only": formula,
    "formula_of_self_attention": formula_of_x,
    "self_attention_only": square,
    "without_keep": no_keep,
    "weights_not_asked": sample_for_weights,
    "without_causal": no_causal,
    "without_masks": no_masks,
    "without_weights": without("weights_are_shares", "weights_make_the_output", "answers_stay_the_same"),
    "misses_no_scale": without("formula_holds"),
    "misses_nan_in_empty_rows": without("empty_rows_are_zero"),
    "misses_causal_upper_left": without("future_is_hidden"),
    "misses_weights_change_the_output": without("answers_stay_the_same"),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_what_learners_write_gets_its_name(name):
    result = check("08.works", LEARNERS[name])
    assert result.mistake == name, result


def test_every_mistake_but_single_survivors_stands_for_a_test_that_somebody_could_write():
    assert {m.name for m in WORKS.mistakes if not m.name.startswith("misses_")} <= set(LEARNERS)


def test_a_test_without_a_name_is_sent_to_the_scoreboard():
    result = check("08.works", without("formula_holds", "future_is_hidden", "empty_rows_are_zero"))
    assert result.mistake == "different" and "Probe 7 (given a layer that does not divide" in result.message
    assert result.message.endswith(WORKS.advice) and "scoreboard(works)" in WORKS.advice


# -- the scoreboard --------------------------------------------------------------------------


def stub(layer):
    raise NotImplementedError


def test_the_scoreboard_of_the_right_test():
    board = scoreboard(layer_checks.works)
    lines = repr(board).split("\n")
    assert lines[0] == "10 of 10 wrong layers found; all 6 right ones accepted."
    assert lines[1] == "found     a layer that does not divide the scores by sqrt(D)"
    assert lines[-1] == "accepted  a right layer that calls what nn.MultiheadAttention calls"
    assert len(lines) == 17, "no hints where nothing is wrong"
    assert repr(scoreboard(layer_checks.works)) == repr(board)


def test_the_scoreboard_says_what_survived_and_where_to_look():
    board = scoreboard(each_head)
    assert repr(board).startswith("1 of 10 wrong layers found; all 6 right ones accepted.\nsurvived  a layer that does")
    assert "found     a layer whose weights are averaged over the heads\n" in repr(board)
    assert "Pass three different things as query, key and value." in repr(board)
    assert max(map(len, repr(board).split("\n"))) <= 92
    markdown = board._repr_markdown_().split("\n")
    assert markdown[0] == "**1 of 10 wrong layers found; all 6 right ones accepted.**"
    assert "| ✅\u00a0found | a layer whose weights are averaged over the heads |  |" in markdown
    assert len([line for line in markdown if line.startswith("| 🔎\u00a0survived |")]) == 9


def test_the_scoreboard_says_which_right_layer_is_rejected():
    text = repr(scoreboard(no_eval))
    assert text.startswith("10 of 10 wrong layers found; 5 of 6 right ones accepted.")
    assert "rejected  a right layer with dropout, in training mode" in text
    assert "call layer.eval() first" in scoreboard(no_eval).markdown


def test_the_scoreboard_survives_every_test():
    text = repr(scoreboard(lambda layer: layer.no_such_thing))
    assert text.startswith("0 of 10 wrong layers found; 0 of 6 right ones accepted.\ntest crashed: AttributeError")
    assert "it raises `AttributeError:" in text
    assert "test crashed: SystemExit" in repr(scoreboard(lambda layer: sys.exit()))
    assert "no True or False but None  a" in repr(scoreboard(lambda layer: None))
    assert "no True or False but Tensor of shape (3, 5" in repr(
        scoreboard(lambda layer: layer_checks.inputs(layer)[0] > 0)
    )
    assert "no True or False but tuple" in repr(scoreboard(lambda layer: (True, True)))
    assert "no True or False but dict" in repr(scoreboard(lambda layer: {}))
    assert "no True or False but str" in repr(scoreboard(lambda layer: "True"))
    assert repr(scoreboard(lambda layer: np.False_)).startswith("10 of 10")
    assert repr(scoreboard(lambda layer, more: True)).count("test crashed: TypeError") == 16
    assert repr(scoreboard(17)) == "This is a int, not a function. Pass the function itself: scoreboard(works)."


def test_a_test_that_asserts_counts_as_a_crash_and_is_told_how_to_answer():
    def asserts(layer):
        assert layer_checks.works(layer)
        return True

    text = repr(scoreboard(asserts))
    assert text.startswith("0 of 10 wrong layers found; all 6 right ones accepted.")
    assert "Where a test is asked for, it returns False; it does not raise." in text


def test_an_endless_test_is_stopped(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)

    def endless(layer):
        while layer.fault == "no_scale":
            pass
        return True

    text = repr(scoreboard(endless))
    assert "endless" in text and text.count("not reached") == 9


def test_before_anything_is_written_the_scoreboard_is_a_fixed_line():
    line = "Write works(layer) in the cell above; then this table shows which of the wrong layers it finds."
    assert scoreboard(stub).markdown == line and repr(scoreboard(stub)).replace("\n", " ") == line
    assert check("08.works", stub).status == "not attempted"


# -- weights and masks at the border ---------------------------------------------------------


def module(E=12, H=3, dtype="float64"):
    from mha_lesson.exercises.lesson_08.shared import _module

    return _module(E, H, dtype)


def test_loaded_weights_give_the_output_of_pytorch():
    layer, x = module(), torch.randn(2, 5, 12, dtype=torch.float64)
    want = layer(x, x, x)[0].detach().numpy()
    assert np.abs(multi_head_attention(x.numpy(), params_from_torch(layer), 3) - want).max() < 1e-12
    mine = adopt("08.load", REGISTRY["08.load"].forms["tensors, by slices"])
    assert np.abs(multi_head_attention(x.numpy(), mine(layer), 3) - want).max() < 1e-12


def test_no_bias_is_none():
    params = params_from_torch(torch.nn.MultiheadAttention(6, 2, bias=False))
    assert all(params[f"b_{n}"] is None for n in "qkvo")


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


def blocked(lengths, S):
    return torch.arange(S) >= torch.tensor(lengths)[:, None]


def said(id, answer):
    result = check(id, answer)
    return result.mistake, result.message


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


def test_how_a_test_answers_is_said_only_where_a_test_is_written():
    advice = "Where a test is asked for"

    def asserts(*given):
        raise AssertionError("no")

    for id in REGISTRY:
        assert (advice in check(id, asserts).message) == isinstance(REGISTRY[id].expected[0].value, bool), id
    assert advice in check("08.works", asserts).message and advice in check("03.test_scaled", asserts).message
    assert advice not in said("08.per_head", lambda layer, x, keep: layer(x, x, x, attn_mask=(~keep).int()))[1]


def test_the_count_of_right_probes_is_that_of_the_scoreboard():
    for test in (without("formula_holds", "future_is_hidden", "empty_rows_are_zero"), no_causal_at_all):
        board = repr(scoreboard(test))
        n = board.count("\nfound ") + board.count("\naccepted ")
        text = check("08.works", test).message
        assert text.startswith(f"{n} of 16 probes are right. Probe ") and "first one only: scoreboard(works)" in text


def no_causal_at_all(layer):
    return layer.fault in ("", "no_scale", "causal_upper_left")


def test_a_rejected_right_layer_is_named_and_the_conditions_are_to_be_printed():
    name, text = said("08.works", lambda layer: False)
    assert name == "always_false" and "a right layer with one head" in text and "Print each condition" in text
    name, text = said("08.works", lambda layer: layer_checks.works(layer) and layer.num_heads != 5)
    assert name == "different" and "Probe 5 (given a right layer that computes step by step)" in text
    assert "Print each condition" in text and "expected True, got False" in text


def test_sample_one_taken_for_the_weights_has_a_name():
    def sums(layer):
        weights = layer(*sizes(layer))[1]
        return weights.dim() == 4 and torch.allclose(weights.sum(-1), torch.ones(()))

    assert said("08.works", sums)[0] == "weights_not_asked"
    assert said("08.works", lambda layer: layer(*sizes(layer))[1].dim() == 7)[0] == "always_false"
    assert said("08.works", lambda layer: bool(layer(*sizes(layer)).isnan().any()))[0] == "always_false"


def test_an_answer_of_several_parts_is_told_to_be_one():
    name, text = said("08.works", lambda layer: (True, "looks good"))
    assert name == "wrong_type" and "alone? Return True or False, and nothing else." in text and "?." not in text
    name, text = said("08.works", lambda layer: [True, layer_checks.works(layer)])
    assert name == "wrong_shape" and "all([...])" in text
    assert "Return True or False" in said("08.works", lambda layer: int(layer_checks.works(layer)))[1]
    assert "Return True or False" in said("08.works", lambda layer: "fine")[1]


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


def test_weights_rounded_on_the_way_are_not_right():
    name, text = said("08.load", lambda layer: {n: p.astype(np.float32) for n, p in params_from_torch(layer).items()})
    assert name == "wrong_dtype" and "w_q: the numbers are right, but rounded to float32" in text
    assert "leave out .float()" in text
    name, text = said("08.load", lambda layer: {**params_from_torch(layer), "b_o": layer.out_proj.bias.float()})
    assert name == "wrong_dtype" and "b_o: the numbers" in text
    wider = lambda layer: {n: p.astype(np.float64) for n, p in params_from_torch(layer).items()}  # noqa: E731
    assert check("08.load", wider).status == "correct"


# -- checks leave no traces ------------------------------------------------------------------


def test_a_check_leaves_the_random_numbers_of_the_notebook_alone():
    torch.manual_seed(3)
    want = torch.randn(4)
    torch.manual_seed(3)
    for id in ("08.load", "08.per_head", "08.works"):
        vars(REGISTRY[id]).pop("probe_list", None)  # made anew
        check(id, lambda *given: torch.rand(3))
    scoreboard(each_head)
    assert torch.equal(torch.randn(4), want)


def test_a_check_runs_in_one_thread_and_puts_the_number_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        check("08.works", lambda layer: seen.append(torch.get_num_threads()))
        assert set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_answer_that_draws_gets_the_same_message_each_time():
    answers = [check("08.blocked", lambda lengths, S: torch.rand(len(lengths), S) > 0.5) for _ in range(3)]
    assert len({repr(a) for a in answers}) == 1


def test_adopt_tells_a_decorated_solution_from_an_own_function(capsys):
    assert adopt("08.works", WORKS.solution) is WORKS.solution
    assert "the course's own function is used" in capsys.readouterr().out
    mine = torch.no_grad()(lambda layer, x, keep: head_weights(layer, x, keep).numpy())
    assert adopt("08.per_head", mine).__wrapped__ is mine
    assert "your own function" in capsys.readouterr().out


def test_the_solution_shows_the_eight_checks():
    text = repr(solution("08.works"))
    assert all(f"def {check.__name__}(layer)" in text for check in layer_checks.CHECKS)
    assert "@torch.no_grad()\ndef works(layer)" in text and "def close(a, b)" in text
    assert "average_attn_weights=False" in repr(solution("08.per_head"))
    assert "def numpy_copy" in repr(solution("08.load"))


# -- without torch ---------------------------------------------------------------------------


def run(code):
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return out.stdout.strip().split("\n")


def test_without_torch_lesson_08_says_so_and_the_rest_works():
    lines = run(
        "import sys; sys.modules['torch'] = None\n"
        "from mha_lesson.exercises import *\n"
        "f = lambda lengths, S: 1\n"
        "r = check('08.blocked', f); print(r.status, r.mistake); print(r.message)\n"
        "print(solution('08.works').text == r.message, scoreboard(f).markdown == r.message)\n"
        "print('hint 1 of' in hint('08.blocked').text, adopt('08.load', f) is f)\n"
        "print(check('00.double', lambda x: x + x).status, len(status().text) > 100)\n"
    )
    assert lines[0] == "not attempted None"
    assert lines[1].startswith("This exercise needs PyTorch") and "pip install torch" in lines[1]
    assert lines[2] == "True True"
    assert lines[-2].endswith("True True") and lines[-1] == "correct True"


def test_torch_is_imported_only_when_an_exercise_needs_it():
    code = (
        "import sys; from mha_lesson.exercises import *\n"
        "check('00.double', lambda x: x); hint('08.works'); status(); print('torch' in sys.modules)\n"
        "check('08.blocked', lambda lengths, S: 1); print('torch' in sys.modules)"
    )
    assert run(code) == ["False", "True"]


def test_the_hints_are_there():
    hints = REGISTRY["08.works"].hints
    assert f"1 of {len(hints)}" in repr(hint("08.works")) and callable(board_file.scoreboard)
    assert max(map(len, hints)) < 600 and "np.split(layer.in_proj_weight.detach().numpy(), 3)" in LOAD.hints[1]
    assert "k.repeat_interleave(H // kv_heads, dim=1)" in "".join(hints) and "(B, 1, 1, S)" in "".join(hints)
    assert "the padding is the other side, places >= length" in BLOCKED.hints[1]


def test_the_code_in_a_hint_runs_and_is_a_check():
    code = next(h for h in WORKS.hints if "```python" in h).split("```python\n")[1].split("```")[0]
    names = {"torch": torch}
    exec(code, names)
    assert all(names["works"](layer) for layer in broken_layers.right_layers().values())
    assert not names["works"](broken_layers.wrong_layers()["weights_change_the_output"])


def test_the_hints_together_find_all_ten():
    """Each line below is what one hint says, and no more."""

    def works(layer):
        layer.eval()
        L, S, H, D = 5, 7, layer.num_heads, layer.d_model // layer.num_heads
        query, key, value = (torch.randn(2, n, layer.d_model) for n in (L, S, S))
        output, weights = layer(query, key, value, need_weights=True)
        causal = layer(query, key, value, causal=True)
        keep = (torch.arange(S) < torch.tensor([7, 3])[:, None])[:, None, None, :]
        hidden = ~keep[:, 0, 0, :, None]
        changed = layer(query, key.masked_fill(hidden, 5), value.masked_fill(hidden, 5), keep)
        last = value.clone()
        last[:, -1] += 1
        moved = (layer(query, key, last, causal=True) - causal).abs().amax((0, 2)) > 1e-4
        empty = torch.ones(L, S, dtype=torch.bool)
        empty[1] = False
        q, k, v = (
            x.unflatten(-1, (-1, D)).transpose(1, 2)
            for x in (layer.q_proj(query), layer.k_proj(key), layer.v_proj(value))
        )
        kv_heads = k.shape[1]
        k, v = k.repeat_interleave(H // kv_heads, dim=1), v.repeat_interleave(H // kv_heads, dim=1)
        context = F.scaled_dot_product_attention(q, k, v)
        near = lambda a, b: torch.allclose(a, b, atol=1e-5)  # noqa: E731
        return all([
            weights.shape == (2, H, L, S) and near(weights.sum(-1), torch.ones(2, H, L)),
            near(output, layer(query, key, value)) and near(layer(query.flip(1), key, value), output.flip(1)),
            near(layer(query, key, value, keep), changed),
            moved.tolist() == [False] * 4 + [True],
            near(layer(query, key, value, empty)[:, 1], layer.out_proj(torch.zeros(layer.d_model))),
            near(output, layer.out_proj(context.transpose(1, 2).flatten(2))),
            near(causal, layer(query, key, value, causal=True, need_weights=True)[0]),
        ])  # fmt: skip

    assert check("08.works", works).status == "correct"
