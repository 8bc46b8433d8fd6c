"""Exercises that name the mistake.

    check("03.scores", scores)     says whether your function is right, and if not, why
    hint("03.scores")              one hint deeper at each call
    solution("03.scores")          the course's own function
    adopt("03.scores", scores)     yours if it is right, else the course's: later cells always run
    status()                       what you have solved
    scoreboard(works)              lesson 08: which wrong attention layers your test finds

`engine/` is the machine. Each exercise is a file that its id names: `lesson_03/scores.py` has the
probes, the right forms and the known mistakes of 03.scores, with what a learner reads.
"""

from mha_lesson.exercises import (
    lesson_00,
    lesson_01,
    lesson_02,
    lesson_03,
    lesson_04,
    lesson_05,
    lesson_06,
    lesson_07,
    lesson_08,
    lesson_09,
    lesson_10,
    lesson_11,
    lesson_12,
    lesson_13,
)
from mha_lesson.exercises.engine import Exercise, Mistake, Probe, Result
from mha_lesson.exercises.engine.api import adopt, check, hint, solution, status
from mha_lesson.exercises.engine.registry import REGISTRY, register
from mha_lesson.exercises.lesson_08.scoreboard import scoreboard

for _lesson in (
    lesson_00, lesson_01, lesson_02, lesson_03, lesson_04, lesson_05, lesson_06,
    lesson_07, lesson_08, lesson_09, lesson_10, lesson_11, lesson_12, lesson_13,
):  # fmt: skip
    register(_lesson.EXERCISES)

__all__ = [
    "REGISTRY", "Exercise", "Mistake", "Probe", "Result",
    "adopt", "check", "hint", "scoreboard", "solution", "status",
]  # fmt: skip
