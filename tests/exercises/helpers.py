"""What several tests of the exercises share: all of them, and answers bad in every way."""

import numpy as np

from mha_lesson.exercises import REGISTRY, check
from tests.conftest import HAS_TORCH

EXERCISES = list(REGISTRY.values())


TESTABLE = [e for e in EXERCISES if HAS_TORCH or not e.needs_torch]


def returns_none(q, k):
    return None


def prints(q, k):
    print(q @ k.swapaxes(-1, -2))


def raises(q, k):
    return q @ k.no_such_thing


def loops(q, k):
    while True:
        pass


def writes(q, k):
    q /= np.sqrt(q.shape[-1])
    return q @ k.swapaxes(-1, -2)


BAD = {
    "raises": raises,
    "returns_none": returns_none,
    "prints": prints,
    "wrong_type": lambda q, k: {"scores": q},
    "wrong_shape": lambda q, k: np.zeros((2, 2)),
    "wrong_dtype": lambda q, k: (q @ k.swapaxes(-1, -2)).astype(int),
    "changes_input": writes,
    "nan": lambda q, k: q @ k.swapaxes(-1, -2) * np.nan,
    "parameters": lambda q: q,
    "not_a_function": np.zeros((2, 3)),
    "different": lambda q, k: q @ k.swapaxes(-1, -2) * 0.123,
}


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mistake(id, function):
    result = check(id, function)
    return result.mistake if result.status == "incorrect" else result.status


def variant(id, name):
    e = REGISTRY[id]
    return e.variant(next(m for m in e.mistakes if m.name == name))
