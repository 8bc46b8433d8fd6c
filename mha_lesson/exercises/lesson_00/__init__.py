"""Exercises of lesson 00: how an exercise works, and the soft look-up."""

from mha_lesson.exercises.lesson_00.double import DOUBLE
from mha_lesson.exercises.lesson_00.lookup import LOOKUP

EXERCISES = (DOUBLE, LOOKUP)
