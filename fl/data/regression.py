"""Federated linear regression: clients in latent groups, one noisy line per group."""

from __future__ import annotations

import numpy as np

from .federation import Samples


def generate_regression(
    n_clients: int,
    rng: np.random.Generator,
    *,
    dim: int = 1,
    n_groups: int = 2,
    n_samples: int = 100,
    sigma_x: float = 0.5,
    sigma_theta: float = 0.1,
) -> Samples:
    """Generate the regression task of the paper's appendix.

    Each client belongs to one of `n_groups` latent groups j. Inputs follow
    ``x ~ N(mu_j, sigma_x ** 2)`` with ``mu_j ~ U(-1, 1)``; every sample has its own
    parameters ``theta ~ N(mean_j, sigma_theta ** 2 I)`` with ``mean_j ~ U(-5, 0)``; targets
    are ``y = theta . x``. The laws of `mu_j` and `mean_j` are those of the paper's script.

    Parameters
    ----------
    n_clients : int
    rng : Generator
    dim : {1, 2}, default=1
        1: ``y = theta_1 x``. 2: ``y = theta_0 + theta_1 x``, the samples being ``(1, x)``.
    n_groups : int, default=2
        J; 1 makes the clients identically distributed.
    n_samples : int, default=100
        Per client.
    sigma_x, sigma_theta : float, default=0.5 and 0.1
        Standard deviations, not negative.

    Returns
    -------
    samples : Samples
        The record holds the groups, ``mu`` and ``theta`` as drawn.
    """
    if dim not in (1, 2):
        raise ValueError(f"dim must be 1 or 2, got {dim!r}")
    for name, count in (("n_groups", n_groups), ("n_samples", n_samples)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    for name, sigma in (("sigma_x", sigma_x), ("sigma_theta", sigma_theta)):
        if not 0 <= sigma < np.inf:
            raise ValueError(f"{name} must be finite and not negative, got {sigma}")

    groups = rng.integers(n_groups, size=n_clients)
    mu = rng.uniform(-1.0, 1.0, n_groups)
    mean = rng.uniform(-5.0, 0.0, (n_groups, dim))

    owner = np.repeat(groups, n_samples)
    x = rng.normal(mu[owner], sigma_x)[:, np.newaxis]
    if dim == 2:
        x = np.column_stack([np.ones(len(x)), x])
    theta = rng.normal(mean[owner], sigma_theta)
    y = (theta * x).sum(axis=1)
    return Samples(
        x.astype(np.float32),
        y.astype(np.float32),
        0,
        {
            "dim": dim,
            "n_groups": n_groups,
            "groups": groups.tolist(),
            "mu": mu.tolist(),
            "theta": mean.tolist(),
            "sigma_x": float(sigma_x),
            "sigma_theta": float(sigma_theta),
        },
        tuple(np.split(np.arange(len(y)), n_clients)),
    )
