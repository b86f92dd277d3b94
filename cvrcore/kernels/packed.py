"""Kernels of the packed covariance: residuals in, packed sums and entries of C out.

Cython twin: ``cvrcore_ext/packed.pyx``. Packed sums are lower triangles, LANES coordinates at
a time, in tiles of TILE x TILE clients: shape (D / LANES rounded up, n_pairs, LANES), pairs
numbered by `_pair`. Tiles on the diagonal are stored whole and the last tiles are padded, so
that a fold reads memory in order.
"""

import numpy as np

from .jit import njit

LANES, TILE = 8, 12


@njit
def _pair(i, j):
    """Return the index of pair i, j in a block of packed sums; i's tile is j's or a later one."""
    tile = (i // TILE) * (i // TILE + 1) // 2 + j // TILE
    return (tile * TILE + i % TILE) * TILE + j % TILE


@njit
def read_packed(base, recent, steps, pending, clients, others, entries):
    """Write C_kj of each pair k, j into `entries`, with residuals not yet folded into blocks.

    Parameters
    ----------
    base : array of shape (n_blocks, n_pairs, LANES)
    recent : array of shape (n_recent, n_clients, n_features)
        Ring buffer: residual s is at ``s % n_recent``.
    steps : int
        Number of residuals so far.
    pending : int64 array of shape (n_blocks,)
        Number of latest residuals that are not yet folded into each block.
    clients, others : int64 arrays of shape (n_pairs,)
    entries : array of shape (n_pairs, n_features)
    """
    n_features = entries.shape[1]
    for i in range(clients.shape[0]):
        k, j = clients[i], others[i]
        row = _pair(max(k, j), min(k, j))
        for block in range(base.shape[0]):
            low, high = block * LANES, min(block * LANES + LANES, n_features)
            for d in range(low, high):
                entries[i, d] = base[block, row, d - low]
            for s in range(steps - pending[block], steps):
                place = s % recent.shape[0]
                for d in range(low, high):
                    entries[i, d] += recent[place, k, d] * recent[place, j, d]


@njit
def pack_block(residuals, first, n_stored, block, packed):
    """Copy the residuals of one block of coordinates into contiguous memory, for `fold_block`.

    Parameters
    ----------
    residuals : array of shape (n_places, n_clients, n_features)
        Ring buffer.
    first, n_stored, block : int
        `n_stored` residuals from place `first` on, and the block of coordinates.
    packed : float64 array of shape (n_padded * n_stored * LANES,), n_padded a multiple of TILE
        Output, in an order that depends on the backend; should be aligned to a cache line.
    """
    n_places, n_clients, n_features = residuals.shape
    packed[:] = 0.0
    for k in range(n_clients):
        for step in range(n_stored):
            place = (first + step) % n_places
            for lane in range(min(LANES, n_features - block * LANES)):
                value = np.float64(residuals[place, k, block * LANES + lane])
                packed[(k * n_stored + step) * LANES + lane] = value


@njit
def fold_block(base, packed, n_stored, block):
    """Add outer products of packed residuals to one block of packed sums."""
    totals = np.empty(LANES)
    n_padded = packed.shape[0] // max(n_stored * LANES, 1)
    for i in range(n_padded):
        for j in range((i // TILE + 1) * TILE):
            row = _pair(i, j)
            for lane in range(LANES):
                totals[lane] = np.float64(base[block, row, lane])
            for step in range(n_stored):
                for lane in range(LANES):
                    left = packed[(i * n_stored + step) * LANES + lane]
                    totals[lane] += left * packed[(j * n_stored + step) * LANES + lane]
            for lane in range(LANES):
                base[block, row, lane] = totals[lane]
