"""Principal axes of clients' rows: rows in, approximate eigenvectors of the affinity out.

If rows lie close together, a smooth kernel is nearly linear in their inner products, and the
normalised affinity is nearly ``c X X^T``, X the centred rows. A step of subspace iteration
on the affinity costs K^2 a vector; on the D x D matrix ``X^T X`` it costs D^2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from ..runtime.journal import Journal
from ..runtime.sizes import SMALL
from ..validation import Float, Ids, check_matrix, check_vector
from .operators import Operator, dense_product
from .subspace import TOLERANCE, Basis, filtered_subspace

_NEAR: Final = 0.8  # mean affinity from which rows count as close together
_RANGE: Final = 1e-5  # eigenvalues below this share of the largest have no digits in float32
_SHARE: Final = 0.8  # share of the tolerance for the axes; the rest is for nonlinearity


class _Moments(NamedTuple):
    reference: Float  # subtracted from rows: their mean at the first use
    rows: Float  # float32
    total: Float  # sum of the rows
    gram: Float  # Gram matrix of the rows, not centred


class Principal:
    """Lazy D x D Gram matrix of the rows of all clients; a round updates P rows.

    Parameters
    ----------
    offsets : array of shape (n_clients, n_features)
        Rows minus a common reference. The owner calls `update` after it changes rows.
    smooth : bool
        Whether the kernel has a derivative where rows meet.
    """

    def __init__(self, offsets: Float, smooth: bool = True) -> None:
        self.offsets, self.smooth = offsets, smooth
        self._moments: _Moments | None = None

    def update(self, ids: Ids, journal: Journal | None = None) -> None:
        """Update the Gram matrix after the rows of some clients were replaced: O(len(ids) D^2)."""
        if self._moments is None:
            return
        reference, rows, total, gram = self._moments
        if journal is not None:
            journal.rows(ids, rows)
            journal.array(total)
            journal.array(gram)
        old, new = rows[ids], (self.offsets[ids] - reference).astype(np.float32)
        gram += new.T @ new
        gram -= old.T @ old
        total += new.sum(axis=0, dtype=np.float64) - old.sum(axis=0, dtype=np.float64)
        rows[ids] = new

    def is_worth_using(self, mean_affinity: float, n_vectors: int) -> bool:
        """Return whether a start from `vectors` saves more products than it costs.

        At K = 1000 on flat rows, with a mean affinity of 0.99, 0.9 and 0.8, the iteration
        started from `vectors` needs 0, 4 and 5 products with the affinity instead of 11.
        """
        n_clients, n_features = self.offsets.shape
        fits = SMALL < n_clients and 1.5 * n_vectors <= n_features <= n_clients // 2
        return self.smooth and fits and mean_affinity >= _NEAR

    def coordinates(self, n_vectors: int) -> Float:
        """Return clients' leading principal coordinates; missing ones are seeded noise."""
        rows, mean = self._centred()
        _, axes = np.linalg.eigh(self._gram())
        n_axes = min(n_vectors, axes.shape[0])
        block = np.random.default_rng(0).standard_normal((rows.shape[0], n_vectors))
        block[:, :n_axes] = (rows - mean) @ axes[:, : -n_axes - 1 : -1]
        return block

    def axes(self, n_axes: int, n_wanted: int, last: Basis | None) -> Basis:
        """Return the leading axes, the first `n_wanted` of them converged.

        The iteration is warm-started from the `last` axes, if their number is the same.
        """
        gram = self._gram().astype(np.float32)
        found = None
        if last is not None and last.vectors.shape == (gram.shape[0], n_axes):
            found = filtered_subspace(_Gram(gram), last, n_wanted, _SHARE * TOLERANCE)
        if found is None:
            values, vectors = np.linalg.eigh(gram)
            leading = slice(None, -n_axes - 1, -1)
            found = Basis(np.ascontiguousarray(vectors[:, leading]), values[leading].copy())
        return found

    def vectors(self, axes: Basis) -> Float | None:
        """Return clients' coordinates along `axes` as unit columns, float32.

        None if float32 cannot resolve the column of the last axis.
        """
        if not axes.values[-1] > _RANGE * axes.values[0]:
            return None
        rows, mean = self._centred()
        scaled = axes.vectors / np.sqrt(axes.values).astype(np.float32)
        return rows @ scaled - mean.astype(np.float32) @ scaled

    def _computed(self) -> _Moments:
        """Return the moments, computed at the first call."""
        if self._moments is None:
            reference = self.offsets.mean(axis=0)
            rows = (self.offsets - reference).astype(np.float32)
            total, gram = rows.sum(axis=0, dtype=np.float64), rows.T @ rows
            self._moments = _Moments(reference, rows, total, gram.astype(np.float64))
        return self._moments

    def _centred(self) -> tuple[Float, Float]:
        """Return rows and their mean."""
        _, rows, total, _ = self._computed()
        return rows, total / rows.shape[0]

    def _gram(self) -> Float:
        """Return ``X^T X``, X the rows minus their mean."""
        _, rows, total, gram = self._computed()
        return gram - np.outer(total, total / rows.shape[0])

    def state(self) -> dict[str, Any] | None:
        """Return the arrays that the offsets do not determine; None before the first use."""
        if self._moments is None:
            return None
        reference, _, total, gram = self._moments
        return {"reference": reference.copy(), "total": total.copy(), "gram": gram.copy()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restore from `state`."""
        if state is None:
            return
        length = self.offsets.shape[1]
        dtype = self.offsets.dtype
        reference = check_vector(state["reference"], "reference", length, dtype).copy()
        rows = (self.offsets - reference).astype(np.float32)
        total = check_vector(state["total"], "total", length).copy()
        gram = check_matrix(state["gram"], "gram", (length, length), np.float64).copy()
        self._moments = _Moments(reference, rows, total, gram)


class _Gram(Operator):
    """The Gram matrix of all rows, D x D."""

    chunk = 1024

    def __init__(self, matrix: Float) -> None:
        super().__init__(matrix.dtype)
        self.matrix = matrix

    def _product(self, block: Float) -> Callable[[slice | Ids, Float], None]:
        return dense_product(self.matrix, block)
