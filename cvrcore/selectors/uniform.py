"""FedAvg's policy: eligible clients in, a uniform sample without replacement out."""

from __future__ import annotations

import numpy as np

from ..selection import Selection
from ..validation import Ids, Mask
from .base import Probe, Selector


def uniform_selection(
    eligible: Mask, n_select: int, rng: np.random.Generator, round: int, warmup: bool = False
) -> Selection:
    """Draw ``min(n_select, eligible)`` clients uniformly without replacement."""
    ids = np.flatnonzero(eligible)
    n_picked = min(n_select, ids.size)
    clients: Ids = rng.choice(ids, size=n_picked, replace=False)
    law = eligible / ids.size
    return Selection(
        clients=clients,
        probabilities=law,
        inclusion=law * n_picked,
        round=round,
        warmup=warmup,
    )


class UniformSelector(Selector):
    """Every eligible client is equally likely (McMahan et al., 2017)."""

    name = "uniform"

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        return uniform_selection(eligible, self.n_select, self._rng, self.round)
