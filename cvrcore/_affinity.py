"""Kernels of the affinity; Cython twin: ``cvrcore_ext/_affinity.pyx``.

Euclidean distances and inner products are matrix products and stay with BLAS.
"""

import numpy as np

from ._jit import njit


@njit
def manhattan_rows(rows, models, distances):
    """Write ``||rows_i - models_k||_1`` into ``distances[i, k]``.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features)
    models : array of shape (n_clients, n_features)
    distances : float64 array of shape (n_rows, n_clients)
    """
    n_rows, n_features = rows.shape
    blocks = n_features // 8 * 8
    lanes = np.empty(8)
    for i in range(n_rows):
        for k in range(models.shape[0]):
            for lane in range(8):
                lanes[lane] = 0.0
            for d in range(0, blocks, 8):
                for lane in range(8):
                    lanes[lane] += abs(
                        np.float64(rows[i, d + lane]) - np.float64(models[k, d + lane])
                    )
            for d in range(blocks, n_features):
                lanes[d - blocks] += abs(np.float64(rows[i, d]) - np.float64(models[k, d]))
            distances[i, k] = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + (
                (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
            )


@njit
def normalise_rows(affinity, inverse_root, lead, start, stop, out):
    """Write rows `start` .. `stop` - 1 of ``S A S - lead lead^T`` into `out`, in one pass.

    Parameters
    ----------
    affinity : float64 array of shape (n_clients, n_clients)
    inverse_root, lead : float64 arrays of shape (n_clients,)
        ``degree^-1/2``, the diagonal of S, and the known unit eigenvector.
    out : float32 or float64 array of shape (n_clients, n_clients)
    """
    for i in range(start, stop):
        scale = inverse_root[i]
        weight = lead[i]
        for j in range(affinity.shape[1]):
            out[i, j] = affinity[i, j] * (scale * inverse_root[j]) - weight * lead[j]
