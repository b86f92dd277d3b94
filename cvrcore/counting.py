"""How many coalitions there are, where that is not given: ours, not the paper's.

P, the clients picked each round, stays the budget and bounds them; coalitions that share
more places than there are of them get more than one each.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ._validation import Float, Ids
from .clustering import balanced_partition, cluster_points, spectral_embedding
from .partition import COLD, ExactPartition, Problem
from .threads import single_blas_thread

COUNTS: Final = ("eigengap", "silhouette")


class CountedPartition(ExactPartition):
    """Spectral clustering into 2 to P coalitions, as many as are found each time.

    Parameters
    ----------
    n_clients, kernel, gamma, eigensolver
        See `ExactPartition`.
    how : {"eigengap", "silhouette"}
        The largest fall between neighbouring eigenvalues of the random walk, or the
        partition of the best mean silhouette in its own embedding (P - 1 k-means runs).
    """

    def __init__(
        self, n_clients: int, kernel: str, gamma: float | str, eigensolver: str, how: str
    ) -> None:
        super().__init__(n_clients, kernel, gamma, eigensolver)
        self.how = how

    def make(self, problem: Problem) -> Ids:
        """Return labels of at most so many; k-means starts anew."""
        rows, n_coalitions, rng = problem.rows, problem.n_coalitions, problem.rng
        with single_blas_thread():
            affinity, changed = self._fresh(rows)
            near = (self.basis, changed, self.solve)
            embedded = spectral_embedding(affinity, n_coalitions, *near)
            if embedded is None:
                self.basis = None
                return balanced_partition(rows.shape[0], n_coalitions, rng)
            points, self.basis = embedded
            if self.how == "eigengap":
                counts = [eigengap(self.basis.values, n_coalitions)]
            else:
                counts = list(range(2, n_coalitions + 1))
            found = []
            for count in counts:
                own = np.ascontiguousarray(points[:, : count - 1])
                labels = cluster_points(own, count, rng, COLD)
                found.append((silhouette(own, labels) if len(counts) > 1 else 0.0, labels))
        return max(found, key=lambda one: one[0])[1]  # of equals the fewest


def eigengap(values: Float, most: int) -> int:
    """Return the number of coalitions, 2 to `most`, after which eigenvalues fall furthest.

    Parameters
    ----------
    values : ndarray
        Eigenvalues of the normalised affinity that follow the first (which is 1), largest
        first.
    most : int
        At least 2.

    Examples
    --------
    >>> eigengap(np.array([0.9, 0.85, 0.1, 0.05]), most=5)
    3
    """
    gaps = values[: most - 1][: values.size - 1] - values[1:most]
    return 2 + int(np.argmax(gaps)) if gaps.size else 2


def silhouette(points: Float, labels: Ids) -> float:
    """Return the mean silhouette of a partition (Rousseeuw, 1987); 0 for singletons.

    Examples
    --------
    >>> points = np.array([[0.0], [0.1], [5.0], [5.1]])
    >>> round(silhouette(points, np.array([0, 0, 1, 1])), 2)
    0.98
    """
    squares = np.einsum("kd,kd->k", points, points)
    gaps = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * points @ points.T, 0.0))
    sizes = np.bincount(labels)
    member = np.zeros((labels.size, sizes.size))
    member[np.arange(labels.size), labels] = 1.0
    sums = gaps @ member
    own = np.arange(labels.size), labels
    inside = sums[own] / np.maximum(sizes[labels] - 1, 1)
    outside = sums / sizes
    outside[own] = np.inf
    nearest = outside.min(axis=1)
    larger = np.maximum(inside, nearest)
    value = np.where(larger > 0, (nearest - inside) / np.where(larger > 0, larger, 1.0), 0.0)
    return float(np.where(sizes[labels] > 1, value, 0.0).mean())
