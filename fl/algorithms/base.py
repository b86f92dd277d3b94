"""Trained models of a round in, the server's models out: the interface of algorithms."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from cvrcore import Selection
from cvrcore.aggregators import Aggregator, ServedAggregator

from ..engines.base import Engine, TrainTask
from ..evaluation import Deployment
from ..flat import Layout, Vector
from ..samples import ClientSamples
from ..streams import Streams


@dataclasses.dataclass(frozen=True)
class Resources:
    """What an algorithm may use.

    `weights` are the sample counts n_k; ``initial_model(j)`` returns initial model j, of
    which 0 is shared by all methods; ``aggregator()`` returns a new aggregator, one for each
    model that the algorithm keeps; `momentum` is that of clients.
    """

    engine: Engine
    samples: ClientSamples
    weights: np.ndarray
    layout: Layout
    streams: Streams
    initial_model: Callable[[int], Vector]
    aggregator: Callable[[], Aggregator]
    momentum: float = 0.0

    @property
    def n_clients(self) -> int:
        """Number of clients K."""
        return len(self.weights)


@dataclasses.dataclass(frozen=True)
class RoundUpdates:
    """The models that `clients` trained in a round, each from the model row in `starts`.

    `steps` is how many SGD steps each made, `lr` the length of those steps.
    """

    selection: Selection
    clients: np.ndarray
    starts: np.ndarray
    vectors: list[Vector]
    steps: np.ndarray
    lr: float


class Algorithm(abc.ABC):
    """Keeps one or more models and merges the models that clients trained.

    Attributes
    ----------
    models : ndarray of shape (k, n_parameters)
        The server's models.
    """

    name: ClassVar[str]
    #: Weight of the proximal term in local training.
    mu: float = 0.0
    models: Vector

    def __init__(self, resources: Resources, k: int = 1) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self.resources = resources
        self.models = np.stack([resources.initial_model(0)] * k)
        self._aggregators = [resources.aggregator() for _ in range(k)]
        if k > 1 and self._aggregators[0].whole_population:
            raise ValueError(
                f"aggregator must not be {self._aggregators[0].name!r} with {k} models: it "
                "estimates what all clients would do to one"
            )

    @property
    def models_sent(self) -> int:
        """How many vectors of the model's size each picked client downloads."""
        return 1

    @property
    def models_returned(self) -> int:
        """How many vectors of the model's size each client sends back."""
        return 1

    @property
    def memory_bytes(self) -> int:
        """Bytes that aggregators, and the algorithm itself, remember between rounds."""
        return sum(aggregator.nbytes for aggregator in self._aggregators)

    @property
    def server_lr(self) -> float:
        """Step length that the server took last, of its first model."""
        first = self._aggregators[0]
        return first.server.last_lr if isinstance(first, ServedAggregator) else 1.0

    @property
    def shares(self) -> np.ndarray:
        """Weight of each client in the objective, summing to 1: by samples.

        With the aggregator ``"mean"`` all clients that have samples count alike.
        """
        weights = self.resources.weights
        if self._aggregators[0].name == "mean":
            weights = (weights > 0).astype(np.float64)
        shares: np.ndarray = weights / weights.sum()
        return shares

    def tasks(
        self, round: int, clients: np.ndarray, starts: np.ndarray, statistic: str | None
    ) -> tuple[Vector, list[TrainTask]]:
        """Return what clients train in `round`: rows for the engine, and a task for each.

        The rows are the models, then the shifts of the clients that have one.
        """
        rows, tasks = [*self.models], []
        pairs = zip(self.proximal(clients), self.shifts(clients), strict=True)
        for k, start, (mu, shift) in zip(clients, starts, pairs, strict=True):
            place = None if shift is None else len(rows)
            if shift is not None:
                rows.append(shift)
            tasks.append(TrainTask(int(k), round, int(start), float(mu), statistic, place))
        return (self.models if len(rows) == len(self.models) else np.stack(rows)), tasks

    def proximal(self, clients: np.ndarray) -> np.ndarray:
        """Return the weight of each client's proximal term."""
        return np.full(len(clients), self.mu)

    def shifts(self, clients: np.ndarray) -> list[Vector | None]:
        """Return what each client adds to every gradient, None for nothing."""
        return [None] * len(clients)

    def starts(self, clients: np.ndarray) -> np.ndarray:
        """Return the row of `models` from which each of `clients` starts to train."""
        return np.zeros(len(clients), dtype=np.int64)

    def merge(self, updates: RoundUpdates) -> None:
        """Average the models of a round into the server's models."""
        self._average(updates, self.resources.weights)

    def deployment(self) -> Deployment:
        """Return which model each client would use now."""
        return Deployment(self.models, np.zeros(self.resources.n_clients, dtype=np.int64))

    def consensus(self, deployment: Deployment) -> Vector:
        """Return one model for all: the mean of the models, by the samples they serve."""
        if len(self.models) == 1:
            only: Vector = self.models[0]
            return only
        mass = np.bincount(
            deployment.of_client, weights=self.resources.weights, minlength=len(self.models)
        )
        shares = (mass / mass.sum()).astype(self.models.dtype)
        mean: Vector = shares @ self.models
        return mean

    def _average(self, updates: RoundUpdates, weights: np.ndarray) -> None:
        """Average model by model; a model that no client trained stays as it is."""
        for j, aggregator in enumerate(self._aggregators):
            mine = np.flatnonzero(updates.starts == j)
            split = self.resources.layout.arrays if aggregator.needs_layers else _one_array
            models = [split(updates.vectors[i]) for i in mine]
            merged = aggregator.aggregate(
                split(self.models[j]), models, updates.clients[mine], weights, updates.selection
            )
            self.models[j] = np.concatenate([array.ravel() for array in merged])

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {
            "algorithm": self.name,
            "models": self.models.copy(),
            "aggregators": [aggregator.state_dict() for aggregator in self._aggregators],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
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


def _one_array(vector: Vector) -> list[Vector]:
    """Return a model as a list of one array: aggregators that add need no layers."""
    return [vector]
