"""Leading eigenvectors by LAPACK or ARPACK: an affinity in, points to cluster out."""

from __future__ import annotations

import importlib

import numpy as np

from ..runtime.sizes import LAPACK_LIMIT, SMALL, block_width
from ..runtime.threads import single_blas_thread
from ..validation import Float, Ids
from .affinity import Affinity
from .operators import CentredAffinity, NormalisedAffinity
from .principal import Principal
from .subspace import EMPTY_IDS, Basis


class DenseAffinity:
    """An affinity of which only the matrix is known; solvers take it as an `Affinity`."""

    def __init__(
        self, affinity: Float, positive: bool = True, principal: Principal | None = None
    ) -> None:
        self.n_clients, self.positive, self.principal = len(affinity), positive, principal
        self._affinity = affinity

    def matrix(self) -> Float:
        """Return the affinity."""
        return self._affinity

    def centred(self) -> CentredAffinity:
        """Return the affinity less its mean."""
        return CentredAffinity(self._affinity)


def direct_points(
    affinity: Affinity | DenseAffinity,
    n_coalitions: int,
    start: Basis | None = None,
    changed: Ids = EMPTY_IDS,
) -> tuple[Float, Basis]:
    """Embed clients as `spectral_points` does, by LAPACK or, among many clients, ARPACK.

    In float64; `start` and `changed` are ignored.
    """
    n_wanted = n_coalitions - 1
    operator = NormalisedAffinity(affinity.matrix(), positive=affinity.positive)
    basis = direct_basis(operator, block_width(affinity.n_clients, n_wanted))
    return operator.embed(basis.vectors[:, :n_wanted]), basis


def direct_basis(operator: NormalisedAffinity, n_vectors: int) -> Basis:
    """Solve without a start, by LAPACK or, for large problems, ARPACK."""
    n_clients = operator.lead.shape[0]
    if n_clients <= SMALL:  # solving everything takes less time than loading SciPy
        values, vectors = np.linalg.eigh(operator.matrix)
        vectors = vectors[:, : -n_vectors - 1 : -1]
        return Basis(np.ascontiguousarray(vectors), values[: -n_vectors - 1 : -1].copy())
    linalg = importlib.import_module("scipy.linalg")
    with single_blas_thread():  # the import above may have loaded SciPy's BLAS
        if n_clients <= LAPACK_LIMIT or n_vectors > n_clients // 4:
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
