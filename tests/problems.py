"""Models that several tests start from, and rounds of them."""

import numpy as np

from cvrcore.covariance.pairs import Pairs
from cvrcore.kernels import dispatch


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


def append(store, residual, rate):
    """Take one step of a covariance store: ``C <- (1 - rate) C + rate r r^T``."""
    target = store.open(rate)
    target.block[target.place] = residual * store.dtype.type(target.weight)
    store.close(target)


def entries(store, representative):
    """Return ``C_kj / scale`` of a store for each client k and its representative j, (K, D).

    Rows of representatives, and of clients without one (-1), are arbitrary.
    """
    coalitions = np.where(representative < 0, store.n_clients, representative)
    pairs = Pairs.of(coalitions, np.append(np.arange(store.n_clients), -1))
    store.prepare(pairs)
    found = store.read(pairs, 0, pairs.clients.size)
    sums = found.sums
    if not sums.size:
        sums = np.full((pairs.clients.size, store.n_features), found.initial, store.dtype)
    which = (pairs.clients, pairs.others, found.begin)
    dispatch.add_products(found.block, found.n_used, *which, sums, found.places)
    store.commit(0, pairs.clients.size)
    out = np.empty((store.n_clients, store.n_features))
    out[pairs.clients] = sums[found.places] if found.places.size else sums
    return out * (store.unit / store.scale)
