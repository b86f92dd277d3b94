"""Cython twin of ``cvrcore/kernels/draws.py``: same names, same arithmetic."""

import numpy as np

from libc.math cimport INFINITY, log1p

def sort_by_label(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    long long[::1] order,
    long long[::1] starts,
    long long[::1] sizes,
):
    """Write ids of kept clients into order by label, then id; return how many: counting sort."""
    cdef Py_ssize_t n_clients = labels.shape[0], n_labels = sizes.shape[0], client, label
    cdef long long total = 0
    with nogil:
        for label in range(n_labels):
            sizes[label] = 0
        for client in range(n_clients):
            if kept[client]:
                sizes[labels[client]] += 1
        for label in range(n_labels):
            starts[label] = total
            total += sizes[label]
        for client in range(n_clients):
            if kept[client]:
                order[starts[labels[client]]] = client
                starts[labels[client]] += 1
        for label in range(n_labels):
            starts[label] -= sizes[label]
    return total


def law_tops(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    const double[::1] scores,
    long long[::1] sizes,
    double[::1] tops,
):
    """Count kept clients of each coalition, and find their largest score."""
    cdef Py_ssize_t k, p
    with nogil:
        for p in range(sizes.shape[0]):
            sizes[p], tops[p] = 0, -INFINITY
        for k in range(labels.shape[0]):
            if kept[k]:
                p = labels[k]
                sizes[p] += 1
                tops[p] = max(tops[p], scores[k])


def draw_one_each(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    const double[::1] law,
    const double[::1] uniforms,
    long long[::1] places,
    long long[::1] picked,
):
    """Draw one kept client of each coalition by law: the least exponential arrival time."""
    cdef Py_ssize_t k, p
    cdef double u, time
    cdef double[::1] times = np.full(places.shape[0], INFINITY)
    with nogil:
        for p in range(places.shape[0]):
            picked[p] = -1
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
