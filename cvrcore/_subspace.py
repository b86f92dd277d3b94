"""Kernels of the warm-started eigensolver for few clients; Cython twin: ``_subspace.pyx``.

At K = 100 a product takes microseconds and calling it as long again: here a whole filter is
one call. Larger problems go through BLAS, in `cvrcore.spectral`. Blocks are float32 of
shape (n_clients, n_vectors); sums of float64 run over clients in order.
"""

import numpy as np

from ._jit import njit

MOST_SWEEPS = 20  # of Jacobi: never reached


@njit
def _multiply(matrix, block, product):
    """Write ``matrix @ block`` into `product`, in float32."""
    n_rows, n_vectors = product.shape
    for i in range(n_rows):
        for c in range(n_vectors):
            product[i, c] = np.float32(0.0)
        for k in range(block.shape[0]):
            entry = matrix[i, k]
            for c in range(n_vectors):
                product[i, c] += entry * block[k, c]


@njit
def filter_block(matrix, vectors, half, largest, degree, out, image):
    """Apply the scaled Chebyshev polynomial of [0, 2 half] in the matrix to a block.

    ``T_{n+1}(x) = 2 x T_n(x) - T_{n-1}(x)``, scaled to stay near 1 at `largest`.

    Parameters
    ----------
    matrix : float32 array of shape (n_clients, n_clients)
    vectors : float32 array of shape (n_clients, n_vectors)
    half, largest : float
    degree : int
    out, image : float32 arrays like `vectors`
        The result, and its product with the matrix.
    """
    n_clients, n_vectors = vectors.shape
    first = half / (largest - half)
    sigma = first
    shift, scale = np.float32(half), np.float32(first / half)
    before, now = np.empty_like(vectors), out
    _multiply(matrix, vectors, image)
    for i in range(n_clients):
        for c in range(n_vectors):
            before[i, c] = vectors[i, c]
            now[i, c] = (image[i, c] - shift * vectors[i, c]) * scale
    for _ in range(degree - 1):
        following = 1.0 / (2.0 / first - sigma)
        scale = np.float32(2.0 * following / half)
        mix = np.float32(sigma * following)
        _multiply(matrix, now, image)
        for i in range(n_clients):
            for c in range(n_vectors):
                step = (image[i, c] - shift * now[i, c]) * scale
                step -= mix * before[i, c]
                before[i, c] = now[i, c]
                now[i, c] = step
        sigma = following
    _multiply(matrix, now, image)


@njit
def project(block, image, inverse, reduced):
    """Write ``inverse = L^-1`` and ``reduced = L^-1 (block^T image) L^-T``.

    ``L L^T = block^T block`` (Cholesky). Returns False, and writes nothing of use, where
    columns are so parallel that float32 would tell.
    """
    n_clients, n = block.shape
    lower = np.zeros((n, n))
    middle = np.zeros((n, n))
    for i in range(n_clients):
        for a in range(n):
            left = np.float64(block[i, a])
            for b in range(n):
                lower[a, b] += left * np.float64(block[i, b])
            for b in range(n):
                middle[a, b] += left * np.float64(image[i, b])
    for a in range(n):
        square = lower[a, a]
        for c in range(a):
            square -= lower[a, c] * lower[a, c]
        if not square > max(1e-10 * lower[a, a], 1e-30):
            return False
        pivot = np.sqrt(square)
        for b in range(a + 1, n):
            total = lower[b, a]
            for c in range(a):
                total -= lower[a, c] * lower[b, c]
            lower[b, a] = total / pivot
        lower[a, a] = pivot
    for a in range(n):
        for b in range(n):
            inverse[a, b] = 0.0
        inverse[a, a] = 1.0
        for c in range(a):
            factor = lower[a, c]
            for b in range(c + 1):
                inverse[a, b] -= factor * inverse[c, b]
        for b in range(a + 1):
            inverse[a, b] /= lower[a, a]
    for a in range(n):  # middle <- inverse @ middle, from the last row up: in place
        row = n - 1 - a
        for b in range(n):
            total = 0.0
            for c in range(row + 1):
                total += inverse[row, c] * middle[c, b]
            middle[row, b] = total
    for a in range(n):
        for b in range(a + 1):
            total = 0.0
            for c in range(b + 1):
                total += middle[a, c] * inverse[b, c]
            reduced[a, b] = total
            reduced[b, a] = total
    return True


