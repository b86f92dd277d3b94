"""Kernels of the covariance: rows and past residuals in, residuals, moments and scores out.

Cython twin: ``cvrcore_ext/covariance.pyx``. For every coordinate d,
``C^d = scale * (1 + sum_s r_s^d r_s^dT)``; residuals r_s come in blocks of shape (T, K, D).
Callers have validated shapes and dtypes; kernels write into the caller's arrays. Arithmetic on
entries has the precision of the arrays, float32 or float64; sums over coordinates or clients
run in float64.
"""

import numpy as np

from .jit import njit


@njit
def pair_clients(labels, first, clients, groups):
    """Write each client that a representative predicts, and its coalition; return how many.

    Clients come in order of id. Representatives are not predicted, and neither are clients of
    a coalition without a representative.

    Parameters
    ----------
    labels : int64 array of shape (n_clients,)
    first : int64 array of shape (n_coalitions,)
        The representative of each coalition, or -1.
    clients, groups : int64 arrays of shape (n_clients,)
    """
    n_found = 0
    for client in range(labels.shape[0]):
        j = first[labels[client]]
        clients[n_found] = client
        groups[n_found] = labels[client]
        n_found += j >= 0 and j != client  # without a branch: the next client overwrites
    return n_found


@njit
def lookup_pairs(held, used, reached, clients, others, now, places, begin):
    """Find the place of each pair's sum in an LRU cache, and how many rounds the sum holds.

    A sum may be stored with either client. A pair without a sum evicts the least recently used
    sum of its first client and holds no rounds. Returned places are marked empty until the
    caller fills them.

    Parameters
    ----------
    held : int64 array of shape (n_clients, n_places)
        The other client of each sum, or -1.
    used, reached : int64 arrays of shape (n_clients, n_places)
        Round of the last use of each sum, and number of rounds in the sum.
    clients, others : int64 arrays of shape (n_pairs,)
        No client is in both.
    now : int
    places, begin : int64 arrays of shape (n_pairs,)
        Output: flat index into `held`, and number of rounds in the sum.
    """
    n_places = held.shape[1]
    for i in range(clients.shape[0]):
        owner, place = clients[i], -1
        for s in range(n_places):
            if held[owner, s] == others[i]:
                place = s
        if place < 0:
            for s in range(n_places):
                if held[others[i], s] == clients[i]:
                    owner, place = others[i], s
        begin[i] = reached[owner, place] if place >= 0 else 0
        if place < 0:
            place = 0
            for s in range(1, n_places):
                if used[owner, s] < used[owner, place]:
                    place = s
        held[owner, place] = -1
        used[owner, place] = now
        places[i] = owner * n_places + place


@njit
def _add_pair(residuals, first, n_stored, k, j, sums):
    """Add ``r_s[k] r_s[j]`` to `sums` for s = `first` .. `n_stored` - 1, in this order."""
    for step in range(max(first, 0), n_stored):
        for d in range(sums.shape[0]):
            sums[d] += residuals[step, k, d] * residuals[step, j, d]


@njit
def add_products(residuals, n_stored, clients, others, begin, sums, places):
    """Add ``sum_s r_s[k] r_s[j]`` to the sum of each pair k, j, s in order.

    Parameters
    ----------
    residuals : array of shape (capacity, n_clients, n_features)
    n_stored : int
        Only the first `n_stored` residuals are read.
    clients, others : int64 arrays of shape (n_pairs,)
    begin : int64 array of shape (n_pairs,) or (0,)
        First residual to add; a negative value or an empty array means 0.
    sums : array of shape (n_sums, n_features)
    places : int64 array of shape (n_pairs,) or (0,)
        Row of `sums` of each pair, all different; an empty array means row i for pair i.
    """
    for i in range(clients.shape[0]):
        first = begin[i] if begin.shape[0] > 0 else 0
        own = sums[places[i] if places.shape[0] > 0 else i]
        _add_pair(residuals, first, n_stored, clients[i], others[i], own)


@njit
def _add_sums(residual, share, totals):
    """Add ``alpha_k r_k`` and ``r_k^2`` of one client."""
    for d in range(residual.shape[0]):
        value = np.float64(residual[d])
        totals[0, d] += share * value
        totals[1, d] += value * value


@njit
def regression_slopes(diagonal, rows, representatives, floor, slopes, variances):
    """Write ``theta_j / C_jj`` and C_jj of each coalition's representative j, Eq. (13).

    The prediction of client k is C_kj times the slope; the slope is 0 where C^d_jj is at or
    below ``floor[d]``.

    Parameters
    ----------
    diagonal, rows : arrays of shape (n_clients, n_features)
    representatives : int64 array of shape (n_coalitions,)
        -1 for a coalition without a representative, whose rows of the output stay unchanged.
    floor : float64 array of shape (n_features,)
    slopes, variances : arrays of shape (n_coalitions, n_features)
    """
    for p in range(representatives.shape[0]):
        j = representatives[p]
        if j < 0:
            continue
        for d in range(rows.shape[1]):
            variance = np.float64(diagonal[j, d])
            inverse = 1.0 / variance if variance > floor[d] else 0.0
            slopes[p, d] = inverse * np.float64(rows[j, d])
            variances[p, d] = diagonal[j, d]


