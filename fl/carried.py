"""Models of clients in; what is averaged beside the algorithm, and what stays local, out.

Buffers, such as the running statistics of BatchNorm, are averaged by samples whatever the
algorithm and the aggregator: a variance that is extrapolated may turn negative. Entries that
``training.local`` names, parameters or buffers, stay with their client: it trains and is
evaluated with its own, a client that never trained with the average.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .engines.base import TrainTask
from .flat import Layout, Vector


class Carried:
    """The entries of a flat model that no algorithm merges.

    The algorithm sees models that did not move there; then the average takes their place.

    Parameters
    ----------
    layout : Layout
    local : sequence of str
        See `Layout.positions`.
    """

    def __init__(self, layout: Layout, local: Sequence[str] = ()) -> None:
        self._local = layout.positions(local)
        buffers = np.arange(layout.n_parameters, layout.size)
        self._carried = np.union1d(buffers, self._local)
        self._own: dict[int, Vector] = {}  # of clients that trained

    @property
    def is_local(self) -> bool:
        """Whether clients keep something to themselves."""
        return self._local.size > 0

    def personal(self, model: Vector, client: int) -> Vector:
        """Return `model` as `client` uses it."""
        own = self._own.get(client)
        if own is None:
            return model
        model = model.copy()
        model[self._local] = own
        return model

    def start(self, models: Vector, tasks: list[TrainTask]) -> tuple[Vector, list[TrainTask]]:
        """Let each client start from its own local entries: rows and tasks for the engine."""
        known = [task for task in tasks if task.client in self._own]
        if not known:
            return models, tasks
        rows, personal = [*models], []
        for task in tasks:
            if task.client in self._own:
                rows.append(self.personal(models[task.start], task.client))
                task = dataclasses.replace(task, start=len(rows) - 1)
            personal.append(task)
        return np.stack(rows), personal

    def hide(self, models: Vector, starts: np.ndarray, vectors: list[Vector]) -> list[Vector]:
        """Return what clients trained with the carried entries of the models sent."""
        if not self._carried.size:
            return vectors
        hidden = [vector.copy() for vector in vectors]
        for vector, start in zip(hidden, starts, strict=True):
            vector[self._carried] = models[start, self._carried]
        return hidden

    def average(
        self,
        models: Vector,
        clients: np.ndarray,
        starts: np.ndarray,
        vectors: list[Vector],
        weights: np.ndarray,
    ) -> None:
        """Average the carried entries into `models`, by samples, and keep the local ones."""
        if not self._carried.size:
            return
        for client, vector in zip(clients, vectors, strict=True):
            if self.is_local:
                self._own[int(client)] = vector[self._local].copy()
        for j in range(len(models)):
            mine = np.flatnonzero(starts == j)
            if mine.size:
                values = [vectors[i][self._carried] for i in mine]
                mean = np.average(values, axis=0, weights=weights[clients[mine]])
                models[j, self._carried] = mean

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        clients = sorted(self._own)
        if not clients:
            return {"clients": np.empty(0, dtype=np.int64), "values": np.empty((0, 0))}
        values = np.stack([self._own[client] for client in clients])
        return {"clients": np.array(clients, dtype=np.int64), "values": values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        pairs = zip(state["clients"].tolist(), state["values"], strict=True)
        self._own = {client: values.copy() for client, values in pairs}
