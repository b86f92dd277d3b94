"""Principal axes of clients' rows: near the affinity's eigenvectors, for far less work.

Where rows lie close together a smooth kernel is linear in their inner products, and the
normalised affinity is nearly ``c X X^T``, X the centred rows. What `cvrcore.subspace` does to
it costs K^2 a vector and step, the same on the D x D matrix ``X^T X`` costs D^2.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final, NamedTuple

import numpy as np

from ._validation import Float, Ids, check_matrix, check_vector
from .subspace import FEW, steepest
from .threads import run_chunks

_NEAR: Final = 0.8  # mean affinity from which rows count as close together
_COLUMNS: Final = 64  # vectors of one task
_DAMPING: Final = 700.0  # of what is not wanted: about as much as the affinity differs
_MAX_DEGREE: Final = 48


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
        """Return whether `filtered` saves more than it costs.

        At K = 1000 on flat rows, with a mean affinity of 0.99, 0.9 and 0.8, it leaves two, four
        and five products with the affinity of eleven.
        """
        n_clients, n_features = self.offsets.shape
        fits = FEW < n_clients and 1.5 * n_vectors <= n_features <= n_clients // 2
        return self.smooth and fits and mean_affinity >= _NEAR

    def coordinates(self, n_vectors: int) -> Float:
        """Return clients' leading principal coordinates.

        Where there are fewer than so many, seeded noise fills up.
        """
        rows, mean, gram = self._centred()
        _, axes = np.linalg.eigh(gram)
        n_axes = min(n_vectors, axes.shape[0])
        block = np.random.default_rng(0).standard_normal((rows.shape[0], n_vectors))
        block[:, :n_axes] = (rows - mean) @ axes[:, : -n_axes - 1 : -1]
        return block

    def filtered(self, vectors: Float, values: Float, n_wanted: int) -> Float:
        """Return the block with all that lies below its last principal axis damped.

        Parameters
        ----------
        vectors : float32 array of shape (n_clients, n_vectors)
            Nearly eigenvectors of the affinity.
        values : array of shape (n_vectors,)
            Their eigenvalues, largest first, all positive.
        n_wanted : int
        """
        rows, mean, gram = (part.astype(np.float32, copy=False) for part in self._centred())
        largest, smallest, edge = values[[0, n_wanted - 1, -1]].tolist()
        worst = max(2.0 * smallest / edge - 1.0, 1.0001)
        degree = min(math.ceil(math.acosh(_DAMPING) / math.acosh(worst)), _MAX_DEGREE)
        n_sweeps = -(-degree // steepest(2.0 * largest / edge - 1.0, 1.0))
        axes = np.empty((rows.shape[1], vectors.shape[1]), dtype=np.float32)
        block, units = np.empty_like(vectors), np.empty(vectors.shape[1])

        def sweep(number: int, start: int, stop: int) -> None:
            """Damp some vectors once more: first they become axes, and last vectors again."""
            some = slice(start, stop)
            if number == 0:
                part = rows.T @ vectors[:, some] - np.outer(mean, vectors[:, some].sum(axis=0))
                units[some] = np.median(np.square(part).sum(axis=0) / values[some])
            else:
                part = np.ascontiguousarray(axes[:, some])
            part = _chebyshev(gram, units[start] * edge, part, -(-degree // n_sweeps))
            part /= np.sqrt(np.square(part).sum(axis=0))
            if number == n_sweeps - 1:
                block[:, some] = rows @ part - mean @ part
            else:
                axes[:, some] = part

        for number in range(n_sweeps):
            if number:  # columns have become nearly parallel
                axes = _orthonormal(axes)
            run_chunks(functools.partial(sweep, number), vectors.shape[1], _COLUMNS)
        return block

    def _centred(self) -> tuple[Float, Float, Float]:
        """Return rows, their mean, and ``X^T X`` of rows less that mean."""
        if self._kept is None:
            reference = self.offsets.mean(axis=0)
            rows = (self.offsets - reference).astype(np.float32)
            total, gram = rows.sum(axis=0, dtype=np.float64), rows.T @ rows
            self._kept = _Kept(reference, rows, total, gram.astype(np.float64))
        _, rows, total, gram = self._kept
        mean = total / rows.shape[0]
        return rows, mean, gram - np.outer(total, mean)

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


def _chebyshev(matrix: Float, edge: float, block: Float, degree: int) -> Float:
    """Return the Chebyshev polynomial of a matrix, [0, edge] mapped to [-1, 1], times a block."""
    twice = matrix * np.float32(4.0 / edge)
    twice.ravel()[:: matrix.shape[0] + 1] -= 2.0
    before, now = block, (twice @ block) * np.float32(0.5)
    for _ in range(degree - 1):
        following = twice @ now
        following -= before
        before, now = now, following
    return now


def _orthonormal(block: Float) -> Float:
    """Return an orthonormal basis of the block's span, by its Gram matrix where that will do."""
    wide = block.astype(np.float64)
    try:
        inverse = np.linalg.inv(np.linalg.cholesky(wide.T @ wide))
    except np.linalg.LinAlgError:
        return np.linalg.qr(block)[0]
    return (wide @ inverse.T).astype(block.dtype)
