"""The policy under test: a name, class or function in, selectors of any size out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..selectors import policy_class
from ..selectors.base import Selector
from ..validation import Float
from .assertions import CheckFailed
from .simulation import Simulation

N_CLIENTS, N_SELECT, N_FEATURES, N_CLASSES = 24, 4, 5, 3


def sample_counts(n_clients: int) -> Float:
    """Return raw sample counts of very different sizes, some of them 0."""
    weights = np.random.default_rng(n_clients).integers(1, 200, n_clients).astype(np.float64)
    weights[3::9] = 0.0
    return weights


class PolicyUnderTest:
    """Builds selectors of the policy, in the sizes that a check needs.

    Parameters
    ----------
    policy : str, class or callable
    options : dict
        Arguments of the policy itself.
    """

    def __init__(self, policy: str | Callable[..., Selector], options: dict[str, Any]) -> None:
        self._build: Callable[..., Selector] = (
            policy_class(policy) if isinstance(policy, str) else policy
        )
        if not callable(self._build):
            raise TypeError(
                "policy must be a name, a subclass of cvrcore.Selector or a function that "
                f"builds one, got {policy!r}"
            )
        self._options = options
        self._named = inspect.signature(self._build).parameters
        name = getattr(self._build, "name", None) or getattr(self._build, "__name__", policy)
        self.label = str(name)
        self.n_features = int(options.get("n_features", N_FEATURES))

    @property
    def watches(self) -> bool:
        """Whether the policy needs watched coordinates of models."""
        return "n_features" in self._named or "n_features" in self._options

    def __call__(
        self,
        seed: int = 0,
        n_clients: int = N_CLIENTS,
        n_select: int = N_SELECT,
        weights: ArrayLike | None = None,
    ) -> Selector:
        """Build a selector; without `weights` it gets `sample_counts`."""
        counts = sample_counts(n_clients) if weights is None else weights
        facts = {"n_features": N_FEATURES, "label_counts": _labels(np.asarray(counts))}
        facts = {name: value for name, value in facts.items() if name in self._named}
        selector = self._build(
            n_clients=n_clients,
            n_select=n_select,
            weights=counts,
            seed=seed,
            **{**facts, **self._options},
        )
        if not isinstance(selector, Selector):
            raise CheckFailed(f"a policy must be a cvrcore.Selector, got {type(selector).__name__}")
        return selector

    def simulation(self, seed: int = 0, n_rounds: int = 0) -> Simulation:
        """Return a simulation of a new selector, after some rounds."""
        simulation = Simulation(self(seed=seed), seed, self.n_features)
        simulation.rounds(n_rounds)
        return simulation

    def join(self, selector: Selector, weights: ArrayLike, n_added: int | None = None) -> None:
        """Add clients by `resize`, with label counts if the policy needs them."""
        counts = np.asarray(weights, dtype=np.float64)
        size = counts.size if n_added is None else n_added
        more: dict[str, Any] = {}
        if "label_counts" in inspect.signature(selector.resize).parameters:
            more["label_counts"] = _labels(np.ones(size))
        selector.resize(selector.n_clients + size, counts, **more)


def _labels(weights: Float) -> Float:
    """Return label counts for clients of these sizes; a client without samples has none."""
    drawn = np.random.default_rng(1).integers(1, 50, (weights.size, N_CLASSES))
    return drawn * (weights > 0)[:, None]
