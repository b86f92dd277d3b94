"""Kernels of greedy facility location; Cython twin: ``cvrcore_ext/facility.pyx``.

Callers have validated shapes and dtypes. BLOCK terms are added in pairs, then halves, in
float32, and blocks in float64: loops of fixed length that vectorise in a fixed order, so that
the result does not depend on the number of threads.
"""

import numpy as np

from .jit import njit

BLOCK = 512


@njit
def _assignment_cost(row, nearest, terms):
    """Return the sum over clients of min(row, nearest); `terms`: BLOCK numbers of scratch."""
    n = row.shape[0]
    whole = n - n % BLOCK
    total = 0.0
    for start in range(0, whole, BLOCK):
        here, there = row[start : start + BLOCK], nearest[start : start + BLOCK]
        for i in range(BLOCK):
            terms[i] = here[i] if here[i] < there[i] else there[i]
        half = BLOCK // 2
        while half >= 16:
            for i in range(half):
                terms[i] += terms[half + i]
            half //= 2
        for i in range(16):
            total += terms[i]
    for k in range(whole, n):
        total += min(row[k], nearest[k])
    return total


@njit
def _sift_down(heap, costs, place):
    """Move the candidate at `place` down until its cost is at most those of its children."""
    moved = heap[place]
    while True:
        child = 2 * place + 1
        if child >= heap.shape[0]:
            break
        if child + 1 < heap.shape[0] and costs[heap[child + 1]] < costs[heap[child]]:
            child += 1
        if costs[heap[child]] >= costs[moved]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = moved


@njit
def assignment_costs(distances, nearest, candidates, costs, start, stop):
    """Write the cost of adding each of ``candidates[start:stop]`` to the chosen clients.

    Parameters
    ----------
    distances : float32 array of shape (n, n)
    nearest : float32 array of shape (n,)
        Distance of each client from the nearest chosen one.
    candidates : int64 array
    costs : float64 array
        Output, aligned with `candidates`.
    """
    terms = np.empty(BLOCK, dtype=np.float32)
    for c in range(start, stop):
        costs[c] = _assignment_cost(distances[candidates[c]], nearest, terms)


@njit
def lazy_greedy(distances, nearest, candidates, costs, fresh, picked, n_picked):
    """Add clients one by one, each the one that lowers the total cost most; lazy greedy.

    The gain of a client never grows as more are chosen (submodularity): one whose last known
    gain is below another's present gain need not be evaluated again (Minoux, 1978).

    Parameters
    ----------
    distances, nearest, candidates
        As in `assignment_costs`; `nearest` is updated.
    costs : float64 array
        In: present cost of each candidate; overwritten by known lower bounds of costs less
        the total, that is minus gains.
    fresh : int64 array
        Scratch, aligned with `candidates`.
    picked : int64 array
        Output: places in `candidates`; the first `n_picked` are given.

    Returns
    -------
    int
        How many candidates were evaluated.
    """
    terms = np.empty(BLOCK, dtype=np.float32)
    total = 0.0
    for k in range(nearest.shape[0]):
        total += nearest[k]
    for c in range(candidates.shape[0]):
        costs[c] -= total  # minus the gain
        fresh[c] = n_picked
    for p in range(n_picked):
        costs[picked[p]] = np.inf
    heap = np.arange(candidates.shape[0])
    for place in range(heap.shape[0] // 2 - 1, -1, -1):
        _sift_down(heap, costs, place)
    evaluated = 0
    for p in range(n_picked, picked.shape[0]):
        while fresh[heap[0]] != p:
            best = heap[0]
            costs[best] = _assignment_cost(distances[candidates[best]], nearest, terms) - total
            fresh[best] = p
            evaluated += 1
            _sift_down(heap, costs, 0)
        best = heap[0]
        picked[p] = best
        costs[best] = np.inf
        _sift_down(heap, costs, 0)
        row = distances[candidates[best]]
        total = 0.0
        for k in range(nearest.shape[0]):
            nearest[k] = min(nearest[k], row[k])
            total += nearest[k]
    return evaluated
