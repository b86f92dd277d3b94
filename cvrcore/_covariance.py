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
def add_history(history, n_stored, clients, representative, begin, entries):
    """Add ``sum_s r_s[k] r_s[j]`` to ``entries[k]``, j the representative of k, s in order.

    Parameters
    ----------
    history : array of shape (n_clients, capacity, n_features)
    n_stored : int
        Residuals in use, the first of each client's row.
    clients : int64 array of shape (n_asked,)
        The clients k, ordered so that equal j stand together: j's history stays in cache.
    representative : int64 array of shape (n_clients,)
    begin : int64 array of shape (n_asked,)
        First residual to add; negative means 0.
    entries : float64 array of shape (n_clients, n_features)
    """
    n_features = entries.shape[1]
    for asked in range(clients.shape[0]):
        k = clients[asked]
        j = representative[k]
        step = max(begin[asked], 0)
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
def read_base(base, clients, representative, entries):
    """Copy the dense part of C_kj into ``entries[k]``, j the representative of k."""
    for asked in range(clients.shape[0]):
        k = clients[asked]
        j = representative[k]
        row = k * (k + 1) // 2 + j if k >= j else j * (j + 1) // 2 + k
        for d in range(base.shape[1]):
            entries[k, d] = base[row, d]


@njit
def fold_history(base, history, n_stored, start, stop):
    """Add all stored outer products to rows `start` .. `stop` - 1 of the packed base."""
    n_features = base.shape[1]
    totals = np.empty(n_features)
    for i in range(start, stop):
        for j in range(i + 1):
            row = i * (i + 1) // 2 + j
            for d in range(n_features):
                totals[d] = np.float64(base[row, d])
            for step in range(n_stored):
                for d in range(n_features):
                    totals[d] += np.float64(history[i, step, d]) * np.float64(history[j, step, d])
            for d in range(n_features):
                base[row, d] = totals[d]


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
        beyond = 0
        for d in range(n_features):
            variance = np.float64(diagonal[j, d])
            entry = scale * entries[k, d]
            beyond += entry * entry > np.float64(diagonal[k, d]) * variance
            coefficient = entry / variance if variance > floor[d] else 0.0
            residual[k, d] = np.float64(rows[k, d]) - coefficient * np.float64(rows[j, d])
        if beyond == 0:
            continue
        for d in range(n_features):  # rounding, or rates that differ: rare, so the root is here
            variance = np.float64(diagonal[j, d])
            bound = np.sqrt(np.float64(diagonal[k, d]) * variance)
            entry = min(max(scale * entries[k, d], -bound), bound)
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
