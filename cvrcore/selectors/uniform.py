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
    n, n_eligible = eligible.size, int(np.count_nonzero(eligible))
    n_picked = min(n_select, n_eligible)
    even = 1.0 / n_eligible
    clients: Ids
    if n_eligible == n:  # the same draws as below, without a list of ids
        clients = rng.choice(n, size=n_picked, replace=False).astype(np.int64, copy=False)
        law, inclusion = np.full(n, even), np.full(n, even * n_picked)
    else:
        clients = rng.choice(np.flatnonzero(eligible), size=n_picked, replace=False)
        law, inclusion = eligible * even, eligible * (even * n_picked)
    return Selection(
        clients=clients,
        probabilities=law,
        inclusion=inclusion,
        round=round,
        warmup=warmup,
    )


class UniformSelector(Selector):
    """Every eligible client is equally likely (McMahan et al., 2017).

    Examples
    --------
    >>> from cvrcore.selectors.uniform import UniformSelector
    >>> selector = UniformSelector(n_clients=10, n_select=3, seed=0)
    >>> selector.select(available=[0, 2, 4, 6]).inclusion
    array([0.75, 0.  , 0.75, 0.  , 0.75, 0.  , 0.75, 0.  , 0.  , 0.  ])
    """

    name = "uniform"

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        return uniform_selection(eligible, self.n_select, self._rng, self.round)