@njit
def regression_residual(task):
    """Write ``weight (theta_k - c_k theta_j)`` into ``target[place, k]`` for each pair k, j.

    ``c_k^d = C^d_kj / C^d_jj``, Eq. (13), with the correlation clipped to [-1, 1]; 0 where
    C^d_jj is below its floor, see `regression_slopes`. One pass for each client completes its
    entries of C, writes its residual, and adds the residual to the sums over clients.

    Parameters
    ----------
    task : cvrcore.covariance.estimator.RegressionTask
        `target` may be `block`: a client's residual is written after its residuals were read.
    """
    rows, sums, target = task.rows, task.sums, task.target
    n_features, real = rows.shape[1], rows.dtype.type
    unit, factor = real(task.unit), real(task.weight)
    own = np.empty(n_features, dtype=rows.dtype)
    for i in range(task.clients.shape[0]):
        k, p = task.clients[i], task.groups[i]
        if sums.shape[0] > 0:
            own = sums[task.places[i] if task.places.shape[0] > 0 else i]
        else:
            own[:] = task.initial
        first = task.begin[i] if task.begin.shape[0] > 0 else 0
        _add_pair(task.block, first, task.n_used, k, task.representatives[p], own)
        for d in range(n_features):
            entry = unit * own[d]
            most = task.diagonal[k, d] * task.variances[p, d]
            if entry * entry > most:  # by rounding, different rates, or a window
                entry = np.copysign(np.sqrt(most), entry)
            target[task.place, k, d] = factor * (rows[k, d] - entry * task.slopes[p, d])
        _add_sums(target[task.place, k], task.alpha[k], task.totals)


@njit
def scaled_residual(coefficients, rows, clients, others, weight, target, place, alpha, totals):
    """Write ``weight (theta_k - c_k theta_j)`` into ``target[place, k]``, c_k a scalar.

    Adds to `totals` as `regression_residual` does.
    """
    n_features = rows.shape[1]
    for i in range(clients.shape[0]):
        k, j = clients[i], others[i]
        for d in range(n_features):
            delta = np.float64(rows[k, d]) - coefficients[i] * np.float64(rows[j, d])
            target[place, k, d] = weight * delta
        _add_sums(target[place, k], alpha[k], totals)


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
def diagonal_floor(diagonal, relative, floor):
    """Write ``relative * mean_k C^d_kk`` for each coordinate d into `floor`."""
    n_clients, n_features = diagonal.shape
    for d in range(n_features):
        floor[d] = 0.0
    for k in range(n_clients):
        for d in range(n_features):
            floor[d] += np.float64(diagonal[k, d])
    for d in range(n_features):
        floor[d] = relative * (floor[d] / n_clients)


@njit
def variance_reduction(moment, diagonal, floor, scores):
    """Write ``v_k = sum_d (C^d alpha)_k^2 / C^d_kk`` into `scores`, Eqs. (8) and (9).

    A diagonal entry at or below ``floor[d]`` counts as v_k^d = 0.

    Parameters
    ----------
    moment, diagonal : arrays of shape (n_clients, n_features)
        ``C alpha`` and ``diag C`` for every coordinate.
    floor : float64 array of shape (n_features,)
    scores : float64 array of shape (n_clients,)
    """
    n_clients, n_features = moment.shape
    terms = np.empty(n_features)
    for k in range(n_clients):
        for d in range(n_features):
            u = np.float64(moment[k, d])
            q = np.float64(diagonal[k, d])
            terms[d] = u / q * u if q > floor[d] else 0.0
        scores[k] = _sum_in_lanes(terms)


@njit
def advance_moments(
    moment, diagonal, history, slot, projection, keep, gain, floor, start, stop, scores
):
    """Take one covariance step on ``C alpha`` and ``diag C`` in place, and score clients.

    Both follow the recursion of C itself (Algorithm 1, line 17), without a K x K matrix:
    ``moment <- keep moment + gain r (r . alpha)``, ``diagonal <- keep diagonal + gain r^2``.
    Clients `start` .. `stop` - 1, O(D) each.

    Parameters
    ----------
    moment, diagonal : arrays of shape (n_clients, n_features)
    history : array of shape (capacity, n_clients, n_features)
        ``r_k = history[slot, k]``.
    projection : array of shape (n_features,)
        ``gain (r . alpha)``, in the dtype of the moments.
    keep, gain : float
        ``1 - g`` and g of the step; g is in units of the stored residuals.
    floor : array of shape (n_features,)
        ``relative * mean_k C^d_kk`` after the step, in the dtype of the moments.
    scores : float64 array of shape (n_clients,)
    """
    n_features, real = moment.shape[1], moment.dtype.type
    held, share = real(keep), real(gain)
    terms = np.empty(n_features)
    for k in range(start, stop):
        # Three short loops with few arrays each: compilers can rule out aliasing and vectorise.
        for d in range(n_features):
            moment[k, d] = held * moment[k, d] + history[slot, k, d] * projection[d]
        for d in range(n_features):
            residual = history[slot, k, d]
            diagonal[k, d] = held * diagonal[k, d] + share * (residual * residual)
        for d in range(n_features):
            u, q = moment[k, d], diagonal[k, d]
            terms[d] = np.float64(u / q * u) if q > floor[d] else 0.0
        scores[k] = _sum_in_lanes(terms)
