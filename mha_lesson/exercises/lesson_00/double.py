"""Exercise 00.double."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.lookup import double

mistake = Mistakes()


mistake.edit(
    "adds_two",
    """You change every number of x, as asked. But you add 2; doubling multiplies: x * 2.""",
    old="x * 2",
    new="x + 2",
)

mistake.edit(
    "squares",
    """You use x twice, good. But x * x is the square; the double is x + x, or x * 2.""",
    old="x * 2",
    new="x * x",
)

mistake.edit(
    "halves",
    """2 is the right number. But you divide by it; multiply: x * 2.""",
    old="x * 2",
    new="x / 2",
)

mistake.edit(
    "unchanged",
    """Your function takes x and returns it, so the frame is right. Now multiply: return x * 2.""",
    old="x * 2",
    new="x",
)


@mistake
def two_copies(x):
    """You have x two times. But they lie side by side as two copies; add them: x + x."""
    return np.stack([x, x])


DOUBLE = Exercise(
    id="00.double",
    signature="double(x)",
    solution=double,
    probes=lambda: [
        Probe((np.array([1.0, 3.0, -5.0]),), "x = [1, 3, -5]"),
        Probe((wave(2, 3),), "x with 2 rows and 3 columns"),
        Probe((wave(5, dtype=np.float32),), "x of 5 numbers in float32"),
    ],
    mistakes=mistake.all,
    forms={
        "x + x": lambda x: x + x,
        "a loop": lambda x: [v * 2 for v in x],
        **usual_forms(double),
    },
    hints=(
        "NumPy multiplies a whole array at once: try x * 2 in a cell of its own.",
        "The function needs a line that begins with return.",
    ),
    well_done="Each exercise works like this: write, run, read what comes back, try again.",
)  # fmt: skip
