"""IFCA (Ghosh et al., 2020): k models; each client trains the one that fits it best."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..evaluation import Deployment, training_losses
from .base import Algorithm, Resources, RoundUpdates

INITS = ("random", "restart", "warmstart")


class IFCA(Algorithm):
    """Model averaging variant: assignment by mean training loss, means by samples.

    Parameters
    ----------
    resources : Resources
    k : int
        Number of models; the paper states none.
    init : {"random", "restart", "warmstart"}
        Independent initial models; the same, re-drawn (at most `draws` times) until each
        attracts a share of the clients of at least 0.35 / (k - 1); or `warm_rounds` of
        FedAvg, then k copies with their last layer re-drawn. Of identical models every client
        would choose the first.
    warm_rounds, draws : int
        See `init`.
    """

    name = "ifca"

    def __init__(
        self,
        resources: Resources,
        k: int = 2,
        init: str = "random",
        warm_rounds: int = 10,
        draws: int = 10,
    ) -> None:
        super().__init__(resources, k)
        if init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}")
        self._warm_rounds = warm_rounds if init == "warmstart" and k > 1 else 0
        self._merged = 0
        if not self._warm_rounds:
            self._draw(1)
        for draw in range(1, draws if init == "restart" and k > 1 else 0):
            counts = np.bincount(self._best(self._holders()), minlength=k)
            if counts.min() >= 0.35 / (k - 1) * counts.sum():
                break
            self._draw(1 + draw * k)

    @property
    def models_sent(self) -> int:
        """All k models, once they differ."""
        return 1 if self._warming else len(self.models)

    @property
    def _warming(self) -> bool:
        return self._merged < self._warm_rounds

    def starts(self, clients: np.ndarray) -> np.ndarray:
        """Return for each client the model of least mean training loss."""
        return self._best(clients)

    def merge(self, updates: RoundUpdates) -> None:
        """Average each model over the clients that chose it."""
        was_warming = self._warming
        super().merge(updates)
        self._merged += bool(updates.vectors)
        if was_warming and not self._warming:
            self.models[1:] = self.models[0]
            last = self.resources.layout.last_layer
            for j in range(1, len(self.models)):
                self.models[j, last] = self.resources.initial_model(j)[last]

    def deployment(self) -> Deployment:
        """Return the best model of every client, also of those never picked."""
        of_client = np.zeros(self.resources.n_clients, dtype=np.int64)
        holders = self._holders()
        of_client[holders] = self._best(holders)
        return Deployment(self.models, of_client)

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {**super().state_dict(), "merged": self._merged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._merged = int(state["merged"])

    def _draw(self, first: int) -> None:
        """Draw all models but the shared one, from initial model number `first` on."""
        for j in range(1, len(self.models)):
            self.models[j] = self.resources.initial_model(first + j - 1)

    def _holders(self) -> np.ndarray:
        return np.flatnonzero(self.resources.weights > 0)

    def _best(self, clients: np.ndarray) -> np.ndarray:
        if len(self.models) == 1 or self._warming or len(clients) == 0:
            return np.zeros(len(clients), dtype=np.int64)
        engine, samples = self.resources.engine, self.resources.samples
        losses = training_losses(engine, samples, self.models, clients)
        # A model that diverged has loss NaN; argmin would choose it.
        best: np.ndarray = np.argmin(np.where(np.isnan(losses), np.inf, losses), axis=1)
        return best
