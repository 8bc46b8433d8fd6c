"""One exercise and its diagnosis: each kind of bad answer has its own message."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mha_lesson.exercises import REGISTRY, check
from mha_lesson.exercises.engine.protocol import Protocol
from mha_lesson.places import child_environment
from tests.exercises.helpers import BAD, TESTABLE


@pytest.mark.parametrize("kind", BAD)
def test_each_kind_of_bad_answer_has_its_own_message(kind):
    result = check("03.scores", BAD[kind])
    assert (result.status, result.mistake) == ("incorrect", kind)
    assert repr(result) == repr(check("03.scores", BAD[kind]))


def test_the_messages_say_what_was_expected_and_what_came():
    said = {kind: check("03.scores", answer).message for kind, answer in BAD.items()}
    assert "return q @ k.no_such_thing" in said["raises"] and "AttributeError" in said["raises"]
    assert "expected shape (3, 5, 7), got (2, 2)" in said["wrong_shape"]
    assert "got int64" in said["wrong_dtype"] and "expected values of type float64" in said["wrong_dtype"]
    assert "writes into its argument q" in said["changes_input"]
    assert "(q); it will be called with 2 arguments, as scores(q, k)" in said["parameters"]
    assert 'check("03.scores", scores)' in said["not_a_function"]
    assert "at [0, 0, 0] expected 2.000000, got 0.492000" in said["different"]
    assert "got a dict" in said["wrong_type"]
    assert "`return` in place of `print`" in said["prints"]


def test_right_names_in_another_order_are_said():
    result = check("03.scores", lambda k, q: q @ k)
    assert result.mistake == "parameter_order" and "you have (k, q)" in result.message


def test_an_error_in_a_product_comes_with_the_shapes():
    said = check("03.scores", lambda q, k: q @ k.T).message
    assert "The shapes that came in: q (3, 5, 4), k (3, 7, 4)." in said


def test_an_assert_in_a_written_test_is_explained():
    def is_scaled(scores):
        assert scores(np.ones((1, 1, 4)), np.ones((1, 1, 4))).max() == 17
        return True

    assert "it returns False; it does not raise" in check("03.test_scaled", is_scaled).message


def test_writing_into_a_dictionary_of_arrays_gets_a_mend_that_helps():
    e = REGISTRY["06.mha"]

    def answer(x, params, num_heads, keep):
        output = e.solution(x, params, num_heads, keep)
        params["w_q"] /= 2
        return output

    result = check("06.mha", answer)
    assert result.mistake == "changes_input" and "rather than `params['w_q'] /= 2`" in result.message


def test_half_precision_is_told_apart_from_a_wrong_number():
    answer = lambda q, k: (q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])).astype(np.float16)  # noqa: E731
    result = check("03.scores", answer)
    assert result.mistake == "wrong_dtype" and "computed in float16" in result.message


class Tricky:
    """An answer that raises at every look."""

    def __getattr__(self, name):
        raise RuntimeError(name)


odd_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.lists(st.one_of(st.floats(), st.text(max_size=2), st.lists(st.integers(), max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from([Tricky(), Tricky, ..., object(), 1j, np.zeros((2, 0)), np.array("x"), iter([1]), (1, [2]), ()]),
)  # fmt: skip


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(id=st.sampled_from([e.id for e in TESTABLE]), value=odd_values, error=st.booleans())
def test_random_wrong_code_never_makes_check_raise(id, value, error):
    def answer(*args):
        if error:
            raise ValueError(value)
        return value

    result = check(id, answer)
    assert result.status in ("incorrect", "correct") and isinstance(repr(result), str)
    assert isinstance(check(id, value).message, str)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    id=st.sampled_from(
        [e.id for e in TESTABLE if e.protocol.judge is Protocol.judge and not e.id.endswith(("scaled", "test_padding"))]
    ),
    factor=st.floats(-3, 3).filter(lambda f: abs(f - 1) > 0.01),
    shift=st.floats(-2, 2),
)
def test_a_scaled_and_shifted_solution_is_never_correct(id, factor, shift):
    e = REGISTRY[id]

    def answer(*args):
        out = e.solution(*args)
        if isinstance(out, tuple):
            return tuple(np.asarray(o) * factor + shift for o in out)
        return np.asarray(out) * factor + shift

    assert check(id, answer).status == "incorrect"


def test_check_is_fast_on_a_solved_exercise():
    """Not a timing test: the checks run no more calls than there are probes."""
    count = 0
    e = REGISTRY["06.mha"]

    def counting(x, params, num_heads, keep):
        nonlocal count
        count += 1
        return e.solution(x, params, num_heads, keep)

    assert check("06.mha", counting).status == "correct"
    assert count == len(e.probe_list)


@pytest.mark.parametrize("e", REGISTRY.values(), ids=lambda e: e.id)
def test_where_a_solution_stands(e):
    if e.missing:
        pytest.skip("PyTorch is not installed")
    function = inspect.unwrap(e.solution)
    assert e.solution_place == f"{function.__module__}:{function.__name__}"


def test_where_a_solution_stands_is_known_without_importing_it():
    ask = (
        "import sys; from mha_lesson.exercises import REGISTRY; "
        "print(REGISTRY['08.blocked'].solution_place, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True, env=child_environment()
    )
    assert done.stdout.split() == ["mha_lesson.pytorch.interop:key_padding_mask", "False"]
