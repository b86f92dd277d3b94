"""Kernel for L1 distances; Cython twin: ``cvrcore_ext/_affinity.pyx``.

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
