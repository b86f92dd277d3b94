"""Selection as published: the round of a policy in plain NumPy or Python, to compare with.

Written from the articles, as their public code does it: loops over clients where that code
loops. Each takes what a round of the policy has and returns the clients: the draw alone, without
state, availability or checks. `Served` adds what any server must do around it.
"""

import numpy as np
import scipy.cluster.hierarchy
import scipy.spatial.distance


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


def ranked(rng, weights, n_select, rows):
    """The clients of largest value, as agents and Shapley values rank them: a full sort."""
    return np.argsort(-rows[:, 0])[:n_select]


def learned(rng, weights, n_select, rows):
    """Three features of each client, a linear score, and a full sort."""
    picks, age = np.abs(rows[:, 0]), np.abs(rows[:, 1])
    span = weights.size / n_select
    features = np.stack([weights / weights.mean(), picks / picks.mean(), age / span], axis=1)
    return np.argsort(-(features @ np.array([1.0, -1.0, 1.0])))[:n_select]


def active(rng, weights, n_select, rows):
    """Valuations of all clients: the lowest quarter left out, a softmax, and some at random."""
    values = weights**0.5 * np.linalg.norm(rows, axis=1)
    values = values.copy()
    values[np.argsort(values)[: int(0.75 * values.size)]] = -np.inf
    law = np.exp(0.01 * (values - values.max()))
    n_random = int(0.1 * n_select)
    drawn = rng.choice(weights.size, n_select - n_random, replace=False, p=law / law.sum())
    others = np.setdiff1d(np.arange(weights.size), drawn)
    return np.concatenate([drawn, rng.choice(others, n_random, replace=False)])


def oort(rng, weights, n_select, rows):
    """A dictionary of scores, client by client: utility, staleness; a sort, and a draw."""
    rewards = weights * np.linalg.norm(rows, axis=1)
    up = np.sort(rewards)
    top, low = up[int(0.95 * (up.size - 1))], 0.999 * up[0]
    bonus, scores = 0.1 * np.log(100.0), {}
    for client in range(weights.size):
        last = 1 + client % 99
        scores[client] = (min(rewards[client], top) - low) / (up[-1] - low) + np.sqrt(bonus / last)
    ranked = sorted(scores, key=scores.get, reverse=True)
    edge = 0.95 * scores[ranked[min(n_select, len(ranked) - 1)]]
    admitted = [client for client in ranked if scores[client] >= edge]
    law = np.array([scores[client] for client in admitted])
    count = min(n_select, len(admitted))
    return rng.choice(admitted, count, replace=False, p=law / law.sum())


def fedcbs(rng, weights, n_select, rows):
    """Inner products of all class counts; the imbalance of each candidate's pool is summed anew."""
    counts = np.ceil(10 * np.abs(rows))
    inner, totals = counts @ counts.T, counts.sum(axis=1)
    n, n_classes, picked = weights.size, counts.shape[1], []
    for m in range(n_select):
        chances = np.zeros(n)
        for client in range(n):
            if client in picked:
                continue
            pool = [*picked, client]
            pooled = inner[np.ix_(pool, pool)].sum() / totals[pool].sum() ** 2
            chances[client] = max(pooled - 1 / n_classes, 1e-12) ** -(m + 1.0)
        picked.append(int(rng.choice(n, p=chances / chances.sum())))
    return np.array(picked)


def fedcor(rng, weights, n_select, rows):
    """The covariance of all clients, conditioned on each client that is picked."""
    cov = rows @ rows.T + 0.01 * np.eye(weights.size)
    shares, picked = weights / weights.sum(), []
    for _ in range(n_select):
        gain = (shares @ cov) / np.sqrt(np.maximum(np.diag(cov), 1e-12))
        gain[picked] = -np.inf
        k = int(np.argmax(gain))
        picked.append(k)
        cov = cov - np.outer(cov[:, k], cov[k]) / max(cov[k, k], 1e-12)
    return np.array(picked)


