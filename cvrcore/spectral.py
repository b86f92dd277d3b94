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
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from ._validation import Float, Ids
from .deviations import Deviations
from .normalised import NormalisedAffinity, NormalisedOperator, ScaledDeviations
from .principal import Principal
from .subspace import FEW, TOLERANCE, Basis, filtered_subspace, rayleigh_ritz
from .threads import single_blas_thread

DENSE_LIMIT: Final = 1500  # clients up to which LAPACK solves a cold problem
_ROUGH_DEGREE: Final = 10  # of the first filter after a guess
NOBODY: Final = np.empty(0, dtype=np.int64)
_MANY: Final = 4000  # clients from which the rest of a sweep is small beside its products
_FARTHEST: Final = 16  # clients whose residuals are looked at, being the least like others
_SPREAD: Final = 32  # clients whose residuals stand for all others', as many as changed ones


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

    Where rows are known and lie close together, their principal coordinates are taken if they
    are near enough; where there are many and no start, they are one.

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
    operator: NormalisedOperator
    if affinity.positive and (warm or large):
        if n_clients <= FEW:
            operator = NormalisedAffinity(affinity.matrix(), np.float32)
        else:
            operator = ScaledDeviations(affinity.deviations())
        known = start if warm else None
        basis = _iterated(operator, block, n_wanted, known, changed, principal)
        if basis is not None:
            return operator.embed(basis.vectors[:, :n_wanted]), basis
    return direct_points(affinity, n_coalitions)


def direct_points(
    affinity: Source, n_coalitions: int, start: Basis | None = None, changed: Ids = NOBODY
) -> tuple[Float, Basis]:
    """Embed clients as `spectral_points` does, by a direct solver in float64.

    No start is taken up, however near: LAPACK, or among many clients ARPACK.
    """
    n_wanted = n_coalitions - 1
    operator = NormalisedAffinity(affinity.matrix(), positive=affinity.positive)
    basis = direct_basis(operator, block_width(affinity.n_clients, n_wanted))
    return operator.embed(basis.vectors[:, :n_wanted]), basis


#: Embeds clients: ``solve(affinity, n_coalitions, start, changed)``.
Solver = Callable[[Source, int, "Basis | None", Ids], tuple[Float, Basis]]
#: By name, how eigenvectors are found: from what is near them, or anew each time.
EIGENSOLVERS: Final[dict[str, Solver]] = {"auto": spectral_points, "direct": direct_points}


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


def _iterated(
    operator: NormalisedOperator,
    n_vectors: int,
    n_wanted: int,
    start: Basis | None,
    changed: Ids,
    principal: Principal | None,
) -> Basis | None:
    """Iterate from what is nearest; None if that does not converge.

    Where rows lie close together their principal coordinates are near, often near enough.
    Else, or without rows, these are the last vectors, with new entries for clients that have
    `changed` if they are few; or principal coordinates however far they are.
    """
    axes, vectors = None if start is None else start.axes, None
    if principal is not None and principal.explains(operator.mean_affinity, n_vectors):
        axes = principal.axes(n_vectors, n_wanted, axes)
        vectors = principal.vectors(axes)
    if vectors is not None:
        values, error = _measured(operator, vectors, n_wanted, changed)
        if error <= TOLERANCE * float(values[n_wanted - 1]):
            return Basis(vectors, values, degree=0, axes=axes)
        start = Basis(vectors, values, 0 if start is None else start.degree)
    elif start is None:
        assert principal is not None
        start = _rough_basis(operator, principal.coordinates(n_vectors), n_wanted)
    elif 0 < 4 * changed.size <= start.vectors.shape[0]:
        vectors = start.vectors.astype(operator.dtype, copy=False)
        vectors = _extended(operator, vectors, start.values, changed)
        start = Basis(vectors, start.values, start.degree)
    found = filtered_subspace(operator, start, n_wanted)
    return None if found is None else dataclasses.replace(found, axes=axes)


def _rough_basis(operator: NormalisedOperator, block: Float, n_wanted: int) -> Basis:
    """Make a start of a guess: its Ritz vectors, of which many sweeps may be needed."""
    block = np.linalg.qr(block.astype(operator.dtype))[0]
    vectors, _, values, _ = rayleigh_ritz(operator, block, operator.apply(block), n_wanted)
    return Basis(vectors, values, degree=_ROUGH_DEGREE)


def _measured(
    operator: NormalisedOperator, vectors: Float, n_wanted: int, changed: Ids
) -> tuple[Float, float]:
    """Return Rayleigh quotients of a block's vectors, and the largest residual of wanted ones.

    Both are estimates, from a few rows of the product: those of clients farthest from all
    others, where an affinity is least linear, and those of a sample that stands for the rest,
    some evenly spread and some that `changed`: all clients are among these now and then. At
    K = 1000 the largest is 1.0 to 1.5 times what all rows would tell.
    """
    n_clients = vectors.shape[0]
    far = np.argpartition(operator.inverse_root, -_FARTHEST)[-_FARTHEST:]
    share = (np.arange(_SPREAD) + 0.5) / _SPREAD
    drawn = [(share * n_clients).astype(np.int64)]
    if changed.size:
        drawn.append(changed[(share * changed.size).astype(np.int64)])
    others = np.setdiff1d(np.concatenate(drawn), far)
    shares = np.ones(far.size + others.size)
    shares[far.size :] = (n_clients - far.size) / others.size
    ids = np.concatenate([far, others])
    images = operator.rows_of(ids, vectors).astype(np.float64)
    some = vectors[ids].astype(np.float64)
    values = (shares @ (some * images)) / (shares @ np.square(some))
    residual = images[:, :n_wanted] - some[:, :n_wanted] * values[:n_wanted]
    return values, math.sqrt(float((shares @ np.square(residual)).max()))


def _extended(operator: NormalisedOperator, vectors: Float, values: Float, changed: Ids) -> Float:
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
