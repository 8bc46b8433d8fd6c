"""What the machine does for exercises on PyTorch: no traces, the right words, the whole solution."""

import pytest

from mha_lesson.exercises import REGISTRY, adopt, check, scoreboard, solution
from mha_lesson.exercises.lesson_08 import WORKS

torch = pytest.importorskip("torch")

from mha_lesson.pytorch import layer_checks  # noqa: E402
from mha_lesson.pytorch.interop import head_weights  # noqa: E402
from tests.exercises.lesson_08.helpers import each_head, said  # noqa: E402

pytestmark = pytest.mark.torch


# -- what a newcomer was told, and should have been -------------------------------------------


def test_how_a_test_answers_is_said_only_where_a_test_is_written():
    advice = "Where a test is asked for"

    def asserts(*given):
        raise AssertionError("no")

    for id in REGISTRY:
        assert (advice in check(id, asserts).message) == isinstance(REGISTRY[id].expected[0].value, bool), id
    assert advice in check("08.works", asserts).message and advice in check("03.test_scaled", asserts).message
    assert advice not in said("08.per_head", lambda layer, x, keep: layer(x, x, x, attn_mask=(~keep).int()))[1]


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
