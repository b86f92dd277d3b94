"""Leading eigenvectors of the normalised affinity: an affinity in, points to cluster out.

The embedding is that of the random walk ``W = diag(degree)^-1 A`` (Eq. (4) row-normalises):
eigenvectors of ``S A S`` with ``S = diag(degree)^-1/2``, divided by sqrt(degree). The first
eigenvector is known, sqrt(degree): it is deflated from the matrix and left out of the
embedding, where it would be a constant column.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Final

import numpy as np

from ..runtime.sizes import LAPACK_LIMIT, SMALL, block_width
from ..validation import Float, Ids
from .affinity import Affinity
from .direct import DenseAffinity, direct_points
from .operators import NormalisedOperator, ScaledCentredAffinity, SmallAffinity
from .principal import Principal
from .subspace import EMPTY_IDS, TOLERANCE, Basis, filtered_subspace, rayleigh_ritz

_ROUGH_DEGREE: Final = 10  # of the first Chebyshev filter after a guess
_FARTHEST: Final = 16  # clients of lowest degree whose residuals are measured
_SPREAD: Final = 32  # evenly spread clients whose residuals are measured, and changed ones


def spectral_points(
    affinity: Affinity | DenseAffinity,
    n_coalitions: int,
    start: Basis | None = None,
    changed: Ids = EMPTY_IDS,
) -> tuple[Float, Basis]:
    """Embed clients by the ``n_coalitions - 1`` eigenvectors that follow the constant one.

    Chebyshev-filtered subspace iteration, warm-started; LAPACK or ARPACK where that does not
    converge. Where rows lie close together, their principal coordinates replace the iteration
    if a sample of residuals shows that they are accurate enough.

    Parameters
    ----------
    affinity : Affinity
    n_coalitions : int
    start : Basis, optional
        Eigenvectors of a similar problem, from which the iteration starts.
    changed : array of int64
        Clients whose affinities differ from those that `start` is of.

    Returns
    -------
    points : ndarray of float64, shape (n_clients, n_coalitions - 1)
    basis : Basis

    Notes
    -----
    To be called with BLAS on one thread: products run on our own thread pool.
    """
    n_clients, n_wanted, principal = affinity.n_clients, n_coalitions - 1, affinity.principal
    # A wider block than needed, after n_select fell, has more guard vectors.
    warm = start is not None and start.vectors.shape[0] == n_clients
    warm = warm and start.vectors.shape[1] > n_wanted  # type: ignore[union-attr]
    block = start.vectors.shape[1] if warm else block_width(n_clients, n_wanted)  # type: ignore[union-attr]
    large = principal is not None and n_clients > LAPACK_LIMIT and block <= n_clients // 4
    operator: NormalisedOperator
    if affinity.positive and (warm or large):
        if n_clients <= SMALL:
            operator = SmallAffinity(affinity.matrix())
        else:
            operator = ScaledCentredAffinity(affinity.centred())
        known = start if warm else None
        basis = _iterated(operator, block, n_wanted, known, changed, principal)
        if basis is not None:
            return operator.embed(basis.vectors[:, :n_wanted]), basis
    return direct_points(affinity, n_coalitions)


#: Embeds clients: ``solve(affinity, n_coalitions, start, changed)``.
Solver = Callable[[Affinity | DenseAffinity, int, "Basis | None", Ids], tuple[Float, Basis]]
#: The solvers by name: warm-started iteration, or a direct solver each time.
SOLVERS: Final[dict[str, Solver]] = {"auto": spectral_points, "direct": direct_points}


def _iterated(
    operator: NormalisedOperator,
    n_vectors: int,
    n_wanted: int,
    start: Basis | None,
    changed: Ids,
    principal: Principal | None,
) -> Basis | None:
    """Iterate from the best start that is known; None if that does not converge.

    Where rows lie close together, clients' principal coordinates are a good start and often
    accurate enough. Otherwise the start is the last eigenvectors or, without any, principal
    coordinates of whatever quality.
    """
    axes, vectors = None if start is None else start.axes, None
    if principal is not None and principal.is_worth_using(operator.mean_affinity, n_vectors):
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
    found = filtered_subspace(operator, start, n_wanted)
    return None if found is None else dataclasses.replace(found, axes=axes)


def _rough_basis(operator: NormalisedOperator, block: Float, n_wanted: int) -> Basis:
    """Return the Ritz vectors of a guess, from which many sweeps may be needed."""
    block = np.linalg.qr(block.astype(operator.dtype))[0]
    vectors, _, values, _ = rayleigh_ritz(operator, block, operator.apply(block), n_wanted)
    return Basis(vectors, values, degree=_ROUGH_DEGREE)


def _measured(
    operator: NormalisedOperator, vectors: Float, n_wanted: int, changed: Ids
) -> tuple[Float, float]:
    """Return Rayleigh quotients of a block's vectors, and the largest residual of wanted ones.

    Both are estimates from a sample of rows of the product: the clients of lowest degree,
    where an affinity is least linear, and a sample of all others, some evenly spread and some
    that `changed`. At K = 1000 the estimate is 1.0 to 1.5 times the residual of all rows.
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
