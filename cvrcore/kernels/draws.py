"""Kernels of the draw inside coalitions; Cython twin: ``cvrcore_ext/draws.pyx``.

Callers have validated shapes and dtypes; kernels write into arrays they are given.
"""

import math

import numpy as np

from .jit import njit


@njit
def sort_by_label(labels, kept, order, starts, sizes):
    """Write ids of kept clients into `order` by label, equal labels by id; return how many.

    By counting: no two labels are compared.

    Parameters
    ----------
    labels : int64 array of shape (n_clients,)
        Below n_labels; those of clients that are not kept may be anything.
    kept : uint8 array of shape (n_clients,)
    order : int64 array of shape (n_clients,)
    starts, sizes : int64 arrays of shape (n_labels,)
        Where the ids of each label begin in `order`, and how many they are.
    """
    for label in range(sizes.shape[0]):
        sizes[label] = 0
    for client in range(labels.shape[0]):
        if kept[client]:
            sizes[labels[client]] += 1
    total = 0
    for label in range(sizes.shape[0]):
        starts[label] = total
        total += sizes[label]
    for client in range(labels.shape[0]):
        if kept[client]:
            order[starts[labels[client]]] = client
            starts[labels[client]] += 1
    for label in range(sizes.shape[0]):
        starts[label] -= sizes[label]
    return total


@njit
def law_tops(labels, kept, scores, sizes, tops):
    """Count kept clients of each coalition, and find their largest score.

    Parameters
    ----------
    labels : int64 array of shape (n_clients,)
    kept : uint8 array of shape (n_clients,)
    scores : float64 array of shape (n_clients,)
    sizes, tops : int64 and float64 arrays of shape (n_coalitions,)
        Output; `tops` is -inf where no client is kept.
    """
    for p in range(sizes.shape[0]):
        sizes[p], tops[p] = 0, -np.inf
    for k in range(labels.shape[0]):
        if kept[k]:
            sizes[labels[k]] += 1
            tops[labels[k]] = max(tops[labels[k]], scores[k])


@njit
def draw_one_each(labels, kept, law, uniforms, places, picked):
    """Draw one kept client of each coalition by `law`: the first of exponential arrival times.

    A time is ``-log(1 - u_k) / pi_k``, never less than ``u_k / pi_k``: few logarithms are taken.
    The logarithm of a time is the key of the Gumbel draw.

    Parameters
    ----------
    labels, kept
        As in `law_tops`.
    law : float64 array of shape (n_clients,)
    uniforms : float64 array
        One for each kept client, sorted by coalition, then by id.
    places : int64 array of shape (n_coalitions,)
        First uniform of each coalition; advanced by the number used.
    picked : int64 array of shape (n_coalitions,)
        Output, or -1 where no client is kept.
    """
    times = np.full(places.shape[0], np.inf)
    picked[:] = -1
    for k in range(labels.shape[0]):
        if not kept[k]:
            continue
        p = labels[k]
        u = uniforms[places[p]]
        places[p] += 1
        if law[k] > 0.0 and u < times[p] * law[k]:
            time = -math.log1p(-u) / law[k]
            if time < times[p]:
                times[p], picked[p] = time, k
