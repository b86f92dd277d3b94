"""Affinity of all clients: rows in, a symmetric K x K matrix out; Algorithm 1, lines 3 and 4."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..kernels import dispatch
from ..runtime.journal import Journal
from ..runtime.threads import run_chunks
from ..validation import Float, Ids, check_matrix, check_number, check_shape, check_vector
from .operators import CentredAffinity
from .principal import Principal

KERNELS: Final = ("rbf", "cosine", "laplacian", "sigmoid")
_POSITIVE_KERNELS: Final = ("rbf", "cosine", "laplacian")  # tanh may have negative eigenvalues
_SMOOTH_KERNELS: Final = ("rbf", "cosine")
_CHUNK: Final = 32  # rows of the affinity filled by one task, at most
_AT_ONCE: Final = 1024  # rows updated at a time: bounds the memory of an update


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
    """The symmetric affinity of all clients; a round recomputes P of its rows.

    Normalised rows are stored as offsets from a fixed reference row: client models are
    nearly parallel, and differences of small offsets lose no digits.

    Parameters
    ----------
    models : array of shape (n_clients, n_features)
    kernel : str
        "rbf" ``exp(-gamma |x - y|^2)``, Eq. (4); "laplacian" ``exp(-gamma |x - y|_1)``;
        "cosine" ``(1 + x.y) / 2``; "sigmoid" ``(1 + tanh(gamma x.y)) / 2``. The last two
        are shifted to [0, 1], since an affinity must not be negative.
    gamma : float or "median"
        "median" is the inverse of the median of the kernel's distances, in each round.
    """

    def __init__(self, models: Float, kernel: str, gamma: float | str) -> None:
        n_clients, n_features = models.shape
        self.kernel, self.gamma = kernel, gamma
        self.journal: Journal | None = None  # of the running verb
        self.reference = np.zeros(n_features, dtype=models.dtype)
        self.offsets = np.empty_like(models)
        self._squares = np.empty(n_clients)
        self._nonzero = np.empty(n_clients)
        self._proximity = np.empty((n_clients, n_clients), dtype=models.dtype)
        dispatch.unit_offsets(models, self.reference, self.offsets, self._squares, self._nonzero)
        self.reference = self.offsets.mean(axis=0)
        self.principal = Principal(self.offsets, kernel in _SMOOTH_KERNELS)
        self.positive = kernel in _POSITIVE_KERNELS
        self._centred: CentredAffinity | None = None  # lazy: made by `centred`
        self._behind: list[Ids] = []  # clients whose columns are older than their rows, in order
        self._replace(np.arange(n_clients), models, self._proximity)
        _symmetrise(self._proximity)

    def enlist(self, journal: Journal) -> None:
        """Note everything that a verb may change, except rows: they are noted when they change."""
        journal.values(self, journal=None, _centred=self._centred, _behind=self._behind.copy())
        journal.values(self.principal, _moments=self.principal._moments)
        if self._centred is not None:
            journal.values(self._centred, replaced=self._centred.replaced)

    @property
    def n_clients(self) -> int:
        """Return the number of clients."""
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
        if self.journal is not None:
            note = self.journal.cross if self._centred is None else self.journal.rows
            note(ids, self._proximity)
        self._proximity[ids] = fresh
        if self._centred is None:
            self._proximity[:, ids] = fresh.T
        else:  # `matrix` is rarely called from now on: it mirrors the columns
            self._centred.update(ids, fresh, self.journal)
            self._behind.append(ids)

    def _replace(self, ids: Ids, models: Float, fresh: Float) -> None:
        """Replace the rows of clients `ids`; write their proximity to all clients to `fresh`."""
        offsets = np.empty_like(models)
        squares, nonzero = np.empty(ids.size), np.empty(ids.size)
        dispatch.unit_offsets(models, self.reference, offsets, squares, nonzero)
        if self.journal is not None:
            self.journal.rows(ids, self.offsets, self._squares, self._nonzero)
        self.offsets[ids] = offsets
        self.principal.update(ids, self.journal)
        self._squares[ids] = squares
        self._nonzero[ids] = nonzero

        def fill(start: int, stop: int) -> None:
            self._kernel_rows(ids[start:stop], offsets[start:stop], fresh[start:stop])

        n_tasks = max(1, -(-ids.size // _CHUNK))
        run_chunks(fill, ids.size, -(-ids.size // n_tasks))  # tasks of equal size

    def matrix(self) -> Float:
        """Return the affinity (K, K) with its diagonal, rows not normalised."""
        self._mirror()
        if self.gamma != "median":
            return self._proximity
        above = self._proximity[np.triu_indices_from(self._proximity, k=1)]
        median = float(np.median(above)) if above.size else 1.0
        tiny = np.finfo(np.float64).tiny  # 1 / tiny is finite
        return np.exp(self._proximity * (-1.0 / median if median > tiny else -1.0))

    def _mirror(self) -> None:
        """Copy changed rows to their columns."""
        if self._behind:
            if self.journal is not None:
                self.journal.array(self._proximity)
            newest = np.full(self._proximity.shape[0], -1)
            for number, ids in enumerate(self._behind):
                newest[ids] = number
            for start in range(0, newest.size, _CHUNK):
                rows = slice(start, start + _CHUNK)
                older = newest[rows, None] < newest
                np.copyto(self._proximity[rows], self._proximity.T[rows], where=older)
        self._behind = []

    def centred(self) -> CentredAffinity:
        """Return the affinity minus its mean; `update` keeps it up to date from now on."""
        if self.gamma == "median":  # every entry changes with every row
            return CentredAffinity(self.matrix())
        if self._centred is None or self._centred.due:
            self._centred = None  # free the old matrix before the new one is allocated
            self._centred = CentredAffinity(self.matrix())
        return self._centred

    def has_distinct(self, count: int) -> bool:
        """Return whether there are at least `count` different normalised rows."""
        # Rows of parallel models differ by rounding: compare in steps above it. The cheap
        # test is first: rows whose squared norms differ are different.
        step = 2.0**-17 if self.offsets.dtype == np.float32 else 2.0**-46  # 64 eps
        squares = np.sort(self._squares)
        if np.count_nonzero(squares[1:] - squares[:-1] > step) >= count - 1:
            return True
        some = self.offsets[: 4 * count]  # a few rows are usually enough
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
            # The key in state files keeps the old name of `_centred`.
            "deviations": None if self._centred is None else self._centred.state(),
        }

    @classmethod
    def restored(
        cls, state: dict[str, Any], kernel: str, gamma: float | str, size: tuple[int, int]
    ) -> Affinity:
        """Build an affinity, in float64, from the result of `state`; `size` is that of rows."""
        (n_clients, n_features), dtype = size, np.float64
        for name, shape in (("offsets", size), ("proximity", (n_clients, n_clients))):
            check_shape(state[name], name, shape)
        found = cls(np.zeros((1, 1), dtype), kernel, gamma)
        found.reference = check_vector(state["reference"], "reference", n_features, dtype).copy()
        found.offsets = check_matrix(state["offsets"], "offsets", size, dtype).copy()
        found._squares = check_vector(state["squares"], "squares", n_clients).copy()
        found._nonzero = check_vector(state["nonzero"], "nonzero", n_clients).copy()
        proximity = check_matrix(state["proximity"], "proximity", (n_clients, n_clients))
        found._proximity, found._behind = proximity.astype(found.offsets.dtype), []
        found.principal = Principal(found.offsets, kernel in _SMOOTH_KERNELS)
        # States of older versions hold neither "principal" nor "deviations".
        found.principal.restore(state.get("principal"))
        if state.get("deviations") is not None:
            found._centred = CentredAffinity.restored(state["deviations"], n_clients)
        return found

    def _kernel_rows(self, ids: Ids, offsets: Float, rows: Float) -> None:
        """Write the kernel between clients `ids` and all clients into `rows`."""
        if self.kernel == "laplacian":
            dispatch.manhattan_rows(offsets, self.offsets, rows)
        else:
            dispatch.squared_distances(offsets @ self.offsets.T, self._squares, ids, rows)
        if isinstance(self.gamma, str):  # "median": `matrix` applies the kernel
            return
        apply_kernel(self.kernel, self.gamma, rows, self._nonzero[ids], self._nonzero)


def _symmetrise(matrix: Float) -> None:
    """Make a matrix symmetric, in place: BLAS rounds the two triangles differently."""
    for start in range(0, matrix.shape[0], _CHUNK):
        rows = slice(start, start + _CHUNK)
        np.minimum(matrix[rows], matrix.T[rows], out=matrix[rows])


def apply_kernel(kernel: str, gamma: float, distances: Float, left: Float, right: Float) -> None:
    """Turn distances between two sets of unit rows into affinities, in place.

    `left` and `right` hold 0 for zero rows and 1 for all others.
    """
    if kernel in ("rbf", "laplacian"):
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
