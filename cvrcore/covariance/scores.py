"""Scores from moments: ``C alpha`` and ``diag C`` in, variance reduction v out; Eqs. (8), (9)."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..kernels import dispatch
from ..validation import Float

#: A diagonal entry of C^d below this share of its coordinate's mean counts as zero.
DIAGONAL_FLOOR: Final = 1e-12


def score_moments(moment: Float, diagonal: Float) -> Float:
    """Return v from ``C alpha`` and ``diag C``, each of shape (n_clients, n_features)."""
    floor = np.empty(moment.shape[1])
    scores = np.empty(moment.shape[0])
    dispatch.diagonal_floor(diagonal, DIAGONAL_FLOOR, floor)
    dispatch.variance_reduction(moment, diagonal, floor, scores)
    return scores
