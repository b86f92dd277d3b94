"""SCAFFOLD (Karimireddy et al., 2020): local steps corrected by control variates."""

from __future__ import annotations

from typing import Any

import numpy as np

from cvrcore.aggregators.row_store import RowStore

from ..flat import Vector
from .base import Algorithm, Resources, RoundUpdates
from .paths import effective_steps


class Scaffold(Algorithm):
    r"""Local steps are ``y <- y - lr * (gradient + c - c_k)``.

    c_k estimates the gradient of client k, c their mean by share. After a round of K steps,
    ``c_k <- c_k - c + (x - y) / (K lr)`` (option II of Algorithm 1 in [1]_), and c changes by
    the shares of what the c_k changed. (K counts the weight of all gradients in the path: more
    than the steps if clients use momentum.) The paper's clients count alike: that is aggregator
    ``"mean"``; its global step length is ``server.lr``. Clients download and upload a control
    variate beside the model. Where all c_k are equal, as in the first round, it is FedAvg.

    Parameters
    ----------
    resources : Resources

    References
    ----------
    .. [1] Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: stochastic controlled
       averaging for federated learning", ICML, 2020.
    """

    name = "scaffold"

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._controls = RowStore()
        self._controls.fit(resources.n_clients, self.models.shape[1])
        self._mean = np.zeros(self.models.shape[1])  # c, in float64: it is a sum over rounds

    @property
    def models_sent(self) -> int:
        """The model and c."""
        return 2

    @property
    def models_returned(self) -> int:
        """The model and the change of c_k."""
        return 2

    @property
    def memory_bytes(self) -> int:
        """Bytes of the control variates too; in a real federation clients keep their own."""
        return super().memory_bytes + self._controls.nbytes + self._mean.nbytes

    def shifts(self, clients: np.ndarray) -> list[Vector | None]:
        """Return c - c_k of each client, None where it is 0."""
        mean = self._mean.astype(self.models.dtype)
        shifts = [mean - self._control(int(k)) for k in clients]
        return [shift if shift.any() else None for shift in shifts]

    def merge(self, updates: RoundUpdates) -> None:
        """Average the models; update the control variates of the clients that reported."""
        before, mean, shares = self.models[0].copy(), self._mean.copy(), self.shares
        super().merge(updates)
        lengths = effective_steps(updates.steps, updates.lr, self.resources.momentum)
        for k, vector, steps in zip(updates.clients, updates.vectors, lengths, strict=True):
            old = self._control(int(k)).astype(np.float64)
            path = np.subtract(before, vector, dtype=np.float64)
            new = old - mean + path / (steps * updates.lr)
            stored = self._controls.write(int(k), new.astype(np.float32))
            self._mean += shares[k] * (stored - old)

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {
            **super().state_dict(),
            "controls": self._controls.state(),
            "mean": self._mean.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._controls.restore(state["controls"])
        self._mean = state["mean"].copy()

    def _control(self, client: int) -> Vector:
        row: Vector = self._controls.read(client)
        return row.copy()
