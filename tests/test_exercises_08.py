"""Lesson 08: a test that tells right attention layers from wrong ones, the scoreboard, and life without torch."""

import subprocess
import sys

import numpy as np
import pytest

from mha_lesson.attention import multi_head_attention, params_from_torch
from mha_lesson.exercises import REGISTRY, adopt, calls, check, hint, mutant_board, scoreboard, solution
from mha_lesson.exercises.lesson_08 import RIGHT, WORKS, WRONG

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from mha_lesson.exercises import mutants  # noqa: E402
from mha_lesson.pytorch import trust  # noqa: E402
from mha_lesson.pytorch.border import head_weights, key_padding_mask  # noqa: E402

pytestmark = pytest.mark.torch

# Which of the eight checks each wrong layer fails. Dropout is left to chance: it fails nearly all.
FAILS = {
    "no_scale": {"formula_holds"},
    "softmax_over_queries": {"weights_are_shares", "formula_holds", "empty_rows_are_zero"},
    "keep_reversed": {"padding_is_hidden", "empty_rows_are_zero"},
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
        return {check.__name__ for check in trust.CHECKS if not check(layer.eval())}


# -- the layers and the eight checks ---------------------------------------------------------


def test_the_layers_are_those_of_the_table():
    assert list(mutants.right_layers()) == list(RIGHT) and len(RIGHT) == 6
    assert list(mutants.wrong_layers()) == list(WRONG) and len(WRONG) == 10
    assert all(layer.fault == "" for layer in mutants.right_layers().values())


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_layer_passes_every_check(name):
    layer = mutants.right_layers()[name]
    assert failed(layer) == set()
    assert trust.works(layer) is True
    assert trust.works(layer.double()), "in float64, too"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layer_fails_the_checks_that_look_at_its_fault(name):
    layer = mutants.wrong_layers()[name]
    if name == "dropout_in_evaluation":
        assert failed(layer) >= {"answers_stay_the_same", "formula_holds"}
    else:
        assert failed(layer) == FAILS[name]
    assert trust.works(layer) is False


def test_four_of_the_checks_find_what_no_other_finds_and_all_find_something():
    alone = {next(iter(names)) for names in FAILS.values() if len(names) == 1}
    assert alone == {"formula_holds", "future_is_hidden", "empty_rows_are_zero", "answers_stay_the_same"}
    assert set().union(*FAILS.values()) == {check.__name__ for check in trust.CHECKS} and len(trust.CHECKS) == 8


def test_a_wrong_layer_is_a_right_one_with_one_method_changed():
    assert failed(mutants.StepByStep(8, 2)) == set()
    for layer in mutants.wrong_layers().values():
        changed = [name for name, value in vars(type(layer)).items() if callable(value)]
        assert len(changed) == 1 and type(layer).__bases__ == (mutants.StepByStep,)


def test_a_test_leaves_the_layer_as_it_was():
    layer = mutants.right_layers()["training_mode"]
    before = {name: p.clone() for name, p in layer.state_dict().items()}
    assert trust.works(layer) and layer.training
    assert all(torch.equal(p, before[name]) for name, p in layer.state_dict().items())


def test_right_layers_hide_nan_in_padding():
    for layer in mutants.right_layers().values():
        query, key, value = trust.inputs(layer)
        keep = (torch.arange(7) < 4)[None, None, None].expand(3, 1, 1, 7)
        want = layer.eval()(query, key, value, keep)
        have = layer(query, key.masked_fill(~keep[:, 0, 0, :, None], torch.nan), value, keep)
        assert trust.close(want, have)


# -- tests as learners write them ------------------------------------------------------------


def sizes(layer):
    return torch.randn(2, 5, layer.d_model), torch.randn(2, 7, layer.d_model), torch.randn(2, 7, layer.d_model)


def shape_of_output(layer):
    query, key, value = sizes(layer)
    return layer(query, key, value).shape == query.shape


def exact(layer):
    query, key, value = trust.inputs(layer.eval())
    q, k, v = (
        trust.heads(layer, project(x)).double()
        for project, x in ((layer.q_proj, query), (layer.k_proj, key), (layer.v_proj, value))
    )
    return torch.equal(layer(query, key, value), trust.joined(layer, (q @ k.mT).softmax(-1).float() @ v.float()))


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
    return trust.formula_holds(layer.eval())


def formula_of_x(layer):
    x = torch.randn(3, 6, layer.d_model)
    q, k, v = (trust.heads(layer, project(x)) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    want = trust.joined(layer, F.scaled_dot_product_attention(q, k, v))
    return torch.allclose(layer.eval()(x), want, atol=1e-5)


def formula_of_one_head(layer):
    x = torch.randn(3, 6, layer.d_model)
    want = layer.out_proj(F.scaled_dot_product_attention(layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)))
    return torch.allclose(layer.eval()(x), want, atol=1e-5)


def without(*names):
    def test(layer):
        return all(check(layer.eval()) for check in trust.CHECKS if check.__name__ not in names)

    return test


def same_without_causal(layer):
    x, _, _ = trust.inputs(layer.eval())
    return trust.close(layer(x), layer(x)) and trust.close(layer(x), layer(x, need_weights=True)[0])


def no_causal(layer):
    return without("future_is_hidden", "answers_stay_the_same")(layer) and same_without_causal(layer)


def no_masks(layer):
    unmasked = without("future_is_hidden", "answers_stay_the_same", "padding_is_hidden", "empty_rows_are_zero")
    return unmasked(layer) and same_without_causal(layer)


def no_eval(layer):
    return all(check(layer) for check in trust.CHECKS)


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
        and trust.empty_rows_are_zero(layer) and trust.answers_stay_the_same(layer)
    )  # fmt: skip


