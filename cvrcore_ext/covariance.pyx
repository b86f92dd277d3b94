"""Cython twin of ``cvrcore/kernels/covariance.py``: same names, same arithmetic, same bits."""

import numpy as np

from cython cimport floating
from libc.stdlib cimport free, malloc

cdef extern from "residual_log.h":
    enum: STEPS
    void add_f64(
        const double*, Py_ssize_t, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t, double*
    ) nogil
    void add_f32(
        const float*, Py_ssize_t, const float*, Py_ssize_t, Py_ssize_t, Py_ssize_t, float*
    ) nogil

cdef extern from "predict.h":
    void predict_f64(
        const double*, double, const double*, const double*, const double*, const double*, double,
        Py_ssize_t, double*,
    ) nogil
    void predict_f32(
        const float*, float, const float*, const float*, const float*, const float*, float,
        Py_ssize_t, float*,
    ) nogil
    void sums_f64(
        const double**, const double*, Py_ssize_t, Py_ssize_t, double*, double*
    ) nogil
    void sums_f32(
        const float**, const double*, Py_ssize_t, Py_ssize_t, double*, double*
    ) nogil

cdef extern from "simd_sums.h":
    double sum_in_lanes(const double*, Py_ssize_t) nogil

cdef extern from "moments.h":
    double advance_f64(
        double*, double*, const double*, const double*, double, double, const double*, Py_ssize_t,
    ) nogil
    double advance_f32(
        float*, float*, const float*, const float*, float, float, const float*, Py_ssize_t,
    ) nogil


cdef enum:
    MOST = 160  # largest number of clients in a group
    SUMS = 16384  # sums of one group: they stay in cache


def pair_clients(
    const long long[::1] labels,
    const long long[::1] first,
    long long[::1] clients,
    long long[::1] groups,
):
    """Write each client that a representative predicts, and its coalition; return how many."""
    cdef Py_ssize_t client, n_found = 0
    cdef long long j
    with nogil:
        for client in range(labels.shape[0]):
            j = first[labels[client]]
            clients[n_found] = client
            groups[n_found] = labels[client]
            n_found += j >= 0 and j != client
    return n_found


def lookup_pairs(
    long long[:, ::1] held,
    long long[:, ::1] used,
    const long long[:, ::1] reached,
    const long long[::1] clients,
    const long long[::1] others,
    long long now,
    long long[::1] places,
    long long[::1] begin,
):
    """Find the place of each pair's sum in an LRU cache, and how many rounds the sum holds."""
    cdef Py_ssize_t n_places = held.shape[1], i, s, place, owner
    with nogil:
        for i in range(clients.shape[0]):
            owner, place = clients[i], -1
            for s in range(n_places):
                if held[owner, s] == others[i]:
                    place = s
            if place < 0:
                for s in range(n_places):
                    if held[others[i], s] == clients[i]:
                        owner, place = others[i], s
            begin[i] = reached[owner, place] if place >= 0 else 0
            if place < 0:
                place = 0
                for s in range(1, n_places):
                    if used[owner, s] < used[owner, place]:
                        place = s
            held[owner, place] = -1
            used[owner, place] = now
            places[i] = owner * n_places + place


