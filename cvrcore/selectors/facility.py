"""Distances of all pairs of clients in, the clients that represent all others best out.

`ExactFacility` looks at all candidates in every step, lazily, over distances in float32.
`CoarseFacility` looks at a random part of them, over distances in bfloat16.
"""

from __future__ import annotations

import abc

import numpy as np
from numpy.typing import NDArray

from ..kernels import dispatch
from ..runtime.journal import Journal
from ..runtime.threads import run_chunks, single_blas_thread
from ..validation import Float, Ids, Mask

_CHUNK = 64  # candidates that a thread evaluates at a time
_ROWS = 256  # rows of the matrix that are measured at a time
_FARTHEST = np.uint16(0x7F7F)  # the largest finite bfloat16


class Facility(abc.ABC):
    """The distances between the last updates of clients; 0 from clients never seen.

    Parameters
    ----------
    rows : ndarray of shape (n_clients, n_features)
    seen : ndarray of bool, shape (n_clients,)
    """

    distances: NDArray[np.generic]

    def enlist(self, journal: Journal) -> None:
        """Note references; rows of arrays are noted before they change."""
        journal.references(self)

    @abc.abstractmethod
    def measure(self, rows: Float, seen: Mask, clients: Ids, journal: Journal | None) -> None:
        """Compute the distances of some clients from all clients seen."""

    @abc.abstractmethod
    def greedy(self, candidates: Ids, seen: Mask, size: int, rng: np.random.Generator) -> Ids:
        """Return `size` of the candidates, each the one that lowers the total cost most."""

    def represented(self, chosen: Ids) -> Ids:
        """Return which of the chosen clients is nearest to each client, as a place in them."""
        labels: Ids = np.argmin(self.distances[chosen], axis=0).astype(np.int64)
        labels[chosen] = np.arange(chosen.size)
        return labels


class ExactFacility(Facility):
    """Lazy greedy choice: the same set as plain greedy. State: 4 K^2 bytes."""

    def __init__(self, rows: Float, seen: Mask) -> None:
        n_clients = rows.shape[0]
        self.distances = np.zeros((n_clients, n_clients), dtype=np.float32)
        self.totals = np.zeros(n_clients)  # row sums
        self.measure(rows, seen, np.flatnonzero(seen), None)

    def measure(self, rows: Float, seen: Mask, clients: Ids, journal: Journal | None) -> None:
        """Compute the distances of some clients from all clients seen."""
        distances = self.distances
        if journal is not None:
            journal.cross(clients, distances)
            journal.array(self.totals)
        squares = np.einsum("kd,kd->k", rows, rows)
        with single_blas_thread():
            for block in np.array_split(clients, max(1, clients.size // _ROWS)):
                products = rows[block] @ rows.T
                far = np.maximum(squares[block, None] + squares - 2.0 * products, 0.0)
                new = np.sqrt(far).astype(np.float32)
                new[:, ~seen] = 0.0
                new[np.arange(block.size), block] = 0.0
                self.totals -= distances[block].sum(axis=0, dtype=np.float64)
                self.totals += new.sum(axis=0, dtype=np.float64)
                distances[block] = new
                distances[:, block] = new.T
                self.totals[block] = distances[block].sum(axis=1, dtype=np.float64)

    def greedy(self, candidates: Ids, seen: Mask, size: int, rng: np.random.Generator) -> Ids:
        """Return `size` of the candidates, each the one that lowers the total cost most."""
        # A client never seen is served at no cost; others begin infinitely far away.
        nearest = np.where(seen, np.finfo(np.float32).max, 0.0).astype(np.float32)
        picked = np.empty(size, dtype=np.int64)  # places in `candidates`
        picked[0] = np.argmin(self.totals[candidates])
        np.minimum(nearest, self.distances[candidates[picked[0]]], out=nearest)
        if size > 1:
            costs, fresh = np.empty(candidates.size), np.empty(candidates.size, dtype=np.int64)

            def work(start: int, stop: int) -> None:
                dispatch.assignment_costs(self.distances, nearest, candidates, costs, start, stop)

            run_chunks(work, candidates.size, _CHUNK)
            dispatch.lazy_greedy(self.distances, nearest, candidates, costs, fresh, picked, 1)
        return candidates[picked]


class CoarseFacility(Facility):
    """Stochastic greedy choice. State: 2 K^2 bytes, and 4 K D for the updates in float32.

    Parameters
    ----------
    rows, seen
        See `Facility`.
    epsilon : float in (0, 1)
        Each step looks at ``(candidates / size) * log(1 / epsilon)`` random candidates.
    """

    def __init__(self, rows: Float, seen: Mask, epsilon: float) -> None:
        n_clients = rows.shape[0]
        self.epsilon = epsilon
        self.distances = np.zeros((n_clients, n_clients), dtype=np.uint16)
        self.rows = rows.astype(np.float32)
        self.squares = np.einsum("kd,kd->k", rows, rows).astype(np.float32)
        self.measure(rows, seen, np.flatnonzero(seen), None)

    def measure(self, rows: Float, seen: Mask, clients: Ids, journal: Journal | None) -> None:
        """Compute the distances of some clients from all clients seen."""
        if journal is not None:
            journal.cross(clients, self.distances)
            journal.rows(clients, self.rows, self.squares)
        new = rows[clients]
        self.rows[clients] = new
        self.squares[clients] = np.einsum("kd,kd->k", new, new)
        there = seen.view(np.uint8)
        with single_blas_thread():
            for block in np.array_split(clients, max(1, clients.size // _ROWS)):
                products = self.rows[block] @ self.rows.T
                found = np.empty(products.shape, dtype=np.uint16)
                dispatch.coarse_rows(products, self.squares[block], self.squares, there, found)
                dispatch.write_cross(self.distances, block, found)

    def greedy(self, candidates: Ids, seen: Mask, size: int, rng: np.random.Generator) -> Ids:
        """Return `size` of the candidates, each the best of a random part of them."""
        nearest = np.where(seen, _FARTHEST, np.uint16(0))
        n_tried = int(np.ceil(candidates.size / size * np.log(1.0 / self.epsilon)))
        uniforms = rng.random((size, min(n_tried, candidates.size)))
        picked = np.empty(size, dtype=np.int64)
        dispatch.stochastic_greedy(self.distances, nearest, candidates, uniforms, picked)
        return candidates[picked]
