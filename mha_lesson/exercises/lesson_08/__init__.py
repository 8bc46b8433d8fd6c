"""Exercises of lesson 08: nn.MultiheadAttention without its traps, and a test for any attention layer.

Importing this needs no torch: `torch` below is looked up when a probe or a mistake is run."""

from mha_lesson.exercises.lesson_08.blocked import BLOCKED
from mha_lesson.exercises.lesson_08.load import LOAD
from mha_lesson.exercises.lesson_08.per_head import PER_HEAD
from mha_lesson.exercises.lesson_08.works import WORKS

EXERCISES = (PER_HEAD, LOAD, BLOCKED, WORKS)
