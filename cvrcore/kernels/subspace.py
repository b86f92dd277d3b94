"""Warm-started eigensolver for few clients: blocks of vectors in, Ritz pairs out.

Cython twin: ``cvrcore_ext/subspace.pyx``. Larger problems go through BLAS, in
`cvrcore.clustering`: at K = 100 a call of BLAS takes as long as the product. Blocks are float32
of shape (n_clients, n_vectors); sums of float64 run over clients in order.

`filter_block` and `ritz` are plain Python and allocate all arrays: Numba compiles a helper again
inside each compiled caller, and allocation is slow to compile.
"""

import numpy as np

from .jit import njit

MOST_SWEEPS = 20  # of Jacobi: never reached


@njit
def _multiply(matrix, block, product):
    """Write ``matrix @ block`` into `product`, in float32."""
    n_rows, n_vectors = product.shape
    n_parts = block.shape[0] // 4
    for i in range(n_rows):
        for c in range(n_vectors):
            product[i, c] = 0.0
        for part in range(n_parts):  # four rows a pass: fewer loads and stores of `product`
            k = 4 * part
            one = matrix[i, k]
            two = matrix[i, k + 1]
            three = matrix[i, k + 2]
            four = matrix[i, k + 3]
            for c in range(n_vectors):
                total = product[i, c] + one * block[k, c]
                total += two * block[k + 1, c]
                total += three * block[k + 2, c]
                product[i, c] = total + four * block[k + 3, c]
        for k in range(4 * n_parts, block.shape[0]):
            one = matrix[i, k]
            for c in range(n_vectors):
                product[i, c] += one * block[k, c]


@njit
def _recur(image, shift, scale, mix, before, now):
    """Take one step of the Chebyshev recursion, in place: `before` <- `now` <- the next block."""
    n_clients, n_vectors = now.shape
    for i in range(n_clients):
        for c in range(n_vectors):
            step = (image[i, c] - shift * now[i, c]) * scale
            step -= mix * before[i, c]
            before[i, c] = now[i, c]
            now[i, c] = step


def filter_block(matrix, vectors, half, largest, degree, out, image):
    """Apply the scaled Chebyshev polynomial of [0, 2 half] in the matrix to a block.

    ``T_{n+1}(x) = 2 x T_n(x) - T_{n-1}(x)``, scaled to stay near 1 at `largest`.

    Parameters
    ----------
    matrix : float32 array of shape (n_clients, n_clients)
    vectors : float32 array of shape (n_clients, n_vectors)
    half, largest : float
    degree : int
        At least 1.
    out, image : float32 arrays like `vectors`
        The result, and its product with the matrix.
    """
    out[:] = vectors
    before = np.zeros_like(out)
    first = half / (largest - half)
    sigma = first
    shift, scale, mix = np.float32(half), np.float32(first / half), np.float32(0.0)
    _multiply(matrix, out, image)
    for _ in range(degree):
        _recur(image, shift, scale, mix, before, out)
        _multiply(matrix, out, image)
        following = 1.0 / (2.0 / first - sigma)
        scale, mix = np.float32(2.0 * following / half), np.float32(sigma * following)
        sigma = following


@njit
def _project(block, image, lower, middle, inverse, reduced):
    """Write ``inverse = L^-1`` and ``reduced = [L^-1 (block^T image) L^-T, 1]``.

    ``L L^T = block^T block`` (Cholesky). All four outputs come in as zeros. Returns False, and
    writes nothing of use, where columns are so parallel that float32 would tell.
    """
    n_clients, n = block.shape
    for i in range(n_clients):
        for a in range(n):
            left = np.float64(block[i, a])
            for b in range(n):
                lower[a, b] += left * block[i, b]
            for b in range(n):
                middle[a, b] += left * image[i, b]
    for a in range(n):
        square = lower[a, a]
        least = max(1e-10 * square, 1e-30)
        for c in range(a):
            square -= lower[a, c] * lower[a, c]
        if not square > least:
            return False
        pivot = np.sqrt(square)
        for b in range(a + 1, n):
            total = lower[b, a]
            for c in range(a):
                total -= lower[a, c] * lower[b, c]
            lower[b, a] = total / pivot
        lower[a, a] = pivot
    for a in range(n):
        inverse[a, a] = reduced[a, n + a] = 1.0
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
def _diagonalise(matrix):
    """Make a symmetric matrix diagonal in place, by Jacobi's rotations.

    ``matrix[:, :n]`` is that matrix. ``matrix[:, n:]`` is the identity, and its rows become the
    eigenvectors. A warm start leaves the matrix nearly diagonal, where two or three
    sweeps do: less time than calling LAPACK takes.
    """
    n = matrix.shape[0]
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
                upper, lower = matrix[b, b], matrix[a, a]
                tilt = (lower - upper) / (2.0 * entry)
                tangent = 1.0 / (abs(tilt) + np.sqrt(tilt * tilt + 1.0))
                tangent = tangent if tilt >= 0.0 else -tangent
                cosine = 1.0 / np.sqrt(tangent * tangent + 1.0)
                sine = tangent * cosine
                for c in range(2 * n):
                    one, two = matrix[b, c], matrix[a, c]
                    matrix[b, c] = cosine * one - sine * two
                    matrix[a, c] = sine * one + cosine * two
                for c in range(n):
                    matrix[c, b] = matrix[b, c]
                    matrix[c, a] = matrix[a, c]
                matrix[b, b] = upper - tangent * entry
                matrix[a, a] = lower + tangent * entry
                matrix[a, b] = matrix[b, a] = 0.0


@njit
def _sort_pairs(inverse, reduced, values, turn):
    """Write eigenvalues, largest first, and ``turn = L^-T`` times their vectors, by columns."""
    n = values.shape[0]
    for c in range(n):
        best = 0
        for b in range(n):
            if reduced[b, b] > reduced[best, best]:
                best = b
        values[c] = reduced[best, best]
        reduced[best, best] = -np.inf
        for a in range(n):
            total = 0.0
            for b in range(a, n):
                total += inverse[b, a] * reduced[best, n + b]
            turn[a, c] = total


@njit
def _worst_residual(vectors, images, values, n_wanted):
    """Return the largest ``|image_c - values_c vector_c|^2`` of the first columns."""
    worst = 0.0
    for c in range(n_wanted):
        value = np.float32(values[c])
        square = 0.0
        for i in range(vectors.shape[0]):
            residual = np.float64(images[i, c] - value * vectors[i, c])
            square += residual * residual
        if square > worst:
            worst = square
    return worst


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
    n = values.shape[0]
    lower, middle, inverse = np.zeros((3, n, n))
    reduced = np.zeros((n, 2 * n))
    if not _project(block, image, lower, middle, inverse, reduced):
        return -1.0
    _diagonalise(reduced)
    turn = np.empty((n, n), dtype=np.float32)
    _sort_pairs(inverse, reduced, values, turn)
    _multiply(block, turn, vectors)
    _multiply(image, turn, images)
    return _worst_residual(vectors, images, values, n_wanted)