def cut_into_num_heads(layer):
    _, key, _ = sizes(layer)
    shape = (2, 7, layer.num_heads, layer.d_model // layer.num_heads)
    return layer.k_proj(key).view(shape).shape == shape and trust.works(layer)


def upside_down(layer):
    return not trust.works(layer)


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
    "without_keep": without("padding_is_hidden", "empty_rows_are_zero"),
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
    board = scoreboard(trust.works)
    lines = repr(board).split("\n")
    assert lines[0] == "10 of 10 wrong layers found; all 6 right ones accepted."
    assert lines[1] == "found     a layer that does not divide the scores by sqrt(D)"
    assert lines[-1] == "accepted  a right layer that calls what nn.MultiheadAttention calls"
    assert len(lines) == 17, "no hints where nothing is wrong"
    assert repr(scoreboard(trust.works)) == repr(board)


def test_the_scoreboard_says_what_survived_and_where_to_look():
    board = scoreboard(each_head)
    assert repr(board).startswith("1 of 10 wrong layers found; all 6 right ones accepted.\nsurvived  a layer that does")
    assert "found     a layer whose weights are averaged over the heads\n" in repr(board)
    assert "Pass three different things as query, key and value." in repr(board)
    assert max(map(len, repr(board).split("\n"))) <= 92
    markdown = board._repr_markdown_().split("\n")
    assert markdown[0] == "**1 of 10 wrong layers found; all 6 right ones accepted.**"
    assert "| ✅ found | a layer whose weights are averaged over the heads |  |" in markdown
    assert len([line for line in markdown if line.startswith("| 🔎 survived |")]) == 9


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
    assert "no True or False but Tensor of shape (3, 5" in repr(scoreboard(lambda layer: trust.inputs(layer)[0] > 0))
    assert "no True or False but tuple" in repr(scoreboard(lambda layer: (True, True)))
    assert "no True or False but dict" in repr(scoreboard(lambda layer: {}))
    assert "no True or False but str" in repr(scoreboard(lambda layer: "True"))
    assert repr(scoreboard(lambda layer: np.False_)).startswith("10 of 10")
    assert repr(scoreboard(lambda layer, more: True)).count("test crashed: TypeError") == 16
    assert repr(scoreboard(17)) == "This is a int, not a function. Pass the function itself: scoreboard(works)."


def test_a_test_that_asserts_counts_as_a_crash_and_is_told_how_to_answer():
    def asserts(layer):
        assert trust.works(layer)
        return True

    text = repr(scoreboard(asserts))
    assert text.startswith("0 of 10 wrong layers found; all 6 right ones accepted.")
    assert "Where a test is asked for, it returns False; it does not raise." in text


def test_an_endless_test_is_stopped(monkeypatch):
    monkeypatch.setattr(calls, "SECONDS", 0.3)

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
    from mha_lesson.exercises.lesson_08 import _module

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
    assert all(f"def {check.__name__}(layer)" in text for check in trust.CHECKS)
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
    assert "1 of 4" in repr(hint("08.works")) and callable(mutant_board.scoreboard)
