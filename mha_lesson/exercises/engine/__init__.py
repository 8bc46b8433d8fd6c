"""The machine behind `check`: it knows no exercise, and each exercise knows it.

api.py        the five words of a learner: check, hint, solution, adopt, status
exercise.py   one exercise, and the diagnosis of an answer
mistakes.py   wrong answers, as functions and as edits, with their words
probes.py     numbers to try functions on
sandbox.py    runs a stranger's function safely
compare.py    tells two values apart
record.py     what the learner has solved
registry.py   all exercises by id
"""

from mha_lesson.exercises.engine.exercise import Exercise, Probe, Result
from mha_lesson.exercises.engine.mistakes import Mistake, Mistakes

__all__ = ["Exercise", "Mistake", "Mistakes", "Probe", "Result"]
