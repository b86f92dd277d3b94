"""Cython twin of ``cvrcore/_covariance.py``: same names, same arithmetic, same bits."""

from cython cimport floating
from libc.math cimport sqrt
from libc.stdlib cimport free, malloc

cdef extern from "_history.h":
    void fetch(const void*, size_t) nogil
    void add_f64(
        const double*, const double*, const double*, const double*, const double*, Py_ssize_t,
        Py_ssize_t, double*,
    ) nogil
    void add_f32(
        const float*, const float*, const float*, const float*, const float*, Py_ssize_t,
        Py_ssize_t, double*,
    ) nogil

cdef extern from "_fold.h":
    enum: LANES
    void fold_f64(double*, const double*, Py_ssize_t, Py_ssize_t) nogil
    void fold_f32(float*, const double*, Py_ssize_t, Py_ssize_t) nogil


def add_history(
    const floating[:, :, ::1] history,
    Py_ssize_t n_stored,
    const long long[::1] clients,
    const long long[::1] others,
    const long long[::1] begin,
    double[:, ::1] entries,
):
    """Add sum_s r_s[k] r_s[j] to entries[i], k and j the i-th pair, s in order."""
    cdef Py_ssize_t n_features = entries.shape[1], n_asked = clients.shape[0]
    cdef Py_ssize_t asked, k, j, following, step
    with nogil:
        for asked in range(n_asked):
            k, j, step = clients[asked], others[asked], max(begin[asked], 0)
            if step >= n_stored:
                continue
            following = clients[min(asked + 1, n_asked - 1)]
            if floating is double:
                add_f64(
                    &history[k, step, 0], &history[j, step, 0], &history[following, step, 0],
                    NULL, NULL, n_stored - step, n_features, &entries[asked, 0],
                )
            else:
                add_f32(
                    &history[k, step, 0], &history[j, step, 0], &history[following, step, 0],
                    NULL, NULL, n_stored - step, n_features, &entries[asked, 0],
                )


def read_base(
    const floating[:, :, ::1] base,
    const long long[::1] clients,
    const long long[::1] others,
    double[:, ::1] entries,
):
    """Copy the dense part of C_kj into entries[i], k and j the i-th pair."""
    cdef Py_ssize_t n_features = entries.shape[1], asked, k, j, row, block, width, d
    with nogil:
        for asked in range(clients.shape[0]):
            k, j = clients[asked], others[asked]
            row = k * (k + 1) // 2 + j if k >= j else j * (j + 1) // 2 + k
            for block in range(base.shape[0]):
                width = min(LANES, n_features - block * LANES)
                for d in range(width):
                    entries[asked, block * LANES + d] = base[block, row, d]


def fold_history(
    floating[:, :, ::1] base,
    const floating[:, :, ::1] history,
    Py_ssize_t n_stored,
    Py_ssize_t start,
    Py_ssize_t stop,
):
    """Add all stored outer products to blocks start .. stop - 1 of the packed base."""
    cdef Py_ssize_t n_clients = history.shape[0], n_features = history.shape[2]
    cdef Py_ssize_t block, k, step, d, width
    # One line of cache more than is used: a run that begins on a line is read twice as fast.
    cdef void* room = malloc((n_clients * n_stored + 1) * LANES * sizeof(double))
    if room == NULL:
        raise MemoryError("no memory to fold residuals in")
    cdef double* packed = <double*>((<size_t>room + 63) & ~<size_t>63)
    cdef double* out
    with nogil:
        for block in range(start, stop):
            out, width = packed, min(LANES, n_features - block * LANES)
            for k in range(n_clients):
                for step in range(n_stored):
                    for d in range(width):
                        out[d] = history[k, step, block * LANES + d]
                    for d in range(width, LANES):
                        out[d] = 0.0
                    out += LANES
            if floating is double:
                fold_f64(&base[block, 0, 0], packed, n_clients, n_stored)
            else:
                fold_f32(&base[block, 0, 0], packed, n_clients, n_stored)
        free(room)


cdef void _add_sums(
    const floating* residual, Py_ssize_t n_features, double share, double* projection,
    double* squares,
) noexcept nogil:
    cdef Py_ssize_t d
    cdef double value
    for d in range(n_features):
        value = residual[d]
        projection[d] += share * value
        squares[d] += value * value


