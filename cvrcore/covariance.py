"""Online covariance of residuals: Algorithm 1, lines 13 to 18.

`update_covariance` is the paper's dense recursion, stateless. `CovarianceStore` holds the
same matrices in one of two exact forms, chosen by size.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from . import _backend
from ._validation import (
    Float,
    Ids,
    check_choice,
    check_ids,
    check_labels,
    check_matrix,
    check_number,
)
from .scores import DIAGONAL_FLOOR, check_covariance
from .threads import run_chunks

PREDICTORS: Final = ("regression", "cosine")
STORES: Final = ("auto", "dense", "factored", "none")
_DEFERRED: Final = 8  # residuals that wait before one pass folds them into the dense part
_CHUNK_ROUNDS: Final = 32  # residuals in one block of the factored history
_TASK: Final = 2_000_000  # multiply-adds per task: smaller ones cost more than they save


def representatives(clients: Ids, coalitions: Ids) -> Ids:
    """Return each client's representative: the first of `clients` in its coalition, or -1."""
    first = np.full(int(coalitions.max()) + 1, -1, dtype=np.int64)
    # Written backwards, so that the first of a coalition is written last.
    first[coalitions[clients[::-1]]] = clients[::-1]
    return first[coalitions]


def cosine_coefficients(previous: Float, representative: Ids) -> Float:
    """Return the cosine of each client's last row with its representative's; 0 for zero rows."""
    others = previous[representative]
    dots = np.einsum("kd,kd->k", previous, others, dtype=np.float64)
    norms = np.sqrt(np.einsum("kd,kd->k", previous, previous, dtype=np.float64))
    product = norms * norms[representative]
    return np.where(product > 0, dots / np.where(product > 0, product, 1.0), 0.0)


def update_covariance(
    covariance: ArrayLike,
    models: ArrayLike,
    clients: ArrayLike,
    coalitions: ArrayLike,
    rate: float,
    predictor: str = "regression",
    previous: ArrayLike | None = None,
) -> Float:
    """Blend one round's residuals into the covariance and return the new one.

    Every client k is predicted from the representative j of its coalition,
    ``theta_bar_k = c_k theta_j`` (Eq. (13)), and
    ``C^d <- (1 - rate) C^d + rate delta^d delta^dT`` with ``delta = theta - theta_bar``
    (Algorithm 1, lines 14 and 17). The representative's residual is 0; so is that of a
    coalition without one.

    Parameters
    ----------
    covariance : array-like of shape (n_features, n_clients, n_clients)
    models : array-like of shape (n_clients, n_features)
        Rows after the round: new ones for those that reported, old ones for the rest.
    clients : array-like of int
        Representatives that reported, at most one in a coalition.
    coalitions : array-like of int, shape (n_clients,)
    rate : float
        Step, in [0, 1].
    predictor : {"regression", "cosine"}
        "regression": ``c_k^d = C^d_kj / C^d_jj``, correlation clipped to [-1, 1], 0 where
        C^d_jj is below 1e-12 of that coordinate's mean diagonal. "cosine": one scalar per
        pair, the cosine of the rows in `previous`.
    previous : array-like of shape (n_clients, n_features), optional
        Rows before the round; needed by "cosine".

    Returns
    -------
    ndarray of shape (n_features, n_clients, n_clients)
        A new array; the input is left as it was.
    """
    cov = check_covariance(covariance)
    n_features, n_clients, _ = cov.shape
    rows = check_matrix(models, "models", (n_clients, n_features), np.float64)
    labels = check_labels(coalitions, n_clients)
    ids = check_ids(clients, "clients", n_clients)
    rate = check_number(rate, "rate", minimum=0.0, maximum=1.0)
    predictor = check_choice(predictor, "predictor", PREDICTORS)
    used = np.bincount(labels[ids], minlength=1)
    if used.max() > 1:
        raise ValueError(
            f"clients must hold one representative a coalition, got {used.max()} in coalition "
            f"{used.argmax()}"
        )
    representative = representatives(ids, labels)
    if predictor == "cosine":
        if previous is None:
            raise ValueError("previous rows are required by predictor 'cosine', got None")
        old = check_matrix(previous, "previous", rows.shape, np.float64)
        coefficients = cosine_coefficients(old, representative)[:, None]
    else:
        diagonal = np.einsum("dkk->kd", cov).astype(np.float64)
        variance = diagonal[representative]
        entries = np.take_along_axis(cov, np.maximum(representative, 0)[None, :, None], axis=2)
        bound = np.sqrt(diagonal * variance)
        clipped = np.clip(entries[:, :, 0].T, -bound, bound)
        usable = variance > DIAGONAL_FLOOR * diagonal.mean(axis=0)
        coefficients = np.where(usable, clipped / np.where(usable, variance, 1.0), 0.0)
    delta = rows - coefficients * rows[representative]
    delta[(representative < 0) | (representative == np.arange(n_clients))] = 0.0
    updated = (1.0 - rate) * cov
    for d in range(n_features):  # one outer product at a time stays in cache
        updated[d] += rate * np.outer(delta[:, d], delta[:, d])
    return updated


