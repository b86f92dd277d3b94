"""Local steps in, the lengths of their paths out; updates scaled before they are aggregated."""

from __future__ import annotations

import numpy as np

from ..flat import Vector
from .base import RoundUpdates


def effective_steps(
    steps: np.ndarray, lr: float, momentum: float = 0.0, mu: float = 0.0
) -> np.ndarray:
    """Return the sum of the weights that a client's gradients have in its update, over `lr`.

    It is the number of steps in plain SGD. Momentum lets early gradients count several times, a
    proximal term lets them fade: the sum is then how far `steps` steps of a constant gradient
    of 1 go, divided by `lr` (FedNova, Wang et al. 2020, the 1-norm of a_k).
    """
    if not momentum and not mu:
        exact: np.ndarray = steps.astype(np.float64)
        return exact
    reached = [0.0]  # after 0, 1, 2, ... steps
    velocity = 0.0
    for _ in range(int(steps.max(initial=0))):
        velocity = momentum * velocity + 1.0 - lr * mu * reached[-1]
        reached.append(reached[-1] + velocity)
    return np.array(reached)[steps]


def rescaled(updates: RoundUpdates, model: Vector, factors: np.ndarray) -> list[Vector]:
    """Return the models of a round with each difference from `model` times its factor."""
    pairs = zip(updates.vectors, factors, strict=True)
    return [model + model.dtype.type(factor) * (vector - model) for vector, factor in pairs]
