"""Selection as published: the round of a policy in plain NumPy or Python, to compare with.

Written from the articles, as their public code does it: loops over clients where that code
loops. Each takes what a round of the policy has and returns the clients.
"""

import numpy as np
import scipy.cluster.hierarchy


def uniform(rng, weights, n_select, rows):
    return rng.choice(weights.size, n_select, replace=False)


def multinomial(rng, weights, n_select, rows):
    return rng.choice(weights.size, n_select, replace=True, p=weights / weights.sum())


def reshuffle(rng, weights, n_select, rows):
    return rng.permutation(weights.size)[:n_select]


def power_of_choice(rng, weights, n_select, rows):
    law = weights / weights.sum()
    asked = rng.choice(weights.size, 2 * n_select, replace=False, p=law)
    losses = np.linalg.norm(rows[asked], axis=1)
    return asked[np.argsort(losses)[::-1][:n_select]]


def optimal(rng, weights, n_select, rows):
    """The closed form, l found by trying every one, then a coin for each client."""
    scores = weights / weights.sum() * np.linalg.norm(rows, axis=1)
    order = np.argsort(scores)
    up, n = scores[order], scores.size
    sums = np.cumsum(up)
    size = n
    for size in range(n, 0, -1):
        if 0 < n_select + size - n <= sums[size - 1] / up[size - 1]:
            break
    chances = np.ones(n)
    chances[order[:size]] = (n_select + size - n) * up[:size] / sums[size - 1]
    return np.flatnonzero(rng.random(n) < chances)


def k_vib(rng, weights, n_select, rows):
    """Capped at 1 by repeating: each pass finds who is above."""
    law = np.sqrt(np.square(weights / weights.sum() * np.linalg.norm(rows, axis=1)) + 1e-9)
    chances, free, left = np.ones(law.size), np.ones(law.size, dtype=bool), float(n_select)
    while True:
        chances[free] = left * law[free] / law[free].sum()
        over = free & (chances > 1)
        if not over.any():
            break
        chances[over], free, left = 1.0, free & ~over, left - over.sum()
    return np.flatnonzero(rng.random(law.size) < chances)


def clustered(rng, weights, n_select, rows):
    """Tokens of clients into bins, largest first, one client after another; a draw each."""
    tokens = np.rint(n_select * weights).astype(np.int64)
    room = int(tokens.sum() // n_select)
    bins, left = [{} for _ in range(n_select)], [room] * n_select
    at = 0
    for client in np.argsort(-tokens):
        wanted = int(tokens[client])
        while wanted > 0 and at < n_select:
            taken = min(wanted, left[at])
            bins[at][int(client)] = taken
            left[at] -= taken
            wanted -= taken
            if left[at] == 0:
                at += 1
    drawn = []
    for each in bins:
        share = np.array(list(each.values()), dtype=np.float64)
        drawn.append(rng.choice(list(each), p=share / share.sum()))
    return np.unique(drawn)


def clustered_similarity(rng, weights, n_select, rows):
    """Angles pair by pair, Ward's tree, and groups of at most the mass of a law."""
    n = weights.size
    norms = np.linalg.norm(rows, axis=1)
    angles = np.empty(n * (n - 1) // 2)
    at = 0
    for i in range(n - 1):
        cosine = np.clip(rows[i + 1 :] @ rows[i] / (norms[i + 1 :] * norms[i]), -1, 1)
        angles[at : at + n - 1 - i] = np.arccos(cosine)
        at += n - 1 - i
    tree = scipy.cluster.hierarchy.linkage(angles, "ward")
    labels = scipy.cluster.hierarchy.fcluster(tree, n_select, "maxclust")
    return np.array([rng.choice(np.flatnonzero(labels == c)) for c in np.unique(labels)])


def pivotal(rng, weights, n_select, rows):
    """The local pivotal method as written: a scan of all undecided clients at every step."""
    chances = np.minimum(n_select * weights / weights.sum(), 1.0)
    left = np.flatnonzero((chances > 0) & (chances < 1))
    while left.size > 1:
        at = rng.integers(left.size)
        i = left[at]
        away = np.square(rows[left] - rows[i]).sum(axis=1)
        away[at] = np.inf
        j = left[np.argmin(away)]
        a, b = chances[i], chances[j]
        if a + b < 1:
            stays = rng.random() * (a + b) < a
            chances[i], chances[j] = (a + b, 0.0) if stays else (0.0, a + b)
        else:
            first = rng.random() * (2 - a - b) < 1 - b
            chances[i], chances[j] = (1.0, a + b - 1) if first else (a + b - 1, 1.0)
        left = left[(chances[left] > 0) & (chances[left] < 1)]
    return np.flatnonzero(chances > 0.5)


def divfl(rng, weights, n_select, rows):
    """Greedy facility location over all distances, recomputed for every pick."""
    squares = np.square(rows).sum(axis=1)
    away = np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0))
    nearest, picked = np.full(weights.size, away.max()), []
    for _ in range(n_select):
        gain = np.maximum(nearest[:, None] - away, 0).sum(axis=0)
        gain[picked] = -1
        picked.append(int(np.argmax(gain)))
        nearest = np.minimum(nearest, away[picked[-1]])
    return np.array(picked)


#: Peer of each case, and the most clients that it is run with.
PEERS = {
    "uniform": (uniform, 10**6),
    "multinomial": (multinomial, 10**6),
    "reshuffle": (reshuffle, 10**6),
    "power-of-choice": (power_of_choice, 10**6),
    "optimal": (optimal, 10**6),
    "k-vib": (k_vib, 10**6),
    "clustered": (clustered, 10**5),
    "clustered, similarity": (clustered_similarity, 1000),
    "pivotal": (pivotal, 10_000),
    "divfl": (divfl, 1000),
}
