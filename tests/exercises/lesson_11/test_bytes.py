"""11.bytes: a number in an array."""

import numpy as np

from tests.exercises.helpers import mistake


def test_bytes_as_an_array_are_right():
    def product(layers, kv_heads, d_head, tokens, batch, bytes_per_number):
        return np.array([2, layers, kv_heads, d_head, tokens, batch, bytes_per_number], np.int64).prod()

    assert mistake("11.bytes", product) == "correct"
