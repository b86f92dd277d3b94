"""Shared inputs of benchmarks: sizes in, models planted in coalitions, or flat, out."""

import numpy as np

import cvrcore


class Models:
    """Random models of clients.

    "planted": P groups around random centres. "flat": one common vector plus small offsets
    and noise, cosines about 0.995, as the last layers of real models are.
    """

    def __init__(self, kind, n_clients, n_features, n_groups, seed=0):
        self.rng = np.random.default_rng(seed)
        self.n_features = n_features
        if kind == "planted":
            groups = np.arange(n_clients) % n_groups
            self.centres = self.rng.normal(size=(n_groups, n_features))[groups]
            self.noise = 0.3
        else:
            offsets = 0.05 * self.rng.normal(size=(n_clients, n_features))
            self.centres = self.rng.normal(size=n_features) + offsets
            self.noise = 0.05
        self.initial = self.draw(np.arange(n_clients))
        self.weights = self.rng.integers(10, 500, size=n_clients).astype(float)

    def draw(self, ids):
        return self.centres[ids] + self.noise * self.rng.normal(size=(len(ids), self.n_features))


class Steady:
    """A selector after some main rounds, with an initial row for every client."""

    def __init__(self, kind, n_clients, n_features, n_select, n_rounds, **options):
        self.models = Models(kind, n_clients, n_features, n_select)
        self.selector = cvrcore.CoalitionSelector(
            n_clients,
            n_features,
            n_select,
            weights=self.models.weights,
            warmup=0,
            seed=0,
            initial=self.models.initial,
            **options,
        )
        for _ in range(n_rounds):
            self.round(self.reports())
        # Page faults of the host do not count; the peer has all its memory from the start.
        self.selector._estimator.store.reserve(100)

    def reports(self):
        """Return the noise of one round's models; call it before timing starts."""
        n_select = self.selector.n_select
        return self.models.noise * self.models.rng.normal(size=(n_select, self.models.n_features))

    def round(self, noise):
        picked = self.selector.select()
        self.selector.observe(picked.clients, self.models.centres[picked.clients] + noise)
