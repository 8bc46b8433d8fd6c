"""Exercise 06.output."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms, wave
from mha_lesson.steps.heads import output_projection
from mha_lesson.steps.projections import project

mistake = Mistakes()


mistake.edit(
    "skipped",
    """The heads are joined. But you return them as they are. The last linear map W_O is what lets the heads mix.""",
    old="project(c, w_o, b_o)",
    new="c",
)


@mistake
def transposed(c, w_o, b_o):
    """Product and bias are right. But you used w_o.T (nn.Linear's layout). Here w_o is (in, out)."""
    return c @ w_o.T + b_o


@mistake
def transposed_no_bias(c, w_o, b_o):
    """The right arrays meet. But you used w_o.T (nn.Linear's layout), here w_o is (in, out); and the bias b_o is
    missing."""
    return c @ w_o.T


mistake.edit(
    "no_bias",
    """The product is right. But the bias b_o is missing: add it.""",
    old="project(c, w_o, b_o)",
    new="project(c, w_o)",
)


@mistake
def bias_first(c, w_o, b_o):
    """Product and bias are both there. But the bias comes after the product: c @ w_o + b_o."""
    return (c + b_o[: c.shape[-1]]) @ w_o


mistake.edit(
    "residual",
    """This is the layer with its residual connection, right in a transformer block. Here c @ w_o + b_o alone is asked
    for.""",
    old="project(c, w_o, b_o)",
    new="c + project(c, w_o, b_o)",
)


@mistake
def elementwise(c, w_o, b_o):
    """The right arrays meet. But * multiplies place by place; a linear map is the matrix product @."""
    return c * w_o.diagonal() + b_o


@mistake
def bias_subtracted(c, w_o, b_o):
    """The product is right. But the bias is subtracted; it is added."""
    return c @ w_o - b_o


OUTPUT = Exercise(
    id="06.output",
    signature="output(c, w_o, b_o)",
    solution=output_projection,
    helpers=(project,),
    probes=lambda: [
        Probe((np.eye(2)[None], np.array([[1.0, 2], [3, 4]]), np.array([10.0, 20])), "c = the identity, so W_O shows"),
        Probe((wave(2, 3, 5), wave(5, 5, step=0.4), wave(5, step=1.3)), "B 2, L 3, E 5"),
        Probe((wave(3, 2, 5, dtype=np.float32), wave(5, 7, step=0.4, dtype=np.float32), wave(7, dtype=np.float32)),
              "W_O (5, 7), float32"),
    ],
    mistakes=mistake.all,
    forms={
        "einsum": lambda c, w_o, b_o: np.einsum("bli,io->blo", c, w_o) + b_o,
        "a column of ones": lambda c, w_o, b_o: (
            np.concatenate([c, np.ones_like(c[..., :1])], -1) @ np.vstack([w_o, b_o])
        ),
        "token by token": lambda c, w_o, b_o: [[w_o.T @ token + b_o for token in row] for row in c],
        **usual_forms(output_projection),
    },
    hints=(
        "One matrix product and one addition.",
        "w_o is (in, out), so c stands on the left: c @ w_o.",
        "return c @ w_o + b_o",
    ),
    well_done="Now every output feature can use every head.",
)  # fmt: skip
