"""The eight checks: right layers pass them all, and a wrong layer fails those that look at its fault."""

import math

import pytest

from mha_lesson.exercises.lesson_08.works import RIGHT, WRONG

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.exercises.lesson_08 import broken_layers  # noqa: E402
from mha_lesson.pytorch import MultiHeadAttention, layer_checks  # noqa: E402
from tests.exercises.lesson_08.helpers import failed  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("num_kv_heads", [2, 3])
def test_layers_with_some_shared_heads_are_trusted(num_kv_heads):
    """With one key/value head, 0 0 0 0 and 0 0 0 0 in another order are the same: here they are not."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 6, num_kv_heads)
    assert [check.__name__ for check in layer_checks.CHECKS if not check(layer)] == []
    assert layer_checks.works(layer)


def test_a_layer_that_gives_nan_passes_no_check_of_its_output():
    """Twice NaN is not twice the same output."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2)
    torch.nn.init.constant_(layer.v_proj.bias, math.nan)
    assert [check.__name__ for check in layer_checks.CHECKS if check(layer)] == ["weights_are_shares"]
    assert not layer_checks.works(layer)


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


# -- the layers and the eight checks ---------------------------------------------------------


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


def test_a_test_leaves_the_layer_as_it_was():
    layer = broken_layers.right_layers()["training_mode"]
    before = {name: p.clone() for name, p in layer.state_dict().items()}
    assert layer_checks.works(layer) and layer.training
    assert all(torch.equal(p, before[name]) for name, p in layer.state_dict().items())


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
