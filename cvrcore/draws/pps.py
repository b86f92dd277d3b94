"""Probability proportional to size: scores in, inclusion probabilities and samples out.

`capped_inclusion` turns scores into inclusion probabilities that sum to the sample size.
`systematic_sample` draws a sample of that size with exactly these probabilities.
"""

from __future__ import annotations

import numpy as np

from ..validation import Float, Ids

#: A sum of probabilities this close to a whole number counts as one.
WHOLE = 1e-6


def capped_inclusion(scores: Float, size: int | float) -> Float:
    """Return inclusion probabilities in proportion to scores, capped at 1.

    A score whose share would exceed 1 gets 1; what is left is shared out among the others in
    proportion, until none exceeds 1. If fewer than `size` scores are positive, those have
    probability 1 and the others share the rest evenly.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        Non-negative and finite.
    size : int or float
        Expected size of the sample; capped at n.

    Returns
    -------
    ndarray of float64, shape (n,)
        Sums to ``min(size, n)``.

    Examples
    --------
    >>> capped_inclusion(np.array([8.0, 1.0, 1.0, 2.0]), 2)
    array([1.  , 0.25, 0.25, 0.5 ])
    """
    n = scores.shape[0]
    if size >= n:
        return np.ones(n)
    if size <= 0:
        return np.zeros(n)
    top = scores.max()
    positive = int(np.count_nonzero(scores))  # none is negative
    if positive <= size:
        rest = (size - positive) / (n - positive)
        return np.where(scores > 0, 1.0, rest)
    values = scores / top  # sums must not overflow
    inclusion = values * (size / values.sum())
    capped = np.zeros(n, dtype=bool)
    if inclusion.max() <= 1.0:  # the usual case
        return inclusion
    while True:  # few passes: each caps all that are above 1
        over = inclusion > 1.0
        if not over.any():
            break
        capped |= over
        n_capped = int(np.count_nonzero(capped))
        rest = np.where(capped, 0.0, values)
        inclusion = rest * ((size - n_capped) / rest.sum())
    inclusion[capped] = 1.0
    return inclusion


def systematic_sample(inclusion: Float, rng: np.random.Generator) -> Ids:
    """Draw a sample by systematic sampling in random order (Madow, 1949; Goodman and Kish).

    Clients lie in random order on a line, each as long as its probability; the sample is who
    covers the points u, u + 1, u + 2, ... Every client is in with exactly its probability.
    The size is the sum of the probabilities if that is a whole number, and otherwise one of
    the two whole numbers around it.

    Parameters
    ----------
    inclusion : ndarray of shape (n,)
        Probabilities in [0, 1].
    rng : Generator

    Returns
    -------
    ndarray of int64
        Positions in `inclusion`, in random order.

    Examples
    --------
    >>> sorted(systematic_sample(np.array([1.0, 0.5, 0.5]), np.random.default_rng(0)).tolist())
    [0, 2]
    """
    order = rng.permutation(inclusion.shape[0])
    ends = np.cumsum(inclusion[order])
    if ends.size == 0:
        return order.astype(np.int64)
    whole = np.rint(ends[-1])
    if abs(ends[-1] - whole) < WHOLE and ends[-1] > 0:
        ends *= whole / ends[-1]  # rounding must not change the size
        ends[-1] = whole
    passed = np.floor(ends - rng.random())  # points u + j with j <= passed are covered
    covers = np.empty(passed.size, dtype=bool)
    covers[0] = passed[0] > -1.0
    np.greater(passed[1:], passed[:-1], out=covers[1:])
    return np.asarray(order[covers], dtype=np.int64)