class CovarianceStore:
    """C^d for every d, exactly, as a dense part plus residuals not yet folded into it.

    ``C = scale * (base + sum_s r_s r_s^T)``. "factored" never folds: O(K t D) memory and
    time. "dense" folds every eight rounds into packed triangles: O(K^2 D / 2). "auto"
    begins factored and becomes dense when that is the smaller, after K / 2 rounds.

    Parameters
    ----------
    n_clients, n_features : int
    kind : {"auto", "dense", "factored"}
    dtype : float32 or float64
    """

    def __init__(self, n_clients: int, n_features: int, kind: str, dtype: Any) -> None:
        self.n_clients, self.n_features = n_clients, n_features
        self.kind, self.dtype = kind, np.dtype(dtype)
        self.scale = 1.0
        self.ones = 1.0  # share of C(1), all ones, in `base`, in units of scale
        self.base: Float | None = None
        self.chunks: list[Float] = []
        self.used = 0  # residuals in the last chunk; the others are full
        if kind == "dense":
            self._make_dense()

    @property
    def form(self) -> str:
        """Return "dense" or "factored": what the store is at present."""
        return "factored" if self.base is None else "dense"

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        dense = 0 if self.base is None else self.base.nbytes
        return dense + sum(chunk.nbytes for chunk in self.chunks)

    def entries(self, representative: Ids) -> Float:
        """Return ``C_kj / scale`` for each client k and its representative j.

        Rows of clients without one, and of representatives, mean nothing.
        """
        out = np.full((self.n_clients, self.n_features), self.ones)
        asked = np.flatnonzero(
            (representative >= 0) & (representative != np.arange(self.n_clients))
        )
        asked = asked[np.argsort(representative[asked], kind="stable")]
        pairs = np.stack([asked, representative[asked]], axis=1)
        if self.base is not None and asked.size:
            high, low = pairs.max(axis=1), pairs.min(axis=1)
            out[asked] = self.base[high * (high + 1) // 2 + low]
        for chunk, used in self._history():
            step = max(1, _TASK // (used * self.n_features))

            def add(start: int, stop: int, chunk: Float = chunk, used: int = used) -> None:
                _backend.add_history(chunk, used, pairs[start:stop], out)

            run_chunks(add, asked.size, step)
        return out

    def append(self, residual: Float, rate: float) -> None:
        """Take one step: ``C <- (1 - rate) C + rate r r^T``."""
        self.scale *= 1.0 - rate
        if self.scale < 1e-60:
            self._rescale()
        if self.base is None and self.kind == "auto" and 2 * self._stored() >= self.n_clients:
            self._make_dense()
        self._push(residual * self.dtype.type(np.sqrt(rate / self.scale)))
        if self.base is not None and self.used == _DEFERRED:
            self._fold()

    def dense(self) -> Float:
        """Return C as an array of shape (n_features, n_clients, n_clients), float64."""
        rows, columns = np.tril_indices(self.n_clients)
        packed = np.full((rows.size, self.n_features), self.ones)
        if self.base is not None:
            packed[:] = self.base
        for chunk, used in self._history():
            for s in range(used):
                step = chunk[:, s].astype(np.float64)
                packed += step[rows] * step[columns]
        full = np.empty((self.n_features, self.n_clients, self.n_clients))
        full[:, rows, columns] = full[:, columns, rows] = self.scale * packed.T
        return full

    def grow(self, n_clients: int) -> None:
        """Add clients, whose residual has been 0 so far."""
        added = n_clients - self.n_clients
        if self.base is not None:
            size = n_clients * (n_clients + 1) // 2
            base = np.full((size, self.n_features), self.ones, dtype=self.dtype)
            base[: self.base.shape[0]] = self.base
            self.base = base
        self.chunks = [np.pad(chunk, ((0, added), (0, 0), (0, 0))) for chunk in self.chunks]
        self.n_clients = n_clients

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        used = [chunk[:, :n].copy() for chunk, n in self._history()]
        base = None if self.base is None else self.base.copy()
        return {"scale": self.scale, "ones": self.ones, "base": base, "history": used}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self.scale, self.ones = float(state["scale"]), float(state["ones"])
        self.base, self.chunks, self.used = state["base"], [], 0
        for block in state["history"]:
            if block.shape[0] != self.n_clients or block.shape[2] != self.n_features:
                raise ValueError(f"history must be of {self.n_clients} clients, got {block.shape}")
            for s in range(block.shape[1]):
                self._push(block[:, s])

    def _stored(self) -> int:
        return sum(used for _, used in self._history())

    def _history(self) -> list[tuple[Float, int]]:
        """Return each chunk with the number of residuals in it."""
        last = len(self.chunks) - 1
        counts = [self.used if i == last else chunk.shape[1] for i, chunk in enumerate(self.chunks)]
        return [(chunk, n) for chunk, n in zip(self.chunks, counts, strict=True) if n]

    def _push(self, scaled: Float) -> None:
        if not self.chunks or self.used == self.chunks[-1].shape[1]:
            capacity = _CHUNK_ROUNDS if self.base is None else _DEFERRED
            shape = (self.n_clients, capacity, self.n_features)
            self.chunks.append(np.empty(shape, dtype=self.dtype))
            self.used = 0
        self.chunks[-1][:, self.used] = scaled
        self.used += 1

    def _make_dense(self) -> None:
        size = self.n_clients * (self.n_clients + 1) // 2
        self.base = np.full((size, self.n_features), self.ones, dtype=self.dtype)
        self._fold()
        self.chunks, self.used = [], 0

    def _fold(self) -> None:
        """Add all waiting residuals to the dense part."""
        for chunk, used in self._history():
            step = max(1, _TASK // (used * self.n_features * self.n_clients))

            def fold(start: int, stop: int, chunk: Float = chunk, used: int = used) -> None:
                _backend.fold_history(self.base, chunk, used, start, stop)

            run_chunks(fold, self.n_clients, step)
        self.used = 0

    def _rescale(self) -> None:
        """Bring scale back to 1 before it underflows (a constant rate gets there)."""
        if self.base is not None:
            self.base *= self.scale
        for chunk, used in self._history():
            chunk[:, :used] *= np.sqrt(self.scale)
        self.ones *= self.scale
        self.scale = 1.0
