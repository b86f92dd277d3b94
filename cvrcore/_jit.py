"""The only module that names Numba options.

No fastmath and no parallel: kernels are written so that their inner loops vectorise
without reordering a single sum. The Cython twins are compiled under the same rule, and
so both backends return the same bits.
"""

import functools
import os

import numba

CACHE = os.environ.get("CVRCORE_NUMBA_CACHE", "1") == "1"

njit = functools.partial(numba.njit, cache=CACHE, error_model="numpy", nogil=True)
