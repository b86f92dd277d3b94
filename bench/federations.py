"""Inputs of `bench.workloads` for very large federations: float32, made by chunks."""

import numpy as np

import cvrcore

_CHUNK = 20_000


class Federation:
    """Models of clients, "planted" in groups or "flat", as in `bench.workloads.Models`.

    Only `initial` (and for "flat" the offsets) stays in memory; all other memory is the
    selector's.
    """

    def __init__(self, kind, n_clients, n_features, n_groups, seed=0):
        self.kind, self.n_features = kind, n_features
        self.rng = np.random.default_rng(seed)
        self.truth = np.arange(n_clients) % n_groups
        n_centres = n_groups if kind == "planted" else 1
        self.centres = self.rng.standard_normal((n_centres, n_features), dtype=np.float32)
        self.noise = np.float32(0.3 if kind == "planted" else 0.05)
        self.offsets = None
        if kind == "flat":
            self.offsets = self._drawn(n_clients)
            self.offsets *= np.float32(0.05)
        self.initial = np.empty((n_clients, n_features), dtype=np.float32)
        for start in range(0, n_clients, _CHUNK):
            ids = np.arange(start, min(start + _CHUNK, n_clients))
            self.initial[ids] = self.draw(ids)
        self.weights = self.rng.integers(10, 500, size=n_clients).astype(float)

    def _drawn(self, n_rows):
        return self.rng.standard_normal((n_rows, self.n_features), dtype=np.float32)

    def draw(self, ids):
        rows = self.noise * self._drawn(len(ids))
        if self.offsets is None:
            rows += self.centres[self.truth[ids]]
        else:
            rows += self.centres[0]
            rows += self.offsets[ids]
        return rows

    def selector(self, n_select, **options):
        """Return a selector whose rows start from `initial`, not from zeros."""
        options = {"dtype": "float32", "warmup": 0, "seed": 0} | options
        size = self.initial.shape
        return cvrcore.CoalitionSelector(
            *size, n_select, weights=self.weights, initial=self.initial, **options
        )
