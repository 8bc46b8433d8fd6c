"""Soft look-up: the share of each value, and a dictionary where matches are huge."""

import math

import numpy as np

from mha_lesson.steps.lookup import double, soft_lookup
from tests.reference import g, near, read_only


def test_double():
    x = read_only(g((2, 3)))
    near(double(x), [[2 * a for a in row] for row in x.tolist()])


def test_soft_lookup_is_the_share_of_each_value():
    query, keys, values = read_only(g((5,)), g((3, 5), 0.9, 0.1), g((3, 2), 0.4, 0.2))
    match = [math.fsum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    total = math.fsum(math.exp(m) for m in match)
    want = [math.fsum(math.exp(m) / total * v[c] for m, v in zip(match, values, strict=True)) for c in range(2)]
    near(soft_lookup(query, keys, values), want)


def test_soft_lookup_with_huge_matches_is_a_dictionary():
    keys, values = 1000.0 * np.eye(3), np.array([[1.0], [2.0], [4.0]])
    for j in range(3):
        near(soft_lookup(1000.0 * np.eye(3)[j], keys, values), values[j])
