"""Projections: the loop they stand for, and the layout of a weight."""

import numpy as np
import pytest

from mha_lesson.steps.projections import project, qkv
from tests.reference import g, loop_project, near, read_only, says
from tests.reports import reported


@reported("skyzh/tiny-llm#41")
def test_a_matrix_is_in_out():
    identity, w = np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]])
    near(project(identity, w), [[1, 2], [3, 4]])
    near(project(identity, w.T), [[1, 3], [2, 4]])


@pytest.mark.parametrize("with_bias", [True, False])
def test_project_is_the_loop(with_bias):
    x, w, b = read_only(g((2, 5, 3)), g((3, 7), 0.9), g((7,), 0.4))
    got = project(x, w, b) if with_bias else project(x, w)
    want = [loop_project(s.tolist(), w.tolist(), b.tolist() if with_bias else None) for s in x]
    near(got, want)
    near(project(x[1], w, b), project(x, w, b)[1])


def test_project_names_the_layout_of_the_weight():
    wanted = says("w: expected (in, out) with in = 3", "(2, 3)", "got (5, 3)", "pass weight.T")
    with pytest.raises(ValueError, match=wanted):
        project(g((2, 3)), g((5, 3)))


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 4)])
def test_project_wants_one_bias_a_column(shape):
    with pytest.raises(ValueError, match="b: expected"):
        project(g((2, 3)), g((3, 4)), g(shape))


def test_qkv_gives_query_key_value_in_this_order():
    x = read_only(g((2, 5, 3)))
    w_q, w_k, w_v = read_only(g((3, 4), 0.5), g((3, 4), 0.9), g((3, 7), 1.3))
    got = qkv(x, w_q, w_k, w_v)
    assert isinstance(got, tuple) and len(got) == 3
    for part, w in zip(got, (w_q, w_k, w_v), strict=True):
        near(part, [loop_project(s.tolist(), w.tolist(), None) for s in x])
