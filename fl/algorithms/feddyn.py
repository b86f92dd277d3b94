"""FedDyn (Acar et al., 2021): local losses with a dynamic regulariser."""

from __future__ import annotations

from typing import Any

import numpy as np

from cvrcore.aggregators.row_store import RowStore

from ..flat import Vector
from .base import Algorithm, Resources, RoundUpdates


class FedDyn(Algorithm):
    r"""Clients descend ``L_k(y) + <alpha_k d_k, y> + alpha_k / 2 |y - x|^2``.

    d_k is the sum of ``y - x`` over the rounds in which client k took part: ``-alpha_k d_k``
    estimates its gradient. The next model is the average plus the mean of d over all clients
    ([1]_, Algorithm 1, where ``h = -alpha * mean(d)``). ``alpha_k = alpha / (n share_k)`` for
    n clients, as in the authors' code: the optimum is that of the losses weighted by shares.
    The average is the aggregator's; the paper's is ``"mean"``, for which alpha_k is alpha.

    Parameters
    ----------
    resources : Resources
    alpha : float
        Non-negative. The paper tries 0.1, 0.01 and 0.001. 0 leaves both the regulariser and
        the correction out: FedAvg.

    References
    ----------
    .. [1] Acar, Zhao, Matas, Mattina, Whatmough and Saligrama, "Federated learning based on
       dynamic regularization", ICLR, 2021.
    """

    name = "feddyn"

    def __init__(self, resources: Resources, alpha: float = 0.01) -> None:
        super().__init__(resources)
        if not alpha >= 0:
            raise ValueError(f"alpha must be non-negative, got {alpha:g}")
        self._alpha = alpha
        self._n_holders = int((resources.weights > 0).sum())
        self._drifts = RowStore()
        self._drifts.fit(resources.n_clients, self.models.shape[1])
        self._sum = np.zeros(self.models.shape[1])  # of all d_k

    @property
    def memory_bytes(self) -> int:
        """Bytes of the d_k too; in a real federation clients keep their own."""
        return super().memory_bytes + self._drifts.nbytes + self._sum.nbytes

    def proximal(self, clients: np.ndarray) -> np.ndarray:
        """Return alpha_k."""
        shares = self.shares[clients] * self._n_holders
        weights: np.ndarray = self._alpha / shares if self._alpha else np.zeros(len(clients))
        return weights

    def shifts(self, clients: np.ndarray) -> list[Vector | None]:
        """Return alpha_k d_k, None for a client that never took part."""
        if not self._alpha:
            return [None] * len(clients)
        weights = self.proximal(clients).astype(np.float32)
        return [
            weight * self._drifts.read(int(k)) if self._drifts.known[k] else None
            for k, weight in zip(clients, weights, strict=True)
        ]

    def merge(self, updates: RoundUpdates) -> None:
        """Average, then add the mean of all d_k; a round without reports moves nothing."""
        before = self.models[0].copy()
        super().merge(updates)
        if not self._alpha or not updates.vectors:
            return
        for k, vector in zip(updates.clients, updates.vectors, strict=True):
            old = self._drifts.read(int(k)).copy()
            stored = self._drifts.write(int(k), old + (vector - before))
            self._sum += np.subtract(stored, old, dtype=np.float64)
        self.models[0] += (self._sum / self._n_holders).astype(self.models.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {**super().state_dict(), "drifts": self._drifts.state(), "sum": self._sum.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._drifts.restore(state["drifts"])
        self._sum = state["sum"].copy()
