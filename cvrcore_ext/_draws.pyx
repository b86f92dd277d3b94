"""Cython twin of ``cvrcore/_draws.py``: same names, same arithmetic."""

import numpy as np

from libc.math cimport INFINITY, exp, log1p


def boltzmann_law(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    const double[::1] scores,
    double temperature,
    long long[::1] sizes,
    double[::1] law,
):
    """Write pi_p(k) ~ exp(v_k / temperature) of kept clients into law, Eq. (11)."""
    cdef Py_ssize_t n_labels = sizes.shape[0], k, p
    cdef double below, least = -800.0 * temperature
    cdef double[::1] tops = np.full(n_labels, -np.inf), totals = np.zeros(n_labels)
    with nogil:
        for p in range(n_labels):
            sizes[p] = 0
        for k in range(labels.shape[0]):
            if kept[k]:
                p = labels[k]
                sizes[p] += 1
                tops[p] = max(tops[p], scores[k])
        for k in range(labels.shape[0]):
            law[k] = 0.0
            if kept[k]:
                p = labels[k]
                below = scores[k] - tops[p]
                law[k] = exp(below / temperature) if below > least else 0.0
                totals[p] += law[k]
        for k in range(labels.shape[0]):
            if kept[k]:
                law[k] /= totals[labels[k]]


def draw_one_each(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    const double[::1] law,
    const double[::1] uniforms,
    const long long[::1] sizes,
    long long[::1] picked,
):
    """Draw one kept client of each coalition by law: the least of exponential times."""
    cdef Py_ssize_t n_labels = sizes.shape[0], k, p
    cdef long long total = 0
    cdef double u, time
    cdef double[::1] times = np.full(n_labels, INFINITY)
    cdef long long[::1] places = np.empty(n_labels, dtype=np.int64)
    with nogil:
        for p in range(n_labels):
            picked[p], places[p] = -1, total
            total += sizes[p]
        for k in range(labels.shape[0]):
            if not kept[k]:
                continue
            p = labels[k]
            u = uniforms[places[p]]
            places[p] += 1
            if law[k] > 0.0 and u < times[p] * law[k]:
                time = -log1p(-u) / law[k]
                if time < times[p]:
                    times[p], picked[p] = time, k
