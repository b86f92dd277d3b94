"""Kernels of the draw inside coalitions; Cython twin: ``cvrcore_ext/_draws.pyx``.

Callers have validated shapes and dtypes; kernels write into arrays they are given.
"""

import math

import numpy as np

from ._jit import njit


@njit
def boltzmann_law(labels, kept, scores, temperature, sizes, law):
    """Write ``pi_p(k) ~ exp(v_k / temperature)`` of kept clients into `law`, Eq. (11).

    0 for everybody else. Shifted by the largest of each coalition, so that nothing overflows.

    Parameters
    ----------
    labels : int64 array of shape (n_clients,)
    kept : uint8 array of shape (n_clients,)
    scores : float64 array of shape (n_clients,)
    temperature : float
        Positive.
    sizes : int64 array of shape (n_coalitions,)
        Output: kept clients of each coalition.
    law : float64 array of shape (n_clients,)
    """
    n_labels = sizes.shape[0]
    tops, totals = np.full(n_labels, -np.inf), np.zeros(n_labels)
    least = -800.0 * temperature  # below it the exponential is 0, and a quotient may overflow
    for p in range(n_labels):
        sizes[p] = 0
    for k in range(labels.shape[0]):
        if kept[k]:
            sizes[labels[k]] += 1
            tops[labels[k]] = max(tops[labels[k]], scores[k])
    for k in range(labels.shape[0]):
        law[k] = 0.0
        if kept[k]:
            below = scores[k] - tops[labels[k]]
            law[k] = math.exp(below / temperature) if below > least else 0.0
            totals[labels[k]] += law[k]
    for k in range(labels.shape[0]):
        if kept[k]:
            law[k] /= totals[labels[k]]


@njit
def draw_one_each(labels, kept, law, uniforms, sizes, picked):
    """Draw one kept client of each coalition by `law`: the least of exponential times.

    A time is ``-log(1 - u_k) / pi_k``, never less than ``u_k / pi_k``: few logarithms are taken.
    Its logarithm is the key of the Gumbel draw.

    Parameters
    ----------
    labels, kept, law
        As `boltzmann_law` wrote them.
    uniforms : float64 array, one for each kept client, those of one coalition together, by id
    sizes : int64 array of shape (n_coalitions,)
    picked : int64 array of shape (n_coalitions,)
        Output: the client, or -1 where none is kept.
    """
    n_labels = sizes.shape[0]
    times, places = np.full(n_labels, np.inf), np.empty(n_labels, dtype=np.int64)
    total = 0
    for p in range(n_labels):
        picked[p], places[p] = -1, total
        total += sizes[p]
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
