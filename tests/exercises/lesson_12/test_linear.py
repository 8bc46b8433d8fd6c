"""12.linear, as learners write it."""

import numpy as np
import pytest

from tests.exercises.helpers import mistake


def phi(x):
    return np.where(x > 0, x + 1, np.exp(x))


def linear_reads_too_early(q, k, v):
    state, total, rows = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1]), []
    for t in range(len(q)):
        rows.append(phi(q[t]) @ state / (phi(q[t]) @ total))
        state, total = state + np.outer(phi(k[t]), v[t]), total + phi(k[t])
    return np.array(rows)


def linear_not_causal(q, k, v):
    return phi(q) @ (phi(k).T @ v) / (phi(q) @ phi(k).sum(0))[:, None]


def linear_transposed(q, k, v):
    state, total, rows = np.zeros((v.shape[1], k.shape[1])), np.zeros(k.shape[1]), []
    for t in range(len(q)):
        state, total = state + np.outer(v[t], phi(k[t])), total + phi(k[t])
        rows.append(phi(q[t]) @ state / (phi(q[t]) @ total))
    return np.array(rows)


LINEAR = {
    "not_itself": linear_reads_too_early,
    "not_causal": linear_not_causal,
    "state_transposed": linear_transposed,
    "no_features": lambda q, k, v: np.tril(q @ k.T) @ v / np.tril(q @ k.T).sum(1, keepdims=True),
    "exponential": lambda q, k, v: (w := np.tril(np.exp(q) @ np.exp(k).T)) @ v / w.sum(1, keepdims=True),
    "correct": lambda q, k, v: (w := np.tril(phi(q) @ phi(k).T)) @ v / w.sum(1, keepdims=True),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_as_learners_write_it(name):
    assert mistake("12.linear", LINEAR[name]) == name
