"""Names for annotated shapes.

`Float[Array, "L E"]` reads: an array of floats with axes L and E. `*any` stands for any
leading axes. The annotations document; the tests also check them while they run.
"""

import numpy as np
from jaxtyping import Bool, Float, Integer, Real

Array = np.ndarray

__all__ = ["Array", "Bool", "Float", "Integer", "Real"]
