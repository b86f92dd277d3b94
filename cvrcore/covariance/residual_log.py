"""Log of residuals: one residual a round in, the residuals of past rounds out."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..validation import Float, check_count, check_finite, check_number, check_vector

BLOCK: Final = 32  # residuals in one block


class ResidualLog:
    """Residuals r_s of shape (K, D), each contiguous in memory.

    The log grows by blocks of up to BLOCK residuals, (T, K, D). With a `window` the log is a
    ring buffer: once it is full, the next residual overwrites the oldest.

    Parameters
    ----------
    n_clients, n_features : int
    dtype : float32 or float64
    window : int, optional
        Largest number of residuals held. Default: all.
    """

    def __init__(
        self, n_clients: int, n_features: int, dtype: Any, window: int | None = None
    ) -> None:
        self.n_clients, self.n_features, self.dtype = n_clients, n_features, np.dtype(dtype)
        self.window = window
        self.blocks: list[Float] = []
        self.count = 0  # residuals held
        self.next = 0  # position of the next residual
        self.squares: list[float] = []  # weight^2 of each residual held, by position
        self.total = 0.0  # sum of weight^2 over all residuals ever pushed
        self.wrapped = False  # whether a residual has been overwritten

    @property
    def dropped(self) -> float:
        """Return the overwritten residuals' share of the total weight."""
        return 1.0 - 1.0 / self.represented if self.wrapped else 0.0

    @property
    def represented(self) -> float:
        """Return the weight of all residuals divided by the weight of the residuals held."""
        return self.total / sum(self.squares)

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        return sum(block.nbytes for block in self.blocks)

    def parts(self) -> list[tuple[Float, int]]:
        """Return each block with the number of residuals in it."""
        counts = [min(BLOCK, self.count - i * BLOCK) for i in range(len(self.blocks))]
        return [(block, n) for block, n in zip(self.blocks, counts, strict=True) if n > 0]

    def target(self) -> tuple[Float, int]:
        """Return the block and the index in it where the next residual goes."""
        number, index = divmod(self.next, BLOCK)
        if number == len(self.blocks):
            self._extend()
        return self.blocks[number], index

    def reserve(self, n_rounds: int) -> None:
        """Allocate and touch the memory of the next `n_rounds` residuals."""
        wanted = self.count + n_rounds
        if self.window is not None:
            wanted = min(wanted, self.window)
        while len(self.blocks) * BLOCK < wanted:
            self._extend()
        for number, block in enumerate(self.blocks):
            block[max(self.count - number * BLOCK, 0) :] = 0.0

    def _extend(self) -> None:
        held = len(self.blocks) * BLOCK
        capacity = BLOCK if self.window is None else min(BLOCK, self.window - held)
        shape = (capacity, self.n_clients, self.n_features)
        self.blocks.append(np.empty(shape, dtype=self.dtype))

    def push(self, square: float) -> None:
        """Count the residual that was written to `target`, of weight^2 `square`."""
        if self.next == self.count:
            self.squares.append(square)
            self.count += 1
        else:
            self.squares[self.next] = square
            self.wrapped = True
        self.total += square
        self.next += 1
        if self.next == self.window:
            self.next = 0

    def scale(self, factor: float) -> None:
        """Multiply every residual and its weight by `factor`."""
        for block, n in self.parts():
            block[:n] *= factor
        self.squares = [square * factor**2 for square in self.squares]
        self.total *= factor**2

    def grow(self, n_clients: int) -> None:
        """Add clients whose past residuals are 0."""
        added = n_clients - self.n_clients
        self.blocks = [np.pad(block, ((0, 0), (0, added), (0, 0))) for block in self.blocks]
        self.n_clients = n_clients

    def forget(self, client: int) -> None:
        """Erase the residuals of one client."""
        for block in self.blocks:
            block[:, client] = 0.0

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values; saved residuals have clients first."""
        return {
            "history": [block[:n].transpose(1, 0, 2).copy() for block, n in self.parts()],
            "next": self.next,
            "squares": np.array(self.squares),
            "total": self.total,
            "wrapped": self.wrapped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from `state`; states of older versions hold "history" alone."""
        self.blocks, self.squares = [], []
        self.count, self.next, self.total, self.wrapped = 0, 0, 0.0, False
        for block in state["history"]:
            if block.shape[0] != self.n_clients or block.shape[2] != self.n_features:
                raise ValueError(f"history must be of {self.n_clients} clients, got {block.shape}")
            check_finite(block, "history")
            for s in range(block.shape[1]):
                if self.count == self.window:
                    raise ValueError(f"history must be of {self.window} rounds at most")
                place, index = self.target()
                place[index] = block[:, s]
                self.push(1.0)
        if "next" in state:
            self._restore_weights(state)

    def _restore_weights(self, state: dict[str, Any]) -> None:
        self.wrapped = state["wrapped"] is True
        squares = check_vector(state["squares"], "squares", self.count)
        self.total = check_number(state["total"], "total", minimum=0)
        position = check_count(state["next"], "next", minimum=0, maximum=self.count)
        if (squares < 0).any() or self.total < (1 - 1e-9) * squares.sum():
            raise ValueError("squares must be non-negative and within their total")
        full = self.count == self.window
        if position != (0 if full else self.count) and not (self.wrapped and full):
            raise ValueError(f"next must follow the {self.count} residuals held, got {position}")
        if self.wrapped and not (full and position < self.count and squares.sum() > 0):
            raise ValueError("wrapped must come with a full window")
        self.squares, self.next = squares.tolist(), position
