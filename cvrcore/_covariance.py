"""Kernels of the covariance store; Cython twin: ``cvrcore_ext/_covariance.pyx``.

The store keeps, for every coordinate d, ``C^d = scale * (base^d + sum_s r_s^d r_s^dT)``:
a dense part and the residuals not yet folded into it. `base` holds packed lower triangles,
LANES coordinates at a time: shape (D / LANES rounded up, K (K + 1) / 2, LANES), row
``i (i + 1) / 2 + j`` for i >= j, so that all pairs of one block of coordinates stay in
cache while residuals are folded in. Residuals come in chunks of shape (K, T, D), client
first, so that a client's history is contiguous.

Callers have validated shapes and dtypes; kernels write into arrays they are given.
"""

import numpy as np

from ._jit import njit

LANES = 8


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
    n_features = entries.shape[1]
    for asked in range(clients.shape[0]):
        k = clients[asked]
        j = representative[k]
        row = k * (k + 1) // 2 + j if k >= j else j * (j + 1) // 2 + k
        for block in range(base.shape[0]):
            for d in range(block * LANES, min(block * LANES + LANES, n_features)):
                entries[k, d] = base[block, row, d - block * LANES]


@njit
def fold_history(base, history, n_stored, start, stop):
    """Add all stored outer products to blocks `start` .. `stop` - 1 of the packed base."""
    n_clients, _, n_features = history.shape
    packed = np.empty((n_clients, n_stored, LANES))
    totals = np.empty(LANES)
    for block in range(start, stop):
        for k in range(n_clients):
            for step in range(n_stored):
                for lane in range(LANES):
                    d = block * LANES + lane
                    packed[k, step, lane] = history[k, step, d] if d < n_features else 0.0
        for i in range(n_clients):
            for j in range(i + 1):
                row = i * (i + 1) // 2 + j
                for lane in range(LANES):
                    totals[lane] = np.float64(base[block, row, lane])
                for step in range(n_stored):
                    for lane in range(LANES):
                        totals[lane] += packed[i, step, lane] * packed[j, step, lane]
                for lane in range(LANES):
                    base[block, row, lane] = totals[lane]


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
