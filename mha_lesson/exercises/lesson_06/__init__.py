"""Exercises of lesson 06: heads, and the whole layer."""

from mha_lesson.exercises.lesson_06.merge import MERGE
from mha_lesson.exercises.lesson_06.mha import MHA
from mha_lesson.exercises.lesson_06.output import OUTPUT
from mha_lesson.exercises.lesson_06.split import SPLIT

EXERCISES = (SPLIT, MERGE, OUTPUT, MHA)
