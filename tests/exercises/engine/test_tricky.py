"""Answers, functions and errors that raise when they are looked at: nothing gets out but a Result."""

import functools

import numpy as np
import pytest

from mha_lesson.exercises import adopt, check
from mha_lesson.exercises.engine.stub import is_stub
from mha_lesson.exercises.engine.tricky import asked, said


class Silent:
    """Raises whatever it is asked for, and when it is shown."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __str__(self):
        raise RuntimeError("str")

    __repr__ = __str__


class Liar:
    """Even `isinstance` raises."""

    @property
    def __class__(self):
        raise RuntimeError("class")


class Leaves:
    """Closes Python when it is made an array of."""

    def __array__(self, *args, **options):
        raise SystemExit


class SilentFunction(Silent):
    def __call__(self, q, k):
        return q


class ForEver:
    """Whatever it wraps wraps something."""

    def __call__(self, q, k):
        raise NotImplementedError

    @property
    def __wrapped__(self):
        return ForEver()


def test_questions_that_raise_have_an_answer():
    assert asked(Silent(), "shape", 3) == 3 and asked(np.ones(2), "shape") == (2,)
    assert said(Silent()) == said(Silent(), repr) == "a value of type Silent"
    assert (said("a"), said("a", repr)) == ("a", "'a'")


@pytest.mark.parametrize("kind", [Silent, Liar, Leaves])
@pytest.mark.parametrize("id", ["02.previous", "03.scores", "03.test_scaled", "07.cost", "09.find"])
def test_an_answer_that_raises_when_it_is_read_is_a_wrong_answer(id, kind):
    value = kind()
    result = check(id, lambda *given: value)
    assert result.status == "incorrect" and repr(result)


@pytest.mark.parametrize("kind", [Silent, Liar, SilentFunction, ForEver])
def test_a_thing_in_the_place_of_a_function_never_raises(kind):
    thing = kind()
    assert check("03.scores", thing).status in ("incorrect", "not attempted")
    assert adopt("03.scores", thing).__name__ == "attention_scores"
    assert check(thing, "03.scores").mistake in ("unknown_id", "swapped_arguments")
    assert check(thing).mistake == "unknown_id"


class NoWords(Exception):
    def __str__(self):
        raise RuntimeError("str")


def test_an_error_that_cannot_be_shown_is_an_error_of_the_answer():
    def raises(q, k):
        raise NoWords

    result = check("03.scores", raises)
    assert result.mistake == "raises" and "it raises `NoWords: a value of type NoWords`" in result.message


@pytest.mark.parametrize("notes", [3, [4], ["a note"]])
def test_notes_of_any_kind_on_an_error_are_no_trouble(notes):
    def raises(q, k):
        error = ValueError("x")
        error.__notes__ = notes
        raise error

    assert check("03.scores", raises).mistake == "raises"


def test_a_function_that_wraps_for_ever_is_no_stub():
    assert not is_stub(ForEver(), NotImplementedError())
    assert is_stub(functools.partial(stub), raised(stub))


def stub():
    raise NotImplementedError


def raised(function):
    with pytest.raises(NotImplementedError) as found:
        function()
    return found.value
