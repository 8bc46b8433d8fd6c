"""What several exercises of lesson 05 use."""

import numpy as np


def plain(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
