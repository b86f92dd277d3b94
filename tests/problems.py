"""Models that several tests start from, and rounds of them."""

import numpy as np


def planted_models(n_clients, n_features, n_groups, rng, spread=0.3):
    """Models around a few random centres, and the group of each."""
    centres = rng.normal(size=(n_groups, n_features))
    groups = np.arange(n_clients) % n_groups
    return centres[groups] + spread * rng.normal(size=(n_clients, n_features)), groups


def flat_models(n_clients, n_features, rng, offset=0.05, noise=0.05):
    """One common vector plus small offsets and noise: cosines about 0.995."""
    common = rng.normal(size=n_features)
    offsets = offset * rng.normal(size=(n_clients, n_features))
    return common + offsets + noise * rng.normal(size=(n_clients, n_features))


def play(selector, rng, n_rounds):
    """Go through rounds with models drawn at random; return who was picked in each."""
    clients = []
    for _ in range(n_rounds):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(len(picked), selector.n_features)))
        clients.append(picked.clients)
    return clients
