"""Balanced draws: inclusion probabilities and features in, a spread-out sample out.

The local pivotal method lets neighbours compete for a place, so that a sample has few clients
that resemble each other, and every part of the space of features is represented by its share
of the probability. Inclusion probabilities stay exact whatever the pairs are, and so does
unbiasedness; the choice of neighbours only decides how well the sample is balanced.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..kernels import dispatch
from ..runtime.threads import single_blas_thread
from ..validation import Float, Ids

#: Neighbours are exact up to this many clients, and this many squared clients times features.
EXACT: Final = 10_000
EXACT_WORK: Final = 1e9
#: Points that an approximate search looks at.
BUDGET: Final = 12
NEIGHBOURS: Final = ("auto", "exact", "approximate")
LEAF: Final = 8  # points in a leaf of the tree, at most
_BOX: Final = 6  # leading coordinates that the tree is built on
_ROTATED: Final = 400  # most features, or clients, whose covariance is decomposed
_COMPONENTS: Final = 10  # features of an approximate search
_SAMPLE: Final = 4000  # rows that the leading directions are computed from


def pivotal_sample(
    inclusion: Float,
    features: Float,
    rng: np.random.Generator,
    neighbours: str = "auto",
) -> Ids:
    """Draw a spatially balanced sample with exact inclusion probabilities [1]_.

    Parameters
    ----------
    inclusion : ndarray of shape (n,)
        Probabilities in [0, 1]. If they sum to a whole number, the sample has that size.
    features : ndarray of shape (n, n_features)
        Clients with near rows seldom come together. Scale columns as they should count.
    rng : Generator
    neighbours : {"auto", "exact", "approximate"}
        "approximate" stops the search of the k-d tree after a few points, in the ten leading
        directions of the features; "auto" takes it above 10,000 clients, or 1,800 at 300
        features. Inclusion probabilities are exact either way.

    Returns
    -------
    ndarray of int64
        Positions in `inclusion`, ascending.

    References
    ----------
    .. [1] Grafstrom, Lundstrom and Schelin, "Spatially balanced sampling through the pivotal
       method", Biometrics, 2012.

    Examples
    --------
    >>> features = np.array([[0.0], [0.1], [5.0], [5.1]])
    >>> for seed in range(3):
    ...     drawn = pivotal_sample(np.full(4, 0.5), features, np.random.default_rng(seed))
    ...     print((drawn < 2).sum(), (drawn >= 2).sum())
    1 1
    1 1
    1 1
    """
    drawn, _ = pivotal_pairs(inclusion, features, rng, neighbours)
    return drawn


def pivotal_pairs(
    inclusion: Float,
    features: Float,
    rng: np.random.Generator,
    neighbours: str = "auto",
) -> tuple[Ids, float]:
    """Return the sample of `pivotal_sample`, and the mean distance of the pairs that met.

    The smaller the distance, the better the balance: it tells what approximate neighbours
    lose against exact ones.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features = np.arange(6.0)[:, None]
    >>> drawn, distance = pivotal_pairs(np.full(6, 0.5), features, rng)
    >>> len(drawn), distance < 3
    (3, True)
    """
    values, distance = _decided(inclusion, features, rng, neighbours, settle=True)
    return np.flatnonzero(values > 0.5), distance


def stratified_pivotal(
    inclusion: Float,
    features: Float,
    strata: Ids,
    rng: np.random.Generator,
    neighbours: str = "auto",
) -> Ids:
    """Draw a sample that is balanced over strata, and spatially balanced inside each.

    Clients compete inside their stratum first, until at most one of it is undecided; these
    then compete across strata. So a stratum whose probabilities sum to s has s clients, rounded
    down or up, the whole sample has the size of the whole sum, and inclusion is exact.

    Parameters
    ----------
    inclusion, features, rng, neighbours
        See `pivotal_sample`.
    strata : ndarray of int64, shape (n,)
        Stratum of each client, from 0.

    Examples
    --------
    >>> features, strata = np.arange(6.0)[:, None], np.array([0, 0, 0, 1, 1, 1])
    >>> drawn = stratified_pivotal(np.full(6, 0.5), features, strata, np.random.default_rng(0))
    >>> drawn.size, sorted(np.bincount(strata[drawn]).tolist())
    (3, [1, 2])
    """
    values = np.array(inclusion, dtype=np.float64)
    order = np.argsort(strata, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(strata[order])) + 1):
        values[members], _ = _decided(
            values[members], features[members], rng, neighbours, settle=False
        )
    left = np.flatnonzero((values > 0.0) & (values < 1.0))
    values[left], _ = _decided(values[left], features[left], rng, neighbours, settle=True)
    return np.flatnonzero(values > 0.5)


def _decided(
    inclusion: Float, features: Float, rng: np.random.Generator, neighbours: str, *, settle: bool
) -> tuple[Float, float]:
    """Return 1 for clients in the sample, 0 for others, and the mean distance of pairs.

    Without `settle` the last client keeps what is left of the probabilities.
    """
    decided = np.array(inclusion, dtype=np.float64)
    undecided = np.flatnonzero((inclusion > 0.0) & (inclusion < 1.0))
    if undecided.size == 0:
        return decided, 0.0
    # A random order decides between neighbours at equal distance.
    undecided = rng.permutation(undecided)
    n = undecided.size
    approximate = neighbours == "approximate"
    if neighbours == "auto":
        approximate = n > EXACT or float(n) * n * features.shape[1] > EXACT_WORK
    points = _directions(features[undecided], approximate)
    n_leaves = 1
    while n_leaves * LEAF < n:
        n_leaves *= 2
    n_box = min(_BOX, points.shape[1])
    order = np.arange(n)
    starts = np.zeros((2 * n_leaves, 2), dtype=np.int64)
    boxes = np.empty((2 * n_leaves - 1, 2, n_box), dtype=np.float32)
    dispatch.build_tree(points, n_box, order, starts, boxes)
    values = inclusion[undecided][order].astype(np.float64)
    uniforms = rng.random((2, n))
    budget = BUDGET if approximate else n
    total = dispatch.local_pivotal(points[order], values, uniforms, budget, starts, boxes, settle)
    decided[undecided[order]] = values
    return decided, float(total) / max(n - 1, 1)


def _directions(rows: Float, approximate: bool) -> Float:
    """Return rows in coordinates of decreasing variance, all of them or the leading ones.

    A rotation keeps distances. Searches look at the first coordinates first, and give up on
    a point as soon as it is farther than the nearest so far.
    """
    rows = np.asarray(rows, dtype=np.float64)
    peak = np.abs(rows).max(initial=0.0)
    if rows.shape[1] == 0 or peak == 0.0:
        return np.zeros((rows.shape[0], 1), dtype=np.float32)
    rows = rows / peak  # squares must not overflow float32
    n, width = rows.shape
    if width <= _BOX:
        return np.ascontiguousarray(rows, dtype=np.float32)
    sample = rows if n <= _SAMPLE else rows[:_SAMPLE]  # rows come in random order
    with single_blas_thread():
        centred = sample - sample.mean(axis=0)
        if width <= _ROTATED:
            _, vectors = np.linalg.eigh(centred.T @ centred)
            axes = vectors[:, ::-1]
        elif n <= _ROTATED:
            axes = np.linalg.svd(centred, full_matrices=False)[2].T
        elif approximate:
            # A sketch: the directions of a few hundred rows are near enough.
            axes = np.linalg.svd(centred[:_ROTATED], full_matrices=False)[2].T
        else:
            by_variance = np.argsort(-sample.var(axis=0), kind="stable")
            return np.ascontiguousarray(rows[:, by_variance], dtype=np.float32)
        if approximate:
            axes = axes[:, :_COMPONENTS]
        return np.ascontiguousarray(rows @ axes, dtype=np.float32)


def spatial_balance(drawn: Ids, inclusion: Float, features: Float) -> float:
    """Return the Voronoi measure of balance of a sample (Stevens and Olsen, 2004).

    Each client belongs to the nearest client of the sample; in a balanced sample the
    probabilities that belong to each add up to 1. Returned is the mean squared deviation from
    1: near 0 for balanced samples, about 0.3 or more for simple random ones. Cost: O(n m).

    Examples
    --------
    >>> features = np.arange(6.0)[:, None]  # six clients on a line
    >>> spread = spatial_balance(np.array([0, 2, 4]), np.full(6, 0.5), features)
    >>> lumped = spatial_balance(np.array([0, 1, 2]), np.full(6, 0.5), features)
    >>> spread < lumped
    True
    """
    rows = np.asarray(features, dtype=np.float64)
    squares = np.einsum("kd,kd->k", rows, rows)
    mass = np.zeros(drawn.size)
    for start in range(0, rows.shape[0], 4096):
        part = slice(start, start + 4096)
        away = squares[drawn] - 2.0 * (rows[part] @ rows[drawn].T)
        owner = np.argmin(away, axis=1)
        mass += np.bincount(owner, weights=inclusion[part], minlength=drawn.size)
    return float(np.mean(np.square(mass - 1.0)))
