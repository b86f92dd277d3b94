"""The normalised affinity as a linear operator: blocks of vectors in, products out.

``S A S`` with ``S = diag(degree)^-1/2``, deflated by its known leading eigenpair. Without
eigenvalue 1 the rest is as small as the spectrum that is wanted, so that float32 keeps seven
digits of that spectrum: enough to iterate in, at half the cost. `CentredAffinity` is the part
that rounds update.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..kernels import dispatch
from ..runtime.journal import Journal
from ..runtime.threads import run_chunks
from ..validation import Float, Ids, check_count, check_matrix, check_number, check_vector

_CHUNK: Final = 256  # rows that one task works on
_OFTEN: Final = 8  # mean number of updates of a row before everything is recomputed


class Operator(abc.ABC):
    """A symmetric matrix in any form; subspace iteration needs non-negative eigenvalues.

    Parameters
    ----------
    dtype : float32 or float64
        Of the blocks of vectors.
    """

    chunk: int = _CHUNK  # rows that one task works on

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.products = 0  # products with blocks so far

    def apply(self, block: Float, finish: Callable[[Float, slice], None] | None = None) -> Float:
        """Return the product with a block of vectors.

        `finish` post-processes each slice of rows while it is in cache.
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

    def filtered(
        self, vectors: Float, image: Float | None, half: float, largest: float, degree: int
    ) -> tuple[Float, Float]:
        """Apply the scaled Chebyshev polynomial of [0, 2 half]; return the block and its image.

        `image` is that of `vectors`, if it is known.
        """
        if image is None:
            image = self.apply(vectors)
        if degree == 0:
            return vectors, image
        scale = vectors.dtype.type  # a float64 scalar of NumPy would widen float32
        first = sigma = half / (largest - half)
        before, now = vectors, (image - scale(half) * vectors) * scale(first / half)
        for _ in range(degree - 1):
            following = 1.0 / (2.0 / first - sigma)

            def combine(
                part: Float,
                rows: slice,
                last: Float = now,
                older: Float = before,
                gain: float = 2.0 * following / half,
                loss: float = sigma * following,
            ) -> None:
                part -= scale(half) * last[rows]
                part *= scale(gain)
                part -= scale(loss) * older[rows]

            before, now, sigma = now, self.apply(now, combine), following
        return now, self.apply(now)

    def rows_of(self, ids: Ids, block: Float) -> Float:
        """Return the rows of some clients of the product with a block."""
        found = np.empty((ids.size, block.shape[1]), dtype=block.dtype)
        self._product(block)(ids, found)
        return found

    @abc.abstractmethod
    def _product(self, block: Float) -> Callable[[slice | Ids, Float], None]:
        """Return a function that writes given rows of the product with a block."""


def dense_product(matrix: Float, block: Float) -> Callable[[slice | Ids, Float], None]:
    """Return a function that writes given rows of the product of a matrix with a block."""

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
    """The matrix in full: for direct solvers, and for few clients."""

    def __init__(self, affinity: Float, dtype: Any = np.float64, positive: bool = True) -> None:
        super().__init__(affinity.sum(axis=1, dtype=np.float64), dtype)
        self.matrix = np.empty(affinity.shape, dtype=dtype)
        # Eigenvalue 1 becomes 0, or -1 where other eigenvalues may be negative.
        known = self.lead if positive else np.sqrt(2.0) * self.lead

        def fill(start: int, stop: int) -> None:
            dispatch.normalise_rows(affinity, self.inverse_root, known, start, stop, self.matrix)

        run_chunks(fill, affinity.shape[0], _CHUNK)

    def _product(self, block: Float) -> Callable[[slice | Ids, Float], None]:
        return dense_product(self.matrix, block)


class SmallAffinity(NormalisedAffinity):
    """The matrix of few clients in float32: one kernel call applies the whole filter."""

    def __init__(self, affinity: Float) -> None:
        super().__init__(affinity, np.float32)

    def filtered(
        self, vectors: Float, image: Float | None, half: float, largest: float, degree: int
    ) -> tuple[Float, Float]:
        """Apply the scaled Chebyshev polynomial of [0, 2 half]; return the block and its image."""
        if degree == 0:
            return super().filtered(vectors, image, half, largest, degree)
        found, image = np.empty_like(vectors), np.empty_like(vectors)
        dispatch.filter_block(self.matrix, vectors, half, largest, degree, found, image)
        self.products += degree + 1
        return found, image


