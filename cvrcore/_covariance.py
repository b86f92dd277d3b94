"""Kernels of the covariance store; Cython twin: ``cvrcore_ext/_covariance.pyx``.

The store keeps, for every coordinate d, ``C^d = scale * (1 + sum_s r_s^d r_s^dT)``, as the
residuals r_s or as sums of all pairs of clients. Residuals come in chunks of shape (T, K, D):
each is contiguous, and clients that follow one another are read, and written, as they lie.
Sums are lower triangles, LANES coordinates at a time, of squares of EDGE x EDGE clients: shape
(D / LANES rounded up, n_pairs, LANES), n_pairs by `_pair`. Squares on the diagonal are whole,
and the last ones padded, so that a fold goes through memory as it lies.

Callers have validated shapes and dtypes; kernels write into arrays they are given.
"""

import numpy as np

from ._jit import njit

LANES, EDGE = 8, 12


@njit
def _first(begin, asked):
    """Return the first residual that a pair's sum is about."""
    return max(begin[asked], 0) if begin.shape[0] > 0 else 0


@njit
def _place(places, asked):
    """Return the row of `entries` that is a pair's."""
    return places[asked] if places.shape[0] > 0 else asked


@njit
def _add_pair(history, leads, step, n_stored, k, j, sums):
    """Add ``history[s, k] leads[s, j]`` to `sums`, s from `step` to `n_stored` - 1, in order."""
    while step < n_stored:
        for d in range(sums.shape[0]):
            sums[d] += history[step, k, d] * leads[step, j, d]
        step += 1


@njit
def add_history(history, n_stored, clients, others, begin, entries, places):
    """Add ``sum_s r_s[k] r_s[j]`` to an entry, k and j the i-th pair, s in order.

    Parameters
    ----------
    history : array of shape (capacity, n_clients, n_features)
    n_stored : int
        Residuals in use, the first ones.
    clients, others : int64 arrays of shape (n_asked,)
        The pairs.
    begin : int64 array of shape (n_asked,) or (0,)
        First residual to add; negative means 0, and so does an empty array.
    entries : array of shape (n_entries, n_features)
    places : int64 array of shape (n_asked,) or (0,)
        Which of them is each pair's, no two alike; empty: the i-th.
    """
    for asked in range(clients.shape[0]):
        k, j, sums = clients[asked], others[asked], entries[_place(places, asked)]
        _add_pair(history, history, _first(begin, asked), n_stored, k, j, sums)


