"""Kernels of the covariance store; Cython twin: ``cvrcore_ext/_covariance.pyx``.

The store keeps, for every coordinate d, ``C^d = scale * (base^d + sum_s r_s^d r_s^dT)``:
a dense part and the residuals not yet folded into it. `base` is a packed lower triangle
of shape (K (K + 1) / 2, D), row ``i (i + 1) / 2 + j`` for i >= j, coordinate last so that
one pair of clients is one contiguous row. Residuals come in chunks of shape (K, T, D),
client first, so that a client's history is contiguous.

Callers have validated shapes and dtypes; kernels write into arrays they are given.
"""

import numpy as np

from ._jit import njit


@njit
def add_history(history, n_stored, pairs, entries):
    """Add ``sum_s r_s[k] r_s[j]`` to ``entries[k]`` for each pair (k, j).

    Parameters
    ----------
    history : array of shape (n_clients, capacity, n_features)
    n_stored : int
        Residuals in use, the first of each client's row.
    pairs : int64 array of shape (n_pairs, 2)
        Clients (k, j), ordered so that equal j stand together: j's history stays in cache.
    entries : float64 array of shape (n_clients, n_features)
    """
    n_features = entries.shape[1]
    for pair in range(pairs.shape[0]):
        k = pairs[pair, 0]
        j = pairs[pair, 1]
        step = 0
        while step + 4 <= n_stored:
            for d in range(n_features):
                total = entries[k, d]
                total += np.float64(history[k, step, d]) * np.float64(history[j, step, d])
                total += np.float64(history[k, step + 1, d]) * np.float64(history[j, step + 1, d])
                total += np.float64(history[k, step + 2, d]) * np.float64(history[j, step + 2, d])
                total += np.float64(history[k, step + 3, d]) * np.float64(history[j, step + 3, d])
                entries[k, d] = total
            step += 4
        while step < n_stored:
            for d in range(n_features):
                entries[k, d] += np.float64(history[k, step, d]) * np.float64(history[j, step, d])
            step += 1


@njit
def fold_history(base, history, n_stored, start, stop):
    """Add all stored outer products to rows `start` .. `stop` - 1 of the packed base."""
    n_features = base.shape[1]
    for i in range(start, stop):
        for j in range(i + 1):
            row = i * (i + 1) // 2 + j
            step = 0
            while step + 4 <= n_stored:
                for d in range(n_features):
                    total = np.float64(base[row, d])
                    total += np.float64(history[i, step, d]) * np.float64(history[j, step, d])
                    total += np.float64(history[i, step + 1, d]) * np.float64(
                        history[j, step + 1, d]
                    )
                    total += np.float64(history[i, step + 2, d]) * np.float64(
                        history[j, step + 2, d]
                    )
                    total += np.float64(history[i, step + 3, d]) * np.float64(
                        history[j, step + 3, d]
                    )
                    base[row, d] = total
                step += 4
            while step < n_stored:
                for d in range(n_features):
                    base[row, d] = np.float64(base[row, d]) + np.float64(
                        history[i, step, d]
                    ) * np.float64(history[j, step, d])
                step += 1


@njit
def regression_residual(entries, scale, diagonal, floor, rows, representative, residual):
    """Write ``delta_k = theta_k - c_k theta_j``, j the representative of k's coalition.

    ``c_k^d = C^d_kj / C^d_jj``, Eq. (13), with the correlation clipped to [-1, 1]; 0 where
    C^d_jj is at or below ``floor[d]``. The representative's own residual is 0, and so is
    that of a client whose coalition has none (representative -1).

    Parameters
    ----------
    entries : float64 array of shape (n_clients, n_features)
        ``C_kj / scale`` for each client k and its representative j.
    scale : float
    diagonal, rows, residual : arrays of shape (n_clients, n_features)
    floor : float64 array of shape (n_features,)
    representative : int64 array of shape (n_clients,)
    """
    n_clients, n_features = rows.shape
    for k in range(n_clients):
        j = representative[k]
        if j < 0 or j == k:
            for d in range(n_features):
                residual[k, d] = 0.0
            continue
        for d in range(n_features):
            variance = np.float64(diagonal[j, d])
            bound = np.sqrt(np.float64(diagonal[k, d]) * variance)
            entry = scale * entries[k, d]
            entry = min(max(entry, -bound), bound)
            coefficient = entry / variance if variance > floor[d] else 0.0
            residual[k, d] = np.float64(rows[k, d]) - coefficient * np.float64(rows[j, d])


@njit
def scaled_residual(coefficients, rows, representative, residual):
    """Write ``delta_k = theta_k - c_k theta_j`` with one scalar c_k per client.

    The representative's own residual is 0, and so is that of a client whose coalition
    has none (representative -1).
    """
    n_clients, n_features = rows.shape
    for k in range(n_clients):
        j = representative[k]
        if j < 0 or j == k:
            for d in range(n_features):
                residual[k, d] = 0.0
            continue
        for d in range(n_features):
            residual[k, d] = np.float64(rows[k, d]) - coefficients[k] * np.float64(rows[j, d])
