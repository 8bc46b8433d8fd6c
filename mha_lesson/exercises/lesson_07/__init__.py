"""Exercises of lesson 07: cross-attention, its masks, its cost, and writing token by token."""

from mha_lesson.exercises.lesson_07.cost import COST
from mha_lesson.exercises.lesson_07.cross import CROSS
from mha_lesson.exercises.lesson_07.decode import DECODE
from mha_lesson.exercises.lesson_07.masks import MASKS

EXERCISES = (CROSS, MASKS, COST, DECODE)
