"""Exercises of lesson 04: masks."""

from mha_lesson.exercises.lesson_04.causal import CAUSAL
from mha_lesson.exercises.lesson_04.combine import COMBINE
from mha_lesson.exercises.lesson_04.padding import PADDING
from mha_lesson.exercises.lesson_04.test_padding import TEST_PADDING
from mha_lesson.exercises.lesson_04.window import WINDOW

EXERCISES = (CAUSAL, PADDING, COMBINE, TEST_PADDING, WINDOW)
