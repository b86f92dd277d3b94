"""FeSEM (Xie, Long et al.): k centres; each client trains the one nearest to its model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..evaluation import Deployment
from .base import Algorithm, Resources, RoundUpdates


class FeSEM(Algorithm):
    """Distances between last layers; centres are carried forward, never fitted anew.

    All centres start at the common model. After `initial_rounds` of FedAvg, k-means++ on
    the last layers of the clients seen so far gives each centre its own last layer: the
    common one moved by the deviation of the cluster's mean from the mean of all. From then
    on a picked client starts from the centre nearest to its last local model, and a centre
    becomes the mean of the models that this round's members sent back.

    Parameters
    ----------
    resources : Resources
    k : int
        Number of centres.
    weights : {"uniform", "sizes"}
        Plain mean of the members, as in the original code, or by their samples.
    distance : {"last-layer", "full"}
        What distances are measured on.
    initial_rounds : int
        Rounds of FedAvg at the start.
    """

    name = "fesem"

    def __init__(
        self,
        resources: Resources,
        k: int = 3,
        weights: str = "uniform",
        distance: str = "last-layer",
        initial_rounds: int = 10,
    ) -> None:
        super().__init__(resources, k)
        if weights not in ("uniform", "sizes"):
            raise ValueError(f"weights must be 'uniform' or 'sizes', got {weights!r}")
        if distance not in ("last-layer", "full"):
            raise ValueError(f"distance must be 'last-layer' or 'full', got {distance!r}")
        sizes = resources.weights
        self._weights = sizes if weights == "sizes" else (sizes > 0).astype(sizes.dtype)
        layout = resources.layout
        self._watched = layout.last_layer if distance == "last-layer" else slice(0, layout.size)
        self._initial_rounds = initial_rounds
        self._merged = 0
        self._apart = False  # whether the centres have left the common model
        self._seen = np.zeros(resources.n_clients, dtype=bool)
        self._last = np.zeros(
            (resources.n_clients, self.models[0, self._watched].size), dtype=self.models.dtype
        )

    def starts(self, clients: np.ndarray) -> np.ndarray:
        """Return for each client the centre nearest to its last local model."""
        nearest: np.ndarray = self._nearest()[clients]
        return nearest

    def merge(self, updates: RoundUpdates) -> None:
        """Average each centre over its members of this round."""
        weights = self._weights if self._apart else self.resources.weights
        self._average(updates, weights)
        for client, vector in zip(updates.clients, updates.vectors, strict=True):
            self._last[client] = vector[self._watched]
        self._seen[updates.clients] = True
        self._merged += bool(updates.vectors)
        if not self._apart:
            self.models[1:] = self.models[0]
            if self._merged >= self._initial_rounds:
                self._part()

    def deployment(self) -> Deployment:
        """Return the centre nearest to each client's last local model."""
        return Deployment(self.models, self._nearest())

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {
            **super().state_dict(),
            "merged": self._merged,
            "apart": self._apart,
            "seen": self._seen.copy(),
            "last": self._last.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._merged, self._apart = int(state["merged"]), bool(state["apart"])
        self._seen, self._last = state["seen"].copy(), state["last"].copy()

    def _nearest(self) -> np.ndarray:
        """Return each client's centre; one never seen gets that with most members."""
        nearest = np.zeros(self.resources.n_clients, dtype=np.int64)
        if not self._apart or len(self.models) == 1:
            return nearest
        rows = self._last[self._seen].astype(np.float64)
        centres = self.models[:, self._watched]
        members = np.argmin([np.square(rows - c).sum(axis=1) for c in centres], axis=0)
        nearest[self._seen] = members
        nearest[~self._seen] = np.bincount(members, minlength=len(self.models)).argmax()
        return nearest

    def _part(self) -> None:
        """Give each centre a place of its own, once enough different clients were seen."""
        k = len(self.models)
        rows = self._last[self._seen].astype(np.float64)
        if k > 1:
            if len(np.unique(rows, axis=0)) < k:
                return
            from sklearn.cluster import KMeans

            seed = self.resources.streams.integer("init", 0, 1)
            labels = KMeans(k, n_init=10, random_state=seed).fit_predict(rows)
            for j in range(k):
                shift = rows[labels == j].mean(axis=0) - rows.mean(axis=0)
                self.models[j, self._watched] += shift.astype(self.models.dtype)
        self._apart = True
