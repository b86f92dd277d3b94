"""Linear, ReLU, Linear on samples that are mostly zeros: outputs, and SGD steps."""

from libc.stdint cimport int32_t, int64_t

import numpy as np

cdef extern from "sparse_mlp.h":
    int LANES
    int GROUP
    ctypedef struct Entry:
        int32_t row
        float value
    ctypedef struct Net:
        ptrdiff_t n_in, n_hidden, n_out, width, n_groups
        int32_t *columns
        float *values
        int64_t *rows
        float *weight
        float *bias
        float *head
        float *head_bias
        float *features
        float *slopes
        float *delta
        Entry *entries
        int64_t *inputs
        ptrdiff_t n_dual
        float *gram
        float *start
        float *sums
    int64_t count_values(const float *x, ptrdiff_t n) nogil
    void compress(const Net *n, const float *x, ptrdiff_t n_rows) nogil
    void pack(const Net *n, const float *model) nogil
    void unpack(const Net *n, float *model) nogil
    void forward(const Net *n, const int64_t *rows, ptrdiff_t count, float *out) nogil
    void begin_dual(const Net *n, const int64_t *all, float *dense) nogil
    void end_dual(const Net *n, const int64_t *all) nogil
    void step(const Net *n, const int64_t *rows, ptrdiff_t count, const float *targets, float lr,
              int regression) nogil


