"""Cython twin of ``cvrcore/kernels/packed.py``: same names, same arithmetic, same bits."""

from cython cimport floating

cdef extern from "residual_log.h":
    void FETCH(const void*) nogil
    void add_next_f64(
        const double*, const double*, const double*, const double*, Py_ssize_t, double*
    ) nogil
    void add_next_f32(
        const float*, const float*, const float*, const float*, Py_ssize_t, float*
    ) nogil

cdef extern from "fold.h":
    enum: TILE_CLIENTS, LANES, REGISTER_TILE, WIDTH
    void fold_f64(double*, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t) nogil
    void fold_f32(float*, const double*, Py_ssize_t, Py_ssize_t, Py_ssize_t) nogil


cdef enum:
    AHEAD = 2  # clients whose residuals are prefetched
    MOST = 160  # largest number of clients in a group
    SUMS = 16384  # entries of one group: they stay in cache


cdef Py_ssize_t _group(Py_ssize_t n_features) noexcept nogil:
    """Return the number of clients in a group, which is processed residual by residual."""
    return max(1, min(MOST, SUMS // n_features))


cdef inline Py_ssize_t _pair(Py_ssize_t k, Py_ssize_t j) noexcept nogil:
    """Return the index of a pair in a block of packed sums."""
    cdef Py_ssize_t high = max(k, j), low = min(k, j)
    cdef Py_ssize_t square = (high // TILE_CLIENTS) * (high // TILE_CLIENTS + 1) // 2 + low // TILE_CLIENTS
    return (square * TILE_CLIENTS + high % TILE_CLIENTS) * TILE_CLIENTS + low % TILE_CLIENTS


def read_packed(
    const floating[:, :, ::1] base,
    const floating[:, :, ::1] recent,
    Py_ssize_t steps,
    const long long[::1] pending,
    const long long[::1] clients,
    const long long[::1] others,
    floating[:, ::1] entries,
):
    """Write C_kj of each pair k, j into entries, with residuals not yet folded into blocks."""
    cdef Py_ssize_t n_features = entries.shape[1], n_asked = clients.shape[0]
    cdef Py_ssize_t group = _group(n_features), start = 0, stop, asked, k, j, row, block, s, d
    cdef Py_ssize_t low, high, place, following, next_row, n_blocks = base.shape[0], longest = 0
    for block in range(n_blocks):
        longest = max(longest, pending[block])
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
                while block < n_blocks:  # runs of blocks without residual s
                    if pending[block] < steps - s:
                        block += 1
                        continue
                    low = block * LANES
                    while block < n_blocks and pending[block] >= steps - s:
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
    """Copy one block of the ring buffer, from place `first` on, to contiguous memory."""
    cdef Py_ssize_t n_clients = history.shape[1], n_features = history.shape[2]
    cdef Py_ssize_t stride = n_clients * n_features
    cdef Py_ssize_t n_padded = packed.shape[0] // max(n_stored * LANES, 1)
    cdef Py_ssize_t k, step, part, d, low, width, place
    cdef const floating* source
    cdef double* out
    with nogil:
        for k in range(n_padded):
            for part in range(LANES // WIDTH):
                out = &packed[0] + (k // REGISTER_TILE * (LANES // WIDTH) + part) * n_stored * REGISTER_TILE * WIDTH
                out += k % REGISTER_TILE * WIDTH
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
                    out += REGISTER_TILE * WIDTH
                    place = place + 1 if place + 1 < history.shape[0] else 0


def fold_block(
    floating[:, :, ::1] base,
    const double[::1] packed,
    Py_ssize_t n_stored,
    Py_ssize_t block,
):
    """Add outer products of packed residuals to one block of packed sums."""
    cdef Py_ssize_t n_tiles = packed.shape[0] // max(n_stored * LANES * TILE_CLIENTS, 1)
    if n_tiles == 0:
        return
    with nogil:
        if floating is double:
            fold_f64(&base[block, 0, 0], &packed[0], 0, n_tiles, n_stored)
        else:
            fold_f32(&base[block, 0, 0], &packed[0], 0, n_tiles, n_stored)
