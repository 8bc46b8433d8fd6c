"""Exercise 10.parameters."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.exercises.engine.probes import usual_forms
from mha_lesson.steps.head_count import layer_parameters

mistake = Mistakes()


@mistake
def no_biases(d_model, num_heads, num_kv_heads):
    """All four matrices are right. But each has a bias too, one number for each of its columns."""
    return 2 * d_model**2 + 2 * d_model * num_kv_heads * (d_model // num_heads)


mistake.edit(
    "full_biases",
    """All four matrices are right, and there are biases. But those of keys and values are only as long as W_K and W_V
    are wide: num_kv_heads * d_head.""",
    old="d_model * kv_width + kv_width",
    new="d_model * kv_width + d_model",
)

mistake.edit(
    "no_output_bias",
    """Nearly all is there. But W_O has a bias too: d_model more.""",
    old="output = d_model * d_model + d_model",
    new="output = d_model * d_model",
)

mistake.edit(
    "no_output",
    """Queries, keys and values are right. But W_O and its bias are missing: d_model * d_model + d_model.""",
    old=" + output",
    new="",
)

mistake.edit(
    "kv_heads_ignored",
    """Right for a layer in which each head has its own keys and values. But with num_kv_heads of them W_K and W_V are
    narrower: (d_model, num_kv_heads * d_head).""",
    old="num_kv_heads * d_head",
    new="num_heads * d_head",
)

mistake.edit(
    "no_values",
    """Queries, keys and output are right. But values have a matrix and a bias of their own: twice what keys take.""",
    old="2 * (d_model * kv_width + kv_width)",
    new="(d_model * kv_width + kv_width)",
)


@mistake
def heads_multiply(d_model, num_heads, num_kv_heads):
    """One layer is counted right. But you took it times the number of heads; the heads share these matrices, each has
    d_model / num_heads of their columns."""
    return num_heads * layer_parameters(d_model, num_heads, num_kv_heads)


@mistake
def wide_heads(d_model, num_heads, num_kv_heads):
    """The four matrices are in it. But every head is as wide as the model here; it is only d_head = d_model //
    num_heads wide."""
    return (d_model + 1) * d_model * (num_heads + 2 * num_kv_heads) + num_heads * d_model * d_model + d_model


mistake.edit(
    "wide_kv_heads",
    """Queries and output are right. But each head of keys is only d_head wide: W_K is (d_model, num_kv_heads *
    d_head).""",
    old="d_head = d_model // num_heads",
    new="d_head = d_model",
)

mistake.edit(
    "one_kv_head",
    """Queries and output are right. But keys and values have num_kv_heads heads, not one: their width is num_kv_heads
    * d_head.""",
    old="num_kv_heads * d_head",
    new="d_head",
)

mistake.edit(
    "split_among_kv_heads",
    """Queries and output are right. But keys and values do not share out d_model among num_kv_heads (num_heads /
    num_kv_heads is how many query heads use the same keys): their width is num_kv_heads * d_head.""",
    old="num_kv_heads * d_head",
    new="num_heads // num_kv_heads * d_head",
)

mistake.edit(
    "narrow_output",
    """Queries, keys and values are right. But W_O reads the query heads side by side, all d_model numbers: it stays
    (d_model, d_model).""",
    old="output = d_model * d_model + d_model",
    new="output = kv_width * d_model + d_model",
)


@mistake
def square_heads(d_model, num_heads, num_kv_heads):
    """Biases and output are right. But each head's matrix reads the whole token: (d_model, d_head), not (d_head,
    d_head)."""
    return (lambda d: (num_heads + 2 * num_kv_heads) * (d * d + d) + d_model * d_model + d_model)(d_model // num_heads)


PARAMETERS = Exercise(
    id="10.parameters",
    signature="parameters(d_model, num_heads, num_kv_heads)",
    solution=layer_parameters,
    probes=lambda: [
        Probe((6, 3, 1), "d_model 6, 3 heads, 1 head of keys and values"),
        Probe((30, 15, 5), "d_model 30, 15 heads, 5 of keys and values"),
        Probe((70, 10, 2), "d_model 70, 10 heads, 2 of keys and values"),
        Probe((512, 8, 8), "d_model 512, 8 heads, each with its own keys and values"),
    ],
    mistakes=mistake.all,
    forms={
        "matrix by matrix": lambda d_model, num_heads, num_kv_heads: sum(
            rows * columns + columns
            for rows, columns in [
                (d_model, d_model),
                *[(d_model, num_kv_heads * (d_model // num_heads))] * 2,
                (d_model, d_model),
            ]
        ),
        "head by head": lambda d_model, num_heads, num_kv_heads: (
            (num_heads + 2 * num_kv_heads) * (d_model + 1) * (d_model // num_heads) + (d_model + 1) * d_model
        ),
        "real arrays": lambda d_model, num_heads, num_kv_heads: sum(
            np.zeros((d_model + 1, heads * d_model // num_heads)).size
            for heads in (num_heads, num_kv_heads, num_kv_heads, num_heads)
        ),
        "a float": lambda d_model, num_heads, num_kv_heads: (
            2 * (d_model + 1) * d_model * (1 + num_kv_heads / num_heads)
        ),
        **usual_forms(layer_parameters),
    },
    hints=(
        "Four matrices: W_Q, W_K, W_V, W_O. Which shape has each? A bias has one number for each column.",
        "W_Q and W_O are (d_model, d_model), however many heads there are.",
        "W_K and W_V have num_kv_heads heads of width d_model // num_heads: that many columns, and biases.",
    ),
    well_done="More heads cost no parameters; fewer heads of keys and values save some.",
)  # fmt: skip
