"""Cython twin of ``cvrcore/kernels/affinity.py``: same names, same arithmetic, same bits."""

import numpy as np

from cython cimport floating
from libc.math cimport fabs, sqrt

cdef extern from "simd_sums.h":
    double sum_in_lanes(const double*, Py_ssize_t) nogil

ctypedef fused stored:  # dtype of the affinity; may differ from the dtype of the rows
    float
    double


def unit_offsets(
    const floating[:, ::1] models,
    const floating[::1] reference,
    floating[:, ::1] offsets,
    double[::1] squares,
    double[::1] nonzero,
):
    """Normalise rows and subtract a reference; Algorithm 1, line 3."""
    cdef Py_ssize_t n_rows = models.shape[0], n_features = models.shape[1], k, d
    cdef double peak, scale, norm, value
    cdef double[::1] terms = np.empty(n_features)
    with nogil:
        for k in range(n_rows):
            peak = 0.0
            for d in range(n_features):
                value = fabs(<double>models[k, d])
                peak = value if value > peak else peak
            scale = 1.0 / peak if peak > 1e-300 else 0.0
            for d in range(n_features):
                value = <double>models[k, d] * scale
                terms[d] = value * value
            norm = sqrt(sum_in_lanes(&terms[0], n_features))
            nonzero[k] = 1.0 if norm > 0.0 else 0.0
            scale = scale / norm if norm > 0.0 else 0.0
            for d in range(n_features):
                offsets[k, d] = <floating>(
                    <double>models[k, d] * scale - <double>reference[d]
                )
            for d in range(n_features):
                value = offsets[k, d]
                terms[d] = value * value
            squares[k] = sum_in_lanes(&terms[0], n_features)


def squared_distances(
    const floating[:, ::1] products,
    const double[::1] squares,
    const long long[::1] ids,
    stored[:, ::1] distances,
):
    """Write |x_i|^2 + |x_k|^2 - 2 x_i . x_k into distances[i, k], never below 0."""
    cdef Py_ssize_t n_rows = products.shape[0], n_clients = products.shape[1], i, k
    cdef double own, distance
    with nogil:
        for i in range(n_rows):
            own = squares[ids[i]]
            for k in range(n_clients):
                distance = (own + squares[k]) - 2.0 * <double>products[i, k]
                distances[i, k] = <stored>(distance if distance > 0.0 else 0.0)
            distances[i, ids[i]] = 0.0


def manhattan_rows(
    const floating[:, ::1] rows, const floating[:, ::1] models, stored[:, ::1] distances
):
    """Write ||rows_i - models_k||_1 into distances[i, k]."""
    cdef Py_ssize_t n_rows = rows.shape[0], n_features = rows.shape[1], i, k, d
    cdef double[::1] terms = np.empty(n_features)
    with nogil:
        for i in range(n_rows):
            for k in range(models.shape[0]):
                for d in range(n_features):
                    terms[d] = fabs(<double>rows[i, d] - <double>models[k, d])
                distances[i, k] = <stored>sum_in_lanes(&terms[0], n_features)


def normalise_rows(
    const stored[:, ::1] affinity,
    const double[::1] inverse_root,
    const double[::1] lead,
    Py_ssize_t start,
    Py_ssize_t stop,
    floating[:, ::1] out,
):
    """Write rows start .. stop - 1 of S A S - lead lead^T into out, in one pass."""
    cdef Py_ssize_t i, j
    cdef double scale, weight
    with nogil:
        for i in range(start, stop):
            scale = inverse_root[i]
            weight = lead[i]
            for j in range(affinity.shape[1]):
                out[i, j] = <floating>(
                    <double>affinity[i, j] * (scale * inverse_root[j]) - weight * lead[j]
                )
