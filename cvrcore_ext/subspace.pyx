"""Cython twin of ``cvrcore/kernels/subspace.py``: same names, same arithmetic, same bits."""

from libc.math cimport INFINITY, fabs, sqrt
from libc.stdlib cimport free, malloc

cdef extern from "small_products.h":
    void multiply_rows(
        const float*, const float*, Py_ssize_t, Py_ssize_t, Py_ssize_t, float*
    ) nogil
    void inner_products(const float*, const float*, Py_ssize_t, Py_ssize_t, double*) nogil


def filter_block(
    const float[:, ::1] matrix,
    const float[:, ::1] vectors,
    double half,
    double largest,
    Py_ssize_t degree,
    float[:, ::1] out,
    float[:, ::1] image,
):
    """Apply the scaled Chebyshev polynomial of [0, 2 half] in the matrix to a block."""
    cdef Py_ssize_t n_clients = vectors.shape[0], n = vectors.shape[1], size = n_clients * n
    cdef Py_ssize_t i, turn
    cdef double first = half / (largest - half), sigma = first, following
    cdef float shift = <float>half, scale = <float>(first / half), mix, step
    cdef const float* entries = &matrix[0, 0]
    cdef const float* start = &vectors[0, 0]
    cdef float* now = &out[0, 0]
    cdef float* product = &image[0, 0]
    cdef float* before = <float*>malloc(size * sizeof(float))
    if before == NULL:
        raise MemoryError("no memory to filter vectors in")
    with nogil:
        multiply_rows(entries, start, n_clients, n_clients, n, product)
        for i in range(size):
            before[i] = start[i]
            now[i] = (product[i] - shift * start[i]) * scale
        for turn in range(degree - 1):
            following = 1.0 / (2.0 / first - sigma)
            scale = <float>(2.0 * following / half)
            mix = <float>(sigma * following)
            multiply_rows(entries, now, n_clients, n_clients, n, product)
            for i in range(size):
                step = (product[i] - shift * now[i]) * scale
                step -= mix * before[i]
                before[i] = now[i]
                now[i] = step
            sigma = following
        multiply_rows(entries, now, n_clients, n_clients, n, product)
        free(before)


cdef bint _project(
    const float[:, ::1] block, const float[:, ::1] image, double* lower, double* middle,
    double* inverse, double* reduced,
) noexcept nogil:
    cdef Py_ssize_t n_clients = block.shape[0], n = block.shape[1], a, b, c, row
    cdef double total, square, pivot, factor
    inner_products(&block[0, 0], &block[0, 0], n_clients, n, lower)
    inner_products(&block[0, 0], &image[0, 0], n_clients, n, middle)
    for a in range(n):
        square = lower[a * n + a]
        for c in range(a):
            square -= lower[a * n + c] * lower[a * n + c]
        if not square > max(1e-10 * lower[a * n + a], 1e-30):
            return False
        pivot = sqrt(square)
        for b in range(a + 1, n):
            total = lower[b * n + a]
            for c in range(a):
                total -= lower[a * n + c] * lower[b * n + c]
            lower[b * n + a] = total / pivot
        lower[a * n + a] = pivot
    for a in range(n):
        for b in range(n):
            inverse[a * n + b] = 0.0
        inverse[a * n + a] = 1.0
        for c in range(a):
            factor = lower[a * n + c]
            for b in range(c + 1):
                inverse[a * n + b] -= factor * inverse[c * n + b]
        for b in range(a + 1):
            inverse[a * n + b] /= lower[a * n + a]
    for row in range(n - 1, -1, -1):
        for b in range(n):
            reduced[row * n + b] = 0.0
        for c in range(row + 1):
            for b in range(n):
                reduced[row * n + b] += inverse[row * n + c] * middle[c * n + b]
        for b in range(n):
            middle[row * n + b] = reduced[row * n + b]
    for a in range(n):
        for b in range(a + 1):
            total = 0.0
            for c in range(b + 1):
                total += middle[a * n + c] * inverse[b * n + c]
            reduced[a * n + b] = total
            reduced[b * n + a] = total
    return True


