"""Coalitions: Algorithm 1, line 5."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from . import _backend
from ._validation import Float, Ids, check_choice, check_count, check_matrix, check_seed
from .affinity import KERNELS, Affinity, check_gamma
from .spectral import NOBODY, Solver, spectral_points
from .subspace import Basis
from .threads import single_blas_thread


@dataclasses.dataclass(frozen=True)
class Effort:
    """How hard k-means tries: seeded restarts, random swaps on the best so far, passes of each."""

    restarts: int = 10
    swaps: int = 0
    passes: int = 100


def cluster_points(
    points: Float,
    n_clusters: int,
    rng: np.random.Generator,
    effort: Effort,
    start: Ids = NOBODY,
) -> Ids:
    """Cluster rows by k-means, from seeded starts and, if given, from `start`.

    Returns labels 0 .. n_clusters - 1, each used, numbered by first appearance.
    """
    labels = np.empty(points.shape[0], dtype=np.int64)
    # As many trials per centre as scikit-learn takes in greedy k-means++.
    uniforms = rng.random((effort.restarts, n_clusters, 2 + int(math.log(n_clusters))))
    swaps = rng.random((effort.swaps, 2))
    columns = np.ascontiguousarray(points.T)
    _backend.kmeans(columns, start, uniforms, swaps, effort.passes, labels)
    return labels


def number_by_appearance(labels: Ids) -> Ids:
    """Rename labels so that they first appear in the order 0, 1, 2, ..."""
    first = np.empty(int(labels.max()) + 1, dtype=np.int64)
    backwards = np.arange(labels.size - 1, -1, -1)
    first[labels[::-1]] = backwards  # written backwards: the first of a label stays
    rank = np.empty_like(first)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[labels]


def balanced_partition(n_clients: int, n_coalitions: int, rng: np.random.Generator) -> Ids:
    """Deal clients at random into coalitions whose sizes differ by at most one."""
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
    changed: Ids = NOBODY,
    solve: Solver = spectral_points,
) -> tuple[Float, Basis] | None:
    """Embed clients by the leading eigenvectors of their affinity, in float32.

    None where there are fewer than `n_coalitions` distinct rows: they hold no partition.
    """
    if not affinity.has_distinct(n_coalitions):
        return None
    points, basis = solve(affinity, n_coalitions, basis, changed)
    # Eigenvectors are bounded and warm ones are float32: no digit is lost, and half the time.
    return points.astype(np.float32), basis


def spectral_coalitions(
    affinity: Affinity,
    n_coalitions: int,
    rng: np.random.Generator,
    effort: Effort,
    start: Ids = NOBODY,
    basis: Basis | None = None,
    changed: Ids = NOBODY,
    solve: Solver = spectral_points,
) -> tuple[Ids, Basis | None]:
    """Cluster clients in the spectral embedding of their affinity.

    Clients that cannot be embedded are dealt at random. `basis` and `changed`: see
    `spectral_points`.
    """
    found = spectral_embedding(affinity, n_coalitions, basis, changed, solve)
    if found is None:
        return balanced_partition(affinity.offsets.shape[0], n_coalitions, rng), None
    return cluster_points(found[0], n_coalitions, rng, effort, start), found[1]


def coalitions(
    models: ArrayLike,
    n_coalitions: int,
    kernel: str = "rbf",
    gamma: float | str = 1.0,
    n_init: int = 10,
    seed: int | np.random.Generator | None = None,
) -> Ids:
    """Partition clients into coalitions by spectral clustering, Algorithm 1, line 5.

    Parameters
    ----------
    models : array-like of shape (n_clients, n_features)
        Watched coordinates of each client's model. One or two coordinates are clustered
        as they are, by k-means.
    n_coalitions : int
        P, between 1 and the number of clients.
    kernel, gamma
        See `cvrcore.influence`.
    n_init : int, default=10
        Restarts of k-means.
    seed : int, Generator or None

    Returns
    -------
    ndarray of int64, shape (n_clients,)
        Labels 0 .. P - 1, each used at least once, numbered by first appearance.

    Examples
    --------
    >>> import cvrcore
    >>> cvrcore.coalitions([[1, 0, 0], [0, 1, 0], [1, 0.1, 0], [0, 1, 0.1]], 2, seed=0)
    array([0, 1, 0, 1])
    """
    rows = check_matrix(models, "models")
    n_coalitions = check_count(n_coalitions, "n_coalitions", maximum=rows.shape[0])
    kernel = check_choice(kernel, "kernel", KERNELS)
    gamma = check_gamma(gamma, kernel)
    effort = Effort(restarts=check_count(n_init, "n_init"))
    rng = check_seed(seed)
    trivial = trivial_partition(rows.shape[0], n_coalitions)
    if trivial is not None:
        return trivial
    if rows.shape[1] <= 2:
        return plane_coalitions(rows, n_coalitions, rng, effort)
    with single_blas_thread():
        return spectral_coalitions(Affinity(rows, kernel, gamma), n_coalitions, rng, effort)[0]
