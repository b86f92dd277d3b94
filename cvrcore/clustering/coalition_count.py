"""The number of coalitions, found from the data: rows in, 2 to P coalitions out; ours.

P, the number of clients picked each round, bounds the number of coalitions. With fewer
coalitions than P some coalitions get more than one place.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..runtime.threads import single_blas_thread
from ..validation import Float, Ids
from .partitions import (
    COLD,
    ExactPartition,
    Problem,
    balanced_partition,
    cluster_points,
    spectral_embedding,
)

COUNTS: Final = ("eigengap", "silhouette")


class CountedPartition(ExactPartition):
    """Spectral clustering into 2 to P coalitions, their number estimated each time.

    Parameters
    ----------
    n_clients, kernel, gamma, eigensolver
        See `ExactPartition`.
    how : {"eigengap", "silhouette"}
        "eigengap": the largest gap between neighbouring eigenvalues of the random walk.
        "silhouette": the partition of largest mean silhouette (P - 1 k-means runs).
    """

    def __init__(
        self, n_clients: int, kernel: str, gamma: float | str, eigensolver: str, how: str
    ) -> None:
        super().__init__(n_clients, kernel, gamma, eigensolver)
        self.how = how

    def make(self, problem: Problem) -> Ids:
        """Return labels of at most ``problem.n_coalitions`` coalitions; k-means starts cold."""
        rows, n_coalitions, rng = problem.rows, problem.n_coalitions, problem.rng
        with single_blas_thread():
            affinity, changed = self._fresh(problem)
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
        return max(found, key=lambda scored: scored[0])[1]  # ties: the fewest coalitions


def eigengap(values: Float, most: int) -> int:
    """Return the number of coalitions, 2 to `most`, at the largest gap of eigenvalues.

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
