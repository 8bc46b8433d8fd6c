"""Exercises of lesson 01: look-up, positions, rotation."""

from mha_lesson.exercises.lesson_01.add_positions import ADD_POSITIONS
from mha_lesson.exercises.lesson_01.embed import EMBED
from mha_lesson.exercises.lesson_01.positions import POSITIONS
from mha_lesson.exercises.lesson_01.rotary import ROTARY

EXERCISES = (EMBED, POSITIONS, ADD_POSITIONS, ROTARY)
