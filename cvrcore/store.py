"""The covariance between rounds, exactly, in one of two forms chosen by size.

Sums over rounds run in the order of rounds whatever the form, so that in float64 a store
that switches, caches or is loaded from a file returns the same bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from . import _backend
from ._validation import Float, Ids, check_matrix
from .threads import run_chunks

STORES: Final = ("auto", "dense", "factored", "none")
_DEFERRED: Final = 16  # residuals that wait before one pass folds them into the dense part
_BLOCK: Final = 32  # residuals in one block of the factored history
_TASK: Final = 1_000_000  # multiply-adds per task: smaller ones cost more than they save
LANES: Final = 8  # coordinates in one block of the dense part


class CovarianceStore:
    """C^d for every d, as a dense part plus residuals not yet folded into it.

    ``C = scale * (base + sum_s r_s r_s^T)``. "factored" never folds: O(K t D) memory.
    "dense" folds every sixteen rounds into packed triangles: O(K^2 D / 2). "auto" begins
    factored and becomes dense when that is the smaller, after K / 2 rounds.

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
        self.blocks: list[Float] = []
        self.used = 0  # residuals in the last block; the others are full
        self._cache: PairCache | None = None
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
        cached = 0 if self._cache is None else self._cache.values.nbytes
        return dense + cached + sum(block.nbytes for block in self.blocks)

    def entries(self, representative: Ids) -> Float:
        """Return ``C_kj / scale`` for each client k and its representative j.

        Rows of clients without one, and of representatives, mean nothing.
        """
        asked = np.flatnonzero(
            (representative >= 0) & (representative != np.arange(self.n_clients))
        )
        out = np.empty((self.n_clients, self.n_features))
        if asked.size == 0:
            return out
        if self.base is None:  # by representative: its history then stays in cache
            asked = asked[np.argsort(representative[asked], kind="stable")]
        begin = np.zeros(asked.size, dtype=np.int64)
        if self.base is not None:
            _backend.read_base(self.base, asked, representative, out)
        elif self._cache is not None:
            begin = self._cache.read(asked, representative[asked], self.ones, out)
        else:
            out[asked] = self.ones
        first = 0
        for block, used in self._history():
            self._add(block, used, asked, representative, begin - first, out)
            first += used
        if self.base is None and first >= 2 * _BLOCK:
            if self._cache is None:
                self._cache = PairCache(self.n_clients, self.n_features)
            self._cache.write(asked, representative[asked], first, out)
        return out

    def append(self, residual: Float, rate: float) -> None:
        """Take one step: ``C <- (1 - rate) C + rate r r^T``."""
        self.scale *= 1.0 - rate
        if self.scale < (1e-60 if self.dtype == np.float64 else 1e-12):
            self._rescale()
        if self.base is None and self.kind == "auto" and 2 * self.n_stored >= self.n_clients:
            self._make_dense()
        weight = np.sqrt(rate / self.scale)
        # A decaying rate has weight 1 up to rounding: then there is nothing to scale.
        same = abs(weight - 1.0) < 1e-12
        self._push(residual if same else residual * self.dtype.type(weight))
        if self.base is not None and self.used == _DEFERRED:
            self._fold()

    def dense(self) -> Float:
        """Return C as an array of shape (n_features, n_clients, n_clients), float64."""
        rows, columns = np.tril_indices(self.n_clients)
        packed = np.full((rows.size, self.n_features), self.ones)
        if self.base is not None:
            packed[:] = _joined(self.base, self.n_features)
        for block, used in self._history():
            for s in range(used):
                step = block[:, s].astype(np.float64)
                packed += step[rows] * step[columns]
        full = np.empty((self.n_features, self.n_clients, self.n_clients))
        full[:, rows, columns] = full[:, columns, rows] = self.scale * packed.T
        return full

    def grow(self, n_clients: int) -> None:
        """Add clients, whose residual has been 0 so far."""
        added = n_clients - self.n_clients
        if self.base is not None:
            old, self.base = self.base, self._new_base(n_clients)
            self.base[:, : old.shape[1]] = old
        self.blocks = [np.pad(block, ((0, added), (0, 0), (0, 0))) for block in self.blocks]
        self.n_clients, self._cache = n_clients, None

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        used = [block[:, :n].copy() for block, n in self._history()]
        base = None if self.base is None else _joined(self.base, self.n_features)
        return {"scale": self.scale, "ones": self.ones, "base": base, "history": used}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self.scale, self.ones = float(state["scale"]), float(state["ones"])
        self.base, self.blocks, self.used, self._cache = None, [], 0, None
        if state["base"] is not None:
            shape = (self.n_clients * (self.n_clients + 1) // 2, self.n_features)
            joined = check_matrix(state["base"], "base", shape, self.dtype)
            self.base = self._new_base(self.n_clients)
            for block, first in enumerate(range(0, self.n_features, LANES)):
                part = joined[:, first : first + LANES]
                self.base[block, :, : part.shape[1]] = part
        for block in state["history"]:
            if block.shape[0] != self.n_clients or block.shape[2] != self.n_features:
                raise ValueError(f"history must be of {self.n_clients} clients, got {block.shape}")
            for s in range(block.shape[1]):
                self._push(block[:, s])

    @property
    def n_stored(self) -> int:
        """Return how many residuals wait outside the dense part."""
        return sum(used for _, used in self._history())

    def _history(self) -> list[tuple[Float, int]]:
        """Return each block with the number of residuals in it."""
        last = len(self.blocks) - 1
        counts = [self.used if i == last else block.shape[1] for i, block in enumerate(self.blocks)]
        return [(block, n) for block, n in zip(self.blocks, counts, strict=True) if n]

    def _add(
        self, block: Float, used: int, clients: Ids, representative: Ids, begin: Ids, out: Float
    ) -> None:
        """Add one block's share, clients in parallel."""

        def add(start: int, stop: int) -> None:
            asked, since = clients[start:stop], begin[start:stop]
            _backend.add_history(block, used, asked, representative, since, out)

        run_chunks(add, clients.size, max(1, _TASK // (used * self.n_features)))

    def _push(self, scaled: Float) -> None:
        if not self.blocks or self.used == self.blocks[-1].shape[1]:
            capacity = _BLOCK if self.base is None else _DEFERRED
            shape = (self.n_clients, capacity, self.n_features)
            self.blocks.append(np.empty(shape, dtype=self.dtype))
            self.used = 0
        self.blocks[-1][:, self.used] = scaled
        self.used += 1

    def _new_base(self, n_clients: int) -> Float:
        """Return the dense part of C(1), in the layout of `cvrcore._covariance`."""
        shape = (-(-self.n_features // LANES), n_clients * (n_clients + 1) // 2, LANES)
        return np.full(shape, self.ones, dtype=self.dtype)

    def _make_dense(self) -> None:
        self.base = self._new_base(self.n_clients)
        self._fold()
        self.blocks, self.used, self._cache = [], 0, None

    def _fold(self) -> None:
        """Add all waiting residuals to the dense part, blocks of coordinates in parallel."""
        for block, used in self._history():

            def fold(start: int, stop: int, block: Float = block, used: int = used) -> None:
                _backend.fold_history(self.base, block, used, start, stop)

            work = used * LANES * self.n_clients**2 // 2
            run_chunks(fold, -(-self.n_features // LANES), max(1, _TASK // work))
        self.used = 0

    def _rescale(self) -> None:
        """Bring scale back to 1 before it underflows (a constant rate gets there)."""
        if self.base is not None:
            self.base *= self.scale
        for block, used in self._history():
            block[:, :used] *= np.sqrt(self.scale)
        self.ones *= self.scale
        self.scale, self._cache = 1.0, None


def _joined(base: Float, n_features: int) -> Float:
    """Return the dense part as one array (pairs, n_features), the form that is saved."""
    n_blocks, n_pairs, _ = base.shape
    return base.transpose(1, 0, 2).reshape(n_pairs, n_blocks * LANES)[:, :n_features].copy()


class PairCache:
    """Sums of pairs asked for before, to be continued from where they stopped.

    A client meets the same few representatives again and again while coalitions are
    stable; the sum over a long history is then done once. The oldest sum makes place.
    """

    SLOTS: Final = 24

    def __init__(self, n_clients: int, n_features: int) -> None:
        self.values = np.empty((n_clients, self.SLOTS, n_features))
        self.others = np.full((n_clients, self.SLOTS), -1, dtype=np.int64)
        self.reached = np.zeros((n_clients, self.SLOTS), dtype=np.int64)
        self._slot = np.empty(0, dtype=np.int64)

    def read(self, clients: Ids, others: Ids, fresh: float, out: Float) -> Ids:
        """Write known sums, or `fresh`, into rows of `out`; return how many rounds they hold."""
        match = self.others[clients] == others[:, None]
        known = match.any(axis=1)
        self._slot = np.where(known, match.argmax(axis=1), self.reached[clients].argmin(axis=1))
        out[clients] = fresh
        found = clients[known]
        out[found] = self.values[found, self._slot[known]]
        return np.where(known, self.reached[clients, self._slot], 0)

    def write(self, clients: Ids, others: Ids, n_rounds: int, sums: Float) -> None:
        """Keep the sums of the pairs that `read` was last asked for."""
        if self._slot.size != clients.size:  # nothing was read yet
            self._slot = np.zeros(clients.size, dtype=np.int64)
        self.values[clients, self._slot] = sums[clients]
        self.others[clients, self._slot] = others
        self.reached[clients, self._slot] = n_rounds
