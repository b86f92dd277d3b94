"""Coalitions of very many clients by the Nystrom method: changed rows in, labels out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.journal import Journal
from ..validation import Float, Ids, check_count, check_matrix, check_stored
from .landmarks import LandmarkAffinities, Landmarks, choose_landmarks
from .lloyd import lloyd
from .partitions import Partition, Problem, balanced_partition


def _has_distinct(points: Float, count: int) -> bool:
    """Return whether a random projection shows at least `count` different points."""
    if not np.isfinite(points.sum()):
        return False
    some = points[:: max(1, points.shape[0] // (64 * count))]  # a sample is usually enough
    if some.shape[0] < points.shape[0] and _has_distinct(some, count):
        return True
    direction = np.random.default_rng(0).standard_normal((points.shape[1], 1))
    projected = np.sort((points @ direction.astype(points.dtype))[:, 0])
    gaps = np.diff(projected) > 1e-6 * max(abs(projected[0]), abs(projected[-1]))
    return int(np.count_nonzero(gaps)) >= count - 1


class NystromPartition(Partition):
    """Clustering of a landmark embedding: no K x K matrix.

    Landmarks stay until a quarter of all rows have been replaced. Until then, with `keep`, a
    round computes only the affinities of changed rows.

    Parameters
    ----------
    kernel, gamma, n_landmarks, landmarks
        See `cvrcore.clustering.landmarks.nystrom_points`.
    n_clients : int
    keep : bool
        Whether to keep the affinities of all clients to landmarks in memory.
    """

    def __init__(
        self,
        n_clients: int,
        kernel: str,
        gamma: float | str,
        n_landmarks: int,
        landmarks: str,
        keep: bool,
    ) -> None:
        self.kernel, self.gamma = kernel, gamma
        self.n_landmarks, self.landmarks, self.keep = n_landmarks, landmarks, keep
        self.reset(n_clients)

    def reset(self, n_clients: int) -> None:
        """Drop the landmarks and all affinities."""
        self.near: LandmarkAffinities | None = None
        self.stale = np.zeros(n_clients, dtype=bool)  # rows newer than their affinities
        self.replaced = 0  # rows replaced since the landmarks were drawn

    def enlist(self, journal: Journal) -> None:
        """Note everything that a verb may change; landmarks about to be redrawn are forgotten."""
        due = 4 * self.replaced >= self.stale.size
        journal.array(self.stale)
        near = None if due else self.near
        journal.values(self, near=near, stale=self.stale, replaced=self.replaced)

    def touch(self, clients: Ids, journal: Journal | None = None) -> None:
        """Mark the rows of these clients as changed."""
        if journal is not None:
            self.enlist(journal)
        self.stale[clients] = True
        self.replaced += clients.size

    def make(self, problem: Problem) -> Ids:
        """Return labels; Lloyd's algorithm is warm-started from the last partition, if any."""
        rows, n_coalitions, rng = problem.rows, problem.n_coalitions, problem.rng
        points = self._fresh(problem).embed(rows, n_coalitions, rng)
        if not _has_distinct(points, n_coalitions):
            return balanced_partition(rows.shape[0], n_coalitions, rng)
        # A few passes are enough: the next clustering continues from this one.
        max_passes = 10 if problem.last is None else 3
        return lloyd(points, n_coalitions, rng, problem.last, max_passes)

    def _fresh(self, problem: Problem) -> LandmarkAffinities:
        rows, rng = problem.rows, problem.rng
        if self.near is None or 4 * self.replaced >= rows.shape[0]:
            chosen = choose_landmarks(rows, self.n_landmarks, self.landmarks, rng)
            self.near = None  # free the old affinities before the new ones are allocated
            marks = Landmarks(rows[chosen], self.kernel, self.gamma)
            self.near = LandmarkAffinities(marks, rows, self.keep)
            self.replaced = 0
        else:
            self.near.update(np.flatnonzero(self.stale), rows, problem.journal)
        self.stale[:] = False
        return self.near

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        near: dict[str, Any] = {"keep": self.keep, "replaced": self.replaced}
        near |= {"landmarks": None, "kept": None}
        if self.near is not None:
            near["landmarks"] = self.near.marks.rows.copy()
            near["kept"] = None if self.near.kept is None else self.near.kept.copy()
        return {**super().state(), "stale": self.stale.copy(), "near": near}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from `state`; states of older versions hold no landmarks."""
        stored = state.get("near")
        if stored is None:
            return
        n_clients, n_features = state["rows"].shape
        self.stale = check_stored(state["stale"], "stale", n_clients, bool)
        self.replaced = check_count(stored["replaced"], "replaced", minimum=0)
        self.keep = stored["keep"] is True
        if stored["landmarks"] is None:
            return
        shape = (self.n_landmarks, n_features)
        rows = check_matrix(stored["landmarks"], "landmarks", shape, state["rows"].dtype).copy()
        self.near = LandmarkAffinities(Landmarks(rows, self.kernel, self.gamma), rows)
        if self.keep:
            shape = (n_clients, self.n_landmarks)
            self.near.kept = check_matrix(stored["kept"], "kept", shape, np.float32).copy()
