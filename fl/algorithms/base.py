"""Training algorithms: how many models there are, who starts from which, how they merge."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from cvrcore import Selection
from cvrcore.aggregators import Aggregator

from ..engines.base import Engine
from ..evaluation import Deployment
from ..flat import Layout, Vector
from ..samples import ClientSamples
from ..streams import Streams


@dataclasses.dataclass(frozen=True)
class Setting:
    """What an algorithm may use.

    Attributes
    ----------
    engine : Engine
    samples : ClientSamples
    weights : ndarray of shape (n_clients,)
        Raw sample counts n_k.
    layout : Layout
    streams : Streams
    fresh : callable
        ``fresh(j)`` returns initial model j; 0 is the one that all methods share.
    aggregator : callable
        Returns a new aggregator; an algorithm takes one for each model that it keeps.
    """

    engine: Engine
    samples: ClientSamples
    weights: np.ndarray
    layout: Layout
    streams: Streams
    fresh: Callable[[int], Vector]
    aggregator: Callable[[], Aggregator]

    @property
    def n_clients(self) -> int:
        """Number of clients K."""
        return len(self.weights)


class Algorithm(abc.ABC):
    """Keeps one or more models and merges what clients send back.

    Attributes
    ----------
    models : ndarray of shape (k, n_parameters)
        The server's models.
    """

    name: ClassVar[str]
    #: Weight of the proximal term in local training.
    mu: float = 0.0
    models: Vector

    def __init__(self, setting: Setting, k: int = 1) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self.setting = setting
        self.models = np.stack([setting.fresh(0)] * k)
        self._aggregators = [setting.aggregator() for _ in range(k)]
        if k > 1 and self._aggregators[0].whole_population:
            raise ValueError(
                f"aggregator must not be {self._aggregators[0].name!r} with {k} models: it "
                "estimates what all clients would do to one"
            )

    @property
    def models_sent(self) -> int:
        """How many models each picked client downloads."""
        return 1

    @property
    def memory_bytes(self) -> int:
        """Bytes that aggregators remember between rounds."""
        return sum(aggregator.nbytes for aggregator in self._aggregators)

    def starts(self, clients: np.ndarray, round: int) -> np.ndarray:
        """Return the row of `models` from which each of `clients` starts to train."""
        return np.zeros(len(clients), dtype=np.int64)

    def merge(
        self,
        selection: Selection,
        clients: np.ndarray,
        starts: np.ndarray,
        vectors: list[Vector],
    ) -> None:
        """Take in the models that `clients` trained, each from the row in `starts`."""
        self._average(self.setting.weights, selection, clients, starts, vectors)

    def deployment(self) -> Deployment:
        """Return which model each client would use now."""
        return Deployment(self.models, np.zeros(self.setting.n_clients, dtype=np.int64))

    def consensus(self, deployment: Deployment) -> Vector:
        """Return one model for all: the mean of the models, by the samples they serve."""
        if len(self.models) == 1:
            only: Vector = self.models[0]
            return only
        mass = np.bincount(
            deployment.of_client, weights=self.setting.weights, minlength=len(self.models)
        )
        shares = (mass / mass.sum()).astype(self.models.dtype)
        mean: Vector = shares @ self.models
        return mean

    def _average(
        self,
        weights: np.ndarray,
        selection: Selection,
        clients: np.ndarray,
        starts: np.ndarray,
        vectors: list[Vector],
    ) -> None:
        """Average what came back, model by model; one that nobody trained stays."""
        for j, aggregator in enumerate(self._aggregators):
            mine = np.flatnonzero(starts == j)
            (self.models[j],) = aggregator.aggregate(
                [self.models[j]], [[vectors[i]] for i in mine], clients[mine], weights, selection
            )

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {
            "algorithm": self.name,
            "models": self.models.copy(),
            "aggregators": [aggregator.state_dict() for aggregator in self._aggregators],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        if state.get("algorithm") != self.name:
            raise ValueError(
                f"state must be of algorithm {self.name!r}, got {state.get('algorithm')!r}"
            )
        if state["models"].shape != self.models.shape:
            raise ValueError(
                f"state must hold models of shape {self.models.shape}, got {state['models'].shape}"
            )
        self.models = state["models"].copy()
        for aggregator, saved in zip(self._aggregators, state["aggregators"], strict=True):
            aggregator.load_state_dict(saved)
