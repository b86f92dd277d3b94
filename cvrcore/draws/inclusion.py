"""Inclusion probabilities: a draw in, each client's probability to be picked out.

`successive_inclusion` is exact, for clients drawn one by one in proportion to weights without
replacement. `sampled_inclusion` repeats a draw that has no closed form, on a separate random
stream: it changes no selection, and the same state gives the same estimate. Both may cost
more than the selection itself, so ``Selection.inclusion`` is lazy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ..validation import Float, Ids, Mask

#: Repetitions of a draw that has no closed form; the standard error is below 0.008.
N_DRAWS: Final = 4000
_STREAM: Final = 0x1AC1  # seed of the stream, together with the round
_BATCH: Final = 2**21  # numbers drawn at a time
_STEP: Final = 0.15  # largest step in the logarithm of time; large sizes need smaller steps
_LEAST: Final = -600.0  # least logarithm of a weight; smaller ones are raised to this


def successive_inclusion(log_weights: Float, size: int) -> Float:
    r"""Return the probability of each client to be among `size` successive draws.

    Give client i an exponential arrival time of rate w_i: the order of arrival is the order
    of successive draws in proportion to w, without replacement (Efraimidis and Spirakis,
    2006). So i is drawn when fewer than `size` other clients arrive before it,

    .. math:: \pi_i = \int_0^\infty w_i e^{-w_i t}\,P(N_{-i}(t) < \mathrm{size})\,dt,

    where the number of other clients that have arrived, :math:`N_{-i}(t)`, is a sum of
    independent events. Its law is the convolution of the laws of the clients before i and
    after i. In the logarithm of time the integrand is smooth and vanishes on both sides, so
    the trapezoidal rule converges geometrically. Cost: O(n size) for each node.

    Parameters
    ----------
    log_weights : ndarray of shape (n,)
        -inf for a client that is never drawn while clients above -inf are left.
    size : int
        At most the number of weights above -inf.

    Returns
    -------
    ndarray of float64, shape (n,)
        Sums to `size`.

    Examples
    --------
    >>> successive_inclusion(np.log([2.0, 1.0, 1.0]), 2).round(4)
    array([0.8333, 0.5833, 0.5833])
    """
    inclusion = np.zeros(log_weights.shape[0])
    alive = np.flatnonzero(np.isfinite(log_weights))
    if size <= 0:
        return inclusion
    if size >= alive.size:
        inclusion[alive] = 1.0
        return inclusion
    logs = log_weights[alive] - log_weights[alive].max()
    if not logs.any():
        inclusion[alive] = size / alive.size
        return inclusion
    rates = np.exp(np.maximum(logs, _LEAST))
    if size == 1:
        inclusion[alive] = rates / rates.sum()
        return inclusion
    # Before `low` almost no client has arrived; after `high` more than `size` clients have.
    low = np.log(1e-17 / rates.sum())
    high = np.log(45.0) - np.sort(np.log(rates))[::-1][size]
    step = min(_STEP, 0.5 / np.sqrt(size))
    times = np.arange(low, high + step, step)
    total = np.zeros(alive.size)
    batch = max(1, _BATCH // (alive.size * size))
    for start in range(0, times.size, batch):
        total += _arrivals(rates, np.exp(times[start : start + batch]), size)
    # The step is a common factor, which scaling to the known sum removes.
    inclusion[alive] = np.minimum(total * (size / total.sum()), 1.0)
    return inclusion


def _arrivals(rates: Float, times: Float, size: int) -> Float:
    """Return the trapezoidal sum of each client's integrand over some times."""
    n = rates.shape[0]
    exponents = times[:, None] * rates
    arrived = -np.expm1(-exponents)  # probability of arrival, (times, clients)
    # before[i][:, c]: probability that c of the clients before i have arrived, c < size.
    before = np.zeros((n, times.size, size))
    law = np.zeros((times.size, size))
    law[:, 0] = 1.0
    for i in range(n):
        before[i] = law
        law = _add_event(law, arrived[:, i : i + 1])
    result = np.empty(n)
    law = np.zeros((times.size, size))
    law[:, 0] = 1.0
    density = exponents * np.exp(-exponents)
    for i in range(n - 1, -1, -1):
        fewer = np.einsum("tc,tc->t", before[i], np.cumsum(law, axis=1)[:, ::-1])
        result[i] = float(density[:, i] @ fewer)
        law = _add_event(law, arrived[:, i : i + 1])
    return result


def _add_event(law: Float, chance: Float) -> Float:
    """Return the law of a count with one more independent event, truncated to its length."""
    grown = law * (1.0 - chance)
    grown[:, 1:] += law[:, :-1] * chance
    return grown


def sampled_inclusion(
    draw: Callable[[np.random.Generator, int], Ids],
    eligible: Mask,
    picked: Ids,
    round: int,
    n_draws: int = N_DRAWS,
    width: int = 1,
) -> Float:
    """Estimate inclusion probabilities by repeating a draw.

    Parameters
    ----------
    draw : callable
        ``draw(rng, n)`` returns the clients of n draws, an int array of shape (n, m).
    eligible : ndarray of bool, shape (n_clients,)
    picked : ndarray of int64, shape (m,)
        The clients that were picked.
    round : int
        Seed of the stream, together with a constant.
    n_draws : int
    width : int
        Numbers that one draw needs for each client; bounds the memory of a batch.

    Returns
    -------
    ndarray of float64, shape (n_clients,)
        Sums to m. A picked client that no repetition drew counts as drawn half a time:
        aggregators divide by its probability.

    Examples
    --------
    >>> def draw(rng, n):  # n draws of two of three clients
    ...     return np.array([rng.permutation(3)[:2] for _ in range(n)])
    >>> found = sampled_inclusion(draw, np.ones(3, dtype=bool), np.array([0, 1]), round=0)
    >>> found.round(1)
    array([0.7, 0.7, 0.7])
    """
    if picked.size >= np.count_nonzero(eligible):
        return eligible.astype(np.float64)
    rng = np.random.default_rng([_STREAM, round])
    counts = np.zeros(eligible.shape[0])
    batch = max(1, _BATCH // (eligible.shape[0] * width))
    for start in range(0, n_draws, batch):
        drawn = draw(rng, min(batch, n_draws - start))
        counts += np.bincount(drawn.ravel(), minlength=counts.size)
    counts[picked] = np.maximum(counts[picked], 0.5)
    return np.minimum(counts * (picked.size / counts.sum()), 1.0)


def filled_in(losses: Float, rng: np.random.Generator, n: int) -> Float:
    """Return n copies of the last known losses; a random known loss replaces each NaN.

    Examples
    --------
    >>> filled_in(np.array([2.0, np.nan]), np.random.default_rng(0), 2)
    array([[2., 2.],
           [2., 2.]])
    """
    known = losses[~np.isnan(losses)]
    copies = np.tile(losses, (n, 1))
    missing = np.isnan(copies)
    copies[missing] = rng.choice(known, size=int(missing.sum())) if known.size else 0.0
    return copies
