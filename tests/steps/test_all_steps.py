"""What every step of lessons 00 to 06 does: keep the number format, and leave its inputs alone."""

import numpy as np
import pytest

from mha_lesson.steps.embeddings import add_positions, embed, lookup, rotary
from mha_lesson.steps.heads import merge_heads, output_projection, split_heads
from mha_lesson.steps.lookup import double, soft_lookup
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.projections import project, qkv
from mha_lesson.steps.scores import attention_scores
from mha_lesson.steps.softmax import masked_softmax, softmax
from tests.reference import g, near, read_only

FLOATS = [np.float16, np.float32, np.float64]


# --------------------------------------------------------------------------------- all of them


EVERY_STEP = {
    "double": lambda a: double(a((2, 3))),
    "soft_lookup": lambda a: soft_lookup(a((3,)), a((5, 3)), a((5, 2))),
    "lookup": lambda a: lookup(np.array([1, 0]), a((3, 2))),
    "embed": lambda a: embed(np.array([1, 0]), a((3, 2))),
    "add_positions": lambda a: add_positions(a((2, 5, 4)), a((7, 4))),
    "rotary": lambda a: rotary(a((2, 5, 4)), np.arange(5)),
    "project": lambda a: project(a((2, 5, 3)), a((3, 7)), a((7,))),
    "qkv": lambda a: np.stack(qkv(a((2, 5, 3)), a((3, 7)), a((3, 7)), a((3, 7)))),
    "attention_scores": lambda a: attention_scores(a((2, 5, 3)), a((2, 7, 3))),
    "softmax": lambda a: softmax(a((5, 7))),
    "masked_softmax": lambda a: masked_softmax(a((5, 7)), causal_mask(5, 7)),
    "masked_softmax, empty rows": lambda a: masked_softmax(a((7, 5)), causal_mask(7, 5)),
    "split_heads": lambda a: split_heads(a((2, 5, 6)), 3),
    "merge_heads": lambda a: merge_heads(a((2, 3, 5, 2))),
    "output_projection": lambda a: output_projection(a((2, 5, 6)), a((6, 3)), a((3,))),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", EVERY_STEP)
def test_steps_keep_the_dtype_and_their_inputs(name, dtype):
    got = EVERY_STEP[name](lambda shape: read_only(g(shape).astype(dtype)))
    exact = EVERY_STEP[name](g)
    assert got.dtype == dtype
    near(got.astype(float), exact, {np.float16: 2e-2, np.float32: 1e-5, np.float64: 0}[dtype])
