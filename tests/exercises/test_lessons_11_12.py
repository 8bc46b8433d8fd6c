"""Mistakes of lessons 11 and 12: two parts to each message, no two alike, and none needs torch."""

import itertools

import numpy as np

from mha_lesson.exercises import REGISTRY


def test_every_mistake_of_these_lessons_has_a_message_of_two_parts():
    """First what is right, then the one thing to change."""
    for e in REGISTRY.values():
        if e.id.startswith(("11.", "12.")):
            for m in e.mistakes:
                assert ". But " in m.say or ": but " in m.say or m.say.startswith("This "), f"{e.id}: {m.name}"


def test_no_two_mistakes_of_an_exercise_look_alike():
    for e in REGISTRY.values():
        if not e.id.startswith(("11.", "12.")):
            continue
        for (a, x), (b, y) in itertools.combinations(e.mistake_outcomes.items(), 2):
            assert not all(_equal(i, j) for i, j in zip(x, y, strict=True)), f"{e.id}: {a} and {b}"


def _equal(a, b):
    if a.error or b.error or a.value is None or b.value is None:
        return type(a.error) is type(b.error) and (a.value is None) == (b.value is None)
    if isinstance(a.value, tuple) or isinstance(b.value, tuple):
        pairs = isinstance(a.value, tuple) and isinstance(b.value, tuple) and len(a.value) == len(b.value)
        return pairs and all(np.array_equal(i, j, equal_nan=True) for i, j in zip(a.value, b.value, strict=True))
    return np.array_equal(np.asarray(a.value, float), np.asarray(b.value, float), equal_nan=True)


def test_nothing_here_needs_torch():
    for id in ("11.cache", "11.chunk", "11.gqa", "11.bytes", "12.online", "12.merge", "12.linear"):
        assert not REGISTRY[id].needs_torch
