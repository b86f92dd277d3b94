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

LANES = 16


@njit
def _add_pair(history, step, n_stored, k, j, sums):
    """Add ``r_s[k] r_s[j]`` to `sums`, s from `step` to `n_stored` - 1, in order."""
    while step + 4 <= n_stored:
        for d in range(sums.shape[0]):
            total = sums[d]
            total += np.float64(history[k, step, d]) * np.float64(history[j, step, d])
            total += np.float64(history[k, step + 1, d]) * np.float64(history[j, step + 1, d])
            total += np.float64(history[k, step + 2, d]) * np.float64(history[j, step + 2, d])
            total += np.float64(history[k, step + 3, d]) * np.float64(history[j, step + 3, d])
            sums[d] = total
        step += 4
    while step < n_stored:
        for d in range(sums.shape[0]):
            sums[d] += np.float64(history[k, step, d]) * np.float64(history[j, step, d])
        step += 1


@njit
def add_history(history, n_stored, clients, others, begin, entries):
    """Add ``sum_s r_s[k] r_s[j]`` to ``entries[i]``, k and j the i-th pair, s in order.

    Parameters
    ----------
    history : array of shape (n_clients, capacity, n_features)
    n_stored : int
        Residuals in use, the first of each client's row.
    clients, others : int64 arrays of shape (n_asked,)
        The pairs, ordered so that equal j stand together: j's history stays in cache.
    begin : int64 array of shape (n_asked,)
        First residual to add; negative means 0.
    entries : float64 array of shape (n_asked, n_features)
    """
    for asked in range(clients.shape[0]):
        step = max(begin[asked], 0)
        _add_pair(history, step, n_stored, clients[asked], others[asked], entries[asked])


@njit
def read_base(base, clients, others, entries):
    """Copy the dense part of C_kj into ``entries[i]``, k and j the i-th pair."""
    n_features = entries.shape[1]
    for asked in range(clients.shape[0]):
        k, j = clients[asked], others[asked]
        row = k * (k + 1) // 2 + j if k >= j else j * (j + 1) // 2 + k
        for block in range(base.shape[0]):
            for d in range(block * LANES, min(block * LANES + LANES, n_features)):
                entries[asked, d] = base[block, row, d - block * LANES]


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
def _add_sums(residual, share, projection, squares):
    """Add ``alpha_k r_k`` and ``r_k^2`` of one client."""
    for d in range(residual.shape[0]):
        value = np.float64(residual[d])
        projection[d] += share * value
        squares[d] += value * value


@njit
def regression_residual(
    start,
    entries,
    past,
    n_past,
    begin,
    scale,
    diagonal,
    floor,
    rows,
    clients,
    others,
    weight,
    history,
    slot,
    alpha,
    projection,
    squares,
):
    """Write ``weight (theta_k - c_k theta_j)`` into ``history[k, slot]`` for each pair k, j.

    ``c_k^d = C^d_kj / C^d_jj``, Eq. (13), with the correlation clipped to [-1, 1]; 0 where
    C^d_jj is at or below ``floor[d]``. One pass over a client's history and rows: first the
    last part of its entries of C, last its share in the sums over clients.

    Parameters
    ----------
    start : float
    entries : float64 array of shape (n_asked, n_features) or (0, n_features)
        ``C_kj / scale`` of each pair but for the sum over `past`, which is added. Empty, where
        each is `start` to begin with and nobody asks for the sum.
    past, n_past, begin
        As in `add_history`.
    scale, weight : float
    diagonal, rows : arrays of shape (n_clients, n_features)
    floor : float64 array of shape (n_features,)
    clients, others : int64 arrays of shape (n_asked,)
        The pairs: a client and the representative of its coalition, equal ones together.
    history : array of shape (n_clients, capacity, n_features)
        May be `past`: a client's own place is written when its history has been read.
    slot : int
    alpha : float64 array of shape (n_clients,)
    projection, squares : float64 arrays of shape (n_features,)
        ``alpha_k r_k`` and ``r_k^2`` are added, ``r_k = history[k, slot]``, pair by pair.
    """
    n_features = rows.shape[1]
    inverse, sums = np.empty(n_features), np.empty(n_features)
    known = -1
    for asked in range(clients.shape[0]):
        k, j = clients[asked], others[asked]
        if entries.shape[0] > 0:
            sums = entries[asked]
        else:
            sums[:] = start
        _add_pair(past, max(begin[asked], 0), n_past, k, j, sums)
        if j != known:
            known = j
            for d in range(n_features):
                variance = np.float64(diagonal[j, d])
                inverse[d] = 1.0 / variance if variance > floor[d] else 0.0
        beyond = 0
        for d in range(n_features):
            entry = scale * sums[d]
            beyond += entry * entry > np.float64(diagonal[k, d]) * np.float64(diagonal[j, d])
            delta = np.float64(rows[k, d]) - (entry * inverse[d]) * np.float64(rows[j, d])
            history[k, slot, d] = weight * delta
        if beyond > 0:  # rounding, or rates that differ: rare, so the root is here
            for d in range(n_features):
                bound = np.sqrt(np.float64(diagonal[k, d]) * np.float64(diagonal[j, d]))
                entry = min(max(scale * sums[d], -bound), bound)
                delta = np.float64(rows[k, d]) - (entry * inverse[d]) * np.float64(rows[j, d])
                history[k, slot, d] = weight * delta
        _add_sums(history[k, slot], alpha[k], projection, squares)


@njit
def scaled_residual(
    coefficients, rows, clients, others, weight, history, slot, alpha, projection, squares
):
    """Write ``weight (theta_k - c_k theta_j)`` into ``history[k, slot]``, c_k a scalar.

    The sums are those of `regression_residual`.
    """
    n_features = rows.shape[1]
    for asked in range(clients.shape[0]):
        k, j = clients[asked], others[asked]
        for d in range(n_features):
            delta = np.float64(rows[k, d]) - coefficients[asked] * np.float64(rows[j, d])
            history[k, slot, d] = weight * delta
        _add_sums(history[k, slot], alpha[k], projection, squares)