class CentredAffinity:
    """``A - centre`` in float32, and degrees; a round updates P rows and columns.

    Where clients are alike, affinities are nearly equal. Their differences are small, and
    float32 keeps seven digits of these differences.

    Parameters
    ----------
    affinity : array of shape (n_clients, n_clients)
        Symmetric.
    """

    def __init__(self, affinity: Float) -> None:
        n_clients = affinity.shape[0]
        self.values = np.empty(affinity.shape, dtype=np.float32)
        self.replaced = 0  # rows, since everything was computed
        # In float32, so that taking it off a float32 affinity loses nothing.
        self.centre = float(np.float32(affinity[:: 1 + n_clients // _CHUNK].mean(dtype=np.float64)))
        totals = np.empty(n_clients)

        def fill(start: int, stop: int) -> None:
            rows = slice(start, stop)
            np.subtract(affinity[rows], self.centre, out=self.values[rows], casting="same_kind")
            self.values[rows].sum(axis=1, dtype=np.float64, out=totals[rows])

        run_chunks(fill, n_clients, _CHUNK)
        self.totals = totals  # of each row

    @property
    def degrees(self) -> Float:
        """Return each client's degree, of the affinity as it is kept."""
        return self.totals + self.centre * self.totals.size

    @property
    def due(self) -> bool:
        """Return whether to recompute everything, after many updates of each row.

        Totals accumulate rounding errors, and the mean moves away from the centre.
        """
        return self.replaced >= _OFTEN * self.totals.size

    def update(self, ids: Ids, rows: Float, journal: Journal | None = None) -> None:
        """Replace the rows and columns of some clients by `rows`: O(len(ids) K)."""
        if journal is not None:
            journal.array(self.totals)
            journal.cross(ids, self.values)
        values = np.subtract(rows, self.centre).astype(np.float32, copy=False)
        self.totals += values.sum(axis=0, dtype=np.float64)
        self.totals -= self.values[ids].sum(axis=0, dtype=np.float64)
        self.totals[ids] = values.sum(axis=1, dtype=np.float64)
        self.values[ids] = values
        self.values[:, ids] = values.T
        self.replaced += ids.size

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {
            "values": self.values.copy(),
            "totals": self.totals.copy(),
            "centre": self.centre,
            "replaced": self.replaced,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], n_clients: int) -> CentredAffinity:
        """Build from what `state` returned."""
        found = cls.__new__(cls)
        shape = (n_clients, n_clients)
        found.values = check_matrix(state["values"], "values", shape, np.float32).copy()
        found.totals = check_vector(state["totals"], "totals", n_clients).copy()
        found.centre = check_number(state["centre"], "centre", minimum=0, maximum=1)
        found.replaced = check_count(state["replaced"], "replaced", minimum=0)
        if not (found.degrees > 0).all():
            raise ValueError(f"totals must leave degrees positive, got {found.degrees.min():g}")
        return found


class ScaledCentredAffinity(NormalisedOperator):
    """CentredAffinity from the mean, scaled on either side of a product; the mean goes beside it.

    With c the centre, s the diagonal of S and l the known eigenvector,
    ``S A S - l l^T = S (A - c) S + c s s^T - l l^T``. The last two terms nearly cancel; with
    u and v the difference and the sum of ``c^1/2 s`` and l they are ``(u v^T + v u^T) / 2``,
    where u is small because degrees are alike: float32 is enough.
    """

    def __init__(self, centred: CentredAffinity) -> None:
        super().__init__(centred.degrees, np.float32)
        self._values = centred.values
        self._scale = self.inverse_root.astype(np.float32)[:, None]
        level = np.sqrt(centred.centre) * self.inverse_root
        sides = np.stack([level - self.lead, 0.5 * (level + self.lead)]).astype(np.float32)
        self._left, self._right = np.ascontiguousarray(sides.T), sides[::-1]

    def _product(self, block: Float) -> Callable[[slice | Ids, Float], None]:
        scaled, middle = block * self._scale, self._right @ block

        def multiply(rows: slice | Ids, out: Float) -> None:
            np.matmul(self._values[rows], scaled, out=out)
            out *= self._scale[rows]
            out += self._left[rows] @ middle

        return multiply
