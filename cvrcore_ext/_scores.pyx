"""Cython twin of ``cvrcore/_scores.py``: same names, same arithmetic, same bits."""

import numpy as np

from cython cimport floating


def diagonal_floor(const floating[:, ::1] diagonal, double relative, double[::1] floor):
    """Write relative * mean_k C^d_kk for each coordinate d into floor."""
    cdef Py_ssize_t n_clients = diagonal.shape[0], n_features = diagonal.shape[1], k, d
    with nogil:
        for d in range(n_features):
            floor[d] = 0.0
        for k in range(n_clients):
            for d in range(n_features):
                floor[d] += <double>diagonal[k, d]
        for d in range(n_features):
            floor[d] = relative * (floor[d] / n_clients)


cdef double _sum_in_lanes(const double[::1] terms) noexcept nogil:
    cdef Py_ssize_t blocks = terms.shape[0] // 8 * 8, d, lane
    cdef double[8] lanes
    for lane in range(8):
        lanes[lane] = 0.0
    for d in range(0, blocks, 8):
        for lane in range(8):
            lanes[lane] += terms[d + lane]
    for d in range(blocks, terms.shape[0]):
        lanes[d - blocks] += terms[d]
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + (
        (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
    )


def variance_reduction(
    const floating[:, ::1] moment,
    const floating[:, ::1] diagonal,
    const double[::1] floor,
    double[::1] scores,
):
    """Write v_k = sum_d (C^d alpha)_k^2 / C^d_kk into scores, Eqs. (8) and (9)."""
    cdef Py_ssize_t n_clients = moment.shape[0], n_features = moment.shape[1], k, d
    cdef double u, q
    cdef double[::1] terms = np.empty(n_features)
    with nogil:
        for k in range(n_clients):
            for d in range(n_features):
                u = moment[k, d]
                q = diagonal[k, d]
                terms[d] = (u * u) / q if q > floor[d] else 0.0
            scores[k] = _sum_in_lanes(terms)


def advance_scores(
    floating[:, ::1] moment,
    floating[:, ::1] diagonal,
    const floating[:, ::1] residual,
    const double[::1] weights,
    double rate,
    double relative,
    double[::1] floor,
    double[::1] scores,
):
    """Take one covariance step on C alpha and diag C, and score every client."""
    cdef Py_ssize_t n_clients = residual.shape[0], n_features = residual.shape[1], k, d
    cdef double keep = 1.0 - rate, weight, delta, u, q
    cdef double[::1] projection = np.zeros(n_features)
    cdef double[::1] squares = np.zeros(n_features)
    cdef double[::1] terms = np.empty(n_features)
    with nogil:
        for k in range(n_clients):
            weight = weights[k]
            for d in range(n_features):
                delta = residual[k, d]
                projection[d] += weight * delta
                squares[d] += delta * delta
        for d in range(n_features):
            projection[d] = rate * projection[d]
            floor[d] = keep * floor[d] + rate * relative * (squares[d] / n_clients)
        for k in range(n_clients):
            for d in range(n_features):
                delta = residual[k, d]
                moment[k, d] = <floating>(keep * <double>moment[k, d] + delta * projection[d])
            for d in range(n_features):
                delta = residual[k, d]
                diagonal[k, d] = <floating>(
                    keep * <double>diagonal[k, d] + rate * (delta * delta)
                )
            for d in range(n_features):
                u = moment[k, d]
                q = diagonal[k, d]
                terms[d] = (u * u) / q if q > floor[d] else 0.0
            scores[k] = _sum_in_lanes(terms)
