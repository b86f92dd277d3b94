"""The exponential of numbers up to 0, to the bit in both backends; C twin: ``_exponential.h``.

NumPy's and the C library's take one float64 at a time unless there is AVX-512, and differ from
each other in the last digit. This one is within two units of it, and vectorises.
"""

import math

import numpy as np

from ._jit import njit

LEAST = -708.0  # below it the result counts as 0
SHIFT = 6755399441055744.0  # 1.5 * 2^52: what is added to it becomes a whole number
PER_DOUBLING = 1.0 / math.log(2.0)
LN2_HIGH = 0.693147180369123816490  # of few digits: times a whole number it is exact
LN2_LOW = 1.90821492927058770002e-10
COEFFICIENTS = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
POWERS = 2.0 ** np.arange(-1022, 1)


@njit
def exponential(x):
    """Return exp(x) for x up to 0."""
    if not x >= LEAST:
        return 0.0
    doublings = (x * PER_DOUBLING + SHIFT) - SHIFT
    rest = (x - doublings * LN2_HIGH) - doublings * LN2_LOW  # within half a doubling
    total = 0.0
    for coefficient in COEFFICIENTS:
        total = total * rest + coefficient
    return total * POWERS[int(doublings) + 1022]
