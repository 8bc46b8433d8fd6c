"""Exercises of lesson 11: the cache, chunks of new tokens, shared heads, and bytes."""

from mha_lesson.exercises.lesson_11.bytes import BYTES
from mha_lesson.exercises.lesson_11.cache import CACHE
from mha_lesson.exercises.lesson_11.chunk import CHUNK
from mha_lesson.exercises.lesson_11.gqa import GQA

EXERCISES = (CACHE, CHUNK, BYTES, GQA)
