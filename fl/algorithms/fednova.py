"""FedNova (Wang et al., 2020): updates divided by the length of the local path."""

from __future__ import annotations

import dataclasses

from .base import Algorithm, Resources, RoundUpdates
from .paths import effective_steps, rescaled


class FedNova(Algorithm):
    r"""Each update counts per local step: a client of many steps does not pull harder.

    With p_k the shares of the clients that reported and tau_k their effective numbers of
    steps, the next model is ``x + tau sum_k p_k (y_k - x) / tau_k`` with
    ``tau = sum_k p_k tau_k`` ([1]_, Section 4). Here every update is scaled by ``tau / tau_k``
    before it is aggregated, so that any aggregator goes with it. tau_k is the number of steps,
    ``(1 - (1 - lr mu)^steps) / (lr mu)`` with a proximal term, more with momentum. Clients with
    the same number of steps make it FedAvg.

    Parameters
    ----------
    resources : Resources
    mu : float
        Weight of FedProx's term in local training; non-negative.

    References
    ----------
    .. [1] Wang, Liu, Liang, Joshi and Poor, "Tackling the objective inconsistency problem in
       heterogeneous federated optimization", NeurIPS, 2020.
    """

    name = "fednova"

    def __init__(self, resources: Resources, mu: float = 0.0) -> None:
        super().__init__(resources)
        if not mu >= 0:
            raise ValueError(f"mu must be non-negative, got {mu:g}")
        self.mu = mu

    def merge(self, updates: RoundUpdates) -> None:
        """Scale the updates, then average."""
        momentum = self.resources.momentum
        lengths = effective_steps(updates.steps, updates.lr, momentum, self.mu)
        if lengths.size and not (lengths == lengths[0]).all():
            shares = self.shares[updates.clients]
            tau = shares @ lengths / shares.sum()
            scaled = rescaled(updates, self.models[0], tau / lengths)
            updates = dataclasses.replace(updates, vectors=scaled)
        super().merge(updates)