@njit
def diagonalise(matrix, rows):
    """Turn a symmetric matrix diagonal in place, by Jacobi's rotations; `rows` hold vectors.

    A warm start leaves the matrix nearly diagonal, where two or three sweeps do: less time
    than calling LAPACK takes.
    """
    n = matrix.shape[0]
    for a in range(n):
        for b in range(n):
            rows[a, b] = 0.0
        rows[a, a] = 1.0
    for _ in range(MOST_SWEEPS):
        inside, outside = 0.0, 0.0
        for a in range(n):
            inside += matrix[a, a] * matrix[a, a]
            for b in range(a):
                outside += matrix[a, b] * matrix[a, b]
        if not outside > 1e-18 * inside:  # digits enough for vectors of float32
            return
        for a in range(1, n):
            for b in range(a):
                entry = matrix[a, b]
                if entry * entry <= 1e-24 * inside:
                    continue
                tilt = (matrix[a, a] - matrix[b, b]) / (2.0 * entry)
                tangent = 1.0 / (abs(tilt) + np.sqrt(tilt * tilt + 1.0))
                tangent = tangent if tilt >= 0.0 else -tangent
                cosine = 1.0 / np.sqrt(tangent * tangent + 1.0)
                sine = tangent * cosine
                upper = matrix[b, b] - tangent * entry
                lower = matrix[a, a] + tangent * entry
                for c in range(n):
                    one, two = matrix[b, c], matrix[a, c]
                    matrix[b, c] = cosine * one - sine * two
                    matrix[a, c] = sine * one + cosine * two
                for c in range(n):
                    matrix[c, b] = matrix[b, c]
                    matrix[c, a] = matrix[a, c]
                matrix[b, b], matrix[a, a] = upper, lower
                matrix[a, b] = matrix[b, a] = 0.0
                for c in range(n):
                    one, two = rows[b, c], rows[a, c]
                    rows[b, c] = cosine * one - sine * two
                    rows[a, c] = sine * one + cosine * two


@njit
def ritz(block, image, n_wanted, vectors, images, values):
    """Write the Ritz vectors of a block's span, their images and values, largest first.

    Returns the largest squared residual ``|image_c - values_c vector_c|^2`` of the first
    `n_wanted`, or -1 where columns are so parallel that float32 would tell.

    Parameters
    ----------
    block, image, vectors, images : float32 arrays of shape (n_clients, n_vectors)
        `image` is the product of the matrix with `block`.
    n_wanted : int
    values : float64 array of shape (n_vectors,)
    """
    n_clients, n = block.shape
    inverse, reduced, rows = np.empty((n, n)), np.empty((n, n)), np.empty((n, n))
    if not project(block, image, inverse, reduced):
        return -1.0
    diagonalise(reduced, rows)
    turn = np.empty((n, n), dtype=np.float32)
    narrow = np.empty(n, dtype=np.float32)
    for c in range(n):
        best = 0
        for b in range(n):
            if reduced[b, b] > reduced[best, best]:
                best = b
        values[c] = reduced[best, best]
        narrow[c] = values[c]
        reduced[best, best] = -np.inf
        for a in range(n):
            total = 0.0
            for b in range(a, n):
                total += inverse[b, a] * rows[best, b]
            turn[a, c] = total
    _multiply(block, turn, vectors)
    _multiply(image, turn, images)
    squares = np.zeros(n)
    for i in range(n_clients):
        for c in range(n):
            residual = np.float64(images[i, c] - narrow[c] * vectors[i, c])
            squares[c] += residual * residual
    worst = 0.0
    for c in range(n_wanted):
        worst = max(worst, squares[c])
    return worst
