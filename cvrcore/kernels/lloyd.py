"""Kernels of Lloyd's k-means: points in, labels and sums out; twin: ``cvrcore_ext/lloyd.pyx``.

BLAS computes inner products with the centres; each kernel is one pass over the points.
"""

import numpy as np

from .jit import njit


@njit
def nearest_centres(products, halves, labels, closeness):
    """Label each point with its nearest centre, of largest ``x . c - |c|^2 / 2``.

    Parameters
    ----------
    products : float32 array of shape (n_points, n_centres)
        ``x . c``.
    halves : float32 array of shape (n_centres,)
        ``|c|^2 / 2``.
    labels : int64 array of shape (n_points,)
        Updated in place.
    closeness : float32 array of shape (n_points,)
        That largest value; half the squared distance is ``|x|^2 / 2`` minus it.

    Returns
    -------
    changed : int
    """
    changed = 0
    for i in range(products.shape[0]):
        best = products[i, 0] - halves[0]
        label = 0
        for p in range(1, products.shape[1]):
            value = products[i, p] - halves[p]
            if value > best:
                best = value
                label = p
        closeness[i] = best
        if labels[i] != label:
            labels[i] = label
            changed += 1
    return changed


@njit
def add_points(points, labels, sums, sizes):
    """Add each point to the sum of its cluster, and count it.

    Parameters
    ----------
    points : float32 array of shape (n_points, n_dims)
    labels : int64 array of shape (n_points,)
    sums : float64 array of shape (n_clusters, n_dims)
    sizes : int64 array of shape (n_clusters,)
    """
    for i in range(points.shape[0]):
        label = labels[i]
        sizes[label] += 1
        for j in range(points.shape[1]):
            sums[label, j] += np.float64(points[i, j])
