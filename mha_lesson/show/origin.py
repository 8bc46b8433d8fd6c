"""Where the numbers of a split tensor come from. Used by a drawing and by a widget."""

import numpy as np


def split_origin(length, features, num_heads, reshape_only=False):
    """Where each number of the split tensor came from: an (H, L, D) array of flat indices.

    Index i stands for token i // features, feature i % features.
    """
    origin = np.arange(length * features).reshape(length, features)
    width = features // num_heads
    if reshape_only:
        return origin.reshape(num_heads, length, width)
    return origin.reshape(length, num_heads, width).swapaxes(0, 1)
