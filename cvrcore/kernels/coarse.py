"""Kernels of stochastic greedy facility location.

Distances are kept as the upper half of a float32 (bfloat16, rounded to nearest): half the
memory, and half the time of a search that is bound by it. Numbers that are not negative have
the same order as these bits, read as integers. Sums are as in `cvrcore.kernels.facility`.
"""

import numpy as np

from .jit import njit

BLOCK = 512
_TILE = 64


@njit
def coarse_rows(products, own, squares, seen, rows):
    """Write the distances of some clients from all, as bfloat16.

    Parameters
    ----------
    products : float32 array of shape (m, n)
        Scalar products of updates.
    own, squares : float32 arrays of shape (m,) and (n,)
        Their squared norms.
    seen : uint8 array of shape (n,)
        Clients never seen are at distance 0.
    rows : uint16 array of shape (m, n)
        Output.
    """
    m, n = products.shape
    exact = np.empty(n, dtype=np.float32)
    bits = exact.view(np.uint32)
    for b in range(m):
        for k in range(n):
            far = own[b] + squares[k] - np.float32(2.0) * products[b, k]
            exact[k] = np.sqrt(max(far, np.float32(0.0)))
        for k in range(n):
            whole = bits[k]
            half = (whole + np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))) >> (
                np.uint32(16)
            )
            rows[b, k] = np.uint16(half) if seen[k] else np.uint16(0)


@njit
def write_cross(distances, clients, rows):
    """Write rows, and the columns of the same clients, of a symmetric matrix."""
    m, n = rows.shape
    for b in range(m):
        rows[b, clients[b]] = 0
        distances[clients[b]] = rows[b]
    for start in range(0, n, _TILE):
        stop = min(start + _TILE, n)
        for b in range(m):
            column = clients[b]
            for k in range(start, stop):
                distances[k, column] = rows[b, k]


@njit
def _coarse_cost(row, nearest, bits, terms):
    """Return the sum over clients of min(row, nearest); `terms` is `bits` read as float32."""
    n = row.shape[0]
    total = 0.0
    for start in range(0, n, BLOCK):
        here, there = row[start : start + BLOCK], nearest[start : start + BLOCK]
        size = here.shape[0]
        if size == BLOCK:
            for i in range(BLOCK):
                bits[i] = np.uint32(min(here[i], there[i])) << np.uint32(16)
        else:
            for i in range(size):
                bits[i] = np.uint32(min(here[i], there[i])) << np.uint32(16)
            for i in range(size, BLOCK):
                bits[i] = 0
        half = BLOCK // 2
        while half >= 16:
            for i in range(half):
                terms[i] += terms[half + i]
            half //= 2
        for i in range(16):
            total += terms[i]
    return total


@njit
def stochastic_greedy(distances, nearest, candidates, uniforms, picked):
    """Add clients one by one, each the best of a random part of the candidates that are left.

    Parameters
    ----------
    distances : uint16 array of shape (n, n)
    nearest : uint16 array of shape (n,)
        Distance of each client from the nearest chosen one; updated.
    candidates : int64 array
    uniforms : float64 array of shape (n_picked, n_tried)
        Numbers in [0, 1) that draw each step's candidates without replacement.
    picked : int64 array of shape (n_picked,)
        Output: places in `candidates`.
    """
    bits = np.empty(BLOCK, dtype=np.uint32)
    terms = bits.view(np.float32)
    order = np.arange(candidates.shape[0])
    left = candidates.shape[0]
    for p in range(picked.shape[0]):
        best, at = np.inf, 0
        for t in range(min(uniforms.shape[1], left)):
            j = t + int(uniforms[p, t] * (left - t))
            order[t], order[j] = order[j], order[t]
            cost = _coarse_cost(distances[candidates[order[t]]], nearest, bits, terms)
            if cost < best:
                best, at = cost, t
        picked[p] = order[at]
        left -= 1
        order[at], order[left] = order[left], order[at]
        row = distances[candidates[picked[p]]]
        for k in range(nearest.shape[0]):
            nearest[k] = min(nearest[k], row[k])
