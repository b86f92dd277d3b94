"""Stacks of [3 x 3 convolution, ReLU, 2 x 2 max-pool]: samples in, features out, and SGD steps."""

from libc.stdint cimport int8_t, int32_t, int64_t, uint64_t

import numpy as np

cdef extern from "convolution.h":
    int LANES
    int GROUP
    int MOST_CHANNELS
    ctypedef struct Live:
        int32_t offset
        float gradient
    ctypedef struct Block:
        ptrdiff_t n_in, n_out, height, width, lanes, image
        float *weight
        float *bias
        float *transformed
        float *taps
        float *slope
        float *slope_bias
        float *inputs
        int8_t *places
    ctypedef struct Room:
        float *tiles
        float *products
        float *pooled
        float *gradients[2]
        Live *entries
        Live *list
        uint64_t *counts
    void transform_weights(const Block *b) nogil
    int forward(const Block *blocks, int n_blocks, const float *x, const int64_t *rows, ptrdiff_t n,
                int keep, const Room *room, float *features) nogil
    void backward(const Block *blocks, int n_blocks, ptrdiff_t n, const float *delta, float lr,
                  const Room *room) nogil

#: Most blocks in a stack: each halves the image.
MOST_BLOCKS = 16


cdef ptrdiff_t padded(ptrdiff_t channels, ptrdiff_t lanes) noexcept:
    return (channels + lanes - 1) // lanes * lanes