def regression_residual(
    double start,
    double[:, ::1] entries,
    const floating[:, :, ::1] past,
    Py_ssize_t n_past,
    const long long[::1] begin,
    double scale,
    const floating[:, ::1] diagonal,
    const double[::1] floor,
    const floating[:, ::1] rows,
    const long long[::1] clients,
    const long long[::1] others,
    double weight,
    floating[:, :, ::1] history,
    Py_ssize_t slot,
    const double[::1] alpha,
    double[::1] projection,
    double[::1] squares,
):
    """Write weight (theta_k - c_k theta_j) into history[k, slot], Eq. (13); add its sums."""
    cdef Py_ssize_t n_features = rows.shape[1], n_asked = clients.shape[0]
    cdef Py_ssize_t asked, k, j, d, step, following, beyond, known = -1
    cdef size_t n_bytes = n_features * sizeof(floating)
    cdef bint fresh = entries.shape[0] == 0
    cdef double variance, bound, entry, delta
    cdef floating* out
    cdef double* inverse = <double*>malloc(2 * n_features * sizeof(double))
    cdef double* sums = inverse + n_features
    if inverse == NULL:
        raise MemoryError("no memory to predict clients in")
    with nogil:
        for asked in range(n_asked):
            k, j, step = clients[asked], others[asked], max(begin[asked], 0)
            following = clients[min(asked + 1, n_asked - 1)]
            if fresh:
                for d in range(n_features):
                    sums[d] = start
            else:
                sums = &entries[asked, 0]
            if step < n_past:
                if floating is double:
                    add_f64(
                        &past[k, step, 0], &past[j, step, 0], &past[following, step, 0],
                        &rows[following, 0], &diagonal[following, 0], n_past - step, n_features,
                        sums,
                    )
                else:
                    add_f32(
                        &past[k, step, 0], &past[j, step, 0], &past[following, step, 0],
                        &rows[following, 0], &diagonal[following, 0], n_past - step, n_features,
                        sums,
                    )
            else:
                fetch(&rows[following, 0], n_bytes)
                fetch(&diagonal[following, 0], n_bytes)
            if j != known:
                known = j
                for d in range(n_features):
                    variance = diagonal[j, d]
                    inverse[d] = 1.0 / variance if variance > floor[d] else 0.0
            out = &history[k, slot, 0]
            beyond = 0
            for d in range(n_features):
                entry = scale * sums[d]
                beyond += entry * entry > <double>diagonal[k, d] * <double>diagonal[j, d]
                delta = <double>rows[k, d] - (entry * inverse[d]) * <double>rows[j, d]
                out[d] = <floating>(weight * delta)
            if beyond > 0:
                for d in range(n_features):
                    bound = sqrt(<double>diagonal[k, d] * <double>diagonal[j, d])
                    entry = scale * sums[d]
                    entry = -bound if entry < -bound else entry
                    entry = bound if entry > bound else entry
                    delta = <double>rows[k, d] - (entry * inverse[d]) * <double>rows[j, d]
                    out[d] = <floating>(weight * delta)
            _add_sums(out, n_features, alpha[k], &projection[0], &squares[0])
        free(inverse)


def scaled_residual(
    const double[::1] coefficients,
    const floating[:, ::1] rows,
    const long long[::1] clients,
    const long long[::1] others,
    double weight,
    floating[:, :, ::1] history,
    Py_ssize_t slot,
    const double[::1] alpha,
    double[::1] projection,
    double[::1] squares,
):
    """Write weight (theta_k - c_k theta_j) into history[k, slot], c_k a scalar; add its sums."""
    cdef Py_ssize_t n_features = rows.shape[1], asked, k, j, d
    cdef double delta
    cdef floating* out
    with nogil:
        for asked in range(clients.shape[0]):
            k, j = clients[asked], others[asked]
            out = &history[k, slot, 0]
            for d in range(n_features):
                delta = <double>rows[k, d] - coefficients[asked] * <double>rows[j, d]
                out[d] = <floating>(weight * delta)
            _add_sums(out, n_features, alpha[k], &projection[0], &squares[0])
