"""Exercises that name the mistake.

    check("03.scores", scores)     says whether your function is right, and if not, why
    hint("03.scores")              one hint deeper at each call
    solution("03.scores")          the course's own function
    adopt("03.scores", scores)     yours if it is right, else the course's: later cells always run
    status()                       what you have solved
    scoreboard(works)              lesson 08: which wrong attention layers your test finds

`engine.py` is the checker, `lesson_NN.py` holds the exercises of one lesson with the mistakes
that it knows, `calls.py` runs a stranger's function safely, `compare.py` tells two values apart.
"""

from mha_lesson.exercises.engine import Exercise, Mistake, Probe, Result
from mha_lesson.exercises.mutant_board import scoreboard
from mha_lesson.exercises.student import REGISTRY, adopt, check, hint, solution, status

__all__ = [
    "REGISTRY", "Exercise", "Mistake", "Probe", "Result",
    "adopt", "check", "hint", "scoreboard", "solution", "status",
]  # fmt: skip
