"""Kernels of the affinity: rows in, distances out; Cython twin: ``cvrcore_ext/affinity.pyx``.

BLAS computes inner products; these kernels do the rest.
"""

import numpy as np

from .jit import njit


@njit
def _sum_in_lanes(terms):
    """Sum in eight running totals, a fixed order that vectorises; C twin: ``simd_sums.h``.

    A copy in each file of its callers: Numba's cache does not see edits of other files.
    """
    lanes = np.zeros(8)
    blocks = terms.shape[0] // 8 * 8
    for d in range(0, blocks, 8):
        for lane in range(8):
            lanes[lane] += terms[d + lane]
    for d in range(blocks, terms.shape[0]):
        lanes[d - blocks] += terms[d]
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + (
        (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
    )


@njit
def unit_offsets(models, reference, offsets, squares, nonzero):
    """Normalise rows and subtract a reference; Algorithm 1, line 3.

    Parameters
    ----------
    models, offsets : arrays of shape (n_rows, n_features)
        ``offsets = models / |models| - reference``; a zero row is not normalised.
    reference : array of shape (n_features,)
    squares, nonzero : float64 arrays of shape (n_rows,)
        Squared norm of each offset; 0 for a zero row of `models`, else 1.
    """
    n_rows, n_features = models.shape
    terms = np.empty(n_features)
    for k in range(n_rows):
        peak = 0.0
        for d in range(n_features):
            peak = max(peak, abs(np.float64(models[k, d])))
        # Divide by the largest entry first: squares could overflow or underflow.
        scale = 1.0 / peak if peak > 1e-300 else 0.0
        for d in range(n_features):
            value = np.float64(models[k, d]) * scale
            terms[d] = value * value
        norm = np.sqrt(_sum_in_lanes(terms))
        nonzero[k] = 1.0 if norm > 0.0 else 0.0
        scale = scale / norm if norm > 0.0 else 0.0
        for d in range(n_features):
            offsets[k, d] = np.float64(models[k, d]) * scale - np.float64(reference[d])
        for d in range(n_features):
            value = np.float64(offsets[k, d])
            terms[d] = value * value
        squares[k] = _sum_in_lanes(terms)


@njit
def squared_distances(products, squares, ids, distances):
    """Write ``|x_i|^2 + |x_k|^2 - 2 x_i . x_k`` into ``distances[i, k]``, never below 0.

    Parameters
    ----------
    products, distances : arrays of shape (n_rows, n_clients)
        Inner products of clients `ids` with all clients; each float32 or float64.
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
            distances[i, k] = _sum_in_lanes(terms)


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
