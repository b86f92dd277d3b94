"""Coalitions from round to round: changed rows in, labels out; Algorithm 1, lines 3 to 5.

First k-means and the partitions it makes, then one class a method: `touch` marks clients whose
rows changed, `make` computes a partition.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, Final, NamedTuple

import numpy as np

from ..kernels import dispatch
from ..runtime.journal import Journal
from ..runtime.threads import single_blas_thread
from ..validation import Float, Ids, check_stored
from .affinity import Affinity
from .eigensolver import SOLVERS, Solver, spectral_points
from .subspace import EMPTY_IDS, Basis


@dataclasses.dataclass(frozen=True)
class Effort:
    """How hard k-means tries: seeded restarts, random swaps of the best, Lloyd passes of each."""

    restarts: int = 10
    swaps: int = 0
    passes: int = 100


def cluster_points(
    points: Float,
    n_clusters: int,
    rng: np.random.Generator,
    effort: Effort,
    start: Ids = EMPTY_IDS,
) -> Ids:
    """Cluster rows by k-means, from seeded starts and, if given, from `start`.

    Returns labels 0 .. n_clusters - 1, each used, numbered by first appearance.
    """
    labels = np.empty(points.shape[0], dtype=np.int64)
    # As many trials per centre as scikit-learn takes in greedy k-means++.
    uniforms = rng.random((effort.restarts, n_clusters, 2 + int(math.log(n_clusters))))
    swaps = rng.random((effort.swaps, 2))
    columns = np.ascontiguousarray(points.T)
    dispatch.kmeans(columns, start, uniforms, swaps, effort.passes, labels)
    return labels


def number_by_appearance(labels: Ids) -> Ids:
    """Rename labels so that they first appear in the order 0, 1, 2, ..."""
    first = np.empty(int(labels.max()) + 1, dtype=np.int64)
    backwards = np.arange(labels.size - 1, -1, -1)
    first[labels[::-1]] = backwards  # written backwards: the first client of a label is last
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[labels]


def balanced_partition(n_clients: int, n_coalitions: int, rng: np.random.Generator) -> Ids:
    """Assign clients at random to coalitions whose sizes differ by at most one."""
    return number_by_appearance(rng.permutation(n_clients) % n_coalitions)


def trivial_partition(n_clients: int, n_coalitions: int) -> Ids | None:
    """Return the only partition there is, for one coalition or one client in each."""
    if n_coalitions == 1:
        return np.zeros(n_clients, dtype=np.int64)
    if n_coalitions == n_clients:
        return np.arange(n_clients)
    return None


def plane_coalitions(
    models: Float, n_coalitions: int, rng: np.random.Generator, effort: Effort
) -> Ids:
    """Cluster raw models of one or two coordinates by k-means.

    Normalising would collapse them onto two points or a circle.
    """
    if len(np.unique(models, axis=0)) < n_coalitions:
        return balanced_partition(models.shape[0], n_coalitions, rng)
    points = models.astype(np.float64)
    points /= np.abs(points).max()  # squares of very small or large numbers leave the range
    return cluster_points(points - points.mean(axis=0), n_coalitions, rng, effort)


def spectral_embedding(
    affinity: Affinity,
    n_coalitions: int,
    basis: Basis | None = None,
    changed: Ids = EMPTY_IDS,
    solve: Solver = spectral_points,
) -> tuple[Float, Basis] | None:
    """Embed clients by the leading eigenvectors of their affinity, in float32.

    None where there are fewer than `n_coalitions` distinct rows.
    """
    if not affinity.has_distinct(n_coalitions):
        return None
    points, basis = solve(affinity, n_coalitions, basis, changed)
    # Eigenvectors are bounded and the iteration is in float32: k-means in float32 loses nothing.
    return points.astype(np.float32), basis


def spectral_coalitions(
    affinity: Affinity,
    n_coalitions: int,
    rng: np.random.Generator,
    effort: Effort,
    start: Ids = EMPTY_IDS,
    basis: Basis | None = None,
    changed: Ids = EMPTY_IDS,
    solve: Solver = spectral_points,
) -> tuple[Ids, Basis | None]:
    """Cluster clients in the spectral embedding of their affinity.

    Clients that cannot be embedded are assigned at random. `basis` and `changed`: see
    `spectral_points`.
    """
    found = spectral_embedding(affinity, n_coalitions, basis, changed, solve)
    if found is None:
        return balanced_partition(affinity.offsets.shape[0], n_coalitions, rng), None
    return cluster_points(found[0], n_coalitions, rng, effort, start), found[1]


COLD: Final = Effort(restarts=10)  # k-means without an earlier partition


def warm_effort(n_clients: int, round: int) -> Effort:
    """Return how hard k-means tries besides starting from the last round's partition.

    Random swaps now and then leave a poor local optimum. Among many clients there are fewer
    swaps and passes: the partition of one round is the start of the next, and even without
    swaps the mean inertia is below that of scikit-learn's ten restarts.
    """
    often = min(500 // n_clients, 6)
    if often:
        return Effort(restarts=0, swaps=often)
    return Effort(restarts=0, swaps=int(round % 4 == 0), passes=2)


class Problem(NamedTuple):
    """The input of one partition."""

    rows: Float  # (n_clients, n_features)
    n_coalitions: int
    rng: np.random.Generator
    last: Ids | None  # the last partition, if it has as many coalitions
    round: int  # rounds so far
    journal: Journal | None = None  # of the verb that asks


class Partition(abc.ABC):
    """Makes coalitions of clients from their rows, and keeps what speeds up the next call."""

    def enlist(self, journal: Journal) -> None:
        """Note everything that `make` and `reset` may change."""

    def touch(self, clients: Ids, journal: Journal | None = None) -> None:
        """Mark the rows of these clients as changed."""

    @abc.abstractmethod
    def make(self, problem: Problem) -> Ids:
        """Return labels of all clients."""

    def reset(self, n_clients: int) -> None:
        """Forget everything, after clients have joined."""

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {"affinity": None, "stale": None, "basis": None}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from `state`."""


