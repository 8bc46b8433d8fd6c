"""08.works: tests as learners write them."""

import pytest

from mha_lesson.exercises import check
from mha_lesson.exercises.lesson_08 import WORKS

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from mha_lesson.pytorch import layer_checks  # noqa: E402
from tests.exercises.lesson_08.helpers import each_head, no_eval, said, sizes, without  # noqa: E402

pytestmark = pytest.mark.torch


# -- tests as learners write them ------------------------------------------------------------


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


# -- what a newcomer was told, and should have been -------------------------------------------


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