cdef class ConvStack:
    """Working memory of a stack; the weights stay the caller's.

    Parameters
    ----------
    channels : sequence of int
        Of the input, then of the output of each block: at least two numbers.
    height, width : int
        Of the input; every block must receive at least 2 x 2 pixels.
    """

    cdef Block blocks[16]
    cdef Room room
    cdef int n_blocks
    cdef ptrdiff_t n_kept, n_last
    cdef readonly ptrdiff_t n_inputs, n_features
    cdef list owned, kept, bound

    def __init__(self, channels, height, width):
        channels = [int(c) for c in channels]
        if not 2 <= len(channels) <= MOST_BLOCKS + 1:
            raise ValueError(f"channels must be 2 to {MOST_BLOCKS + 1} numbers, got {len(channels)}")
        if not all(1 <= c <= MOST_CHANNELS - LANES for c in channels):
            raise ValueError(f"channels must be within 1 .. {MOST_CHANNELS - LANES}, got {channels}")
        self.n_blocks = len(channels) - 1
        self.owned, self.kept, self.bound = [], [], []
        self.n_kept = self.n_last = 0
        self.n_inputs = channels[0] * height * width
        cdef ptrdiff_t windows, wide_in, wide_out
        cdef ptrdiff_t tiles = 0, products = 0, image = 0, lists = 0, pooled = 0, most_windows = 0
        cdef Block *b
        cdef int l
        for l in range(self.n_blocks):
            b = &self.blocks[l]
            b.n_in, b.n_out, b.height, b.width = channels[l], channels[l + 1], height, width
            if height < 2 or width < 2:
                raise ValueError(f"block {l} would receive {height} x {width} pixels, not 2 x 2")
            b.lanes = 4 if l == 0 and b.n_in <= 4 else LANES
            wide_in, wide_out = padded(b.n_in, b.lanes), padded(b.n_out, LANES)
            b.image = wide_in * (b.height + 2) * (b.width + 2)
            windows = (b.height // 2) * (b.width // 2)
            b.transformed = self._floats(self.owned, 16 * wide_out * b.n_in)
            b.taps = self._floats(self.owned, wide_in * b.n_out * 9)
            b.slope = self._floats(self.owned, wide_in * b.n_out * 9)
            b.slope_bias = self._floats(self.owned, b.n_out)
            tiles = max(tiles, 16 * GROUP * wide_in)
            products = max(products, 16 * GROUP * wide_out)
            image = max(image, b.image)
            pooled = max(pooled, wide_out * windows)
            lists = max(lists, (windows + 1) * wide_out)
            most_windows = max(most_windows, windows)
            height, width = height // 2, width // 2
        self.n_features = channels[self.n_blocks] * height * width
        self.room.tiles = self._floats(self.owned, tiles)
        self.room.products = self._floats(self.owned, products)
        self.room.pooled = self._floats(self.owned, pooled)
        self.room.gradients[0] = self._floats(self.owned, image)
        self.room.gradients[1] = self._floats(self.owned, image)
        self.room.entries = <Live *> self._floats(self.owned, 2 * (most_windows + 3) * LANES)
        self.room.list = <Live *> self._floats(self.owned, 2 * lists)
        self.room.counts = <uint64_t *> self._floats(self.owned, 2 * most_windows)
        self._keep(1)

    cdef float *_floats(self, list owner, ptrdiff_t count) except NULL:
        """Return zeros, aligned, with a vector's width to spare behind them."""
        room = np.zeros(count + 2 * LANES + 16, dtype=np.float32)
        owner.append(room)
        cdef size_t address = room.ctypes.data
        return <float *> ((address + 63) // 64 * 64)

    cdef int _keep(self, ptrdiff_t n) except -1:
        """Make room for the images and places of `n` samples."""
        cdef Block *b
        cdef int l
        if n <= self.n_kept:
            return 0
        self.kept = []
        for l in range(self.n_blocks):
            b = &self.blocks[l]
            b.inputs = self._floats(self.kept, n * b.image)
            count = n * padded(b.n_out, LANES) * (b.height // 2) * (b.width // 2)
            b.places = <int8_t *> self._floats(self.kept, count // 4 + 1)
        self.n_kept = n
        return 0

    def bind(self, weights, biases):
        """Work with these parameters from now on.

        Parameters
        ----------
        weights : list of float32 arrays, (n_out, n_in, 3, 3), C-contiguous
            Read by `forward`, changed by `backward`.
        biases : list of float32 arrays, (n_out,), or None
        """
        cdef float[:, :, :, ::1] weight
        cdef float[::1] bias
        cdef int l
        if len(weights) != self.n_blocks or len(biases) != self.n_blocks:
            raise ValueError(f"expected {self.n_blocks} weights and biases, "
                             f"got {len(weights)} and {len(biases)}")
        self.bound = [*weights, *biases]
        for l in range(self.n_blocks):
            weight = weights[l]
            expected = (self.blocks[l].n_out, self.blocks[l].n_in, 3, 3)
            if weights[l].shape != expected:
                raise ValueError(f"weights[{l}] must have shape {expected}, got {weights[l].shape}")
            self.blocks[l].weight = &weight[0, 0, 0, 0]
            self.blocks[l].bias = NULL
            if biases[l] is not None:
                bias = biases[l]
                if bias.shape[0] != self.blocks[l].n_out:
                    raise ValueError(f"biases[{l}] must have shape ({self.blocks[l].n_out},), "
                                     f"got {biases[l].shape}")
                self.blocks[l].bias = &bias[0]

    def forward(self, const float[:, ::1] x, const int64_t[::1] rows, float[:, ::1] features,
                bint keep):
        """Write the features of samples `rows` of `x`; return whether every value was finite.

        If not, `features` is not what torch computes; the parameters are unchanged in any case.

        Parameters
        ----------
        x : float32 array of shape (n_samples, n_inputs), C-contiguous
        rows : int64 array of shape (n,)
        features : float32 array of shape (n, n_features), C-contiguous
            Output, in the order of torch's ``Flatten``.
        keep : bool
            Whether `backward` follows.
        """
        cdef ptrdiff_t n = rows.shape[0]
        cdef int l, finite
        if not self.bound:
            raise ValueError("call bind first")
        if x.shape[1] != self.n_inputs:
            raise ValueError(f"x must have {self.n_inputs} columns, got {x.shape[1]}")
        if features.shape[0] != n or features.shape[1] != self.n_features:
            raise ValueError(f"features must have shape ({n}, {self.n_features})")
        self.n_last = 0
        if n == 0:
            return True
        for l in range(n):
            if rows[l] < 0 or rows[l] >= x.shape[0]:
                raise ValueError(f"rows must be within 0 .. {x.shape[0] - 1}, got {rows[l]}")
        self._keep(n if keep else 1)
        with nogil:
            for l in range(self.n_blocks):
                transform_weights(&self.blocks[l])
            finite = forward(self.blocks, self.n_blocks, &x[0, 0], &rows[0], n, keep, &self.room,
                             &features[0, 0])
        if keep and finite:
            self.n_last = n
        return bool(finite)

    def backward(self, const float[:, ::1] delta, float lr):
        """Move the parameters by ``-lr`` times their gradient.

        Parameters
        ----------
        delta : float32 array of shape (n, n_features), C-contiguous
            Gradient of the loss with respect to the features of the last `forward`, which
            must have kept its samples and found finite values.
        lr : float
        """
        if self.n_last == 0 or delta.shape[0] != self.n_last or delta.shape[1] != self.n_features:
            raise ValueError(f"delta must have shape ({self.n_last}, {self.n_features}), the "
                             f"samples kept by forward, got ({delta.shape[0]}, {delta.shape[1]})")
        with nogil:
            backward(self.blocks, self.n_blocks, self.n_last, &delta[0, 0], lr, &self.room)
        self.n_last = 0
