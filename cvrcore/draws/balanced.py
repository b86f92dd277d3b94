"""Balanced draws with coalitions: a law and places in, exact inclusion and a sample out.

Ours, not the paper's. Successive draws from the law of a coalition forget where its clients
lie; the local pivotal method of `cvrcore.draws.pivotal` spreads them over the rows. "within"
keeps the places of each coalition. "across" has no whole places: a coalition is entitled to a
number of clients that need not be whole, and gets it rounded down or up.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..validation import Float, Ids
from .allocation import SIZE_LAWS, size_law
from .laws import Groups
from .pivotal import stratified_pivotal
from .pps import capped_inclusion

BALANCES: Final = ("within", "across")


def inclusion_within(log_weights: Float, groups: Groups, places: Ids) -> Float:
    """Return inclusion of ``groups.members`` that sums to the places of each coalition.

    It is in proportion to the law of the coalition, capped at 1. Where the law gives fewer
    clients a probability than there are places, the others share the rest evenly.
    """
    weights = np.exp(log_weights)
    inclusion = np.empty(weights.size)
    for start, size, wanted in zip(groups.starts, groups.sizes, places, strict=True):
        part = slice(start, start + size)
        inclusion[part] = capped_inclusion(weights[part], int(wanted))
    return inclusion


def inclusion_across(
    within: str,
    probabilities: Float,
    groups: Groups,
    n_select: int,
    weights: Float | None,
    distances: Float | None,
) -> Float:
    """Return inclusion of ``groups.members`` that sums to the places of the whole round.

    "size" and "neyman" are the laws of all clients together. For the other laws a coalition is
    entitled to places in proportion to its clients, so that "uniform" is even over all.
    """
    if within in SIZE_LAWS:
        assert weights is not None
        n = groups.members.size
        whole = Groups(groups.members, np.zeros(n, np.int64), np.zeros(1, np.int64), np.array([n]))
        scores = np.exp(size_law(within, whole, weights, distances))
    else:
        scores = probabilities[groups.members] * groups.spread(groups.sizes)
    return capped_inclusion(scores, min(n_select, groups.members.size))


def draw_balanced(
    inclusion: Float, rows: Float, groups: Groups, rng: np.random.Generator
) -> tuple[Ids, Float]:
    """Draw clients with the given inclusion; return them, and the inclusion of all clients.

    Clients come coalition by coalition, in random order inside each.
    """
    members = groups.members
    drawn = stratified_pivotal(inclusion, rows[members], groups.group, rng)
    drawn = rng.permutation(drawn)
    drawn = drawn[np.argsort(groups.group[drawn], kind="stable")]
    stated = np.zeros(rows.shape[0])
    stated[members] = inclusion
    return members[drawn], stated
