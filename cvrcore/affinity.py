"""Influence between clients: Algorithm 1, lines 3 and 4."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from . import _backend
from ._validation import Float, Ids, check_choice, check_matrix, check_number, check_vector
from .deviations import Deviations
from .principal import Principal
from .threads import run_chunks, single_blas_thread

KERNELS: Final = ("rbf", "cosine", "laplacian", "sigmoid")
_POSITIVE_KERNELS: Final = ("rbf", "cosine", "laplacian")  # tanh may have negative eigenvalues
_SMOOTH_KERNELS: Final = ("rbf", "cosine")
_CHUNK: Final = 32  # rows of the affinity filled by one task, at most
_AT_ONCE: Final = 1024  # rows replaced before the next ones are worked out: they take memory


def check_gamma(value: Any, kernel: str) -> float | str:
    """Return `value` if it is a positive number, or "median" for a distance kernel."""
    if isinstance(value, str):
        if value != "median":
            raise ValueError(f"gamma must be a positive number or 'median', got {value!r}")
        if kernel not in ("rbf", "laplacian"):
            raise ValueError(f"gamma='median' must go with rbf or laplacian, got {kernel!r}")
        return value
    return check_number(value, "gamma", above=0)


class Affinity:
    """The symmetric affinity of all clients, of which a round recomputes P rows.

    Rows are normalised and kept relative to a fixed reference row: client models are
    nearly parallel, and differences of small offsets lose no digits.

    Parameters
    ----------
    models : array of shape (n_clients, n_features)
    kernel : str
        "rbf" ``exp(-gamma |x - y|^2)``, Eq. (4); "laplacian" ``exp(-gamma |x - y|_1)``;
        "cosine" ``(1 + x.y) / 2``; "sigmoid" ``(1 + tanh(gamma x.y)) / 2``: the last two,
        shifted to [0, 1], since an affinity must not be negative.
    gamma : float or "median"
        "median" is the inverse of the median distance that the kernel uses, at each round.
    """

    def __init__(self, models: Float, kernel: str, gamma: float | str) -> None:
        n_clients, n_features = models.shape
        self.kernel, self.gamma = kernel, gamma
        self.reference = np.zeros(n_features, dtype=models.dtype)
        self.offsets = np.empty_like(models)
        self._squares = np.empty(n_clients)
        self._nonzero = np.empty(n_clients)
        self._proximity = np.empty((n_clients, n_clients), dtype=models.dtype)
        _backend.unit_offsets(models, self.reference, self.offsets, self._squares, self._nonzero)
        self.reference = self.offsets.mean(axis=0)
        self.principal = Principal(self.offsets, kernel in _SMOOTH_KERNELS)
        self.positive = kernel in _POSITIVE_KERNELS
        self._deviations: Deviations | None = None  # until somebody asks
        self._behind: list[Ids] = []  # clients whose columns are older than their rows, in order
        self._replace(np.arange(n_clients), models, self._proximity)
        _symmetrise(self._proximity)

    @property
    def n_clients(self) -> int:
        """Return how many clients there are."""
        return self.offsets.shape[0]

    def update(self, ids: Ids, models: Float) -> None:
        """Replace the rows of some clients: O(len(ids) K D)."""
        for start in range(0, ids.size, _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            self._update(ids[some], models[some])

    def _update(self, ids: Ids, models: Float) -> None:
        fresh = np.empty((ids.size, self.n_clients), dtype=self._proximity.dtype)
        self._replace(ids, models, fresh)
        among = fresh[:, ids]
        _symmetrise(among)
        fresh[:, ids] = among
        self._proximity[ids] = fresh
        if self._deviations is None:
            self._proximity[:, ids] = fresh.T
        else:  # nobody asks for the matrix itself any more
            self._deviations.update(ids, fresh)
            self._behind.append(ids)

    def _replace(self, ids: Ids, models: Float, fresh: Float) -> None:
        """Replace the rows of some clients, and write their proximity to all into `fresh`."""
        offsets = np.empty_like(models)
        squares, nonzero = np.empty(ids.size), np.empty(ids.size)
        _backend.unit_offsets(models, self.reference, offsets, squares, nonzero)
        self.offsets[ids] = offsets
        self.principal.update(ids)
        self._squares[ids] = squares
        self._nonzero[ids] = nonzero

        def fill(start: int, stop: int) -> None:
            self._kernel_rows(ids[start:stop], offsets[start:stop], fresh[start:stop])

        n_tasks = max(1, -(-ids.size // _CHUNK))
        run_chunks(fill, ids.size, -(-ids.size // n_tasks))  # tasks of one size

    def matrix(self) -> Float:
        """Return the affinity (K, K), diagonal kept, before any row is normalised."""
        self._mirror()
        if self.gamma != "median":
            return self._proximity
        above = self._proximity[np.triu_indices_from(self._proximity, k=1)]
        median = float(np.median(above)) if above.size else 1.0
        tiny = np.finfo(np.float64).tiny  # its inverse is still finite
        return np.exp(self._proximity * (-1.0 / median if median > tiny else -1.0))

    def _mirror(self) -> None:
        """Bring columns up to date: who wants the whole matrix pays for it."""
        if self._behind:
            newest = np.full(self._proximity.shape[0], -1)
            for number, ids in enumerate(self._behind):
                newest[ids] = number
            for start in range(0, newest.size, _CHUNK):
                rows = slice(start, start + _CHUNK)
                older = newest[rows, None] < newest
                np.copyto(self._proximity[rows], self._proximity.T[rows], where=older)
        self._behind = []

    def deviations(self) -> Deviations:
        """Return how far affinities are from their mean; kept up to date from now on."""
        if self.gamma == "median":  # all of them change with every row
            return Deviations(self.matrix())
        if self._deviations is None or self._deviations.due:
            self._deviations = None  # its memory first
            self._deviations = Deviations(self.matrix())
        return self._deviations

    def has_distinct(self, count: int) -> bool:
        """Return whether there are at least `count` different normalised rows."""
        # Rows are unit vectors, and parallel models leave rounding between theirs: count in
        # steps above it. First the squares, cheap; rows that differ there do differ.
        step = 2.0**-17 if self.offsets.dtype == np.float32 else 2.0**-46  # 64 eps
        squares = np.sort(self._squares)
        if np.count_nonzero(squares[1:] - squares[:-1] > step) >= count - 1:
            return True
        some = self.offsets[: 4 * count]  # enough, as a rule; rows are long
        if len(np.unique(np.round(some / step), axis=0)) >= count:
            return True
        return len(np.unique(np.round(self.offsets / step), axis=0)) >= count

    def state(self) -> dict[str, Any]:
        """Return everything as arrays: a recomputed matrix would differ in its last bits."""
        self._mirror()
        return {
            "reference": self.reference.copy(),
            "offsets": self.offsets.copy(),
            "squares": self._squares.copy(),
            "nonzero": self._nonzero.copy(),
            "proximity": self._proximity.copy(),
            "principal": self.principal.state(),
            "deviations": None if self._deviations is None else self._deviations.state(),
        }

    @classmethod
    def restored(cls, state: dict[str, Any], kernel: str, gamma: float | str) -> Affinity:
        """Build from what `state` returned."""
        found = cls(np.zeros((1, 1)), kernel, gamma)
        n_clients, n_features = state["offsets"].shape
        found.reference = check_vector(state["reference"], "reference", n_features, None).copy()
        found.offsets = check_matrix(state["offsets"], "offsets").copy()
        found._squares = check_vector(state["squares"], "squares", n_clients).copy()
        found._nonzero = check_vector(state["nonzero"], "nonzero", n_clients).copy()
        proximity = check_matrix(state["proximity"], "proximity", (n_clients, n_clients))
        found._proximity, found._behind = proximity.astype(found.offsets.dtype), []
        found.principal = Principal(found.offsets, kernel in _SMOOTH_KERNELS)
        found.principal.restore(state.get("principal"))  # older states have neither this ...
        if state.get("deviations") is not None:  # ... nor this
            found._deviations = Deviations.restored(state["deviations"], n_clients)
        return found

    def _kernel_rows(self, ids: Ids, offsets: Float, rows: Float) -> None:
        """Write the kernel between some clients and all into `rows`."""
        if self.kernel == "laplacian":
            _backend.manhattan_rows(offsets, self.offsets, rows)
        else:
            _backend.squared_distances(offsets @ self.offsets.T, self._squares, ids, rows)
        if isinstance(self.gamma, str):  # "median": scaled as a whole, in `matrix`
            return
        apply_kernel(self.kernel, self.gamma, rows, self._nonzero[ids], self._nonzero)


def _symmetrise(matrix: Float) -> None:
    """Make two sides equal that differ by rounding: products sum in an order of their own."""
    for start in range(0, matrix.shape[0], _CHUNK):
        rows = slice(start, start + _CHUNK)
        np.minimum(matrix[rows], matrix.T[rows], out=matrix[rows])


def apply_kernel(kernel: str, gamma: float, distances: Float, left: Float, right: Float) -> None:
    """Turn distances between two sets of unit rows into affinities, in place.

    `left` and `right` hold 1, or 0 for a row without direction.
    """
    if kernel in ("rbf", "laplacian"):
        if distances.dtype == np.float64:
            _backend.decay_rows(distances, gamma)
        else:  # several at a time in NumPy too
            distances *= -gamma
            np.exp(distances, out=distances)
        return
    # For unit rows x.y = 1 - |x - y|^2 / 2; a zero row has norm 0 and x.y = 0.
    np.subtract(left[:, None] + right, distances, out=distances)
    distances *= 0.5
    if kernel == "sigmoid":
        distances *= gamma
        np.tanh(distances, out=distances)
    distances += 1.0
    distances *= 0.5
    np.clip(distances, 0.0, 1.0, out=distances)


def influence(models: ArrayLike, kernel: str = "rbf", gamma: float | str = 1.0) -> Float:
    """Return the influence matrix W of Eq. (4), rows summing to 1.

    Parameters
    ----------
    models : array-like of shape (n_clients, n_features)
        Watched coordinates of each client's model; rows are normalised first
        (Algorithm 1, line 3), a zero row stays zero.
    kernel : {"rbf", "cosine", "laplacian", "sigmoid"}
        See `Affinity`.
    gamma : float or "median", default=1.0
        The paper gives none; its scripts use 1. "cosine" ignores it.

    Returns
    -------
    ndarray of float64, shape (n_clients, n_clients)

    Examples
    --------
    >>> import cvrcore
    >>> cvrcore.influence([[1.0, 0.0], [0.0, 1.0]]).round(3)
    array([[0.881, 0.119],
           [0.119, 0.881]])
    """
    rows = check_matrix(models, "models", dtype=np.float64)
    kernel = check_choice(kernel, "kernel", KERNELS)
    gamma = check_gamma(gamma, kernel)
    with single_blas_thread():
        weights = Affinity(rows, kernel, gamma).matrix()
    return weights / weights.sum(axis=1, keepdims=True)
