"""Cython twin of ``cvrcore/_draws.py``: same names, same arithmetic."""

from libc.math cimport INFINITY, log1p

cdef extern from "_exponential.h":
    void exponentials(double*, Py_ssize_t, double) nogil


cdef enum:
    FEW = 64  # clients whose exponentials are taken together


def law_tops(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    const double[::1] scores,
    Py_ssize_t start,
    Py_ssize_t stop,
    long long[::1] sizes,
    double[::1] tops,
):
    """Count kept clients of each coalition, and find their largest score."""
    cdef Py_ssize_t k, p
    with nogil:
        for p in range(sizes.shape[0]):
            sizes[p], tops[p] = 0, -INFINITY
        for k in range(start, stop):
            if kept[k]:
                p = labels[k]
                sizes[p] += 1
                tops[p] = max(tops[p], scores[k])


def law_weights(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    const double[::1] scores,
    const double[::1] tops,
    double temperature,
    Py_ssize_t start,
    Py_ssize_t stop,
    double[::1] totals,
    double[::1] law,
):
    """Write exp((v_k - top) / temperature) of kept clients into law, Eq. (11), and sum it."""
    cdef Py_ssize_t k, p, base = start, end
    cdef double below, least = -800.0 * temperature
    with nogil:
        for p in range(totals.shape[0]):
            totals[p] = 0.0
        while base < stop:
            end = min(base + FEW, stop)
            for k in range(base, end):
                below = scores[k] - tops[labels[k]] if kept[k] else -INFINITY
                law[k] = below / temperature if below > least else -INFINITY
            exponentials(&law[base], end - base, 1.0)
            for k in range(base, end):
                if kept[k]:
                    totals[labels[k]] += law[k]
            base = end


def law_shares(
    const long long[::1] labels,
    const double[::1] totals,
    Py_ssize_t start,
    Py_ssize_t stop,
    double[::1] law,
):
    """Divide law by the sum over each coalition, totals."""
    cdef Py_ssize_t k
    with nogil:
        for k in range(start, stop):
            if law[k] > 0.0:
                law[k] /= totals[labels[k]]


def draw_one_each(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    const double[::1] law,
    const double[::1] uniforms,
    Py_ssize_t start,
    Py_ssize_t stop,
    long long[::1] places,
    double[::1] times,
    long long[::1] picked,
):
    """Draw one kept client of each coalition by law: the least of exponential times."""
    cdef Py_ssize_t k, p
    cdef double u, time
    with nogil:
        for p in range(places.shape[0]):
            times[p], picked[p] = INFINITY, -1
        for k in range(start, stop):
            if not kept[k]:
                continue
            p = labels[k]
            u = uniforms[places[p]]
            places[p] += 1
            if law[k] > 0.0 and u < times[p] * law[k]:
                time = -log1p(-u) / law[k]
                if time < times[p]:
                    times[p], picked[p] = time, k
