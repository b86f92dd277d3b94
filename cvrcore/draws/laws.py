"""Laws inside coalitions, general case: scores and groups in, places, clients, inclusion out.

`cvrcore.draws.coalition_draw` is the usual case, one place a coalition under Eq. (11).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from ..kernels import dispatch
from ..validation import (
    Float,
    Ids,
    Mask,
)
from .inclusion import successive_inclusion

LAWS: Final = ("boltzmann", "argmax", "uniform")
TIE: Final = 1e-9  # scores this close, relative to the largest, count as equal


def sort_by_label(labels: Ids, kept: Mask, n_labels: int) -> tuple[Ids, Ids, Ids]:
    """Return ids of kept clients sorted by label, and each label's start and count."""
    order = np.empty(labels.size, dtype=np.int64)
    starts, sizes = np.empty((2, n_labels), dtype=np.int64)
    n_kept = dispatch.sort_by_label(labels, kept.view(np.uint8), order, starts, sizes)
    return order[:n_kept], starts, sizes


class Groups(NamedTuple):
    """Eligible clients, sorted by coalition."""

    members: Ids  # eligible ids, sorted by coalition
    group: Ids  # coalition of each member; empty coalitions are not numbered
    starts: Ids  # first position of each non-empty coalition in `members`
    sizes: Ids  # eligible members of each non-empty coalition

    @classmethod
    def of(cls, coalitions: Ids, eligible: Mask) -> Groups:
        """Sort eligible clients by coalition."""
        members, starts, sizes = sort_by_label(coalitions, eligible, int(coalitions.max()) + 1)
        if sizes.all():
            return cls(members, coalitions[members], starts, sizes)
        found = sizes > 0
        starts, sizes = starts[found], sizes[found]
        return cls(members, np.repeat(np.arange(sizes.size), sizes), starts, sizes)

    def spread(self, per_group: Float) -> Float:
        """Repeat one value per coalition for each of its members."""
        return per_group[self.group]


def log_law(
    scores: Float, groups: Groups, law: str = "boltzmann", temperature: float = 1.0
) -> Float:
    """Return unnormalised log-probabilities of ``groups.members``, 0 at their largest.

    Eq. (11) for "boltzmann"; Eq. (10) for "argmax", where equal scores have equal
    probabilities; "uniform" ignores scores.
    """
    values = scores[groups.members]
    if law == "uniform":
        return np.zeros(values.size)
    top = np.maximum.reduceat(values, groups.starts)
    below = values - groups.spread(top)
    if law == "argmax":
        return np.where(below >= -TIE * np.abs(groups.spread(top)), 0.0, -np.inf)
    if temperature == 1.0:
        return below
    with np.errstate(over="ignore"):  # a tiny temperature: -inf is the limit
        return below / temperature


def probabilities_of(log_weights: Float, groups: Groups, n_clients: int) -> Float:
    """Normalise log-probabilities in each coalition; 0 for clients that are not eligible."""
    weights = np.exp(log_weights)
    result = np.zeros(n_clients)
    result[groups.members] = weights / groups.spread(np.add.reduceat(weights, groups.starts))
    return result


def places_of(groups: Groups, n_select: int) -> Ids:
    """Return places: one for each coalition with an eligible client, then the rest.

    Each further place goes to the coalition with the most eligible clients without a place,
    the first one among equals.
    """
    places = np.ones(groups.sizes.size, dtype=np.int64)
    for _ in range(min(n_select, groups.members.size) - places.size):
        places[np.argmax(groups.sizes - places)] += 1
    return places


def draw(
    log_weights: Float,
    scores: Float,
    groups: Groups,
    places: Ids,
    rng: np.random.Generator,
) -> Ids:
    """Draw ``places[p]`` distinct clients from each coalition, first drawn first.

    Gumbel top-k: the largest key is a draw from the law, the next a draw without
    replacement, and so on. Clients of probability zero come last, by score.
    """
    # Negated Gumbel keys: the smallest come first.
    keys = np.log(-np.log1p(-rng.random(groups.members.size))) - log_weights
    if math.isfinite(keys.sum()):
        order = np.lexsort((keys, groups.group))
    else:
        order = np.lexsort((-scores[groups.members], keys, groups.group))
    position = np.arange(keys.size) - groups.spread(groups.starts)
    return groups.members[order[position < groups.spread(places)]]


def inclusion_of(
    probabilities: Float, log_weights: Float, scores: Float, groups: Groups, places: Ids
) -> Float | Callable[[], Float]:
    """Return each client's exact inclusion probability, lazy if a coalition has several places.

    Coalitions draw independently: with one place inclusion is the law itself, with several it
    is `successive_inclusion`. Clients of probability zero are picked by score, with certainty,
    after all others.
    """
    if places.max() == 1:
        return probabilities.copy()

    def compute() -> Float:
        inclusion = probabilities.copy()
        for start, size, wanted in zip(groups.starts, groups.sizes, places, strict=True):
            if wanted == 1:
                continue
            members = groups.members[start : start + size]
            logs = log_weights[start : start + size]
            chance = successive_inclusion(logs, int(wanted))
            n_left = int(wanted) - int(np.isfinite(logs).sum())
            if n_left > 0:
                none = np.flatnonzero(~np.isfinite(logs))
                best = np.argsort(-scores[members[none]], kind="stable")[:n_left]
                chance[none[best]] = 1.0
            inclusion[members] = chance
        return inclusion

    return compute
