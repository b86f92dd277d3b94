"""The normalised affinity, as an operator that blocks of vectors are multiplied with.

``S A S`` with ``S = diag(degree)^-1/2``, less its known leading eigenpair: with eigenvalue 1
gone, what is left is as small as the spectrum that is wanted, so that float32 keeps seven
digits of *it*: enough to iterate in, at half the cost.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from . import _backend
from ._validation import Float, Ids
from .deviations import Deviations
from .threads import run_chunks

_CHUNK: Final = 256


class Operator(abc.ABC):
    """A symmetric matrix, in whatever form, without negative eigenvalues if it is iterated with.

    Parameters
    ----------
    dtype : float32 or float64
        Of the blocks that it is multiplied with.
    """

    chunk: int = _CHUNK  # rows that one task works on

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.products = 0  # with blocks

    def apply(self, block: Float, finish: Callable[[Float, slice], None] | None = None) -> Float:
        """Return the product with a block of vectors.

        `finish` changes some rows of it, those of a slice, while they are in cache.
        """
        self.products += 1
        product, multiply = np.empty_like(block), self._product(block)

        def fill(start: int, stop: int) -> None:
            rows = slice(start, stop)
            multiply(rows, product[rows])
            if finish is not None:
                finish(product[rows], rows)

        run_chunks(fill, product.shape[0], self.chunk)
        return product

    def rows_of(self, ids: Ids, block: Float) -> Float:
        """Return the rows of some clients of the product with a block."""
        found = np.empty((ids.size, block.shape[1]), dtype=block.dtype)
        self._product(block)(ids, found)
        return found

    @abc.abstractmethod
    def _product(self, block: Float) -> Callable[[slice | Ids, Float], None]:
        """Return what writes given rows of the product with a block."""


def dense_product(matrix: Float, block: Float) -> Callable[[slice | Ids, Float], None]:
    """Return what writes given rows of the product of a matrix with a block."""

    def multiply(rows: slice | Ids, out: Float) -> None:
        np.matmul(matrix[rows], block, out=out)

    return multiply


class NormalisedOperator(Operator):
    """A normalised affinity.

    Parameters
    ----------
    degrees : float64 array of shape (n_clients,)
        All positive.
    dtype : float32 or float64
    """

    def __init__(self, degrees: Float, dtype: Any) -> None:
        super().__init__(dtype)
        self.inverse_root = 1.0 / np.sqrt(degrees)
        self.lead = np.sqrt(degrees / degrees.sum())
        self.mean_affinity = float(degrees.mean()) / degrees.size

    def embed(self, vectors: Float) -> Float:
        """Turn eigenvectors into points: one row per client."""
        return vectors * self.inverse_root[:, None]


class NormalisedAffinity(NormalisedOperator):
    """All entries worked out: what direct solvers need, and little work for few clients."""

    def __init__(self, affinity: Float, dtype: Any = np.float64, positive: bool = True) -> None:
        super().__init__(affinity.sum(axis=1, dtype=np.float64), dtype)
        self.matrix = np.empty(affinity.shape, dtype=dtype)
        # Eigenvalue 1 becomes 0, or -1 where others may be negative and 0 would outrank them.
        known = self.lead if positive else np.sqrt(2.0) * self.lead

        def fill(start: int, stop: int) -> None:
            _backend.normalise_rows(affinity, self.inverse_root, known, start, stop, self.matrix)

        run_chunks(fill, affinity.shape[0], _CHUNK)

    def _product(self, block: Float) -> Callable[[slice | Ids, Float], None]:
        return dense_product(self.matrix, block)


class ScaledDeviations(NormalisedOperator):
    """Deviations from the mean, scaled on either side of a product; the mean goes beside it.

    With c the centre, s the diagonal of S and l the known eigenvector,
    ``S A S - l l^T = S (A - c) S + c s s^T - l l^T``. The last two terms nearly cancel; with
    u and v the difference and the sum of ``c^1/2 s`` and l they are ``(u v^T + v u^T) / 2``,
    where u is as small as degrees are alike, and float32 will do.
    """

    def __init__(self, deviations: Deviations) -> None:
        super().__init__(deviations.degrees, np.float32)
        self._values = deviations.values
        self._scale = self.inverse_root.astype(np.float32)[:, None]
        level = np.sqrt(deviations.centre) * self.inverse_root
        sides = np.stack([level - self.lead, 0.5 * (level + self.lead)]).astype(np.float32)
        self._left, self._right = np.ascontiguousarray(sides.T), sides[::-1]

    def _product(self, block: Float) -> Callable[[slice | Ids, Float], None]:
        scaled, middle = block * self._scale, self._right @ block

        def multiply(rows: slice | Ids, out: Float) -> None:
            np.matmul(self._values[rows], scaled, out=out)
            out *= self._scale[rows]
            out += self._left[rows] @ middle

        return multiply
