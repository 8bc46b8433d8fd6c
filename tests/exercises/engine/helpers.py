"""Small exercises for the tests of the machine."""

from collections.abc import Callable
from typing import Any

from mha_lesson.exercises.engine import Exercise, Probe


def exercise(solution: Callable | str, *arguments: tuple, signature: str = "f(x)", **more: Any) -> Exercise:
    """An exercise with these arguments for its probes, and nothing that it does not need."""
    named = {"mistakes": (), "forms": {}, "hints": ("Think.",), "well_done": "Good.", **more}
    return Exercise(
        id="99.f",
        signature=signature,
        solution=solution,
        probes=lambda: [Probe(given, f"probe {i}") for i, given in enumerate(arguments)],
        **named,
    )
