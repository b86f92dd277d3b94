"""The covariance of all pairs of clients: packed triangles, brought up to date in turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from . import _backend
from ._validation import Float, Ids, check_count, check_finite, check_matrix
from .threads import Chunks, begin_chunks

LANES: Final = 8  # coordinates in one block
EDGE: Final = 12  # clients on the edge of a square of pairs
DEFERRED: Final = 16  # residuals that wait for a block before one pass folds them in
_TASK: Final = 4_000_000  # multiply-adds per task: smaller ones cost more than they save
_SHARES: Final = 4  # of the last block's work in a round
_AT_ONCE: Final = 64_000_000  # multiply-adds of a whole fold that no round is worth sparing


class Triangles:
    """``base + sum_s r_s r_s^T`` of every coordinate: O(K^2 D / 2) memory.

    Residuals wait until a block of coordinates takes in sixteen of them in one pass, while
    clients train: the pass begins with `push` and ends at the next call. Where that is much
    work each round has its share of the blocks; else all of them go in the sixteenth.

    Parameters
    ----------
    n_clients, n_features : int
    dtype : float32 or float64
    ones : float, optional
        What every entry begins with. Default: `absorb` says it.
    """

    def __init__(
        self, n_clients: int, n_features: int, dtype: Any, ones: float | None = None
    ) -> None:
        self.n_clients, self.n_features = n_clients, n_features
        n_blocks = -(-n_features // LANES)
        shape = n_blocks, pairs_held(n_clients), LANES
        self.base = np.empty(shape, dtype) if ones is None else np.full(shape, ones, dtype)
        self.recent = np.empty((DEFERRED, n_clients, n_features), dtype)  # s at s % DEFERRED
        self.steps = 0  # residuals so far
        self.waiting = np.zeros(n_blocks, dtype=np.int64)  # residuals, for each block
        self._n_edges = -(-n_clients // EDGE)
        self._work = DEFERRED * LANES * n_clients**2 // 2  # of one block
        in_turn = n_blocks * self._work > _AT_ONCE
        # In the round of which number, modulo sixteen, a block has its turn.
        self._turns = (
            np.arange(n_blocks) * DEFERRED // n_blocks
            if in_turn
            else np.full(n_blocks, DEFERRED - 1)
        )
        self._folding: tuple[Chunks, Ids] | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        return self.base.nbytes + self.recent.nbytes

    def absorb(self, parts: list[tuple[Float, int]], ones: float) -> None:
        """Begin to take in all residuals of a history, and what entries begin with.

        Memory of the blocks is touched here first, which takes longer than the sums.
        """

        def fold(start: int, stop: int) -> None:
            for block in range(start, stop):
                self.base[block] = ones
                for residuals, used in parts:
                    packed = self._packed(self._room(used), residuals, 0, used, block)
                    _backend.fold_block(self.base, packed, used, block, 0, self._n_edges)

        n_blocks = self.base.shape[0]
        self._folding = begin_chunks(fold, n_blocks, 1), np.arange(n_blocks)

    def read(self, clients: Ids, others: Ids) -> Float:
        """Return entries of pairs, (n_asked, n_features)."""
        entries = np.empty((clients.size, self.n_features), self.base.dtype)
        known = (self.base, self.recent, self.steps, self.waiting)
        _backend.read_triangles(*known, clients, others, entries)
        return entries

    def slot(self) -> tuple[Float, int]:
        """Return the array and the index in it where the next residual goes."""
        return self.recent, self.steps % DEFERRED

    def push(self) -> None:
        """Count the residual that was written into `slot`, and begin this round's folds."""
        due = (self._turns == self.steps % DEFERRED).nonzero()[0]
        self.steps += 1
        self.waiting += 1
        if due.size:
            self._begin(due)

    def _begin(self, blocks: Ids) -> None:
        """Begin to fold what waits for some blocks into them.

        Where one is much work the last comes in shares: a core that has ended takes one.
        """
        *whole, last = blocks.tolist()
        tasks = [(block, 0, self._n_edges) for block in whole]
        n_shares = 1 if self._work < 2 * _SHARES * _TASK else _SHARES
        edges = np.sqrt(np.arange(n_shares + 1) / n_shares) * self._n_edges  # of equal areas
        limits = np.rint(edges).astype(int).tolist()
        tasks += [(last, low, high) for low, high in zip(limits, limits[1:], strict=False)]
        shared = self._waiting_packed(self._room(), last)

        def fold(start: int, stop: int) -> None:
            room = self._room()
            for block, low, high in tasks[start:stop]:
                packed = shared if block == last else self._waiting_packed(room, block)
                _backend.fold_block(self.base, packed, self.waiting[block], block, low, high)

        size = max(1, _TASK // self._work)
        self._folding = begin_chunks(fold, len(tasks), size), blocks

    def _room(self, n_stored: int = DEFERRED) -> Float:
        """Return memory for so many residuals of one block, packed."""
        length = self._n_edges * EDGE * n_stored * LANES
        room = np.empty(length + LANES)
        start = -room.ctypes.data % 64 // 8  # a run that begins on a line is read twice as fast
        return room[start : start + length]

    def _waiting_packed(self, room: Float, block: int) -> Float:
        n_waiting = int(self.waiting[block])
        first = (self.steps - n_waiting) % DEFERRED
        return self._packed(room, self.recent, first, n_waiting, block)

    def _packed(
        self, room: Float, residuals: Float, first: int, n_stored: int, block: int
    ) -> Float:
        """Return residuals of one block as `fold_block` takes them, in `room`."""
        packed = room[: self._n_edges * EDGE * n_stored * LANES]
        _backend.pack_block(residuals, first, n_stored, block, packed)
        return packed

    def settle(self) -> None:
        """End the folds that were begun, if there are any; before anything else is done."""
        if self._folding is None:
            return
        begun, blocks = self._folding
        begun.finish()
        self.waiting[blocks] = 0
        self._folding = None

    def scale(self, factor: float) -> None:
        """Multiply every entry."""
        self.base *= factor
        self.recent[self._held()] *= np.sqrt(factor)

    def grown(self, n_clients: int, ones: float) -> Triangles:
        """Return those of more clients, whose residual has been 0 so far."""
        self._fold_now(np.arange(self.waiting.size))
        dtype = self.base.dtype
        found = Triangles(n_clients, self.n_features, dtype, ones)
        found.base[:, : self.base.shape[1]] = self.base
        return found

    def _fold_now(self, blocks: Ids) -> None:
        if blocks.size:
            self._begin(blocks)
            self.settle()

    def _held(self) -> Ids:
        """Return where the residuals are that some block waits for, oldest first."""
        return np.arange(self.steps - int(self.waiting.max()), self.steps) % DEFERRED

    def _longest(self) -> Ids:
        """Return for how many residuals each block may have waited, by its turn."""
        return (self.steps - 1 - self._turns) % DEFERRED

    def _lower(self) -> Ids:
        """Return where the pairs of lower triangles are, row after row."""
        rows, columns = np.tril_indices(self.n_clients)
        squares = (rows // EDGE) * (rows // EDGE + 1) // 2 + columns // EDGE
        return (squares * EDGE + rows % EDGE) * EDGE + columns % EDGE

    def _columns(self, joined: Float) -> Iterator[tuple[Float, Float]]:
        """Return each block with its coordinates of an array (n_pairs, n_features)."""
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
            "waiting": self.waiting.copy(),
            "steps": self.steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned; in older states all residuals wait for all blocks."""
        dtype = self.base.dtype
        pairs = self._lower()
        shape = pairs.size, self.n_features
        for block, part in self._columns(check_matrix(state["base"], "base", shape, dtype)):
            block[pairs, : part.shape[1]] = part
        n_held = 0
        for held in state["history"]:
            n_held += held.shape[1]
            check_finite(held, "history")
            if held.shape != (self.n_clients, held.shape[1], self.n_features):
                raise ValueError(f"history must be of {self.n_clients} clients, got {held.shape}")
        if n_held > DEFERRED:
            raise ValueError(f"history must be of {DEFERRED} rounds at most, got {n_held}")
        self.steps = check_count(state.get("steps", n_held), "steps", minimum=n_held)
        waiting = np.asarray(state.get("waiting", np.full_like(self.waiting, n_held)))
        if waiting.shape != self.waiting.shape or waiting.dtype != np.int64:
            raise ValueError(
                f"waiting must hold {self.waiting.size} integers, got {waiting.dtype} of shape "
                f"{waiting.shape}"
            )
        if waiting.min() < 0 or waiting.max() > n_held:
            raise ValueError(f"waiting must be between 0 and {n_held}, got {waiting}")
        place = self.steps - n_held
        for held in state["history"]:
            for s in range(held.shape[1]):
                self.recent[place % DEFERRED] = held[:, s]
                place += 1
        self.waiting = waiting.copy()
        self._fold_now((waiting > self._longest()).nonzero()[0])


def pairs_held(n_clients: int) -> int:
    """Return how many pairs there is room for: those of whole squares."""
    n_edges = -(-n_clients // EDGE)
    return n_edges * (n_edges + 1) // 2 * EDGE**2
