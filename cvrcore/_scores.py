"""Kernels for the variance-reduction score; Cython twin: ``cvrcore_ext/_scores.pyx``.

Callers have validated shapes and dtypes; kernels write into arrays they are given.
Arrays of shape (n_clients, n_features) may be float32 or float64, and so is the arithmetic on
their entries; sums over coordinates or clients run in float64.
"""

import numpy as np

from ._jit import njit
from ._lanes import sum_in_lanes


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
        scores[k] = sum_in_lanes(terms)


@njit
def advance_moments(
    moment, diagonal, history, slot, projection, keep, gain, floor, start, stop, scores
):
    """Take one covariance step on ``C alpha`` and ``diag C``, and score clients.

    Both obey the recursion of C itself (Algorithm 1, line 17), with no K x K matrix:
    ``moment <- keep moment + gain r (r . alpha)``, ``diagonal <- keep diagonal + gain r^2``.
    In place, clients `start` .. `stop` - 1, O(D) each.

    Parameters
    ----------
    moment, diagonal : arrays of shape (n_clients, n_features)
    history : array of shape (capacity, n_clients, n_features)
        ``r_k = history[slot, k]``.
    projection : array of shape (n_features,)
        ``gain (r . alpha)``, as precise as the moments.
    keep, gain : float
        ``1 - g`` and g of the step, the latter in units of the residuals stored.
    floor : array of shape (n_features,)
        ``relative * mean_k C^d_kk`` after the step, as precise as the moments.
    scores : float64 array of shape (n_clients,)
    """
    n_features, real = moment.shape[1], moment.dtype.type
    held, share = real(keep), real(gain)
    terms = np.empty(n_features)
    for k in range(start, stop):
        # Three short loops: few arrays in each, so that compilers can tell them apart.
        for d in range(n_features):
            moment[k, d] = held * moment[k, d] + history[slot, k, d] * projection[d]
        for d in range(n_features):
            residual = history[slot, k, d]
            diagonal[k, d] = held * diagonal[k, d] + share * (residual * residual)
        for d in range(n_features):
            u, q = moment[k, d], diagonal[k, d]
            terms[d] = np.float64(u / q * u) if q > floor[d] else 0.0
        scores[k] = sum_in_lanes(terms)