cdef class SparseMLP:
    """Samples as compressed sparse rows, and the working memory of a network.

    Parameters
    ----------
    n_in, n_hidden, n_out : int
        Inputs, hidden units and outputs: at least 1 each.
    """

    cdef Net net
    cdef ptrdiff_t n_samples, n_room, n_entries
    #: Numbers in the packed parameters.
    cdef readonly ptrdiff_t packed_size
    cdef list samples, room, dual
    cdef object inputs, packed, entries

    def __init__(self, n_in, n_hidden, n_out):
        for name, value in (("n_in", n_in), ("n_hidden", n_hidden), ("n_out", n_out)):
            if not 1 <= value < 2 ** 31:
                raise ValueError(f"{name} must be within 1 .. 2**31 - 1, got {value}")
        self.net.n_in, self.net.n_hidden, self.net.n_out = n_in, n_hidden, n_out
        self.net.width = (n_hidden + LANES - 1) // LANES * LANES
        self.net.n_groups = (self.net.width // LANES + GROUP - 1) // GROUP
        self.packed_size = self.net.width * (n_in + 1 + n_out) + n_out
        self.inputs = np.zeros(n_in + 2, dtype=np.int64)
        cdef int64_t[::1] inputs = self.inputs
        self.net.inputs = &inputs[0]
        self.n_samples = self.n_room = self.n_entries = 0

    def take(self, const float[:, ::1] x, double share):
        """Take over the samples `x`, one a row, if at most `share` of their values are not 0.

        Returns whether it has; if so, the samples of an earlier call are forgotten.
        """
        if x.shape[1] != self.net.n_in:
            raise ValueError(f"x must have {self.net.n_in} columns, got {x.shape[1]}")
        cdef ptrdiff_t n = x.shape[0]
        cdef int64_t n_values = 0
        if n:
            with nogil:
                n_values = count_values(&x[0, 0], n * x.shape[1])
        if n_values > share * n * x.shape[1]:
            return False
        # One to spare: a value is written before it is known whether it stays.
        cdef int32_t[::1] columns = np.empty(n_values + 1, dtype=np.int32)
        cdef float[::1] values = np.empty(n_values + 1, dtype=np.float32)
        cdef int64_t[::1] rows = np.empty(n + 1, dtype=np.int64)
        self.samples = [columns, values, rows]
        self.net.columns, self.net.values, self.net.rows = &columns[0], &values[0], &rows[0]
        self.n_samples, self.net.n_dual = n, 0
        if n:
            with nogil:
                compress(&self.net, &x[0, 0], n)
        return True

    def bind(self, const float[::1] model, float[::1] packed, bint dual=False):
        """Write the parameters `model`, in torch's order, to `packed`, and work on `packed`.

        `dual` is for few samples that are seen many times: steps do not change the weights of the
        first layer, `unpack` does. The caller must not change `packed` before `unpack`.
        """
        self._check(model)
        if packed.shape[0] != self.packed_size:
            raise ValueError(f"packed must have {self.packed_size} numbers, got {packed.shape[0]}")
        self.packed = packed
        cdef Net *n = &self.net
        n.weight = &packed[0]
        n.bias = n.weight + n.width * n.n_in
        n.head = n.bias + n.width
        n.head_bias = n.head + n.width * n.n_out
        n.n_dual = 0
        with nogil:
            pack(n, &model[0])
        if dual and self.n_samples:
            self._begin_dual()

    cdef int _begin_dual(self) except -1:
        cdef ptrdiff_t count = self.n_samples
        cdef int64_t[::1] every = np.arange(count)
        cdef float[::1] dense = np.zeros(self.net.n_in, dtype=np.float32)
        self._prepare(every)
        self.dual = [every]
        self.net.gram = self._floats(self.dual, count * count)
        self.net.start = self._floats(self.dual, count * self.net.width)
        self.net.sums = self._floats(self.dual, count * self.net.width)
        self.net.n_dual = count
        with nogil:
            begin_dual(&self.net, &every[0], &dense[0])
        return 0

    def unpack(self, float[::1] model):
        """Write the parameters as the steps have made them to `model`, in torch's order."""
        if self.packed is None:
            raise ValueError("call bind first")
        self._check(model)
        cdef int64_t[::1] every
        if self.net.n_dual:
            every = self.dual[0]
            with nogil:
                end_dual(&self.net, &every[0])
            self.net.n_dual = 0
        with nogil:
            unpack(&self.net, &model[0])

    cdef int _check(self, const float[::1] model) except -1:
        size = self.net.n_hidden * (self.net.n_in + 1 + self.net.n_out) + self.net.n_out
        if model.shape[0] != size:
            raise ValueError(f"model must have {size} numbers, got {model.shape[0]}")
        return 0

    cdef float *_floats(self, list owner, ptrdiff_t count) except NULL:
        """Return zeros from a cache line on: a vector across two lines takes longer to load."""
        cdef float[::1] room = np.zeros(count + 16, dtype=np.float32)
        owner.append(room)
        return <float *> ((<size_t> &room[0] + 63) // 64 * 64)

    cdef int _prepare(self, const int64_t[::1] rows) except -1:
        """Check `rows` and make room for them."""
        cdef ptrdiff_t n = rows.shape[0], i
        cdef int64_t n_entries = 0
        cdef float[:, ::1] entries
        if self.packed is None or self.samples is None:
            raise ValueError("call take and bind first")
        for i in range(n):
            if rows[i] < 0 or rows[i] >= self.n_samples:
                raise ValueError(f"rows must be within 0 .. {self.n_samples - 1}, got {rows[i]}")
            n_entries += self.net.rows[rows[i] + 1] - self.net.rows[rows[i]]
        if n > self.n_room:
            self.n_room, self.room = 0, []
            self.net.features = self._floats(self.room, n * self.net.width)
            self.net.slopes = self._floats(self.room, n * self.net.n_out)
            self.net.delta = self._floats(self.room, n * GROUP * LANES)
            self.n_room = n
        if n_entries > self.n_entries:
            self.entries = entries = np.zeros((n_entries, 2), dtype=np.float32)
            self.net.entries, self.n_entries = <Entry *> &entries[0, 0], n_entries
        return 0

    def forward(self, const int64_t[::1] rows, float[:, ::1] out):
        """Write the outputs of samples `rows` to `out`, of shape (n, n_out)."""
        cdef ptrdiff_t n = rows.shape[0]
        if out.shape[0] != n or out.shape[1] != self.net.n_out:
            raise ValueError(f"out must have shape ({n}, {self.net.n_out})")
        self._prepare(rows)
        if n:
            with nogil:
                forward(&self.net, &rows[0], n, &out[0, 0])

    def step(self, const int64_t[::1] rows, const float[:, ::1] targets, float lr, bint regression):
        """Move the parameters one step down the mean loss of samples `rows`.

        Parameters
        ----------
        rows : int64 array of shape (n,)
        targets : float32 array of shape (n, n_out), C-contiguous
            One-hot classes, or values.
        lr : float
        regression : bool
            Squared error instead of cross entropy.
        """
        cdef ptrdiff_t n = rows.shape[0]
        if targets.shape[0] != n or targets.shape[1] != self.net.n_out:
            raise ValueError(f"targets must have shape ({n}, {self.net.n_out}), "
                             f"got ({targets.shape[0]}, {targets.shape[1]})")
        self._prepare(rows)
        if n:
            with nogil:
                step(&self.net, &rows[0], n, &targets[0, 0], lr, regression)
