"""Kernels of the affinity; Cython twin: ``cvrcore_ext/_affinity.pyx``.

Euclidean distances and inner products are matrix products and stay with BLAS.
"""

import numpy as np

from ._exponential import exponential
from ._jit import njit
from ._lanes import sum_in_lanes


@njit
def unit_offsets(models, reference, offsets, squares, nonzero):
    """Normalise rows and take them relative to a reference; Algorithm 1, line 3.

    Parameters
    ----------
    models, offsets : arrays of shape (n_rows, n_features)
        ``offsets = models / |models| - reference``; a zero row stays zero before that.
    reference : array of shape (n_features,)
    squares, nonzero : float64 arrays of shape (n_rows,)
        Squared norm of each offset, and 1 or 0: whether the row has any direction.
    """
    n_rows, n_features = models.shape
    terms = np.empty(n_features)
    for k in range(n_rows):
        peak = 0.0
        for d in range(n_features):
            peak = max(peak, abs(np.float64(models[k, d])))
        # By the peak first: squares of very small or large numbers leave the range.
        scale = 1.0 / peak if peak > 1e-300 else 0.0
        for d in range(n_features):
            value = np.float64(models[k, d]) * scale
            terms[d] = value * value
        norm = np.sqrt(sum_in_lanes(terms))
        nonzero[k] = 1.0 if norm > 0.0 else 0.0
        scale = scale / norm if norm > 0.0 else 0.0
        for d in range(n_features):
            offsets[k, d] = np.float64(models[k, d]) * scale - np.float64(reference[d])
        for d in range(n_features):
            value = np.float64(offsets[k, d])
            terms[d] = value * value
        squares[k] = sum_in_lanes(terms)


@njit
def squared_distances(products, squares, ids, distances):
    """Write ``|x_i|^2 + |x_k|^2 - 2 x_i . x_k`` into ``distances[i, k]``, never below 0.

    Parameters
    ----------
    products, distances : arrays of shape (n_rows, n_clients)
        Inner products of clients `ids` with all; each float32 or float64.
    squares : float64 array of shape (n_clients,)
    ids : int64 array of shape (n_rows,)
    """
    n_rows, n_clients = products.shape
    for i in range(n_rows):
        own = squares[ids[i]]
        for k in range(n_clients):
            distance = (own + squares[k]) - 2.0 * np.float64(products[i, k])
            distances[i, k] = distance if distance > 0.0 else 0.0
        distances[i, ids[i]] = 0.0


@njit
def manhattan_rows(rows, models, distances):
    """Write ``||rows_i - models_k||_1`` into ``distances[i, k]``.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features)
    models : array of shape (n_clients, n_features)
    distances : float32 or float64 array of shape (n_rows, n_clients)
    """
    n_rows, n_features = rows.shape
    terms = np.empty(n_features)
    for i in range(n_rows):
        for k in range(models.shape[0]):
            for d in range(n_features):
                terms[d] = abs(np.float64(rows[i, d]) - np.float64(models[k, d]))
            distances[i, k] = sum_in_lanes(terms)


@njit
def decay_rows(distances, gamma):
    """Turn distances into ``exp(-gamma distance)``, Eq. (4), in place.

    Parameters
    ----------
    distances : float64 array of shape (n_rows, n_clients)
        None negative.
    gamma : float
        Positive.
    """
    for i in range(distances.shape[0]):
        for k in range(distances.shape[1]):
            distances[i, k] = exponential(-gamma * distances[i, k])


@njit
def normalise_rows(affinity, inverse_root, lead, start, stop, out):
    """Write rows `start` .. `stop` - 1 of ``S A S - lead lead^T`` into `out`, in one pass.

    Parameters
    ----------
    affinity : float32 or float64 array of shape (n_clients, n_clients)
    inverse_root, lead : float64 arrays of shape (n_clients,)
        ``degree^-1/2``, the diagonal of S, and the known unit eigenvector.
    out : float32 or float64 array of shape (n_clients, n_clients)
    """
    for i in range(start, stop):
        scale = inverse_root[i]
        weight = lead[i]
        for j in range(affinity.shape[1]):
            entry = np.float64(affinity[i, j])
            out[i, j] = entry * (scale * inverse_root[j]) - weight * lead[j]
