"""Exercises of lesson 10: what a layer costs, what its heads bring, and which to choose."""

from mha_lesson.exercises.lesson_10.choose import CHOOSE
from mha_lesson.exercises.lesson_10.parameters import PARAMETERS
from mha_lesson.exercises.lesson_10.sweep import SWEEP

EXERCISES = (PARAMETERS, SWEEP, CHOOSE)
