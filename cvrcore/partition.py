"""How the server keeps its coalitions from round to round: Algorithm 1, lines 3 to 5.

One class per way of making them. Each is told whose rows changed (`touch`) and makes a
partition when one is due (`make`).
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Final, NamedTuple

import numpy as np

from ._validation import Float, Ids, check_count, check_matrix, check_stored
from .affinity import Affinity
from .clustering import Effort, balanced_partition, plane_coalitions, spectral_coalitions
from .lloyd import lloyd
from .nystrom import Landmarks, Nearness, choose_landmarks
from .spectral import EIGENSOLVERS, NOBODY
from .subspace import Basis
from .threads import single_blas_thread

COLD: Final = Effort(restarts=10)  # k-means when no earlier partition is known


def warm_effort(n_clients: int, round: int) -> Effort:
    """Return how hard k-means tries besides starting from the last round's partition.

    A swap now and then leaves a poor optimum. Fewer where there are many clients, and a few
    passes only: one round's partition is the next one's start, and without any swap the mean
    inertia is already below that of scikit-learn's ten restarts.
    """
    often = min(500 // n_clients, 6)
    if often:
        return Effort(restarts=0, swaps=often)
    return Effort(restarts=0, swaps=int(round % 4 == 0), passes=2)


class Problem(NamedTuple):
    """What a partition is made of."""

    rows: Float  # (n_clients, n_features)
    n_coalitions: int
    rng: np.random.Generator
    last: Ids | None  # the partition before, if it is of as many coalitions
    round: int  # rounds so far


class Partition(abc.ABC):
    """Makes coalitions of clients from their rows, and keeps what helps the next time."""

    def touch(self, clients: Ids) -> None:
        """Take note that these rows have changed."""

    @abc.abstractmethod
    def make(self, problem: Problem) -> Ids:
        """Return labels of all clients."""

    def reset(self, n_clients: int) -> None:
        """Forget everything: clients have joined."""

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {"affinity": None, "stale": None, "basis": None}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""


class PlanePartition(Partition):
    """k-means on one or two raw coordinates."""

    def make(self, problem: Problem) -> Ids:
        """Return labels; nothing is kept."""
        return plane_coalitions(problem.rows, problem.n_coalitions, problem.rng, COLD)


class ExactPartition(Partition):
    """Spectral clustering of the whole affinity, of which a round recomputes P rows."""

    def __init__(
        self, n_clients: int, kernel: str, gamma: float | str, eigensolver: str = "auto"
    ) -> None:
        self.kernel, self.gamma, self.solve = kernel, gamma, EIGENSOLVERS[eigensolver]
        self.reset(n_clients)

    def reset(self, n_clients: int) -> None:
        """Forget everything."""
        self.affinity: Affinity | None = None
        self.basis: Basis | None = None
        self.stale = np.zeros(n_clients, dtype=bool)  # rows newer than the affinity's

    def touch(self, clients: Ids) -> None:
        """Take note that these rows have changed."""
        self.stale[clients] = True

    def make(self, problem: Problem) -> Ids:
        """Return labels, from the last eigenvectors and the last partition if there are any."""
        n_clients, last = problem.rows.shape[0], problem.last
        start, effort = NOBODY, COLD
        with single_blas_thread():  # once for all the small products inside
            affinity, changed = self._fresh(problem.rows)
            if last is not None and self.basis is not None:  # without one they were dealt out
                start = last
                if 4 * changed.size <= n_clients:
                    effort = warm_effort(n_clients, problem.round)
            how = (problem.n_coalitions, problem.rng, effort, start)
            near = (self.basis, changed, self.solve)
            labels, self.basis = spectral_coalitions(affinity, *how, *near)
        return labels

    def _fresh(self, rows: Float) -> tuple[Affinity, Ids]:
        """Return the affinity of these rows, and whose have changed since it was last asked for."""
        changed = self.stale.nonzero()[0]
        if self.affinity is None:
            self.affinity = Affinity(rows, self.kernel, self.gamma)
        elif changed.size:
            self.affinity.update(changed, rows[changed])
        self.stale[:] = False
        return self.affinity, changed

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {
            "affinity": None if self.affinity is None else self.affinity.state(),
            "stale": self.stale.copy(),
            "basis": None if self.basis is None else dataclasses.asdict(self.basis),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self.stale = check_stored(state["stale"], "stale", self.stale.size, bool)
        if state["basis"] is not None:
            self.basis = Basis.restored(state["basis"], self.stale.size)
        if state["affinity"] is not None:
            self.affinity = Affinity.restored(state["affinity"], self.kernel, self.gamma)
            check_matrix(self.affinity.offsets, "offsets", (self.stale.size, None))


def _has_distinct(points: Float, count: int) -> bool:
    """Return whether there are at least `count` different points, seen from one direction."""
    if not np.isfinite(points.sum()):
        return False
    some = points[:: max(1, points.shape[0] // (64 * count))]  # more than enough, as a rule
    if some.shape[0] < points.shape[0] and _has_distinct(some, count):
        return True
    direction = np.random.default_rng(0).standard_normal((points.shape[1], 1))
    shadow = np.sort((points @ direction.astype(points.dtype))[:, 0])
    gaps = np.diff(shadow) > 1e-6 * max(abs(shadow[0]), abs(shadow[-1]))
    return int(np.count_nonzero(gaps)) >= count - 1


class NystromPartition(Partition):
    """Clustering of a landmark embedding: no K x K matrix.

    Landmarks stay until a quarter of all rows have been replaced. Meanwhile a round costs the
    affinities of the rows that changed, if those of all are kept.

    Parameters
    ----------
    kernel, gamma, n_landmarks, landmarks
        See `cvrcore.nystrom.nystrom_points`.
    n_clients : int
    keep : bool
        Whether there is memory for the affinities of all clients to landmarks.
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
        """Forget everything."""
        self.near: Nearness | None = None
        self.stale = np.zeros(n_clients, dtype=bool)  # rows newer than their affinities
        self.replaced = 0  # rows, since landmarks were drawn

    def touch(self, clients: Ids) -> None:
        """Take note that these rows have changed."""
        self.stale[clients] = True
        self.replaced += clients.size

    def make(self, problem: Problem) -> Ids:
        """Return labels; Lloyd's passes start from the last partition if there is one."""
        rows, n_coalitions, rng = problem.rows, problem.n_coalitions, problem.rng
        points = self._fresh(rows, rng).embed(rows, n_coalitions, rng)
        if not _has_distinct(points, n_coalitions):
            return balanced_partition(rows.shape[0], n_coalitions, rng)
        # A few passes only: the next clustering goes on from here.
        max_passes = 10 if problem.last is None else 3
        return lloyd(points, n_coalitions, rng, problem.last, max_passes)

    def _fresh(self, rows: Float, rng: np.random.Generator) -> Nearness:
        if self.near is None or 4 * self.replaced >= rows.shape[0]:
            chosen = choose_landmarks(rows, self.n_landmarks, self.landmarks, rng)
            self.near = None  # its memory first
            marks = Landmarks(rows[chosen], self.kernel, self.gamma)
            self.near = Nearness(marks, rows, self.keep)
            self.replaced = 0
        else:
            self.near.update(np.flatnonzero(self.stale), rows)
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
        """Take back what `state` returned; states of older versions hold nothing."""
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
        self.near = Nearness(Landmarks(rows, self.kernel, self.gamma), rows)
        if self.keep:
            shape = (n_clients, self.n_landmarks)
            self.near.kept = check_matrix(stored["kept"], "kept", shape, np.float32).copy()
