"""What several exercises of lesson 12 use."""

import numpy as np

INF = np.inf
