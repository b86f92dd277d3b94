"""Names of the means that a selector may use, and the sizes that decide their memory.

`runtime.plan` and the packages that do the work read the same numbers here.
"""

from __future__ import annotations

from typing import Final

STORES: Final = ("auto", "dense", "factored", "window", "none")
CLUSTERINGS: Final = ("auto", "exact", "nystrom")
EIGENSOLVERS: Final = ("auto", "direct")
LANDMARKS: Final = ("uniform", "kmeans++")

# -- spectral clustering --------------------------------------------------------

EXACT_LIMIT: Final = 12_000  # clients up to which the whole affinity is worth its time
LAPACK_LIMIT: Final = 1500  # clients up to which LAPACK solves a problem without a start
SMALL: Final = 160  # clients up to which our own small kernels beat calls of BLAS
_MANY: Final = 4000  # clients from which products with the affinity are nearly all the work


def block_width(n_clients: int, n_wanted: int) -> int:
    """Return how many eigenvectors to iterate: a third more than are wanted, rounded to 16.

    Guard vectors widen the gap that the Chebyshev filter works on. Among many clients, where
    products are nearly all the work, five eighths more save a sixth of it on flat spectra.
    """
    guard = n_wanted // 3 if n_clients <= _MANY else 5 * n_wanted // 8
    width = n_wanted + max(4, guard)
    whole = max(16 * round(width / 16), 16)
    if whole < n_wanted + 4:
        whole += 16
    return min(whole if 4 * whole <= n_clients else width, n_clients - 1)


# -- covariance -----------------------------------------------------------------

LANES: Final = 8  # coordinates in one block of the packed covariance
TILE_CLIENTS: Final = 12  # clients on the edge of one tile of pairs
DEFERRED: Final = 16  # residuals that one pass folds into a block
CACHED_PAIRS: Final = 24  # sums of pairs that the LRU cache holds for each client
_LONG: Final = 64  # residuals of a window from which sums of pairs are worth caching


def caches_pairs(window: int | None) -> bool:
    """Return whether a log of so many residuals is long enough for a cache of pairs."""
    return window is None or window >= _LONG


def packed_pairs(n_clients: int) -> int:
    """Return how many pairs the packed covariance has room for: those of whole tiles."""
    n_tiles = -(-n_clients // TILE_CLIENTS)
    return n_tiles * (n_tiles + 1) // 2 * TILE_CLIENTS**2
