"""FedNova (Wang et al., 2020): updates divided by the length of the local path."""

from __future__ import annotations

import dataclasses

import numpy as np

from .base import Algorithm, Resources, RoundUpdates


class FedNova(Algorithm):
    r"""Each update counts per local step: a client of many steps does not pull harder.

    With p_k the shares of the clients that reported and tau_k their effective numbers of
    steps, the next model is ``x + tau sum_k p_k (y_k - x) / tau_k`` with
    ``tau = sum_k p_k tau_k`` ([1]_, Section 4). Here every update is scaled by ``tau / tau_k``
    before it is aggregated, so that any aggregator goes with it. tau_k is the number of steps,
    or ``(1 - (1 - lr mu)^steps) / (lr mu)`` with a proximal term. Clients with the same number
    of steps make it FedAvg.

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
        lengths = self._lengths(updates.steps, updates.lr)
        if lengths.size and not (lengths == lengths[0]).all():
            shares = self.shares[updates.clients]
            tau = shares @ lengths / shares.sum()
            scaled = rescaled(updates, self.models[0], tau / lengths)
            updates = dataclasses.replace(updates, vectors=scaled)
        super().merge(updates)

    def _lengths(self, steps: np.ndarray, lr: float) -> np.ndarray:
        """Return tau_k: the 1-norm of the weights of a client's gradients in its update."""
        lengths: np.ndarray = steps.astype(np.float64)
        if self.mu:
            lengths = (1.0 - (1.0 - lr * self.mu) ** lengths) / (lr * self.mu)
        return lengths


def rescaled(updates: RoundUpdates, model: np.ndarray, factors: np.ndarray) -> list[np.ndarray]:
    """Return the models of a round with each difference from `model` times its factor."""
    pairs = zip(updates.vectors, factors, strict=True)
    return [model + model.dtype.type(factor) * (vector - model) for vector, factor in pairs]
