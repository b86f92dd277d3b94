"""Models that several tests start from."""

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
