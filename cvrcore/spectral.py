"""Leading eigenvectors of the normalised affinity, cold and warm-started.

The embedding is that of the random walk ``W = diag(degree)^-1 A`` (Eq. (4) row-normalises):
eigenvectors of ``S A S`` with ``S = diag(degree)^-1/2``, divided by sqrt(degree). The first
is known, sqrt(degree): it is taken out of the matrix, and left out of the embedding, where
it would be a constant column that moves no distance.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from typing import Any, Final

import numpy as np

from ._validation import Float
from .threads import run_chunks, single_blas_thread

TOLERANCE: Final = 1e-4  # residual of each eigenpair, relative to the smallest wanted value
_DENSE_LIMIT: Final = 1500  # clients up to which LAPACK solves a cold problem
_MAX_SWEEPS: Final = 5
_MAX_DEGREE: Final = 24
_CHUNK: Final = 256  # rows of a product done by one task


@dataclasses.dataclass
class Basis:
    """A converged block of eigenvectors, guard vectors included, to start from next time."""

    vectors: Float  # (n_clients, n_wanted + guard), orthonormal
    products: int = 0  # matrix-block products spent, 0 for a direct solver


class NormalisedAffinity:
    """``S A S`` less its known leading eigenpair.

    With eigenvalue 1 gone the entries are as small as the spectrum that is wanted, so that
    float32 keeps seven digits of *it*: enough to iterate in, at half the cost.
    """

    def __init__(self, affinity: Float, dtype: Any = np.float64) -> None:
        degrees = affinity.sum(axis=1)
        self.inverse_root = 1.0 / np.sqrt(degrees)
        self.lead = np.sqrt(degrees / degrees.sum())
        self.products = 0
        self.matrix = np.empty(affinity.shape, dtype=dtype)

        def fill(start: int, stop: int) -> None:
            rows = affinity[start:stop] * self.inverse_root
            rows *= self.inverse_root[start:stop, None]
            rows -= self.lead[start:stop, None] * self.lead
            self.matrix[start:stop] = rows

        run_chunks(fill, affinity.shape[0], _CHUNK)

    def apply(self, block: Float) -> Float:
        """Return the product with a block of vectors."""
        self.products += 1
        if block.shape[0] <= _CHUNK:
            single: Float = self.matrix @ block
            return single
        product = np.empty_like(block)

        def multiply(start: int, stop: int) -> None:
            np.matmul(self.matrix[start:stop], block, out=product[start:stop])

        run_chunks(multiply, product.shape[0], _CHUNK)
        return product

    def embed(self, vectors: Float) -> Float:
        """Turn eigenvectors into points: one row per client."""
        return vectors * self.inverse_root[:, None]


def spectral_points(
    affinity: Float, n_coalitions: int, start: Basis | None = None, positive: bool = True
) -> tuple[Float, Basis]:
    """Embed clients by the ``n_coalitions - 1`` eigenvectors that follow the constant one.

    Parameters
    ----------
    affinity : float64 array of shape (n_clients, n_clients), symmetric, positive degrees
    n_coalitions : int
    start : Basis, optional
        Eigenvectors of a similar problem. The solver iterates from them, and falls back
        to a direct one if that does not converge.
    positive : bool
        Whether the affinity has no negative eigenvalue; the iteration relies on it.

    Returns
    -------
    points : ndarray of float64, shape (n_clients, n_coalitions - 1)
    basis : Basis
    """
    n_clients, n_wanted = affinity.shape[0], n_coalitions - 1
    block = n_wanted + max(4, n_wanted // 5)
    with single_blas_thread():
        if start is not None and positive and start.vectors.shape == (n_clients, block):
            operator = NormalisedAffinity(affinity, np.float32)
            basis = filtered_subspace(operator, start.vectors, n_wanted)
            if basis is not None:
                return operator.embed(basis.vectors[:, :n_wanted]), basis
        operator = NormalisedAffinity(affinity)
        basis = Basis(direct_eigenvectors(operator, min(block, n_clients - 1)))
    return operator.embed(basis.vectors[:, :n_wanted]), basis


def filtered_subspace(operator: NormalisedAffinity, start: Float, n_wanted: int) -> Basis | None:
    """Run Chebyshev-filtered subspace iteration; None if it does not converge.

    Each sweep damps what lies below the block's smallest Ritz value, by a polynomial whose
    degree is chosen for the error that is left.
    """
    lead = operator.lead.astype(operator.matrix.dtype)[:, None]
    vectors = start.astype(operator.matrix.dtype)
    vectors -= lead * (lead.T @ vectors)
    vectors = _orthonormal(vectors)
    for _ in range(_MAX_SWEEPS):
        image = operator.apply(vectors)
        values, rotation = np.linalg.eigh(vectors.T @ image)
        values, rotation = values[::-1].astype(np.float64), rotation[:, ::-1]
        vectors, image = vectors @ rotation, image @ rotation
        largest, smallest, edge = float(values[0]), float(values[n_wanted - 1]), float(values[-1])
        if not (edge > 0 and smallest > 1e-3 * largest and largest < 1e-2 / TOLERANCE):
            return None  # beyond the digits of float32, or no filter interval: solve directly
        residual = image[:, :n_wanted] - vectors[:, :n_wanted] * values[:n_wanted].astype(
            vectors.dtype
        )
        excess = math.sqrt(float(np.square(residual).sum(axis=0).max())) / (TOLERANCE * smallest)
        if excess <= 1.0:
            return Basis(vectors, operator.products)
        degree = _degree(2.0 * smallest / edge - 1.0, 2.0 * largest / edge - 1.0, 4.0 * excess)
        vectors = _orthonormal(_chebyshev(operator, vectors, image, edge / 2, largest, degree))
    return None


def _degree(worst: float, best: float, gain: float) -> int:
    """Return the degree at which the worst wanted vector gains `gain` on the damped ones.

    Bounded by what keeps the best within 1e4 of the worst: beyond, float32 loses the small.
    """
    wanted = math.acosh(gain) / math.acosh(max(worst, 1.0 + 1e-6))
    spread = math.acosh(max(best, 1.0 + 1e-6)) - math.acosh(max(worst, 1.0 + 1e-6))
    allowed = math.log(1e4) / max(spread, 1e-9)
    return int(min(max(math.ceil(min(wanted, allowed)), 2), _MAX_DEGREE))


def _chebyshev(
    operator: NormalisedAffinity,
    vectors: Float,
    image: Float,
    half: float,
    largest: float,
    degree: int,
) -> Float:
    """Apply the scaled Chebyshev polynomial of [0, 2 half]; `image` is the first product."""
    scale = vectors.dtype.type  # Python floats would do; NumPy scalars must not widen float32
    first = sigma = half / (largest - half)
    before, now = vectors, (image - scale(half) * vectors) * scale(first / half)
    for _ in range(degree - 1):
        following = 1.0 / (2.0 / first - sigma)
        after = operator.apply(now)
        after -= scale(half) * now
        after *= scale(2.0 * following / half)
        after -= scale(sigma * following) * before
        before, now, sigma = now, after, following
    return now


def _orthonormal(block: Float) -> Float:
    """Orthonormalise columns: Cholesky where it is safe, Householder where it is not."""
    block = block / np.sqrt(np.square(block).sum(axis=0))
    try:
        lower = np.linalg.cholesky((block.T @ block).astype(np.float64))
        if lower.diagonal().min() > 1e-2:
            result: Float = block @ np.linalg.inv(lower).T.astype(block.dtype)
            return result
    except np.linalg.LinAlgError:
        pass
    return np.linalg.qr(block)[0]


def direct_eigenvectors(operator: NormalisedAffinity, n_vectors: int) -> Float:
    """Return leading eigenvectors, largest first, by LAPACK or (large problems) ARPACK."""
    n_clients = operator.lead.shape[0]
    linalg = importlib.import_module("scipy.linalg")
    with single_blas_thread():  # SciPy's BLAS may have been loaded just now
        if n_clients <= _DENSE_LIMIT or n_vectors > n_clients // 4:
            _, vectors = linalg.eigh(
                operator.matrix,
                subset_by_index=[n_clients - n_vectors, n_clients - 1],
                driver="evr",
                check_finite=False,
            )
        else:
            sparse = importlib.import_module("scipy.sparse.linalg")
            linear = sparse.LinearOperator(
                (n_clients, n_clients),
                matvec=lambda x: operator.apply(x.reshape(-1, 1))[:, 0],
                dtype=np.float64,
            )
            begin = np.random.default_rng(0).standard_normal(n_clients)
            _, vectors = sparse.eigsh(linear, k=n_vectors, which="LA", v0=begin, tol=1e-6)
    return np.ascontiguousarray(vectors[:, ::-1])
