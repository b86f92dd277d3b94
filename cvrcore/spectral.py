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
from typing import Final, Protocol

import numpy as np

from ._validation import Float, Ids
from .deviations import Deviations
from .normalised import NormalisedAffinity, Operator, ScaledDeviations
from .principal import Principal
from .subspace import FEW, chebyshev, rayleigh_ritz, steepest
from .threads import single_blas_thread

TOLERANCE: Final = 1e-3  # residual of each eigenpair, relative to the smallest wanted value
DENSE_LIMIT: Final = 1500  # clients up to which LAPACK solves a cold problem
_MAX_SWEEPS: Final = 5
_MAX_DEGREE: Final = 24
_ROUGH_DEGREE: Final = 10  # of the first filter after a guess
NOBODY: Final = np.empty(0, dtype=np.int64)
_MANY: Final = 4000  # clients from which the rest of a sweep is small beside its products


@dataclasses.dataclass
class Basis:
    """A converged block of eigenvectors, guard vectors included, to start from next time."""

    vectors: Float  # (n_clients, n_wanted + guard), orthonormal up to TOLERANCE
    values: Float  # Ritz values, largest first
    degree: int = 4  # of the filter that the next problem is likely to need
    products: int = 0  # matrix-block products spent, 0 for a direct solver


class Source(Protocol):
    """What is clustered: `cvrcore.affinity.Affinity`, or a `Bare` matrix."""

    @property
    def n_clients(self) -> int:
        """Return how many there are."""

    @property
    def positive(self) -> bool:
        """Return whether no eigenvalue is negative; the iteration relies on it."""

    @property
    def principal(self) -> Principal | None:
        """Return the principal axes of the rows that the affinity is of, if they are known."""

    def matrix(self) -> Float:
        """Return the affinity: symmetric, of positive degrees."""

    def deviations(self) -> Deviations:
        """Return it less its mean."""


class Bare:
    """An affinity of which nothing is known but the matrix."""

    def __init__(
        self, affinity: Float, positive: bool = True, principal: Principal | None = None
    ) -> None:
        self.n_clients, self.positive, self.principal = len(affinity), positive, principal
        self._affinity = affinity

    def matrix(self) -> Float:
        """Return the affinity."""
        return self._affinity

    def deviations(self) -> Deviations:
        """Return it less its mean."""
        return Deviations(self._affinity)


def spectral_points(
    affinity: Source, n_coalitions: int, start: Basis | None = None, changed: Ids = NOBODY
) -> tuple[Float, Basis]:
    """Embed clients by the ``n_coalitions - 1`` eigenvectors that follow the constant one.

    Where rows are known and lie close together, their principal axes are filtered with; where
    there are many and no start, they are one.

    Parameters
    ----------
    affinity : Source
    n_coalitions : int
    start : Basis, optional
        Eigenvectors of a similar problem. The solver iterates from them, and falls back
        to a direct one if that does not converge.
    changed : array of int64
        Clients whose affinities differ from those that `start` is of.

    Returns
    -------
    points : ndarray of float64, shape (n_clients, n_coalitions - 1)
    basis : Basis

    Notes
    -----
    To be called with BLAS on one thread: products are shared out among ours.
    """
    n_clients, n_wanted, principal = affinity.n_clients, n_coalitions - 1, affinity.principal
    block = block_width(n_clients, n_wanted)
    warm = start is not None and start.vectors.shape == (n_clients, block)
    large = principal is not None and n_clients > DENSE_LIMIT and block <= n_clients // 4
    operator: Operator
    if affinity.positive and (warm or large):
        if n_clients <= FEW:
            operator = NormalisedAffinity(affinity.matrix(), np.float32)
        else:
            operator = ScaledDeviations(affinity.deviations())
        if not warm:
            assert principal is not None
            start = _rough_basis(operator, principal.coordinates(block), n_wanted)
        assert start is not None
        near = principal is not None and principal.explains(operator.mean_affinity, block)
        basis = filtered_subspace(operator, start, n_wanted, changed, principal if near else None)
        if basis is not None:
            return operator.embed(basis.vectors[:, :n_wanted]), basis
    operator = NormalisedAffinity(affinity.matrix(), positive=affinity.positive)
    basis = direct_basis(operator, block)
    return operator.embed(basis.vectors[:, :n_wanted]), basis


def block_width(n_clients: int, n_wanted: int) -> int:
    """Return how many vectors to iterate: a third more than are wanted, in whole registers.

    Guard vectors widen the gap that the filter works on. Among many clients, where products
    are nearly all the work, five eighths more save a sixth of it on flat spectra.
    """
    guard = n_wanted // 3 if n_clients <= _MANY else 5 * n_wanted // 8
    width = n_wanted + max(4, guard)
    whole = max(16 * round(width / 16), 16)
    if whole < n_wanted + 4:
        whole += 16
    return min(whole if 4 * whole <= n_clients else width, n_clients - 1)


