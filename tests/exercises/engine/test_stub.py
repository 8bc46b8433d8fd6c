"""An exercise that is still empty is not attempted; an error that only has the same name is one."""

import functools

import numpy as np
import pytest

from mha_lesson.exercises import check, scoreboard
from mha_lesson.exercises.engine.stub import is_stub


def empty(q, k):
    raise NotImplementedError


def with_words(q, k):
    """Scores."""
    scale = q.shape[-1] ** 0.5
    raise NotImplementedError(f"divide by {scale}")


class Empty:
    def __call__(self, q, k):
        raise NotImplementedError

    def method(self, q, k):
        raise NotImplementedError()


@functools.wraps(empty)
def wrapped(*given):
    return empty(*given)


@pytest.mark.parametrize(
    "function",
    [empty, with_words, Empty(), Empty().method, functools.partial(empty), wrapped],
    ids=["plain", "with words", "object", "method", "partial", "wrapped"],
)
def test_a_raise_in_the_function_itself_is_a_stub(function):
    assert check("03.scores", function).status == "not attempted"


def test_a_raise_somewhere_else_is_an_error():
    def calls_a_stub(q, k):
        return empty(q, k)

    result = check("03.scores", calls_a_stub)
    assert result.mistake == "raises" and "NotImplementedError" in result.message


def test_an_error_of_another_kind_is_no_stub():
    class Mine(NotImplementedError):
        pass

    def raises(q, k):
        raise Mine("not for these")

    assert check("03.scores", raises).mistake == "raises"
    assert not is_stub(raises, None)


@pytest.mark.torch
def test_pytorchs_error_of_the_same_name_is_an_error_of_the_answer():
    import torch

    def without_forward(q, k):
        return torch.nn.Module()(torch.from_numpy(q))

    def no_kernel(q, k):  # raised by C++, so that this line is the last one in Python
        return torch.linalg.det(torch.ones(2, 2, dtype=torch.float16))

    for answer, word in ((without_forward, "forward"), (no_kernel, "Half")):
        with pytest.raises(NotImplementedError) as raised:
            answer(np.ones(2), np.ones(2))
        assert type(raised.value) is NotImplementedError, "a test that cannot fail is none"
        result = check("03.scores", answer)
        assert result.mistake == "raises" and word in result.message and "It happens in this line" in result.message


@pytest.mark.torch
def test_the_scoreboard_tells_them_apart_too():
    import torch

    def works(layer):
        raise NotImplementedError

    assert "Write works(layer)" in repr(scoreboard(works))
    assert "NotImplementedError" in repr(scoreboard(lambda layer: torch.nn.Module()(1)))


@pytest.mark.torch
def test_a_stub_that_is_run_as_a_copy_is_one():
    """A kernel is not called: its code runs with other words."""

    def kernel(Q, K, V, O, N, scale, D, BLOCK):
        raise NotImplementedError

    assert check("13.kernel", kernel).status == "not attempted"
