"""Sampling designs: inclusion probabilities in, clients that are drawn with these out.

``systematic`` and ``pivotal`` have a fixed size and, from the same probabilities, a smaller
variance than ``poisson``, in which each client is drawn independently and the size is random.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..selection import Selection
from ..validation import Float
from .pivotal import pivotal_sample
from .pps import systematic_sample

DESIGNS: Final = ("systematic", "pivotal", "poisson")


def draw_by_design(
    design: str,
    inclusion: Float,
    rng: np.random.Generator,
    *,
    round: int,
    features: Float | None = None,
    scores: Float | None = None,
    neighbours: str = "auto",
    warmup: bool = False,
) -> Selection:
    """Draw a round with exact inclusion probabilities.

    Parameters
    ----------
    design : {"systematic", "pivotal", "poisson"}
    inclusion : ndarray of shape (n_clients,)
        Probabilities in [0, 1], 0 for clients that cannot be picked; at least one above 0.
    rng : Generator
    round : int
    features : ndarray of shape (n_clients, n_features), optional
        For "pivotal": without features its sample is that of "systematic".
    scores : ndarray of shape (n_clients,), optional
        What the probabilities were made of, for the record.
    neighbours : str
        See `cvrcore.draws.pivotal.pivotal_sample`.
    warmup : bool
    """
    if design == "poisson":
        clients = np.flatnonzero(rng.random(inclusion.size) < inclusion)
    elif design == "pivotal" and features is not None:
        clients = pivotal_sample(inclusion, features, rng, neighbours)
    else:
        clients = systematic_sample(inclusion, rng)
    return Selection(
        clients=rng.permutation(clients).astype(np.int64),  # a guard may replace the last one
        scores=scores,
        probabilities=inclusion / inclusion.sum(),
        inclusion=inclusion,
        round=round,
        warmup=warmup,
    )


def design_inclusion(selection: Selection, n_select: int) -> Float | None:
    """Return the inclusion that a round of `draw_by_design` was drawn with.

    Where a guard has changed the selection, ``Selection.inclusion`` is that of the whole
    procedure and may not be computed yet; the law of the draw is kept.
    """
    if selection.inclusion is not None or selection.probabilities is None:
        return selection.inclusion
    law = selection.probabilities
    return np.minimum(law * min(n_select, int(np.count_nonzero(law))), 1.0)
