"""The machine behind `check`: it knows no exercise, and each exercise knows it.

api.py        the five words of a learner: check, hint, solution, adopt, status
exercise.py   one exercise: what belongs to it, and what functions answer to its probes
protocol.py   how an answer is called, read, judged and compared, where that is not done plainly
diagnosis.py  is an answer right, and which mistake is it?
words.py      what is said where no known mistake says it
mistakes.py   wrong answers, as functions and as edits, with their words
probes.py     numbers to try functions on
sandbox.py    runs a stranger's function safely, under the time limit of stopping.py
changes.py    what a call did to the things that it was given
stub.py       is the function still empty?
tricky.py     questions to things that may raise when they are asked
compare.py    tells two values apart
record.py     what the learner has solved, and met on the way; kept under a lock (lock.py)
registry.py   all exercises by id
"""

from mha_lesson.exercises.engine.diagnosis import Result
from mha_lesson.exercises.engine.exercise import Exercise, Probe
from mha_lesson.exercises.engine.mistakes import Mistake, Mistakes
from mha_lesson.exercises.engine.protocol import Protocol

__all__ = ["Exercise", "Mistake", "Mistakes", "Probe", "Protocol", "Result"]
