"""The normalised affinity, as a matrix that blocks of vectors are multiplied with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from . import _backend
from ._validation import Float
from .threads import run_chunks

_CHUNK: Final = 256  # rows of the matrix that one task works on


class NormalisedAffinity:
    """``S A S`` less its known leading eigenpair.

    With eigenvalue 1 gone the entries are as small as the spectrum that is wanted, so that
    float32 keeps seven digits of *it*: enough to iterate in, at half the cost.
    """

    def __init__(self, affinity: Float, dtype: Any = np.float64, positive: bool = True) -> None:
        degrees = np.empty(affinity.shape[0])

        def add(start: int, stop: int) -> None:
            affinity[start:stop].sum(axis=1, dtype=np.float64, out=degrees[start:stop])

        run_chunks(add, affinity.shape[0], _CHUNK)
        self.inverse_root = 1.0 / np.sqrt(degrees)
        self.lead = np.sqrt(degrees / degrees.sum())
        self.mean_affinity = float(degrees.mean()) / degrees.size
        self.products = 0  # with blocks
        self.matrix = np.empty(affinity.shape, dtype=dtype)
        # Eigenvalue 1 becomes 0, or -1 where others may be negative and 0 would outrank them.
        known = self.lead if positive else np.sqrt(2.0) * self.lead

        def fill(start: int, stop: int) -> None:
            _backend.normalise_rows(affinity, self.inverse_root, known, start, stop, self.matrix)

        run_chunks(fill, affinity.shape[0], _CHUNK)

    def apply(self, block: Float, finish: Callable[[Float, slice], None] | None = None) -> Float:
        """Return the product with a block of vectors.

        `finish` changes some rows of it, those of a slice, while they are in cache.
        """
        self.products += 1
        product = np.empty_like(block)

        def multiply(start: int, stop: int) -> None:
            rows = slice(start, stop)
            np.matmul(self.matrix[rows], block, out=product[rows])
            if finish is not None:
                finish(product[rows], rows)

        run_chunks(multiply, product.shape[0], _CHUNK)
        return product

    def embed(self, vectors: Float) -> Float:
        """Turn eigenvectors into points: one row per client."""
        return vectors * self.inverse_root[:, None]
