"""Exercises of lesson 09: switch heads off, compare them, find them, score induction."""

from mha_lesson.exercises.lesson_09.ablate import ABLATE
from mha_lesson.exercises.lesson_09.find import FIND
from mha_lesson.exercises.lesson_09.induction import INDUCTION
from mha_lesson.exercises.lesson_09.similarity import SIMILARITY

EXERCISES = (FIND, SIMILARITY, ABLATE, INDUCTION)
