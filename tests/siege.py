"""Policies besieged by a few clients that report whatever gets them picked again."""

import numpy as np

from cvrcore import make_selector
from cvrcore.selectors import policy_class

N_CLIENTS, N_SELECT, N_FEATURES = 40, 4, 5
ATTACKERS = np.arange(4)
OPTIONS = {
    "fedcbs": {"label_counts": np.random.default_rng(0).integers(1, 20, (N_CLIENTS, 3))},
    "fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 3},
}


def make(name, **options):
    common = {"weights": np.full(N_CLIENTS, 50.0), "seed": 1, **OPTIONS.get(name, {})}
    if "n_features" in (policy_class(name).option_names() or []):
        common.setdefault("n_features", N_FEATURES)
    return make_selector(name, N_CLIENTS, N_SELECT, **(common | options))


class Siege:
    """Honest clients, and a few that report whatever gets them picked again."""

    def __init__(self, selector, seed, away=0.0):
        self.selector, self.rng, self.away = selector, np.random.default_rng(seed), away
        self.picks = np.zeros(selector.n_clients)
        self.even = np.zeros(selector.n_clients)  # picks of a uniform draw, in expectation

    def losses(self, clients):
        honest = self.rng.gamma(2.0, size=clients.size)
        return np.where(np.isin(clients, ATTACKERS), 1e6, honest)

    def round(self):
        selector = self.selector
        here = self.rng.random(selector.n_clients) >= self.away
        here[-3:] = True
        self.here = here
        asked = selector.probe(here)
        losses = None if asked is None else self.losses(asked)
        picked = selector.select(here, losses)
        models = 1.0 + 0.1 * self.rng.normal(size=(len(picked), N_FEATURES))
        crafted = np.isin(picked.clients, ATTACKERS)
        models[crafted] += 1e3 * np.eye(N_FEATURES)[picked.clients[crafted] % N_FEATURES]
        selector.observe(picked.clients, models, self.losses(picked.clients))
        self.picks[picked.clients] += 1
        self.even[here] += len(picked) / here.sum()
        return picked
