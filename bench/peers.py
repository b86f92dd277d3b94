"""The paper's dense algorithm in the best NumPy, SciPy and scikit-learn we can write.

Arrays are allocated once and updated in place; this module does not import cvrcore.
"""

import numpy as np
from sklearn.cluster import SpectralClustering


class DenseRound:
    """One server: C of shape (D, K, K) in memory, everything recomputed every round."""

    def __init__(self, models, weights, n_select, seed=0, n_updates=0):
        self.models = models.copy()
        self.alpha = weights / weights.sum()
        self.n_select = n_select
        n_clients, n_features = models.shape
        self.cov = np.ones((n_features, n_clients, n_clients))
        self.outer = np.empty((n_clients, n_clients))
        self.rng = np.random.default_rng(seed)
        self.n_updates = n_updates

    def cluster(self):
        rows = self.models / np.linalg.norm(self.models, axis=1, keepdims=True)
        gram = rows @ rows.T
        np.subtract(2.0, 2.0 * gram, out=gram)
        np.maximum(gram, 0.0, out=gram)
        affinity = np.exp(-gram, out=gram)
        spectral = SpectralClustering(
            self.n_select, affinity="precomputed", n_init=10, random_state=0
        )
        return spectral.fit_predict(affinity)

    def score(self):
        moment = self.cov @ self.alpha
        moment *= moment
        moment /= np.einsum("dkk->dk", self.cov)
        return moment.sum(axis=0)

    def select(self):
        self.labels = self.cluster()
        scores = self.score()
        keys = scores + self.rng.gumbel(size=scores.size)
        order = np.lexsort((-keys, self.labels))
        _, first = np.unique(self.labels[order], return_index=True)
        self.picked = order[first]
        return self.picked

    def update_covariance(self, representative):
        rate = 1.0 / (self.n_updates + 2)
        clients = np.arange(representative.size)
        diagonal = np.einsum("dkk->dk", self.cov)
        variance = diagonal[:, representative]
        entries = self.cov[:, clients, representative]
        bound = np.sqrt(diagonal * variance)
        coefficients = np.clip(entries, -bound, bound) / variance
        coefficients[:, representative == clients] = 1.0
        residual = self.models.T - coefficients * self.models.T[:, representative]
        for cov, delta in zip(self.cov, residual, strict=True):
            cov *= 1.0 - rate
            np.outer(delta, rate * delta, out=self.outer)
            cov += self.outer
        self.n_updates += 1

    def observe(self, models):
        self.models[self.picked] = models
        representative = np.empty(self.labels.max() + 1, dtype=np.int64)
        representative[self.labels[self.picked]] = self.picked
        self.update_covariance(representative[self.labels])


def inertia(points, labels):
    """Return the sum of squared distances to the clusters' means."""
    sums = np.zeros((labels.max() + 1, points.shape[1]))
    np.add.at(sums, labels, points)
    means = sums / np.bincount(labels)[:, None]
    return np.sum((points - means[labels]) ** 2)
