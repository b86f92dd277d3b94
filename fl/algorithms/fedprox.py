"""FedProx (Li et al., 2020): FedAvg with a proximal term in local training."""

from __future__ import annotations

from .base import Algorithm, Resources


class FedProx(Algorithm):
    """Local steps are ``w <- w - lr * (gradient + mu * (w - received))``.

    Parameters
    ----------
    resources : Resources
    mu : float
        Non-negative; 0 is FedAvg. The paper states none; no value suits every data set.
    """

    name = "fedprox"

    def __init__(self, resources: Resources, mu: float = 0.1) -> None:
        super().__init__(resources)
        if mu < 0:
            raise ValueError(f"mu must be non-negative, got {mu:g}")
        self.mu = mu
