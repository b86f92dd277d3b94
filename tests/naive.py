"""Reference implementations in plain NumPy: slow, obvious, independent.

This module does not import cvrcore: a shared helper would share its bugs.
"""

import numpy as np


def unit_rows(models):
    rows = []
    for row in models:
        norm = np.linalg.norm(row)
        rows.append(row / norm if norm > 0 else row)
    return np.array(rows)


def affinity(models, kernel="rbf", gamma=1.0):
    x = unit_rows(np.asarray(models, dtype=float))
    n = len(x)
    distances = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if kernel == "rbf":
                distances[i, j] = np.sum((x[i] - x[j]) ** 2)
            elif kernel == "laplacian":
                distances[i, j] = np.sum(np.abs(x[i] - x[j]))
            else:
                distances[i, j] = x[i] @ x[j]
    if gamma == "median":
        gamma = 1 / np.median(distances[np.triu_indices(n, 1)])
    if kernel in ("rbf", "laplacian"):
        return np.exp(-gamma * distances)
    if kernel == "cosine":
        return (1 + distances) / 2
    return (1 + np.tanh(gamma * distances)) / 2


def influence(models, kernel="rbf", gamma=1.0):
    a = affinity(models, kernel, gamma)
    return a / a.sum(axis=1, keepdims=True)


def embedding(a, n_coalitions):
    """Return leading eigenvectors of the random walk, with the constant one."""
    degrees = a.sum(axis=1)
    root = np.sqrt(degrees)
    values, vectors = np.linalg.eigh(a / np.outer(root, root))
    return vectors[:, ::-1][:, :n_coalitions] / root[:, None]


def inertia(points, labels):
    total = 0.0
    for label in np.unique(labels):
        members = points[labels == label]
        total += np.sum((members - members.mean(axis=0)) ** 2)
    return total


def variance_reduction(cov, weights):
    alpha = np.asarray(weights, dtype=float) / np.sum(weights)
    v = np.zeros(cov.shape[1])
    for c in cov:
        floor = 1e-12 * np.mean(np.diag(c))
        for k in range(len(v)):
            if c[k, k] > floor:
                v[k] += (c[k] @ alpha) ** 2 / c[k, k]
    return v


def boltzmann(scores, labels, temperature=1.0, mask=None):
    mask = np.ones(len(scores), dtype=bool) if mask is None else mask
    law = np.zeros(len(scores))
    for label in np.unique(labels):
        members = (labels == label) & mask
        if members.any():
            e = np.exp((scores[members] - scores[members].max()) / temperature)
            law[members] = e / e.sum()
    return law


def residual(cov, models, clients, labels, predictor="regression", previous=None):
    n_features, n_clients = cov.shape[0], cov.shape[1]
    delta = np.zeros((n_clients, n_features))
    for j in clients:
        for k in np.flatnonzero(labels == labels[j]):
            if k == j:
                continue
            for d in range(n_features):
                if predictor == "cosine":
                    a, b = previous[k], previous[j]
                    norms = np.linalg.norm(a) * np.linalg.norm(b)
                    c = a @ b / norms if norms > 0 else 0.0
                elif cov[d, j, j] <= 1e-12 * np.mean(np.diag(cov[d])):
                    c = 0.0
                else:
                    bound = np.sqrt(cov[d, k, k] * cov[d, j, j])
                    c = np.clip(cov[d, k, j], -bound, bound) / cov[d, j, j]
                delta[k, d] = models[k, d] - c * models[j, d]
    return delta


def update_covariance(cov, models, clients, labels, rate, predictor="regression", previous=None):
    delta = residual(cov, models, clients, labels, predictor, previous)
    return np.stack(
        [(1 - rate) * c + rate * np.outer(r, r) for c, r in zip(cov, delta.T, strict=True)]
    )


def history_entries(history, pairs, begin, entries):
    out = entries.copy()
    for (k, j), first in zip(pairs, begin, strict=True):
        first = max(first, 0)
        out[k] += np.sum(history[k, first:] * history[j, first:], axis=0)
    return out


def folded(base, history):
    out = base.copy()
    n = history.shape[0]
    for i in range(n):
        for j in range(i + 1):
            out[i * (i + 1) // 2 + j] += np.sum(history[i] * history[j], axis=0)
    return out


def same_partition(a, b):
    """Return whether two partitions are equal up to renaming of labels."""
    return len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a)) == len(set(b))
