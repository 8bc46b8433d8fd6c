"""What tests of several steps share."""

import numpy as np


def writes(*answer, calls=None):
    """A step whose row i favours answer[i]."""

    def step(prefix):
        if calls is not None:
            calls.append(list(prefix))
        return np.eye(9)[[answer[min(i, len(answer) - 1)] for i in range(len(prefix))]]

    return step