def hics(rng, weights, n_select, rows):
    """Entropies and angles pair by pair, Ward's tree cut into groups, then a client at a time."""
    law = np.exp((rows - rows.max(axis=1, keepdims=True)) / 0.0025)
    law /= law.sum(axis=1, keepdims=True)
    entropy = -(law * np.log(law + 1e-12)).sum(axis=1)
    n, norms = weights.size, np.linalg.norm(rows, axis=1)
    away = np.zeros((n, n))
    for i in range(n):
        cosine = np.clip(rows @ rows[i] / (norms * norms[i]), -1, 1)
        away[i] = np.arccos(cosine) + 10.0 * np.abs(entropy - entropy[i])
    np.fill_diagonal(away, 0.0)
    condensed = scipy.spatial.distance.squareform((away + away.T) / 2, checks=False)
    tree = scipy.cluster.hierarchy.linkage(condensed, "ward")
    labels = scipy.cluster.hierarchy.fcluster(tree, n_select, "maxclust") - 1
    mean = np.bincount(labels, entropy) / np.bincount(labels)
    picked = []
    while len(picked) < n_select:
        odds = np.exp(mean - mean.max())
        left = [np.setdiff1d(np.flatnonzero(labels == g), picked) for g in range(mean.size)]
        odds *= [members.size > 0 for members in left]
        group = rng.choice(mean.size, p=odds / odds.sum())
        own = weights[left[group]]
        picked.append(int(rng.choice(left[group], p=own / own.sum())))
    return np.array(picked)


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


class Served:
    """A peer as a server would run it: clients come and go, and reports are not to be trusted.

    `select` takes a mask of available clients, checks it, draws among them, and remembers whom
    it picked. `observe` checks that the reporting clients are distinct and were picked and that
    their numbers are finite, and keeps the last numbers and a count for each client. It states
    no inclusion probabilities and undoes nothing when it is interrupted; ours does both.
    """

    def __init__(self, draw, weights, n_select, rows, seed=1):
        self.draw, self.weights, self.n_select, self.rows = draw, weights, n_select, rows
        self.rng = np.random.default_rng(seed)
        self.counts = np.zeros(weights.size, dtype=np.int64)
        self.last = {}
        self.picked = None

    def select(self, available):
        mask = np.asarray(available)
        if mask.dtype != bool or mask.shape != self.weights.shape:
            raise ValueError(f"available must be a mask of {self.weights.size}, got {mask.shape}")
        ids = np.flatnonzero(mask & (self.weights > 0))
        if ids.size == 0:
            raise ValueError("available must have a client")
        if ids.size == self.weights.size:
            drawn = self.draw(self.rng, self.weights, min(self.n_select, ids.size), self.rows)
        else:
            facts = self.weights[ids], min(self.n_select, ids.size), self.rows[ids]
            drawn = ids[self.draw(self.rng, *facts)]
        self.picked = np.unique(drawn)  # some draw with replacement
        return self.picked

    def observe(self, clients, **told):
        clients = np.asarray(clients)
        if self.picked is None or clients.ndim != 1 or clients.dtype.kind not in "iu":
            raise ValueError("observe must follow select, with ids")
        if np.unique(clients).size != clients.size or not np.isin(clients, self.picked).all():
            raise ValueError("clients must be distinct and have been picked")
        for name, values in told.items():
            values = np.asarray(values, dtype=np.float64)
            if values.shape[:1] != clients.shape or not np.isfinite(values).all():
                raise ValueError(f"{name} must be finite, one for each client")
            if name not in self.last:
                self.last[name] = np.zeros((self.weights.size, *values.shape[1:]))
            self.last[name][clients] = values
        self.counts[clients] += 1
        self.picked = None


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
    "active": (active, 10**6),
    "oort": (oort, 10**5),
    "fedcbs": (fedcbs, 100),
    "fedcor": (fedcor, 1000),
    "hics": (hics, 1000),
    "shapley": (ranked, 10**6),
    "learned": (learned, 10**6),
}
