"""Scores in, the best clients out: a partial sort with ties broken at random."""

from __future__ import annotations

import numpy as np

from ..validation import Float, Ids


def best_of(scores: Float, size: int, rng: np.random.Generator) -> Ids:
    """Return the places of the `size` largest scores, largest first, ties in random order.

    Cost: O(n), and O(size log size) for the order.

    Examples
    --------
    >>> best_of(np.array([1.0, 5.0, 3.0, 4.0]), 2, np.random.default_rng(0))
    array([1, 3])
    """
    n = scores.shape[0]
    if size <= 0:
        return np.empty(0, dtype=np.int64)
    if size >= n:
        kept = np.arange(n)
    else:
        edge = np.partition(scores, n - size)[n - size]
        above, tied = np.flatnonzero(scores > edge), np.flatnonzero(scores == edge)
        kept = np.concatenate([above, rng.permutation(tied)[: size - above.size]])
    return kept[np.lexsort((rng.random(kept.size), -scores[kept]))].astype(np.int64)
