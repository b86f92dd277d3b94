"""Cython twin of ``cvrcore/_covariance.py``: same names, same arithmetic, same bits."""

from cython cimport floating
from libc.stdlib cimport free, malloc

cdef extern from "_history.h":
    enum: STEPS
    void add_f64(
        const double*, Py_ssize_t, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t, double*
    ) nogil
    void add_f32(
        const float*, Py_ssize_t, const float*, Py_ssize_t, Py_ssize_t, Py_ssize_t, float*
    ) nogil
    void FETCH(const void*) nogil
    void add_next_f64(
        const double*, const double*, const double*, const double*, Py_ssize_t, double*
    ) nogil
    void add_next_f32(
        const float*, const float*, const float*, const float*, Py_ssize_t, float*
    ) nogil

cdef extern from "_predict.h":
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

cdef extern from "_fold.h":
    enum: EDGE, LANES, TILE, WIDTH
    void fold_f64(double*, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t) nogil
    void fold_f32(float*, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t) nogil


cdef enum:
    AHEAD = 2  # clients whose residuals are fetched before it is their turn
    MOST = 160  # clients at a time
    SUMS = 16384  # of all of them: these stay in cache


cdef Py_ssize_t _group(Py_ssize_t n_features) noexcept nogil:
    """Return how many clients are worked on at a time, one residual after the other."""
    return max(1, min(MOST, SUMS // n_features))


cdef void _add_group(
    const floating[:, :, ::1] history, const floating[:, :, ::1] leads, Py_ssize_t n_stored,
    const long long[::1] clients, const long long* others, const long long[::1] begin,
    Py_ssize_t start, Py_ssize_t stop, floating** sums,
) noexcept nogil:
    """Add r_s[k] r_s[j] of pairs start .. stop - 1; others and sums are theirs alone."""
    cdef Py_ssize_t n_features = history.shape[2], step = 0, at, stop_at, asked
    cdef Py_ssize_t stride = history.shape[1] * n_features, lead = leads.shape[1] * n_features
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
            other = &leads[at, others[asked - start], 0]
            if floating is double:
                add_f64(own, stride, other, lead, stop_at - at, n_features, sums[asked - start])
            else:
                add_f32(own, stride, other, lead, stop_at - at, n_features, sums[asked - start])
        step = stop_at


def add_history(
    const floating[:, :, ::1] history,
    Py_ssize_t n_stored,
    const long long[::1] clients,
    const long long[::1] others,
    const long long[::1] begin,
    floating[:, ::1] entries,
    const long long[::1] places,
):
    """Add sum_s r_s[k] r_s[j] to an entry, k and j the i-th pair, s in order."""
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
                history, history, n_stored, clients, &others[start], begin, start, stop, sums
            )
            start = stop


cdef inline Py_ssize_t _pair(Py_ssize_t k, Py_ssize_t j) noexcept nogil:
    """Return where a pair is in a block of the triangles."""
    cdef Py_ssize_t high = max(k, j), low = min(k, j)
    cdef Py_ssize_t square = (high // EDGE) * (high // EDGE + 1) // 2 + low // EDGE
    return (square * EDGE + high % EDGE) * EDGE + low % EDGE


def read_triangles(
    const floating[:, :, ::1] base,
    const floating[:, :, ::1] recent,
    Py_ssize_t steps,
    const long long[::1] waiting,
    const long long[::1] clients,
    const long long[::1] others,
    floating[:, ::1] entries,
):
    """Write C_kj into entries[i], k and j the i-th pair, with the residuals that wait."""
    cdef Py_ssize_t n_features = entries.shape[1], n_asked = clients.shape[0]
    cdef Py_ssize_t group = _group(n_features), start = 0, stop, asked, k, j, row, block, s, d
    cdef Py_ssize_t low, high, place, following, next_row, n_blocks = base.shape[0], longest = 0
    for block in range(n_blocks):
        longest = max(longest, waiting[block])
    with nogil:
        while start < n_asked:
            stop = min(start + group, n_asked)
            for asked in range(start, stop):
                row = _pair(clients[asked], others[asked])
                following = min(asked + 1, n_asked - 1)
                next_row = _pair(clients[following], others[following])
                for block in range(n_blocks):
                    FETCH(&base[block, next_row, 0])
                    for d in range(min(LANES, n_features - block * LANES)):
                        entries[asked, block * LANES + d] = base[block, row, d]
            for s in range(steps - longest, steps):
                place, block = s % recent.shape[0], 0
                while block < n_blocks:  # runs of blocks that wait for it
                    if waiting[block] < steps - s:
                        block += 1
                        continue
                    low = block * LANES
                    while block < n_blocks and waiting[block] >= steps - s:
                        block += 1
                    high = min(block * LANES, n_features)
                    for asked in range(start, stop):
                        k, j = clients[asked], others[asked]
                        following = min(asked + AHEAD, stop - 1)
                        if floating is double:
                            add_next_f64(
                                &recent[place, k, low], &recent[place, j, low],
                                &recent[place, clients[following], low],
                                &recent[place, others[following], low],
                                high - low, &entries[asked, low],
                            )
                        else:
                            add_next_f32(
                                &recent[place, k, low], &recent[place, j, low],
                                &recent[place, clients[following], low],
                                &recent[place, others[following], low],
                                high - low, &entries[asked, low],
                            )
            start = stop


def pack_block(
    const floating[:, :, ::1] history,
    Py_ssize_t first,
    Py_ssize_t n_stored,
    Py_ssize_t block,
    double[::1] packed,
):
    """Copy residuals of one block together, from `first` on round the ring, for fold_block."""
    cdef Py_ssize_t n_clients = history.shape[1], n_features = history.shape[2]
    cdef Py_ssize_t stride = n_clients * n_features
    cdef Py_ssize_t n_padded = packed.shape[0] // max(n_stored * LANES, 1)
    cdef Py_ssize_t k, step, part, d, low, width, place
    cdef const floating* source
    cdef double* out
    with nogil:
        for k in range(n_padded):
            for part in range(LANES // WIDTH):
                out = &packed[0] + (k // TILE * (LANES // WIDTH) + part) * n_stored * TILE * WIDTH
                out += k % TILE * WIDTH
                low = block * LANES + part * WIDTH
                width = max(0, min(WIDTH, n_features - low)) if k < n_clients else 0
                source, place = &history[0, 0, 0] + k * n_features + low, first
                for step in range(n_stored):
                    if width == WIDTH:
                        for d in range(WIDTH):
                            out[d] = source[place * stride + d]
                    else:
                        for d in range(WIDTH):
                            out[d] = source[place * stride + d] if d < width else 0.0
                    out += TILE * WIDTH
                    place = place + 1 if place + 1 < history.shape[0] else 0


def fold_block(
    floating[:, :, ::1] base,
    const double[::1] packed,
    Py_ssize_t n_stored,
    Py_ssize_t block,
    Py_ssize_t low,
    Py_ssize_t high,
):
    """Add outer products of packed residuals to one block, of squares in rows low .. high - 1."""
    if packed.shape[0] == 0:
        return
    with nogil:
        if floating is double:
            fold_f64(&base[block, 0, 0], &packed[0], low, high, n_stored)
        else:
            fold_f32(&base[block, 0, 0], &packed[0], low, high, n_stored)


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


def regression_residual(
    double start,
    floating[:, ::1] entries,
    const long long[::1] places,
    const floating[:, :, ::1] past,
    Py_ssize_t n_past,
    const long long[::1] begin,
    const floating[:, :, ::1] leads,
    const long long[::1] lead,
    floating scale,
    const floating[:, ::1] slopes,
    const floating[:, ::1] variances,
    const floating[:, ::1] diagonal,
    const floating[:, ::1] rows,
    const long long[::1] clients,
    const long long[::1] groups,
    floating weight,
    floating[:, :, ::1] history,
    Py_ssize_t slot,
    const double[::1] alpha,
    Py_ssize_t chunk,
    double[:, :, ::1] totals,
):
    """Write weight (theta_k - c_k theta_j) into history[slot, k], Eq. (13); add its sums."""
    cdef Py_ssize_t n_features = rows.shape[1], n_asked = clients.shape[0]
    cdef Py_ssize_t group = _group(n_features), base = 0, stop, asked, k, line, d
    cdef double* total
    cdef bint fresh = entries.shape[0] == 0, placed = places.shape[0] > 0
    cdef long long[MOST] others
    cdef floating* sums[MOST]
    cdef const floating* residuals[MOST]
    cdef double shares[MOST]
    cdef floating* room = <floating*>malloc(group * n_features * sizeof(floating))
    if room == NULL:
        raise MemoryError("no memory to predict clients in")
    with nogil:
        while base < n_asked:
            stop = min(base + group, (base // chunk + 1) * chunk, n_asked)
            total = &totals[base // chunk, 0, 0]
            if fresh:
                for d in range(group * n_features):
                    room[d] = <floating>start
            for asked in range(base, stop):
                others[asked - base] = lead[groups[asked]]
                if fresh:
                    sums[asked - base] = room + (asked - base) * n_features
                else:
                    sums[asked - base] = &entries[places[asked] if placed else asked, 0]
            _add_group(past, leads, n_past, clients, others, begin, base, stop, sums)
            for asked in range(base, stop):
                k, line = clients[asked], groups[asked]
                if floating is double:
                    predict_f64(
                        sums[asked - base], scale, &slopes[line, 0], &variances[line, 0],
                        &rows[k, 0], &diagonal[k, 0], weight, n_features, &history[slot, k, 0],
                    )
                else:
                    predict_f32(
                        sums[asked - base], scale, &slopes[line, 0], &variances[line, 0],
                        &rows[k, 0], &diagonal[k, 0], weight, n_features, &history[slot, k, 0],
                    )
                residuals[asked - base] = &history[slot, k, 0]
                shares[asked - base] = alpha[k]
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
    floating[:, :, ::1] history,
    Py_ssize_t slot,
    const double[::1] alpha,
    Py_ssize_t chunk,
    double[:, :, ::1] totals,
):
    """Write weight (theta_k - c_k theta_j) into history[slot, k], c_k a scalar; add its sums."""
    cdef Py_ssize_t n_features = rows.shape[1], asked, k, j, d
    cdef double delta
    cdef floating* out
    with nogil:
        for asked in range(clients.shape[0]):
            k, j = clients[asked], others[asked]
            out = &history[slot, k, 0]
            for d in range(n_features):
                delta = <double>rows[k, d] - coefficients[asked] * <double>rows[j, d]
                out[d] = <floating>(weight * delta)
            _add_sums(out, n_features, alpha[k], &totals[asked // chunk, 0, 0])
