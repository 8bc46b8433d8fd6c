"""Where the numbers of a head come from."""

import numpy as np

from mha_lesson.show.figures import diagrams


def test_split_origin_matches_numpy():
    x = np.arange(24).reshape(4, 6)
    expected = x.reshape(4, 3, 2).swapaxes(0, 1)
    np.testing.assert_array_equal(diagrams.split_origin(4, 6, 3), expected)
