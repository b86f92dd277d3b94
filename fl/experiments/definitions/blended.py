"""Factor memory plus each client's own deviation from it; for experiments alone.

The update of client k is predicted as ``z_k V + rho^age r_k``: the regression of `factor-memory`
on the client's features, and what the client's last report had beyond that regression, which
fades with its age. Where clients report often the second part makes it `memory`, of which the
common drift is corrected; where they do not it is `factor-memory`. The step adds the weighted
mean of what the prediction missed. Clients that reported before are predicted from the features
before the round, so that what they report now decides nothing; a new client from its own.
"""

from __future__ import annotations

import numpy as np

from cvrcore.aggregators import Arrays
from cvrcore.aggregators.base import RoundUpdates
from cvrcore.aggregators.flat import FlatLayout
from cvrcore.head import HeadMap

from .replayed import Replayed

RHO, FADE, RIDGE = 0.975, 0.9, 0.01


class Blended(Replayed):
    """See the module; keeps an update for each client and C + 1 models."""

    name = "blended"

    def __init__(self, rho: float = RHO) -> None:
        self.rho = rho
        self._seen = np.zeros(0, dtype=bool)

    def _start(self, n_clients: int, n_features: int, size: int) -> None:
        self._features = np.zeros((n_clients, n_features))
        self._seen = np.zeros(n_clients, dtype=bool)
        self._missed, self._age = np.ones(n_clients), np.zeros(n_clients)
        self._own = np.zeros((n_clients, size), dtype=np.float32)
        self._factors = np.zeros((n_features + 1, size), dtype=np.float32)
        self._gram = RIDGE * np.eye(n_features + 1)

    def _merge(self, received: RoundUpdates) -> Arrays:
        layout, clients = FlatLayout(received.current), received.clients
        base = layout.flatten(received.current)
        changes = layout.differences(received.updates, clients, base)
        rows = HeadMap(received.current).updates(received.updates, received.current)
        share = received.weights / received.weights.sum()
        assert received.selection is not None
        inclusion = received.selection.inclusion
        assert inclusion is not None
        if not self._seen.size:
            self._start(share.size, rows.shape[1], layout.size)
        weights = share[clients] / inclusion[clients]
        weights /= weights.sum()
        self._missed *= 1.0 - np.minimum(inclusion, 1.0)
        old, features = self._seen.copy(), self._features.copy()
        half = np.where(old[clients], 0.5, 1.0)[:, None]
        self._features[clients] += half * (rows - self._features[clients])
        self._seen[clients] = True

        before = self._design(np.where(old[:, None], features, self._features), share)
        fresh = self._rho_to_age() * old
        error = changes - before[clients].astype(np.float32) @ self._factors
        error -= fresh[clients, None].astype(np.float32) * self._own[clients]
        step = (share @ before).astype(np.float32) @ self._factors
        step += (share * fresh).astype(np.float32) @ self._own
        step += weights.astype(np.float32) @ error

        after = self._design(self._features, share)[clients]
        trust = after.T * (weights / weights.mean())
        self._gram = FADE * self._gram + trust @ after
        gain = np.linalg.solve(self._gram + RIDGE * np.eye(len(self._gram)), trust)
        short = after.astype(np.float32)
        self._factors += gain.astype(np.float32) @ (changes - short @ self._factors)
        self._own[clients] = changes - short @ self._factors
        self._age += 1.0
        self._age[clients] = 0.0
        return layout.unflatten(base + step)

    def _rho_to_age(self) -> np.ndarray:
        return np.asarray(self.rho**self._age)

    def _design(self, features: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Return (1, f_k); a client never seen has the weighted mean of the others."""
        odds = share * self._missed / np.maximum(1.0 - self._missed, 1e-12)
        known = np.where(self._seen, odds, 0.0)
        if not known.any():  # all that were seen were certain
            known = np.where(self._seen, share, 0.0)
        mean = known @ features / known.sum()
        rows = np.where(self._seen[:, None], features, mean)
        return np.column_stack([np.ones(len(rows)), rows])
