"""The covariance of all pairs of clients: residuals in, entries of C out; packed triangles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ..kernels import dispatch
from ..runtime.sizes import DEFERRED, LANES, TILE_CLIENTS, packed_pairs
from ..runtime.threads import run_chunks
from ..validation import Float, Ids, check_count, check_finite, check_matrix

_TASK: Final = 4_000_000  # multiply-adds of one task: smaller tasks cost more than they save


class PackedCovariance:
    """``base + sum_s r_s r_s^T`` of every coordinate: O(K^2 D / 2) memory.

    Coordinates form blocks of eight. New residuals stay in a ring buffer; in each round a
    sixteenth of the blocks takes in, in one pass, the sixteen residuals since its last turn.

    Parameters
    ----------
    n_clients, n_features : int
    dtype : float32 or float64
    ones : float
        Initial value of every entry.
    """

    def __init__(self, n_clients: int, n_features: int, dtype: Any, ones: float) -> None:
        self.n_clients, self.n_features = n_clients, n_features
        n_blocks = -(-n_features // LANES)
        self.base = np.full((n_blocks, packed_pairs(n_clients), LANES), ones, dtype)
        self.recent = np.empty((DEFERRED, n_clients, n_features), dtype)  # s at s % DEFERRED
        self.steps = 0  # residuals so far
        self.pending = np.zeros(n_blocks, dtype=np.int64)  # residuals that a block lacks
        self._work = DEFERRED * LANES * n_clients**2 // 2  # multiply-adds to fold one block
        self._turns = np.arange(n_blocks) * DEFERRED // n_blocks  # of each block, modulo 16

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        return self.base.nbytes + self.recent.nbytes

    def absorb(self, parts: list[tuple[Float, int]]) -> None:
        """Add all residuals of a log: each block of the log with the number it holds."""

        def fold(start: int, stop: int) -> None:
            for block in range(start, stop):
                for residuals, used in parts:
                    packed = self._packed(residuals, 0, used, block)
                    dispatch.fold_block(self.base, packed, used, block)

        run_chunks(fold, self.base.shape[0], 1)

    def read(self, clients: Ids, others: Ids) -> Float:
        """Return entries of pairs, (n_pairs, n_features)."""
        entries = np.empty((clients.size, self.n_features), self.base.dtype)
        known = (self.base, self.recent, self.steps, self.pending)
        dispatch.read_packed(*known, clients, others, entries)
        return entries

    def target(self) -> tuple[Float, int]:
        """Return the array and the index in it where the next residual goes."""
        return self.recent, self.steps % DEFERRED

    def push(self) -> None:
        """Count the residual that was written to `target`, and fold the blocks whose turn it is."""
        turn = self._turns == self.steps % DEFERRED
        self.steps += 1
        self.pending += 1
        # Blocks of a state from another version may have other turns: none may overflow the ring.
        self._fold((turn | (self.pending == DEFERRED)).nonzero()[0])

    def _fold(self, blocks: Ids) -> None:
        """Add the residuals that some blocks lack to them."""

        def fold(start: int, stop: int) -> None:
            for block in blocks[start:stop].tolist():
                n_pending = int(self.pending[block])
                first = (self.steps - n_pending) % DEFERRED
                packed = self._packed(self.recent, first, n_pending, block)
                dispatch.fold_block(self.base, packed, n_pending, block)

        if blocks.size:
            run_chunks(fold, blocks.size, max(1, _TASK // self._work))
            self.pending[blocks] = 0

    def _packed(self, residuals: Float, first: int, n_stored: int, block: int) -> Float:
        """Return residuals of one block of coordinates in the order that `fold_block` reads."""
        n_tiles = -(-self.n_clients // TILE_CLIENTS)
        length = n_tiles * TILE_CLIENTS * n_stored * LANES
        room = np.empty(length + LANES)
        start = -room.ctypes.data % 64 // 8  # aligned to a cache line: read twice as fast
        packed = room[start : start + length]
        dispatch.pack_block(residuals, first, n_stored, block, packed)
        return packed

    def scale(self, factor: float) -> None:
        """Multiply every entry."""
        self.base *= factor
        self.recent[self._held()] *= np.sqrt(factor)

    def grown(self, n_clients: int, ones: float) -> PackedCovariance:
        """Return the covariance with more clients, whose residuals have been 0 so far."""
        found = PackedCovariance(n_clients, self.n_features, self.base.dtype, ones)
        found.base[:, : self.base.shape[1]] = self.base
        found.recent[:] = 0.0
        found.recent[:, : self.n_clients] = self.recent
        found.steps, found.pending = self.steps, self.pending.copy()
        found._fold(np.arange(found.pending.size))  # in the copy: this one may be asked for again
        return found

    def forget(self, client: int, ones: float) -> None:
        """Erase the residuals of one client: they count as 0."""
        self._fold(np.arange(self.pending.size))
        others = np.arange(self.n_clients)
        low, high = np.minimum(others, client), np.maximum(others, client)
        self.base[:, self._place(high, low)] = ones
        tile = others[others // TILE_CLIENTS == client // TILE_CLIENTS]
        self.base[:, self._place(np.minimum(tile, client), np.maximum(tile, client))] = ones
        self.recent[:, client] = 0.0

    def _held(self) -> Ids:
        """Return the places in the ring of residuals that some block lacks, oldest first."""
        return np.arange(self.steps - int(self.pending.max()), self.steps) % DEFERRED

    def _lower(self) -> Ids:
        """Return the places of the pairs of the lower triangle, row after row."""
        return self._place(*np.tril_indices(self.n_clients))

    @staticmethod
    def _place(rows: Ids, columns: Ids) -> Ids:
        """Return the places of pairs whose tile is in the lower triangle of tiles."""
        tile_row, tile_column = rows // TILE_CLIENTS, columns // TILE_CLIENTS
        tiles = tile_row * (tile_row + 1) // 2 + tile_column
        return (tiles * TILE_CLIENTS + rows % TILE_CLIENTS) * TILE_CLIENTS + columns % TILE_CLIENTS

    def _columns(self, joined: Float) -> Iterator[tuple[Float, Float]]:
        """Yield each block with its coordinates of an array (n_pairs, n_features)."""
        for number, block in enumerate(self.base):
            yield block, joined[:, number * LANES : (number + 1) * LANES]

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values; residuals have clients first."""
        pairs = self._lower()
        joined = np.empty((pairs.size, self.n_features), self.base.dtype)
        for block, part in self._columns(joined):
            part[:] = block[pairs, : part.shape[1]]
        last = self._held()
        return {
            "base": joined,
            "history": [self.recent[last].transpose(1, 0, 2).copy()] if last.size else [],
            "waiting": self.pending.copy(),
            "steps": self.steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from `state`; in states of older versions every block lacks all residuals."""
        pairs = self._lower()
        shape = pairs.size, self.n_features
        stored = check_matrix(state["base"], "base", shape, self.base.dtype)
        for block, part in self._columns(stored):
            block[pairs, : part.shape[1]] = part
        n_held = 0
        for held in state["history"]:
            n_held += held.shape[1]
            check_finite(held, "history")
            if held.shape != (self.n_clients, held.shape[1], self.n_features):
                raise ValueError(f"history must be of {self.n_clients} clients, got {held.shape}")
        if n_held > DEFERRED:
            raise ValueError(f"history must be of {DEFERRED} rounds at most, got {n_held}")
        self.steps = check_count(state.get("steps", n_held), "steps", n_held, 2**53)
        pending = np.asarray(state.get("waiting", np.full_like(self.pending, n_held)))
        if pending.shape != self.pending.shape or pending.dtype != np.int64:
            raise ValueError(
                f"waiting must hold {self.pending.size} integers, got {pending.dtype} of shape "
                f"{pending.shape}"
            )
        if pending.min() < 0 or pending.max() > n_held:
            raise ValueError(f"waiting must be between 0 and {n_held}, got {pending}")
        place = self.steps - n_held
        for held in state["history"]:
            for s in range(held.shape[1]):
                self.recent[place % DEFERRED] = held[:, s]
                place += 1
        self.pending = pending.copy()
        self._fold((self.pending == DEFERRED).nonzero()[0])  # the ring has no room for one more
