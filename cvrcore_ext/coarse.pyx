"""Cython twin of ``cvrcore/kernels/coarse.py``: same names, same arithmetic, same bits."""

import numpy as np

from libc.math cimport INFINITY, sqrtf
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    BLOCK = 512
    TILE = 64


def coarse_rows(
    const float[:, ::1] products,
    const float[::1] own,
    const float[::1] squares,
    const uint8_t[::1] seen,
    uint16_t[:, ::1] rows,
):
    """Write the distances of some clients from all, as bfloat16."""
    cdef Py_ssize_t m = products.shape[0], n = products.shape[1], b, k
    cdef float far
    cdef uint32_t whole
    with nogil:
        for b in range(m):
            for k in range(n):
                far = own[b] + squares[k] - <float>2.0 * products[b, k]
                far = sqrtf(far if far > 0 else 0)
                memcpy(&whole, &far, sizeof(whole))
                whole = (whole + <uint32_t>0x7FFF + ((whole >> 16) & 1)) >> 16
                rows[b, k] = <uint16_t>whole if seen[k] else 0


def write_cross(
    uint16_t[:, ::1] distances, const long long[::1] clients, uint16_t[:, ::1] rows
):
    """Write rows, and the columns of the same clients, of a symmetric matrix."""
    cdef Py_ssize_t m = rows.shape[0], n = rows.shape[1], b, k, start, stop, column
    with nogil:
        for b in range(m):
            rows[b, clients[b]] = 0
            memcpy(&distances[clients[b], 0], &rows[b, 0], n * sizeof(uint16_t))
        start = 0
        while start < n:
            stop = min(start + TILE, n)
            for b in range(m):
                column = clients[b]
                for k in range(start, stop):
                    distances[k, column] = rows[b, k]
            start += TILE


cdef double _coarse_cost(
    const uint16_t* row, const uint16_t* nearest, Py_ssize_t n, uint32_t* bits, float* terms
) noexcept nogil:
    """Return the sum over clients of min(row, nearest); `bits`, `terms`: BLOCK each, scratch."""
    cdef Py_ssize_t start = 0, size, half, i
    cdef const uint16_t* here
    cdef const uint16_t* there
    cdef double total = 0.0
    while start < n:
        here, there, size = row + start, nearest + start, min(<Py_ssize_t>BLOCK, n - start)
        for i in range(size):
            bits[i] = <uint32_t>(here[i] if here[i] < there[i] else there[i]) << 16
        for i in range(size, BLOCK):
            bits[i] = 0
        memcpy(terms, bits, BLOCK * sizeof(float))
        half = BLOCK // 2
        while half >= 16:
            for i in range(half):
                terms[i] += terms[half + i]
            half //= 2
        for i in range(16):
            total += terms[i]
        start += BLOCK
    return total


def stochastic_greedy(
    const uint16_t[:, ::1] distances,
    uint16_t[::1] nearest,
    const long long[::1] candidates,
    const double[:, ::1] uniforms,
    long long[::1] picked,
):
    """Add clients one by one, each the best of a random part of the candidates that are left."""
    cdef Py_ssize_t n = nearest.shape[0], left = candidates.shape[0], p, t, j, k, at
    cdef long long kept
    cdef double best, cost
    cdef const uint16_t* row
    cdef uint32_t bits[BLOCK]
    cdef float terms[BLOCK]
    cdef long long[::1] order = np.arange(left, dtype=np.int64)
    with nogil:
        for p in range(picked.shape[0]):
            best, at = INFINITY, 0
            for t in range(min(uniforms.shape[1], left)):
                j = t + <Py_ssize_t>(uniforms[p, t] * (left - t))
                kept = order[t]
                order[t] = order[j]
                order[j] = kept
                row = &distances[candidates[order[t]], 0]
                cost = _coarse_cost(row, &nearest[0], n, bits, terms)
                if cost < best:
                    best, at = cost, t
            picked[p] = order[at]
            left -= 1
            kept = order[at]
            order[at] = order[left]
            order[left] = kept
            row = &distances[candidates[picked[p]], 0]
            for k in range(n):
                nearest[k] = nearest[k] if nearest[k] < row[k] else row[k]
