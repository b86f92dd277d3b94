"""Principal axes of clients' rows: near the affinity's eigenvectors, for far less work.

Where rows lie close together a smooth kernel is linear in their inner products, and the
normalised affinity is nearly ``c X X^T``, X the centred rows. What `cvrcore.subspace` does to
it costs K^2 a vector and step, the same on the D x D matrix ``X^T X`` costs D^2.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np

from ._validation import Float
from .subspace import FEW, Operator, chebyshev, steepest
from .threads import run_chunks

_NEAR: Final = 0.8  # mean affinity from which rows count as close together
_CHUNK: Final = 512  # clients of one task
_COLUMNS: Final = 32  # vectors of one task
_DAMPING: Final = 300.0  # of what is not wanted: about as much as the affinity differs
_MAX_DEGREE: Final = 48


class Principal:
    """The centred rows of all clients and their D x D product, worked out when asked for.

    Parameters
    ----------
    offsets : array of shape (n_clients, n_features)
        Rows less a common one, whichever.
    smooth : bool
        Whether the kernel has a derivative where rows meet.
    """

    def __init__(self, offsets: Float, smooth: bool = True) -> None:
        self.offsets, self.smooth = offsets, smooth

    @functools.cached_property
    def rows(self) -> Float:
        """Return the centred rows, in float32."""
        rows = np.empty(self.offsets.shape, dtype=np.float32)
        np.subtract(self.offsets, self.offsets.mean(axis=0), out=rows, casting="same_kind")
        return rows

    @functools.cached_property
    def gram(self) -> Float:
        """Return ``X^T X``, summed over fixed chunks of clients."""
        rows, n_parts = self.rows, -(-self.rows.shape[0] // _CHUNK)
        parts = np.empty((n_parts, *2 * rows.shape[1:]), dtype=np.float32)

        def multiply(start: int, stop: int) -> None:
            some = rows[start:stop]
            np.matmul(some.T, some, out=parts[start // _CHUNK])

        run_chunks(multiply, rows.shape[0], _CHUNK)
        return parts.sum(axis=0)

    def coordinates(self, n_vectors: int) -> Float:
        """Return clients' leading principal coordinates.

        Where there are fewer than so many, seeded noise fills up.
        """
        _, axes = np.linalg.eigh(self.gram.astype(np.float64))
        n_axes = min(n_vectors, axes.shape[0])
        block = np.random.default_rng(0).standard_normal((self.rows.shape[0], n_vectors))
        block[:, :n_axes] = self.rows @ axes[:, : -n_axes - 1 : -1]
        return block

    def explains(self, mean_affinity: float, n_vectors: int) -> bool:
        """Return whether `filtered` saves more than it costs.

        At K = 1000 on flat rows, with a mean affinity of 0.99, 0.9 and 0.8, it leaves 1, 2 and
        4 products with the affinity of 11.
        """
        n_clients, n_features = self.offsets.shape
        fits = FEW < n_clients and 2 * n_vectors <= n_features <= n_clients // 2
        return self.smooth and fits and mean_affinity >= _NEAR

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
        axes = np.empty((self.rows.shape[1], vectors.shape[1]), dtype=np.float32)
        block, gram = np.empty_like(vectors), Operator(self.gram)

        def project(start: int, stop: int) -> None:
            axes[:, start:stop] = self.rows.T @ vectors[:, start:stop]

        def damp(start: int, stop: int) -> None:
            some = np.ascontiguousarray(axes[:, start:stop])
            _, axes[:, start:stop] = chebyshev(gram, some, None, edge / 2, largest, degree)

        def place(start: int, stop: int) -> None:
            block[:, start:stop] = self.rows @ axes[:, start:stop]

        run_chunks(project, axes.shape[1], _COLUMNS)
        unit = float(np.median(np.square(axes).sum(axis=0) / values))
        largest, smallest, edge = (unit * values[[0, n_wanted - 1, -1]]).tolist()
        worst = max(2.0 * smallest / edge - 1.0, 1.0001)
        degree = min(math.ceil(math.acosh(_DAMPING) / math.acosh(worst)), _MAX_DEGREE)
        n_sweeps = -(-degree // steepest(2.0 * largest / edge - 1.0, 1.0))
        degree = -(-degree // n_sweeps)
        for sweep in range(n_sweeps):
            if sweep:  # columns have become nearly parallel
                axes = _orthonormal(axes)
            run_chunks(damp, axes.shape[1], _COLUMNS)
        axes /= np.sqrt(np.square(axes).sum(axis=0))
        run_chunks(place, axes.shape[1], _COLUMNS)
        return block


def _orthonormal(block: Float) -> Float:
    """Return an orthonormal basis of the block's span, by its Gram matrix where that will do."""
    wide = block.astype(np.float64)
    try:
        inverse = np.linalg.inv(np.linalg.cholesky(wide.T @ wide))
    except np.linalg.LinAlgError:
        return np.linalg.qr(block)[0]
    return (wide @ inverse.T).astype(block.dtype)
