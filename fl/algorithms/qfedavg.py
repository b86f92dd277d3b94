"""q-FedAvg (Li et al., 2020): clients of high loss count more."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..evaluation import training_losses
from .base import Algorithm, Resources, RoundUpdates
from .paths import rescaled

#: Added to losses, as in the authors' code: a power of 0 may be infinite.
TINY = 1e-10


class QFedAvg(Algorithm):
    r"""Descends ``sum_k p_k F_k^(q+1) / (q+1)``: the larger q, the more even the losses.

    With F_k the mean training loss of the model x that was sent and
    ``g_k = L (x - y_k)``, the next model is
    ``x - sum_k p_k F_k^q g_k / sum_k p_k h_k``,
    ``h_k = q F_k^(q-1) |g_k|^2 + L F_k^q`` ([1]_, Algorithm 2, which draws clients by p_k and
    then counts them alike: aggregator ``"mean"``). Here every update is scaled by
    ``L F_k^q / mean(h)`` before it is aggregated, so that any aggregator goes with it. q = 0 is
    FedAvg.

    Parameters
    ----------
    resources : Resources
    q : float
        Non-negative; the paper uses 0.001 to 5, by data set. A large one slows training down.
    lipschitz : float, optional
        L, positive. Default: 1 over the step length of clients, as in the paper.

    References
    ----------
    .. [1] Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning",
       ICLR, 2020.
    """

    name = "q-fedavg"

    def __init__(
        self, resources: Resources, q: float = 0.1, lipschitz: float | None = None
    ) -> None:
        super().__init__(resources)
        if not q >= 0:
            raise ValueError(f"q must be non-negative, got {q:g}")
        if lipschitz is not None and not lipschitz > 0:
            raise ValueError(f"lipschitz must be positive, got {lipschitz:g}")
        self._q, self._lipschitz = q, lipschitz
        self._losses = np.zeros(resources.n_clients)  # of the model that was sent

    def starts(self, clients: np.ndarray) -> np.ndarray:
        """Return the only model's row; measure its loss on each of `clients`."""
        if self._q and len(clients):
            engine, samples = self.resources.engine, self.resources.samples
            self._losses[clients] = training_losses(engine, samples, self.models, clients)[:, 0]
        return super().starts(clients)

    def merge(self, updates: RoundUpdates) -> None:
        """Scale the updates, then average."""
        if self._q and updates.vectors:
            model = self.models[0]
            inverse = self._lipschitz or 1.0 / updates.lr
            paths = [np.subtract(model, v, dtype=np.float64) for v in updates.vectors]
            squares = inverse**2 * np.array([path @ path for path in paths])
            losses = self._losses[updates.clients] + TINY
            powers = losses**self._q
            h = self._q * losses ** (self._q - 1.0) * squares + inverse * powers
            shares = self.shares[updates.clients]
            factors = inverse * powers / (shares @ h / shares.sum())
            scaled = rescaled(updates, model, factors)
            updates = dataclasses.replace(updates, vectors=scaled)
        super().merge(updates)