cdef Py_ssize_t _group(Py_ssize_t n_features) noexcept nogil:
    """Return the number of clients in a group, which is processed residual by residual."""
    return max(1, min(MOST, SUMS // n_features))


cdef void _add_group(
    const floating[:, :, ::1] history, Py_ssize_t n_stored,
    const long long[::1] clients, const long long* others, const long long[::1] begin,
    Py_ssize_t start, Py_ssize_t stop, floating** sums,
) noexcept nogil:
    """Add r_s[k] r_s[j] of pairs start .. stop - 1; `others` and `sums` begin at pair start."""
    cdef Py_ssize_t n_features = history.shape[2], step = 0, at, stop_at, asked
    cdef Py_ssize_t stride = history.shape[1] * n_features
    cdef const floating* own
    cdef const floating* other
    cdef bint some = begin.shape[0] > 0
    while step < n_stored:
        stop_at = min(step + STEPS, n_stored)
        for asked in range(start, stop):
            at = max(step, begin[asked]) if some else step
            if at >= stop_at:
                continue
            own = &history[at, clients[asked], 0]
            other = &history[at, others[asked - start], 0]
            if floating is double:
                add_f64(own, stride, other, stride, stop_at - at, n_features, sums[asked - start])
            else:
                add_f32(own, stride, other, stride, stop_at - at, n_features, sums[asked - start])
        step = stop_at


def add_products(
    const floating[:, :, ::1] history,
    Py_ssize_t n_stored,
    const long long[::1] clients,
    const long long[::1] others,
    const long long[::1] begin,
    floating[:, ::1] entries,
    const long long[::1] places,
):
    """Add sum_s r_s[k] r_s[j] to the sum of each pair k, j, s in order."""
    cdef Py_ssize_t n_asked = clients.shape[0], group = _group(entries.shape[1]), start = 0
    cdef Py_ssize_t stop, asked
    cdef bint placed = places.shape[0] > 0
    cdef floating* sums[MOST]
    with nogil:
        while start < n_asked:
            stop = min(start + group, n_asked)
            for asked in range(start, stop):
                sums[asked - start] = &entries[places[asked] if placed else asked, 0]
            _add_group(
                history, n_stored, clients, &others[start], begin, start, stop, sums
            )
            start = stop



cdef void _add_sums(
    const floating* residual, Py_ssize_t n_features, double share, double* totals
) noexcept nogil:
    cdef Py_ssize_t d
    cdef double value
    for d in range(n_features):
        value = residual[d]
        totals[d] += share * value
        totals[n_features + d] += value * value


def regression_slopes(
    const floating[:, ::1] diagonal,
    const floating[:, ::1] rows,
    const long long[::1] first,
    const double[::1] floor,
    floating[:, ::1] slopes,
    floating[:, ::1] variances,
):
    """Write theta_j / C_jj and C_jj of each coalition's representative j, Eq. (13)."""
    cdef Py_ssize_t n_features = rows.shape[1], line, d, j
    cdef double variance, inverse
    with nogil:
        for line in range(first.shape[0]):
            j = first[line]
            if j < 0:
                continue
            for d in range(n_features):
                variance = diagonal[j, d]
                inverse = 1.0 / variance if variance > floor[d] else 0.0
                slopes[line, d] = <floating>(inverse * <double>rows[j, d])
                variances[line, d] = diagonal[j, d]


def regression_residual(task):
    """Write weight (theta_k - c_k theta_j) into target[place, k], Eq. (13); add its sums."""
    _regression_residual(*task)


def _regression_residual(
    double initial,
    floating[:, ::1] sums,
    const long long[::1] places,
    const floating[:, :, ::1] block,
    Py_ssize_t n_used,
    const long long[::1] begin,
    floating unit,
    const long long[::1] representatives,
    const floating[:, ::1] slopes,
    const floating[:, ::1] variances,
    const floating[:, ::1] diagonal,
    const floating[:, ::1] rows,
    const long long[::1] clients,
    const long long[::1] groups,
    floating[:, :, ::1] target,
    Py_ssize_t place,
    floating weight,
    const double[::1] alpha,
    double[:, ::1] totals,
):
    cdef Py_ssize_t n_features = rows.shape[1], n_pairs = clients.shape[0]
    cdef Py_ssize_t group = _group(n_features), base = 0, stop, i, k, p, d
    cdef bint fresh = sums.shape[0] == 0, placed = places.shape[0] > 0
    cdef long long[MOST] others
    cdef floating* own[MOST]
    cdef const floating* residuals[MOST]
    cdef double shares[MOST]
    cdef double* total = &totals[0, 0]
    cdef floating* room = <floating*>malloc(group * n_features * sizeof(floating))
    if room == NULL:
        raise MemoryError("no memory to predict clients in")
    with nogil:
        while base < n_pairs:
            stop = min(base + group, n_pairs)
            if fresh:
                for d in range(group * n_features):
                    room[d] = <floating>initial
            for i in range(base, stop):
                others[i - base] = representatives[groups[i]]
                if fresh:
                    own[i - base] = room + (i - base) * n_features
                else:
                    own[i - base] = &sums[places[i] if placed else i, 0]
            _add_group(block, n_used, clients, others, begin, base, stop, own)
            for i in range(base, stop):
                k, p = clients[i], groups[i]
                if floating is double:
                    predict_f64(
                        own[i - base], unit, &slopes[p, 0], &variances[p, 0],
                        &rows[k, 0], &diagonal[k, 0], weight, n_features, &target[place, k, 0],
                    )
                else:
                    predict_f32(
                        own[i - base], unit, &slopes[p, 0], &variances[p, 0],
                        &rows[k, 0], &diagonal[k, 0], weight, n_features, &target[place, k, 0],
                    )
                residuals[i - base] = &target[place, k, 0]
                shares[i - base] = alpha[k]
            if floating is double:
                sums_f64(residuals, shares, stop - base, n_features, total, total + n_features)
            else:
                sums_f32(residuals, shares, stop - base, n_features, total, total + n_features)
            base = stop
        free(room)


def scaled_residual(
    const double[::1] coefficients,
    const floating[:, ::1] rows,
    const long long[::1] clients,
    const long long[::1] others,
    double weight,
    floating[:, :, ::1] target,
    Py_ssize_t place,
    const double[::1] alpha,
    double[:, ::1] totals,
):
    """Write weight (theta_k - c_k theta_j) into target[place, k], c_k a scalar; add its sums."""
    cdef Py_ssize_t n_features = rows.shape[1], i, k, j, d
    cdef double delta
    cdef floating* out
    with nogil:
        for i in range(clients.shape[0]):
            k, j = clients[i], others[i]
            out = &target[place, k, 0]
            for d in range(n_features):
                delta = <double>rows[k, d] - coefficients[i] * <double>rows[j, d]
                out[d] = <floating>(weight * delta)
            _add_sums(out, n_features, alpha[k], &totals[0, 0])


def diagonal_floor(const floating[:, ::1] diagonal, double relative, double[::1] floor):
    """Write relative * mean_k C^d_kk for each coordinate d into floor."""
    cdef Py_ssize_t n_clients = diagonal.shape[0], n_features = diagonal.shape[1], k, d
    with nogil:
        for d in range(n_features):
            floor[d] = 0.0
        for k in range(n_clients):
            for d in range(n_features):
                floor[d] += <double>diagonal[k, d]
        for d in range(n_features):
            floor[d] = relative * (floor[d] / n_clients)


def variance_reduction(
    const floating[:, ::1] moment,
    const floating[:, ::1] diagonal,
    const double[::1] floor,
    double[::1] scores,
):
    """Write v_k = sum_d (C^d alpha)_k^2 / C^d_kk into scores, Eqs. (8) and (9)."""
    cdef Py_ssize_t n_clients = moment.shape[0], n_features = moment.shape[1], k, d
    cdef double u, q
    cdef double[::1] terms = np.empty(n_features)
    with nogil:
        for k in range(n_clients):
            for d in range(n_features):
                u = moment[k, d]
                q = diagonal[k, d]
                terms[d] = u / q * u if q > floor[d] else 0.0
            scores[k] = sum_in_lanes(&terms[0], n_features)


def advance_moments(
    floating[:, ::1] moment,
    floating[:, ::1] diagonal,
    const floating[:, :, ::1] history,
    Py_ssize_t slot,
    const floating[::1] projection,
    floating keep,
    floating gain,
    const floating[::1] floor,
    Py_ssize_t start,
    Py_ssize_t stop,
    double[::1] scores,
):
    """Take one covariance step on C alpha and diag C, and score clients."""
    cdef Py_ssize_t n_features = moment.shape[1], k
    with nogil:
        for k in range(start, stop):
            if floating is double:
                scores[k] = advance_f64(
                    &moment[k, 0], &diagonal[k, 0], &history[slot, k, 0], &projection[0], keep,
                    gain, &floor[0], n_features,
                )
            else:
                scores[k] = advance_f32(
                    &moment[k, 0], &diagonal[k, 0], &history[slot, k, 0], &projection[0], keep,
                    gain, &floor[0], n_features,
                )
