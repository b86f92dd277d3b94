"""Cython twin of ``cvrcore/_scores.py``: same names, same arithmetic, same bits."""

import numpy as np

from cython cimport floating

cdef extern from "_lanes.h":
    double sum_in_lanes(const double*, Py_ssize_t) nogil

cdef extern from "_moments.h":
    double advance_f64(
        double*, double*, const double*, const double*, double, double, const double*, Py_ssize_t,
    ) nogil
    double advance_f32(
        float*, float*, const float*, const float*, float, float, const float*, Py_ssize_t,
    ) nogil


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
                terms[d] = u / q * u if q > floor[d] else 0.0
            scores[k] = sum_in_lanes(&terms[0], n_features)


def advance_moments(
    floating[:, ::1] moment,
    floating[:, ::1] diagonal,
    const floating[:, :, ::1] history,
    Py_ssize_t slot,
    const floating[::1] projection,
    floating keep,
    floating gain,
    const floating[::1] floor,
    Py_ssize_t start,
    Py_ssize_t stop,
    double[::1] scores,
):
    """Take one covariance step on C alpha and diag C, and score clients."""
    cdef Py_ssize_t n_features = moment.shape[1], k
    with nogil:
        for k in range(start, stop):
            if floating is double:
                scores[k] = advance_f64(
                    &moment[k, 0], &diagonal[k, 0], &history[slot, k, 0], &projection[0], keep,
                    gain, &floor[0], n_features,
                )
            else:
                scores[k] = advance_f32(
                    &moment[k, 0], &diagonal[k, 0], &history[slot, k, 0], &projection[0], keep,
                    gain, &floor[0], n_features,
                )
