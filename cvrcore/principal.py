"""Principal axes of clients' rows: near the affinity's eigenvectors, for far less work.

Where rows lie close together a smooth kernel is linear in their inner products, and the
normalised affinity is nearly ``c X X^T``, X the centred rows. What `cvrcore.subspace` does to
it costs K^2 a vector and step, the same on the D x D matrix ``X^T X`` costs D^2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from ._validation import Float, Ids, check_matrix, check_vector
from .normalised import Operator, dense_product
from .subspace import FEW, TOLERANCE, Basis, filtered_subspace

_NEAR: Final = 0.8  # mean affinity from which rows count as close together
_RANGE: Final = 1e-5  # of the largest: squared lengths below have no digits in float32
_SHARE: Final = 0.8  # of the tolerance, for axes; the rest is for what is not linear


class _Kept(NamedTuple):
    reference: Float  # what rows are taken relative to: their mean, when they were first asked for
    rows: Float  # float32
    total: Float  # of the rows
    gram: Float  # of the rows, before they are centred


class Principal:
    """Rows of all clients and their D x D product, of which a round brings P rows up to date.

    Nothing is worked out, or kept up to date, before it is first asked for.

    Parameters
    ----------
    offsets : array of shape (n_clients, n_features)
        Rows less a common one, whichever. Whoever changes it says so by `update`.
    smooth : bool
        Whether the kernel has a derivative where rows meet.
    """

    def __init__(self, offsets: Float, smooth: bool = True) -> None:
        self.offsets, self.smooth = offsets, smooth
        self._kept: _Kept | None = None

    def update(self, ids: Ids) -> None:
        """Take note that the rows of some clients were replaced: O(len(ids) D^2)."""
        if self._kept is None:
            return
        reference, rows, total, gram = self._kept
        old, new = rows[ids], (self.offsets[ids] - reference).astype(np.float32)
        gram += new.T @ new
        gram -= old.T @ old
        total += new.sum(axis=0, dtype=np.float64) - old.sum(axis=0, dtype=np.float64)
        rows[ids] = new

    def explains(self, mean_affinity: float, n_vectors: int) -> bool:
        """Return whether `vectors` save more than they and their `axes` cost.

        At K = 1000 on flat rows, with a mean affinity of 0.99, 0.9 and 0.8, they leave no, four
        and five products with the affinity of eleven.
        """
        n_clients, n_features = self.offsets.shape
        fits = FEW < n_clients and 1.5 * n_vectors <= n_features <= n_clients // 2
        return self.smooth and fits and mean_affinity >= _NEAR

    def coordinates(self, n_vectors: int) -> Float:
        """Return clients' leading principal coordinates.

        Where there are fewer than so many, seeded noise fills up.
        """
        rows, mean = self._centred()
        _, axes = np.linalg.eigh(self._gram())
        n_axes = min(n_vectors, axes.shape[0])
        block = np.random.default_rng(0).standard_normal((rows.shape[0], n_vectors))
        block[:, :n_axes] = (rows - mean) @ axes[:, : -n_axes - 1 : -1]
        return block

    def axes(self, n_axes: int, n_wanted: int, last: Basis | None) -> Basis:
        """Return the leading axes, the first `n_wanted` of them near their limits.

        Iterates from the `last` ones, if there were as many.
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
        """Return clients' coordinates along some axes, each scaled to length 1: float32.

        None where some are of next to no length.
        """
        if not axes.values[-1] > _RANGE * axes.values[0]:
            return None
        rows, mean = self._centred()
        scaled = axes.vectors / np.sqrt(axes.values).astype(np.float32)
        return rows @ scaled - mean.astype(np.float32) @ scaled

    def _known(self) -> _Kept:
        """Return what is kept, from now on."""
        if self._kept is None:
            reference = self.offsets.mean(axis=0)
            rows = (self.offsets - reference).astype(np.float32)
            total, gram = rows.sum(axis=0, dtype=np.float64), rows.T @ rows
            self._kept = _Kept(reference, rows, total, gram.astype(np.float64))
        return self._kept

    def _centred(self) -> tuple[Float, Float]:
        """Return rows and their mean."""
        _, rows, total, _ = self._known()
        return rows, total / rows.shape[0]

    def _gram(self) -> Float:
        """Return ``X^T X`` of rows less their mean."""
        _, rows, total, gram = self._known()
        return gram - np.outer(total, total / rows.shape[0])

    def state(self) -> dict[str, Any] | None:
        """Return as arrays what cannot be told from the offsets, if anything was asked for."""
        if self._kept is None:
            return None
        reference, _, total, gram = self._kept
        return {"reference": reference.copy(), "total": total.copy(), "gram": gram.copy()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Take back what `state` returned."""
        if state is None:
            return
        length = self.offsets.shape[1]
        reference = check_vector(state["reference"], "reference", length, None).copy()
        rows = (self.offsets - reference).astype(np.float32)
        total = check_vector(state["total"], "total", length).copy()
        gram = check_matrix(state["gram"], "gram", (length, length), np.float64).copy()
        self._kept = _Kept(reference, rows, total, gram)


class _Gram(Operator):
    """The product of all rows with themselves, D x D."""

    chunk = 1024

    def __init__(self, matrix: Float) -> None:
        super().__init__(matrix.dtype)
        self.matrix = matrix

    def _product(self, block: Float) -> Callable[[slice | Ids, Float], None]:
        return dense_product(self.matrix, block)