@njit
def _pair(i, j):
    """Return where a pair is in a block of the triangles, i's square not above j's."""
    square = (i // EDGE) * (i // EDGE + 1) // 2 + j // EDGE
    return (square * EDGE + i % EDGE) * EDGE + j % EDGE


@njit
def read_triangles(base, recent, steps, waiting, clients, others, entries):
    """Write C_kj into ``entries[i]``, k and j the i-th pair, with the residuals that wait.

    Parameters
    ----------
    base : array of shape (n_blocks, n_pairs, LANES)
    recent : array of shape (n_recent, n_clients, n_features)
        Residual s is at ``s % n_recent``.
    steps : int
        Residuals so far.
    waiting : int64 array of shape (n_blocks,)
        How many of the last ones each block does not hold yet.
    clients, others : int64 arrays of shape (n_asked,)
    entries : array of shape (n_asked, n_features)
    """
    n_features = entries.shape[1]
    for asked in range(clients.shape[0]):
        k, j = clients[asked], others[asked]
        row = _pair(max(k, j), min(k, j))
        for block in range(base.shape[0]):
            low, high = block * LANES, min(block * LANES + LANES, n_features)
            for d in range(low, high):
                entries[asked, d] = base[block, row, d - low]
            for s in range(steps - waiting[block], steps):
                place = s % recent.shape[0]
                for d in range(low, high):
                    entries[asked, d] += recent[place, k, d] * recent[place, j, d]


@njit
def pack_block(history, first, n_stored, block, packed):
    """Copy residuals of one block together, from `first` on round the ring, for `fold_block`.

    Parameters
    ----------
    history : array of shape (n_places, n_clients, n_features)
    first, n_stored, block : int
    packed : float64 array of shape (n_padded * n_stored * LANES,), n_padded a multiple of EDGE
        Output, in an order that is each backend's own; it should begin on a line of cache.
    """
    n_places, n_clients, n_features = history.shape
    packed[:] = 0.0
    for k in range(n_clients):
        for step in range(n_stored):
            place = (first + step) % n_places
            for lane in range(min(LANES, n_features - block * LANES)):
                value = np.float64(history[place, k, block * LANES + lane])
                packed[(k * n_stored + step) * LANES + lane] = value


@njit
def fold_block(base, packed, n_stored, block, low, high):
    """Add outer products of packed residuals to one block, of squares in rows low .. high - 1."""
    totals = np.empty(LANES)
    for i in range(low * EDGE, high * EDGE):
        for j in range((i // EDGE + 1) * EDGE):
            row = _pair(i, j)
            for lane in range(LANES):
                totals[lane] = np.float64(base[block, row, lane])
            for step in range(n_stored):
                for lane in range(LANES):
                    left = packed[(i * n_stored + step) * LANES + lane]
                    totals[lane] += left * packed[(j * n_stored + step) * LANES + lane]
            for lane in range(LANES):
                base[block, row, lane] = totals[lane]


@njit
def _add_sums(residual, share, totals):
    """Add ``alpha_k r_k`` and ``r_k^2`` of one client."""
    for d in range(residual.shape[0]):
        value = np.float64(residual[d])
        totals[0, d] += share * value
        totals[1, d] += value * value


@njit
def regression_slopes(diagonal, rows, first, floor, slopes, variances):
    """Write ``theta_j / C_jj`` and C_jj of each coalition's representative j, Eq. (13).

    A client is predicted by its entry C_kj times the slope, which is 0 where C^d_jj is at or
    below ``floor[d]``.

    Parameters
    ----------
    diagonal, rows : arrays of shape (n_clients, n_features)
    first : int64 array of shape (n_coalitions,)
        Representatives, or -1: such lines are left as they are.
    floor : float64 array of shape (n_features,)
    slopes, variances : arrays of shape (n_coalitions, n_features)
    """
    for line in range(first.shape[0]):
        j = first[line]
        if j < 0:
            continue
        for d in range(rows.shape[1]):
            variance = np.float64(diagonal[j, d])
            inverse = 1.0 / variance if variance > floor[d] else 0.0
            slopes[line, d] = inverse * np.float64(rows[j, d])
            variances[line, d] = diagonal[j, d]


@njit
def regression_residual(
    start,
    entries,
    places,
    past,
    n_past,
    begin,
    leads,
    lead,
    scale,
    slopes,
    variances,
    diagonal,
    rows,
    clients,
    groups,
    weight,
    history,
    slot,
    alpha,
    chunk,
    totals,
):
    """Write ``weight (theta_k - c_k theta_j)`` into ``history[slot, k]`` for each pair k, j.

    ``c_k^d = C^d_kj / C^d_jj``, Eq. (13), with the correlation clipped to [-1, 1]; 0 where
    C^d_jj is next to nothing: see `regression_slopes`. One pass over a client's history and
    rows: first the last part of its entries of C, last its share in the sums over clients.

    Parameters
    ----------
    start : float
    entries : array of shape (n_entries, n_features) or (0, n_features)
        ``C_kj / scale`` of each pair but for the sum over `past`, which is added. Empty,
        where each is `start` to begin with and nobody asks for the sum.
    places, past, n_past, begin
        As in `add_history`.
    leads : array of shape (capacity, n_leads, n_features)
        Residuals of representatives, at hand or `past` itself.
    lead : int64 array of shape (n_coalitions,)
        Where those of each coalition's representative are in `leads`.
    scale : float
    slopes, variances
        See `regression_slopes`.
    diagonal, rows : arrays of shape (n_clients, n_features)
    clients, groups : int64 arrays of shape (n_asked,)
        The pairs: a client and its coalition.
    weight : float
    history : array of shape (capacity, n_clients, n_features)
        May be `past`: a client's own place is written when its history has been read.
    slot : int
    alpha : float64 array of shape (n_clients,)
    chunk : int
        Pairs whose sums are one: the i-th is added to ``totals[i // chunk]``.
    totals : float64 array of shape (n_chunks, 2, n_features)
        ``alpha_k r_k`` and ``r_k^2`` are added, ``r_k = history[slot, k]``, pair by pair.
    """
    n_features, real = rows.shape[1], rows.dtype.type
    unit, factor = real(scale), real(weight)
    sums = np.empty(n_features, dtype=rows.dtype)
    for asked in range(clients.shape[0]):
        k, line = clients[asked], groups[asked]
        if entries.shape[0] > 0:
            sums = entries[_place(places, asked)]
        else:
            sums[:] = start
        _add_pair(past, leads, _first(begin, asked), n_past, k, lead[line], sums)
        for d in range(n_features):
            entry = unit * sums[d]
            most = diagonal[k, d] * variances[line, d]
            if entry * entry > most:  # rounding, rates that differ, or a window
                entry = np.copysign(np.sqrt(most), entry)
            history[slot, k, d] = factor * (rows[k, d] - entry * slopes[line, d])
        _add_sums(history[slot, k], alpha[k], totals[asked // chunk])


@njit
def scaled_residual(
    coefficients, rows, clients, others, weight, history, slot, alpha, chunk, totals
):
    """Write ``weight (theta_k - c_k theta_j)`` into ``history[slot, k]``, c_k a scalar.

    The sums are those of `regression_residual`.
    """
    n_features = rows.shape[1]
    for asked in range(clients.shape[0]):
        k, j = clients[asked], others[asked]
        for d in range(n_features):
            delta = np.float64(rows[k, d]) - coefficients[asked] * np.float64(rows[j, d])
            history[slot, k, d] = weight * delta
        _add_sums(history[slot, k], alpha[k], totals[asked // chunk])