cdef void _diagonalise(double* matrix, double* rows, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t a, b, c, sweep
    cdef double inside, outside, entry, tilt, tangent, cosine, sine, upper, lower, one, two
    cdef double* low
    cdef double* high
    for a in range(n):
        for b in range(n):
            rows[a * n + b] = 0.0
        rows[a * n + a] = 1.0
    for sweep in range(20):  # MOST_SWEEPS
        inside = 0.0
        outside = 0.0
        for a in range(n):
            inside += matrix[a * n + a] * matrix[a * n + a]
            for b in range(a):
                outside += matrix[a * n + b] * matrix[a * n + b]
        if not outside > 1e-18 * inside:
            return
        for a in range(1, n):
            for b in range(a):
                entry = matrix[a * n + b]
                if entry * entry <= 1e-24 * inside:
                    continue
                tilt = (matrix[a * n + a] - matrix[b * n + b]) / (2.0 * entry)
                tangent = 1.0 / (fabs(tilt) + sqrt(tilt * tilt + 1.0))
                tangent = tangent if tilt >= 0.0 else -tangent
                cosine = 1.0 / sqrt(tangent * tangent + 1.0)
                sine = tangent * cosine
                upper = matrix[b * n + b] - tangent * entry
                lower = matrix[a * n + a] + tangent * entry
                high, low = matrix + b * n, matrix + a * n
                for c in range(n):
                    one, two = high[c], low[c]
                    high[c] = cosine * one - sine * two
                    low[c] = sine * one + cosine * two
                for c in range(n):
                    matrix[c * n + b] = high[c]
                    matrix[c * n + a] = low[c]
                high[b] = upper
                low[a] = lower
                high[a] = 0.0
                low[b] = 0.0
                high, low = rows + b * n, rows + a * n
                for c in range(n):
                    one, two = high[c], low[c]
                    high[c] = cosine * one - sine * two
                    low[c] = sine * one + cosine * two


cdef double _rotate(
    const float[:, ::1] block, const float[:, ::1] image, const float* turn,
    const float* narrow, Py_ssize_t n_wanted, float[:, ::1] vectors, float[:, ::1] images,
    double* squares,
) noexcept nogil:
    cdef Py_ssize_t n_clients = block.shape[0], n = block.shape[1], i, c
    cdef double residual, worst = 0.0
    cdef const float* one = &vectors[0, 0]
    cdef const float* two = &images[0, 0]
    multiply_rows(&block[0, 0], turn, n_clients, n, n, &vectors[0, 0])
    multiply_rows(&image[0, 0], turn, n_clients, n, n, &images[0, 0])
    for c in range(n):
        squares[c] = 0.0
    for i in range(n_clients):
        for c in range(n):
            residual = <double>(two[c] - narrow[c] * one[c])
            squares[c] += residual * residual
        one += n
        two += n
    for c in range(n_wanted):
        worst = max(worst, squares[c])
    return worst


def ritz(
    const float[:, ::1] block,
    const float[:, ::1] image,
    Py_ssize_t n_wanted,
    float[:, ::1] vectors,
    float[:, ::1] images,
    double[::1] values,
):
    """Write the Ritz vectors of a block's span, their images and values; return the error."""
    cdef Py_ssize_t n = block.shape[1], a, b, c, best
    cdef double total, worst = -1.0
    cdef double* lower = <double*>malloc((5 * n * n + n) * sizeof(double))
    cdef float* turn = <float*>malloc((n * n + n) * sizeof(float))
    if lower == NULL or turn == NULL:
        free(lower)
        free(turn)
        raise MemoryError("no memory to turn a block in")
    cdef double* middle = lower + n * n
    cdef double* inverse = middle + n * n
    cdef double* reduced = inverse + n * n
    cdef double* rows = reduced + n * n
    cdef float* narrow = turn + n * n
    with nogil:
        if _project(block, image, lower, middle, inverse, reduced):
            _diagonalise(reduced, rows, n)
            for c in range(n):
                best = 0
                for b in range(n):
                    if reduced[b * n + b] > reduced[best * n + best]:
                        best = b
                values[c] = reduced[best * n + best]
                narrow[c] = <float>values[c]
                reduced[best * n + best] = -INFINITY
                for a in range(n):
                    total = 0.0
                    for b in range(a, n):
                        total += inverse[b * n + a] * rows[best * n + b]
                    turn[a * n + c] = <float>total
            worst = _rotate(block, image, turn, narrow, n_wanted, vectors, images, rows + n * n)
        free(lower)
        free(turn)
    return worst
