"""All exercises by their id, in the order of the lessons. Content enters itself here; the machine only reads."""

from collections.abc import Iterable

from mha_lesson.exercises.engine.exercise import Exercise

REGISTRY: dict[str, Exercise] = {}


def register(exercises: Iterable[Exercise]) -> None:
    """Enter the exercises of one lesson; an id is given once."""
    for exercise in exercises:
        if exercise.id in REGISTRY:
            raise ValueError(f"id: expected one that is new, got {exercise.id!r} a second time.")
        REGISTRY[exercise.id] = exercise
