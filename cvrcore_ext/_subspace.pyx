"""Cython twin of ``cvrcore/_subspace.py``: same names, same arithmetic, same bits."""

from libc.math cimport sqrt
from libc.stdlib cimport calloc, free, malloc

cdef extern from "_multiply.h":
    void multiply_rows(const float*, const float*, Py_ssize_t, Py_ssize_t, float*) nogil


def multiply(const float[:, ::1] matrix, const float[:, ::1] block, float[:, ::1] product):
    """Write matrix @ block into product, in float32."""
    with nogil:
        multiply_rows(
            &matrix[0, 0], &block[0, 0], block.shape[0], block.shape[1], &product[0, 0]
        )


def filter_block(
    const float[:, ::1] matrix,
    const float[:, ::1] vectors,
    const float[:, ::1] image,
    double half,
    double largest,
    Py_ssize_t degree,
    float[:, ::1] out,
    float[:, ::1] spare,
):
    """Apply the scaled Chebyshev polynomial of [0, 2 half]; image is the first product."""
    cdef Py_ssize_t n_clients = vectors.shape[0], n = vectors.shape[1], size = n_clients * n
    cdef Py_ssize_t i, turn
    cdef double first = half / (largest - half), sigma = first, following
    cdef float shift = <float>half, scale = <float>(first / half), mix, step
    cdef const float* start = &vectors[0, 0]
    cdef const float* begin = &image[0, 0]
    cdef float* before = &spare[0, 0]
    cdef float* now = &out[0, 0]
    cdef float* after = <float*>malloc(size * sizeof(float))
    if after == NULL:
        raise MemoryError("no memory to filter vectors in")
    with nogil:
        for i in range(size):
            before[i] = start[i]
            now[i] = (begin[i] - shift * start[i]) * scale
        for turn in range(degree - 1):
            following = 1.0 / (2.0 / first - sigma)
            scale = <float>(2.0 * following / half)
            mix = <float>(sigma * following)
            multiply_rows(&matrix[0, 0], now, n_clients, n, after)
            for i in range(size):
                step = (after[i] - shift * now[i]) * scale
                after[i] = step - mix * before[i]
            for i in range(size):
                before[i] = now[i]
                now[i] = after[i]
            sigma = following
        free(after)


def project(
    const float[:, ::1] block,
    const float[:, ::1] image,
    double[:, ::1] inverse,
    double[:, ::1] reduced,
):
    """Write inverse = L^-1 and reduced = L^-1 (block^T image) L^-T; False if ill-posed."""
    cdef Py_ssize_t n_clients = block.shape[0], n = block.shape[1], i, a, b, c, row
    cdef double left, total, square, pivot, factor
    cdef bint fine = True
    cdef double* lower = <double*>calloc(2 * n * n, sizeof(double))
    if lower == NULL:
        raise MemoryError("no memory to project a block in")
    cdef double* middle = lower + n * n
    with nogil:
        for i in range(n_clients):
            for a in range(n):
                left = block[i, a]
                for b in range(n):
                    lower[a * n + b] += left * <double>block[i, b]
                for b in range(n):
                    middle[a * n + b] += left * <double>image[i, b]
        for a in range(n):
            square = lower[a * n + a]
            for c in range(a):
                square -= lower[a * n + c] * lower[a * n + c]
            if not square > max(1e-10 * lower[a * n + a], 1e-30):
                fine = False
                break
            pivot = sqrt(square)
            for b in range(a + 1, n):
                total = lower[b * n + a]
                for c in range(a):
                    total -= lower[a * n + c] * lower[b * n + c]
                lower[b * n + a] = total / pivot
            lower[a * n + a] = pivot
        if fine:
            for a in range(n):
                for b in range(n):
                    inverse[a, b] = 0.0
                inverse[a, a] = 1.0
                for c in range(a):
                    factor = lower[a * n + c]
                    for b in range(c + 1):
                        inverse[a, b] -= factor * inverse[c, b]
                for b in range(a + 1):
                    inverse[a, b] /= lower[a * n + a]
            for row in range(n - 1, -1, -1):
                for b in range(n):
                    reduced[row, b] = 0.0
                for c in range(row + 1):
                    for b in range(n):
                        reduced[row, b] += inverse[row, c] * middle[c * n + b]
                for b in range(n):
                    middle[row * n + b] = reduced[row, b]
            for a in range(n):
                for b in range(n):
                    total = 0.0
                    for c in range(b + 1):
                        total += middle[a * n + c] * inverse[b, c]
                    reduced[a, b] = total
        free(lower)
    return fine


def rotate(
    const float[:, ::1] block,
    const float[:, ::1] image,
    const float[:, ::1] turn,
    const float[::1] values,
    Py_ssize_t n_wanted,
    float[:, ::1] vectors,
    float[:, ::1] images,
):
    """Write block @ turn and image @ turn; return the largest squared residual."""
    cdef Py_ssize_t n_clients = block.shape[0], n = block.shape[1], i, a, c
    cdef double residual, worst = 0.0
    cdef float left, right
    cdef float* one
    cdef float* two
    cdef const float* row
    cdef double* squares = <double*>calloc(n, sizeof(double))
    if squares == NULL:
        raise MemoryError("no memory to rotate a block in")
    with nogil:
        for i in range(n_clients):
            one, two = &vectors[i, 0], &images[i, 0]
            for c in range(n):
                one[c] = 0.0
                two[c] = 0.0
            for a in range(n):
                left, right = block[i, a], image[i, a]
                row = &turn[a, 0]
                for c in range(n):
                    one[c] += left * row[c]
                for c in range(n):
                    two[c] += right * row[c]
            for c in range(n):
                residual = <double>(two[c] - values[c] * one[c])
                squares[c] += residual * residual
        for c in range(n_wanted):
            worst = max(worst, squares[c])
        free(squares)
    return worst
