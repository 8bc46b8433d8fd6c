"""Exercises of lesson 05: softmax, with and without a mask."""

from mha_lesson.exercises.lesson_05.masked import MASKED
from mha_lesson.exercises.lesson_05.softmax import SOFTMAX

EXERCISES = (SOFTMAX, MASKED)
