"""09.similarity: other forms of the distance, and mistakes in it."""

import numpy as np

from mha_lesson.exercises import REGISTRY, check
from mha_lesson.steps.inspection import head_distances


def test_the_entropy_form_of_the_distance_passes_in_single_precision():
    """Its diagonal is the root of a rounding error."""
    d = REGISTRY["09.similarity"]

    def similarity(weights):
        out = head_distances(weights)
        return out + np.eye(len(out), dtype=out.dtype) * np.float32(4e-4)

    assert check(d.id, similarity).status == "correct"


def distances(term, end):
    """The formula of the lesson with the sum in place of the middle, or with other terms."""

    def similarity(weights):
        p, q = weights[:, None], weights[None]
        both = (term(p, p + q).sum(-1) + term(q, p + q).sum(-1)) / 2
        return end(both).mean(-1)

    return similarity


def test_the_sum_for_the_middle_is_named_by_what_it_gives_and_not_by_zeros():
    def term(p, m):
        return np.where(p > 0, p * np.log2(p / m), 0)

    def clamped(bits):
        return np.sqrt(np.maximum(bits, 0))

    assert check("09.similarity", distances(term, np.sqrt)).mistake == "middle_is_the_sum"
    assert check("09.similarity", distances(term, clamped)).mistake == "different", "nothing but zeros"
    assert check("09.similarity", distances(lambda p, m: term(p, m / 2), clamped)).status == "correct"


def test_two_mistakes_about_distances_are_named_together():
    def similarity(weights):
        p, q = weights[:, None], weights[None]
        return np.where(p > 0, p * np.log2(2 * p / (p + q)), 0).sum(-1).mean(-1)

    assert check("09.similarity", similarity).mistake == "no_root+half_of_it"
