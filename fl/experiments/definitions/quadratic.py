"""A federated quadratic with S = 1, on which every constant of Theorem 1 is exact.

Client k has the loss ``L_k(x) = (x - b_k)^T A_k (x - b_k) / 2`` and as many samples as any
other, so that the global loss is the plain mean and each of the P picked has weight 1 / P.
One local step of length eta makes the global step ``-eta g``, with g the mean gradient of
the picked: the update that the theorem is about.
"""

from __future__ import annotations

import dataclasses

import numpy as np

import cvrcore


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """Losses of all clients: curvatures ``A`` (K, D, D) and centres ``b`` (K, D)."""

    curvature: np.ndarray
    centre: np.ndarray

    @classmethod
    def planted(cls, sizes: tuple[int, ...], dim: int, rng: np.random.Generator) -> Quadratic:
        """Draw clients around a few centres; `sizes` counts the clients of each group."""
        group = np.repeat(np.arange(len(sizes)), sizes)
        n = len(group)
        middle = 3.0 + rng.normal(size=(len(sizes), dim))
        centre = middle[group] + 0.2 * rng.normal(size=(n, dim))
        factor = rng.normal(size=(n, dim, dim)) / np.sqrt(dim)
        return cls(0.5 * np.eye(dim) + factor @ factor.transpose(0, 2, 1), centre)

    @property
    def smoothness(self) -> float:
        """Return L, the largest eigenvalue of the mean curvature."""
        return float(np.linalg.eigvalsh(self.curvature.mean(axis=0))[-1])

    @property
    def minimum(self) -> np.ndarray:
        """Return the minimiser of the global loss."""
        pulled = np.einsum("kij,kj->i", self.curvature, self.centre)
        return np.linalg.solve(self.curvature.sum(axis=0), pulled)

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Return the gradient of every client, (K, D)."""
        return np.einsum("kij,kj->ki", self.curvature, x - self.centre)

    def losses(self, x: np.ndarray) -> np.ndarray:
        """Return the loss of every client, (K,)."""
        away = x - self.centre
        return np.einsum("ki,kij,kj->k", away, self.curvature, away) / 2


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """What the assumptions of the theorem speak about, per main round of one run.

    `squares` are ``|grad L|^2`` at the global model, `second_moment` is ``E_t |g|^2`` given
    the past, `alignment` is ``G . grad L`` with ``G = E_t g``, both exact; `gap` is
    ``L - L*`` when the first main round begins.
    """

    squares: np.ndarray
    second_moment: np.ndarray
    alignment: np.ndarray
    gap: float


def follow(
    problem: Quadratic, n_select: int, lr: float, rounds: int, warmup: int, seed: int
) -> Trajectory:
    """Train with a live `cvrcore.CoalitionSelector`, P = `n_select`, step eta = `lr`.

    `rounds` main rounds, which are recorded, follow `warmup` uniform ones.
    """
    n_clients, dim = problem.centre.shape
    x = np.zeros(dim)
    selector = cvrcore.CoalitionSelector(
        n_clients, dim, n_select, warmup=warmup, seed=seed, initial=x
    )
    recorded, gap = np.empty((3, rounds)), 0.0
    for t in range(-warmup, rounds):
        gradients = problem.gradients(x)
        picked = selector.select()
        if t == 0:
            gap = float((problem.losses(x) - problem.losses(problem.minimum)).mean())
        if t >= 0:
            full = gradients.mean(axis=0)
            mean, second = conditional_moments(picked, gradients)
            recorded[:, t] = full @ full, second, mean @ full
        step = gradients[picked.clients]
        selector.observe(picked.clients, x - lr * step)
        x = x - lr * step.mean(axis=0)
    squares, moments, alignments = recorded
    return Trajectory(squares, moments, alignments, gap)


def conditional_moments(
    picked: cvrcore.Selection, gradients: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return ``E g`` and ``E |g|^2`` of the mean gradient of one client per coalition.

    Coalitions draw independently, so that the variance of the mean is the sum of theirs
    over P squared.
    """
    assert picked.coalitions is not None
    assert picked.probabilities is not None
    n_coalitions = int(picked.coalitions.max()) + 1
    law = picked.probabilities[:, None]
    means = np.zeros((n_coalitions, gradients.shape[1]))
    np.add.at(means, picked.coalitions, law * gradients)
    squared = float((law * gradients**2).sum())
    mean = means.mean(axis=0)
    variance = (squared - float((means**2).sum())) / n_coalitions**2
    return mean, float(mean @ mean) + variance
