"""Exercises of lesson 13: a clock that waits, a tolerance that fits, a kernel, and a ring.

Importing this needs no torch: the kernel's solution and the stand-in are looked up when first needed."""

from mha_lesson.exercises.lesson_13.agrees import AGREES
from mha_lesson.exercises.lesson_13.kernel import KERNEL
from mha_lesson.exercises.lesson_13.ring import RING
from mha_lesson.exercises.lesson_13.timed import TIMED

EXERCISES = (TIMED, KERNEL, AGREES, RING)