def _rough_basis(operator: Operator, block: Float, n_wanted: int) -> Basis:
    """Make a start of a guess: its Ritz vectors, of which many sweeps may be needed."""
    block = np.linalg.qr(block.astype(operator.dtype))[0]
    vectors, _, values, _ = rayleigh_ritz(operator, block, operator.apply(block), n_wanted)
    return Basis(vectors, values, degree=_ROUGH_DEGREE)


def filtered_subspace(
    operator: Operator,
    start: Basis,
    n_wanted: int,
    changed: Ids = NOBODY,
    principal: Principal | None = None,
) -> Basis | None:
    """Run Chebyshev-filtered subspace iteration; None if it does not converge.

    Each sweep damps what lies below the block's smallest Ritz value. The first takes the
    degree that the last problem needed; later ones are chosen for the error that is left.
    The images of Ritz vectors, which are known, are those vectors damped once more, by the
    ratio of that value to their own. Before all that comes what costs less than a product:
    `principal`, or new entries for clients that have `changed`, where they are few.
    """
    vectors = start.vectors.astype(operator.dtype, copy=False)
    if principal is not None and start.values[-1] > 0:
        vectors = principal.filtered(vectors, start.values, n_wanted)
    elif 0 < 4 * changed.size <= vectors.shape[0]:
        vectors = _extended(operator, vectors, start.values, changed)
    values, degree, spent = start.values, start.degree, 0
    image: Float | None = None
    for _ in range(_MAX_SWEEPS):
        largest, smallest, edge = values[[0, n_wanted - 1, -1]].tolist()
        if not edge > 0 or smallest < 1e-3 * largest:
            return None  # no interval to damp, or beyond the digits of float32
        degree = min(degree, steepest(2.0 * largest / edge - 1.0, 2.0 * smallest / edge - 1.0))
        vectors, image = chebyshev(operator, vectors, image, edge / 2, largest, degree)
        spent += degree
        vectors, image, values, error = rayleigh_ritz(operator, vectors, image, n_wanted)
        smallest = float(values[n_wanted - 1])
        if not smallest > 0:
            return None
        edge = max(float(values[-1]), 1e-3 * smallest)  # nothing is known of what is smaller
        excess = error * edge / (TOLERANCE * smallest**2)
        growth = math.acosh(max(2.0 * smallest / edge - 1, 1.0001))
        if excess <= 1.0:
            # Aim at half the tolerance next time: too much work costs less than a second sweep.
            spare = math.log(0.5 / max(excess, 1e-6)) / growth
            likely = min(max(spent - math.floor(min(spare, max(1.0, spent / 2))), 0), _MAX_DEGREE)
            damped = image[:, :n_wanted] / values[:n_wanted]
            vectors[:, :n_wanted] = damped  # guard vectors may be of next to nothing
            return Basis(vectors, values, likely, operator.products)
        degree = min(max(math.ceil(math.acosh(4.0 * excess) / growth), 2), _MAX_DEGREE)
    return None


def _extended(operator: Operator, vectors: Float, values: Float, changed: Ids) -> Float:
    """Return the vectors with entries of some clients made anew from those of all others.

    An eigenvector's entry is the mean of all entries, weighed by the client's affinities,
    over the eigenvalue: Nystrom's extension. Where few rows have changed this takes out most
    of the error, for the price of these rows.
    """
    found, known = vectors.copy(), values > 1e-3 * values[0]  # of the rest rounding is left
    entries = operator.rows_of(changed, vectors)
    found[changed] = np.where(known, entries / np.where(known, values, 1.0), vectors[changed])
    return found


def direct_basis(operator: NormalisedAffinity, n_vectors: int) -> Basis:
    """Solve without a start, by LAPACK or (large problems) ARPACK."""
    n_clients = operator.lead.shape[0]
    if n_clients <= FEW:  # a whole solve takes less time than loading SciPy
        values, vectors = np.linalg.eigh(operator.matrix)
        vectors = vectors[:, : -n_vectors - 1 : -1]
        return Basis(np.ascontiguousarray(vectors), values[: -n_vectors - 1 : -1].copy())
    linalg = importlib.import_module("scipy.linalg")
    with single_blas_thread():  # SciPy's BLAS may have been loaded just now
        if n_clients <= DENSE_LIMIT or n_vectors > n_clients // 4:
            values, vectors = linalg.eigh(
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
            values, vectors = sparse.eigsh(linear, k=n_vectors, which="LA", v0=begin, tol=1e-6)
    return Basis(np.ascontiguousarray(vectors[:, ::-1]), values[::-1].copy())
