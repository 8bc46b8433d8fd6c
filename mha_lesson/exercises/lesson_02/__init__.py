"""Exercises of lesson 02: query, key, value."""

from mha_lesson.exercises.lesson_02.previous import PREVIOUS
from mha_lesson.exercises.lesson_02.qkv import QKV

EXERCISES = (QKV, PREVIOUS)
