"""Exercises of lesson 03: scores and their scale."""

from mha_lesson.exercises.lesson_03.scores import SCORES
from mha_lesson.exercises.lesson_03.test_scaled import TEST_SCALED
from mha_lesson.exercises.lesson_03.variance import VARIANCE

EXERCISES = (VARIANCE, SCORES, TEST_SCALED)
