"""Kernels of the draw inside coalitions; Cython twin: ``cvrcore_ext/_draws.pyx``.

Callers have validated shapes and dtypes; kernels write into arrays they are given.
"""

import math

import numpy as np

from ._exponential import exponential
from ._jit import njit


@njit
def law_tops(labels, kept, scores, start, stop, sizes, tops):
    """Count kept clients of each coalition, and find their largest score.

    Parameters
    ----------
    labels : int64 array of shape (n_clients,)
    kept : uint8 array of shape (n_clients,)
    scores : float64 array of shape (n_clients,)
    start, stop : int
        Of clients `start` .. `stop` - 1 alone.
    sizes, tops : int64 and float64 arrays of shape (n_coalitions,)
        Output, the latter -inf where nobody is kept.
    """
    for p in range(sizes.shape[0]):
        sizes[p], tops[p] = 0, -np.inf
    for k in range(start, stop):
        if kept[k]:
            sizes[labels[k]] += 1
            tops[labels[k]] = max(tops[labels[k]], scores[k])


@njit
def law_weights(labels, kept, scores, tops, temperature, start, stop, totals, law):
    """Write ``exp((v_k - top) / temperature)`` of kept clients into `law`, Eq. (11), and sum it.

    0 for everybody else. Shifted by the largest of each coalition, so that nothing overflows.

    Parameters
    ----------
    labels, kept, scores, start, stop
        As in `law_tops`.
    tops : float64 array of shape (n_coalitions,)
        Over all clients.
    temperature : float
        Positive.
    totals : float64 array of shape (n_coalitions,)
        Output.
    law : float64 array of shape (n_clients,)
    """
    least = -800.0 * temperature  # below it the exponential is 0, and a quotient may overflow
    for p in range(totals.shape[0]):
        totals[p] = 0.0
    for k in range(start, stop):
        law[k] = 0.0
        if kept[k]:
            below = scores[k] - tops[labels[k]]
            law[k] = exponential(below / temperature) if below > least else 0.0
            totals[labels[k]] += law[k]


@njit
def law_shares(labels, totals, start, stop, law):
    """Divide `law` by the sum over each coalition, `totals`."""
    for k in range(start, stop):
        if law[k] > 0.0:
            law[k] /= totals[labels[k]]


@njit
def draw_one_each(labels, kept, law, uniforms, start, stop, places, times, picked):
    """Draw one kept client of each coalition by `law`: the least of exponential times.

    A time is ``-log(1 - u_k) / pi_k``, never less than ``u_k / pi_k``: few logarithms are taken.
    Its logarithm is the key of the Gumbel draw.

    Parameters
    ----------
    labels, kept, start, stop
        As in `law_tops`.
    law : float64 array of shape (n_clients,)
    uniforms : float64 array, one for each kept client, those of one coalition together, by id
    places : int64 array of shape (n_coalitions,)
        Where those of each coalition begin; those that were used are behind it afterwards.
    times, picked : float64 and int64 arrays of shape (n_coalitions,)
        Output: the least time and its client, or infinity and -1 where none is kept.
    """
    for p in range(places.shape[0]):
        times[p], picked[p] = np.inf, -1
    for k in range(start, stop):
        if not kept[k]:
            continue
        p = labels[k]
        u = uniforms[places[p]]
        places[p] += 1
        if law[k] > 0.0 and u < times[p] * law[k]:
            time = -math.log1p(-u) / law[k]
            if time < times[p]:
                times[p], picked[p] = time, k