class PlanePartition(Partition):
    """k-means on one or two raw coordinates."""

    def make(self, problem: Problem) -> Ids:
        """Return labels; nothing is kept."""
        return plane_coalitions(problem.rows, problem.n_coalitions, problem.rng, COLD)


class ExactPartition(Partition):
    """Spectral clustering of the whole affinity; a round recomputes P of its rows."""

    def __init__(
        self, n_clients: int, kernel: str, gamma: float | str, eigensolver: str = "auto"
    ) -> None:
        self.kernel, self.gamma, self.solve = kernel, gamma, SOLVERS[eigensolver]
        self.reset(n_clients)

    def reset(self, n_clients: int) -> None:
        """Forget everything."""
        self.affinity: Affinity | None = None
        self.basis: Basis | None = None
        self.stale = np.zeros(n_clients, dtype=bool)  # rows newer than the affinity's

    def enlist(self, journal: Journal) -> None:
        """Note everything that a verb may change, except rows: they are noted when they change."""
        journal.array(self.stale)
        journal.values(self, affinity=self.affinity, basis=self.basis, stale=self.stale)
        if self.affinity is not None:
            self.affinity.enlist(journal)

    def touch(self, clients: Ids, journal: Journal | None = None) -> None:
        """Mark the rows of these clients as changed."""
        if journal is not None:
            journal.rows(clients, self.stale)
        self.stale[clients] = True

    def make(self, problem: Problem) -> Ids:
        """Return labels, from the last eigenvectors and the last partition if there are any."""
        n_clients, last = problem.rows.shape[0], problem.last
        start, effort = EMPTY_IDS, COLD
        with single_blas_thread():  # once for all small products inside
            affinity, changed = self._fresh(problem)
            if (
                last is not None and self.basis is not None
            ):  # without a basis the last partition was random
                start = last
                if 4 * changed.size <= n_clients:
                    effort = warm_effort(n_clients, problem.round)
            how = (problem.n_coalitions, problem.rng, effort, start)
            near = (self.basis, changed, self.solve)
            labels, self.basis = spectral_coalitions(affinity, *how, *near)
            affinity.journal = None
        return labels

    def _fresh(self, problem: Problem) -> tuple[Affinity, Ids]:
        """Return the affinity of these rows, and the clients that changed since the last call."""
        changed, rows = self.stale.nonzero()[0], problem.rows
        # In float64: where rows differ by 1e-4, affinities differ by less than float32 resolves.
        if self.affinity is None:
            self.affinity = Affinity(rows.astype(np.float64, copy=False), self.kernel, self.gamma)
        else:
            self.affinity.journal = problem.journal
            if changed.size:
                self.affinity.update(changed, rows[changed].astype(np.float64, copy=False))
        self.stale[:] = False
        return self.affinity, changed

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {
            "affinity": None if self.affinity is None else self.affinity.state(),
            "stale": self.stale.copy(),
            "basis": None if self.basis is None else self.basis.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from `state`."""
        self.stale = check_stored(state["stale"], "stale", self.stale.size, bool)
        if state["basis"] is not None:
            self.basis = Basis.restored(state["basis"], self.stale.size)
        if state["affinity"] is not None:
            how = (self.kernel, self.gamma, state["rows"].shape)
            self.affinity = Affinity.restored(state["affinity"], *how)
