"""Cython twin of ``cvrcore/kernels/facility.py``: same names, same arithmetic, same bits."""

import numpy as np

from libc.math cimport INFINITY

cdef enum:
    BLOCK = 512


cdef double _assignment_cost(
    const float* row, const float* nearest, Py_ssize_t n, float* terms
) noexcept nogil:
    """Return the sum over clients of min(row, nearest); `terms`: BLOCK numbers of scratch."""
    cdef Py_ssize_t n_blocks = n // BLOCK, block, half, i
    cdef const float* here
    cdef const float* there
    cdef double total = 0.0
    for block in range(n_blocks):
        here, there = row + block * BLOCK, nearest + block * BLOCK
        for i in range(BLOCK):
            terms[i] = here[i] if here[i] < there[i] else there[i]
        half = BLOCK // 2
        while half >= 16:
            for i in range(half):
                terms[i] += terms[half + i]
            half //= 2
        for i in range(16):
            total += terms[i]
    for i in range(n_blocks * BLOCK, n):
        total += row[i] if row[i] < nearest[i] else nearest[i]
    return total


cdef void _sift_down(long long[::1] heap, double[::1] costs, Py_ssize_t place) noexcept nogil:
    """Move the candidate at `place` down until its cost is at most those of its children."""
    cdef long long moved = heap[place]
    cdef Py_ssize_t child, n = heap.shape[0]
    while True:
        child = 2 * place + 1
        if child >= n:
            break
        if child + 1 < n and costs[heap[child + 1]] < costs[heap[child]]:
            child += 1
        if costs[heap[child]] >= costs[moved]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = moved


def assignment_costs(
    const float[:, ::1] distances,
    const float[::1] nearest,
    const long long[::1] candidates,
    double[::1] costs,
    Py_ssize_t start,
    Py_ssize_t stop,
):
    """Write the cost of adding each of candidates[start:stop] to the chosen clients."""
    cdef Py_ssize_t c, n = nearest.shape[0]
    cdef float terms[BLOCK]
    with nogil:
        for c in range(start, stop):
            costs[c] = _assignment_cost(&distances[candidates[c], 0], &nearest[0], n, terms)


def lazy_greedy(
    const float[:, ::1] distances,
    float[::1] nearest,
    const long long[::1] candidates,
    double[::1] costs,
    long long[::1] fresh,
    long long[::1] picked,
    Py_ssize_t n_picked,
):
    """Add clients one by one, each the one that lowers the total cost most; lazy greedy."""
    cdef Py_ssize_t n = nearest.shape[0], n_candidates = candidates.shape[0]
    cdef Py_ssize_t k, c, p, place, evaluated = 0
    cdef long long best
    cdef double total = 0.0
    cdef const float* row
    cdef float terms[BLOCK]
    cdef long long[::1] heap = np.arange(n_candidates, dtype=np.int64)
    with nogil:
        for k in range(n):
            total += nearest[k]
        for c in range(n_candidates):
            costs[c] -= total  # minus the gain
            fresh[c] = n_picked
        for p in range(n_picked):
            costs[picked[p]] = INFINITY
        for place in range(n_candidates // 2 - 1, -1, -1):
            _sift_down(heap, costs, place)
        for p in range(n_picked, picked.shape[0]):
            while fresh[heap[0]] != p:
                best = heap[0]
                row = &distances[candidates[best], 0]
                costs[best] = _assignment_cost(row, &nearest[0], n, terms) - total
                fresh[best] = p
                evaluated += 1
                _sift_down(heap, costs, 0)
            best = heap[0]
            picked[p] = best
            costs[best] = INFINITY
            _sift_down(heap, costs, 0)
            row = &distances[candidates[best], 0]
            total = 0.0
            for k in range(n):
                nearest[k] = row[k] if row[k] < nearest[k] else nearest[k]
                total += nearest[k]
    return evaluated
