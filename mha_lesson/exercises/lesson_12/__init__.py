"""Exercises of lesson 12: softmax in one pass, two partial answers merged, attention without a softmax."""

from mha_lesson.exercises.lesson_12.linear import LINEAR
from mha_lesson.exercises.lesson_12.merge import MERGE
from mha_lesson.exercises.lesson_12.online import ONLINE

EXERCISES = (ONLINE, MERGE, LINEAR)
