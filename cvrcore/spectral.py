"""Leading eigenvectors of the normalised affinity, cold and warm-started.

The embedding is that of the random walk ``W = diag(degree)^-1 A`` (Eq. (4) row-normalises):
eigenvectors of ``S A S`` with ``S = diag(degree)^-1/2``, divided by sqrt(degree). The first
is known, sqrt(degree), and becomes a constant column: it is projected out of every
product, and left out of the embedding, where it would move no distance.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ._validation import Float
from .threads import run_chunks, single_blas_thread

TOLERANCE: Final = 1e-4  # residual of each eigenpair, relative to the smallest wanted value
_DENSE_LIMIT: Final = 1500  # clients up to which LAPACK solves a cold problem
_MAX_SWEEPS: Final = 6
_MAX_DEGREE: Final = 10
_CHUNK: Final = 256  # rows of a product done by one task


@dataclasses.dataclass
class Basis:
    """A converged block of eigenvectors, guard vectors included, to start from next time."""

    vectors: Float  # (n_clients, n_wanted + guard), orthonormal
    products: int = 0  # matrix-block products spent, 0 for a direct solver


class NormalisedAffinity:
    """``S A S`` without its known leading eigenvector, applied without being formed."""

    def __init__(self, affinity: Float) -> None:
        self.affinity = affinity
        self.degrees = affinity.sum(axis=1)
        self._inverse_root = (1.0 / np.sqrt(self.degrees))[:, None]
        self.lead = np.sqrt(self.degrees / self.degrees.sum())
        self.products = 0

    def project(self, block: Float) -> Float:
        """Remove the known eigenvector, or rounding would revive its eigenvalue 1."""
        block -= self.lead[:, None] * (self.lead @ block)
        return block

    def apply(self, block: Float) -> Float:
        """Return ``S A S block``, projected."""
        self.products += 1
        scaled = self._inverse_root * block
        product = np.empty_like(scaled)

        def multiply(start: int, stop: int) -> None:
            np.matmul(self.affinity[start:stop], scaled, out=product[start:stop])

        run_chunks(multiply, product.shape[0], _CHUNK)
        product *= self._inverse_root
        return self.project(product)

    def dense(self) -> Float:
        """Return the operator as a matrix."""
        full = self._inverse_root * self.affinity * self._inverse_root.T
        full -= np.outer(self.lead, self.lead)
        return full

    def embed(self, vectors: Float) -> Float:
        """Turn eigenvectors into points: one row per client."""
        return vectors * self._inverse_root


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
        Whether the affinity has no negative eigenvalue; the filter relies on it.

    Returns
    -------
    points : ndarray of shape (n_clients, n_coalitions - 1)
    basis : Basis
    """
    operator = NormalisedAffinity(affinity)
    n_clients, n_wanted = affinity.shape[0], n_coalitions - 1
    block = n_wanted + max(4, n_wanted // 5)
    with single_blas_thread():
        basis = None
        if start is not None and positive and start.vectors.shape == (n_clients, block):
            basis = _filtered_subspace(operator, start.vectors, n_wanted)
        if basis is None:
            basis = Basis(_direct(operator, min(block, n_clients - 1)))
    return operator.embed(basis.vectors[:, :n_wanted]), basis


def _filtered_subspace(operator: NormalisedAffinity, start: Float, n_wanted: int) -> Basis | None:
    """Run Chebyshev-filtered subspace iteration; None if it does not converge."""
    vectors = _orthonormal(operator.project(start.copy()))
    for _ in range(_MAX_SWEEPS):
        image = operator.apply(vectors)
        values, rotation = np.linalg.eigh(vectors.T @ image)
        values, rotation = values[::-1], rotation[:, ::-1]
        vectors, image = vectors @ rotation, image @ rotation
        smallest = values[n_wanted - 1]
        if not smallest > 1e-13:
            return None
        residual = image[:, :n_wanted] - vectors[:, :n_wanted] * values[:n_wanted]
        error = np.sqrt(np.einsum("kp,kp->p", residual, residual).max())
        if error <= TOLERANCE * smallest:
            return Basis(vectors, operator.products)
        vectors = _orthonormal(_chebyshev(operator.apply, vectors, image, values))
    return None


def _chebyshev(apply: Callable[[Float], Float], vectors: Float, image: Float, values: Float) -> Any:
    """Damp the spectrum in [0, smallest Ritz value]; `image` is the first product."""
    half = max(values[-1], 1e-3 * values[-5], 1e-14) / 2
    growth = np.arccosh(max(values[0] / half - 1, 1.0 + 1e-6))
    # Beyond 1e8 between the ends of the block the small vectors lose their digits.
    degree = int(np.clip(np.log(1e8) / growth, 2, _MAX_DEGREE))
    sigma = first = half / (values[0] - half)
    before, now = vectors, (image - half * vectors) * (first / half)
    for _ in range(degree - 1):
        following = 1.0 / (2.0 / first - sigma)
        after = (apply(now) - half * now) * (2.0 * following / half)
        after -= (sigma * following) * before
        before, now, sigma = now, after, following
    return now


def _orthonormal(block: Float) -> Float:
    """Orthonormalise columns: Cholesky where it is safe, Householder where it is not."""
    block = block / np.sqrt(np.einsum("kp,kp->p", block, block))
    try:
        lower = np.linalg.cholesky(block.T @ block)
        if lower.diagonal().min() > 1e-3:
            result: Float = block @ np.linalg.inv(lower).T
            return result
    except np.linalg.LinAlgError:
        pass
    return np.linalg.qr(block)[0]


def _direct(operator: NormalisedAffinity, n_vectors: int) -> Float:
    """Return leading eigenvectors, largest first, by LAPACK or (large problems) ARPACK."""
    n_clients = operator.degrees.shape[0]
    linalg = importlib.import_module("scipy.linalg")
    with single_blas_thread():  # SciPy's BLAS may have been loaded just now
        if n_clients <= _DENSE_LIMIT or n_vectors > n_clients // 4:
            _, vectors = linalg.eigh(
                operator.dense(),
                subset_by_index=[n_clients - n_vectors, n_clients - 1],
                driver="evr",
                overwrite_a=True,
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
