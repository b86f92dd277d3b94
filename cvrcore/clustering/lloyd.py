"""Lloyd's k-means for very many points: float32 points in, labels out.

A pass is one BLAS product with the centres. Chunks of points are fixed and their sums are
added in order, so results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..kernels import dispatch
from ..runtime.threads import run_chunks, single_blas_thread
from ..validation import Float, Ids
from .partitions import Effort, cluster_points, number_by_appearance

_CHUNK: Final = 4096  # points of one task
_SAMPLE: Final = 50  # points per cluster in the sample of a cold start
_FEW: Final = 0.01  # stop when a smaller share of labels changes


def lloyd(
    points: Float,
    n_clusters: int,
    rng: np.random.Generator,
    start: Ids | None = None,
    max_passes: int = 10,
) -> Ids:
    """Cluster rows of float32 points; no cluster is left empty.

    Parameters
    ----------
    points : float32 array of shape (n_points, n_dims)
    n_clusters : int
    rng : Generator
        Draws the sample of a cold start.
    start : int64 array of shape (n_points,), optional
        Labels to start from. Default: k-means with restarts on a sample.
    max_passes : int

    Returns
    -------
    ndarray of int64, numbered by first appearance
    """
    labels = np.empty(points.shape[0], dtype=np.int64)
    if start is None:
        n_sampled = min(points.shape[0], _SAMPLE * n_clusters)
        sample = rng.choice(points.shape[0], size=n_sampled, replace=False)
        found = cluster_points(points[sample], n_clusters, rng, Effort(restarts=2))
        centres, sizes = _means(points[sample], found, n_clusters)
        labels[:] = -1
    else:
        labels[:] = start
        centres, sizes = _means(points, labels, n_clusters)
    closeness = np.empty(points.shape[0], dtype=np.float32)
    for _ in range(max_passes):
        changed = _assign(points, centres, labels, closeness)
        centres, sizes = _means(points, labels, n_clusters)
        if (sizes == 0).any():
            _fill_empty(points, labels, closeness, sizes)
            centres, sizes = _means(points, labels, n_clusters)
        elif changed <= _FEW * labels.size:
            break
    return number_by_appearance(labels)


def _assign(points: Float, centres: Float, labels: Ids, closeness: Float) -> int:
    """Label every point with its nearest centre; return how many labels changed."""
    columns = np.ascontiguousarray(centres.T, dtype=np.float32)
    halves = (0.5 * np.square(centres).sum(axis=1)).astype(np.float32)
    changed = np.zeros(-(-labels.size // _CHUNK), dtype=np.int64)

    def assign(start: int, stop: int) -> None:
        products = points[start:stop] @ columns
        changed[start // _CHUNK] = dispatch.nearest_centres(
            products, halves, labels[start:stop], closeness[start:stop]
        )

    with single_blas_thread():
        run_chunks(assign, labels.size, _CHUNK)
    return int(changed.sum())


def _means(points: Float, labels: Ids, n_clusters: int) -> tuple[Float, Ids]:
    """Return each cluster's mean and size."""
    n_chunks = -(-labels.size // _CHUNK)
    batch = 64  # chunks whose partial sums are held at a time
    sums, sizes = np.zeros((n_clusters, points.shape[1])), np.zeros(n_clusters, dtype=np.int64)
    for first in range(0, n_chunks, batch):
        n_parts = min(batch, n_chunks - first)
        parts = np.zeros((n_parts, n_clusters, points.shape[1]))
        counts = np.zeros((n_parts, n_clusters), dtype=np.int64)

        def add(start: int, stop: int, base: int = first * _CHUNK) -> None:
            chunk = start // _CHUNK
            rows = slice(base + start, min(base + stop, labels.size))
            dispatch.add_points(points[rows], labels[rows], parts[chunk], counts[chunk])  # noqa: B023

        run_chunks(add, n_parts * _CHUNK, _CHUNK)
        sums += parts.sum(axis=0)
        sizes += counts.sum(axis=0)
    return sums / np.maximum(sizes, 1)[:, None], sizes


def _fill_empty(points: Float, labels: Ids, closeness: Float, sizes: Ids) -> None:
    """Move the point farthest from its centre into each empty cluster."""
    distance = 0.5 * np.einsum("ij,ij->i", points, points) - closeness
    order = iter(np.argsort(-distance, kind="stable"))
    for empty in np.flatnonzero(sizes == 0):
        farthest = next(i for i in order if sizes[labels[i]] > 1)
        sizes[labels[farthest]] -= 1
        labels[farthest] = empty
        sizes[empty] = 1
