"""Samples of the server's own: the models of a round in, the worth of their averages out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch

from .config import ConfigError
from .data import Federation
from .engines.base import Job
from .flat import Vector
from .samples import ClientSamples
from .training import LocalTrainer

#: Smallest share of the training samples that must stay with the clients.
LEAST_LEFT = 0.5


def keep_back(
    federation: Federation, n_samples: int, rng: np.random.Generator
) -> tuple[Federation, np.ndarray]:
    """Take training samples away from the clients, drawn uniformly.

    Returns
    -------
    federation : Federation
        Without the samples that the server keeps.
    kept : ndarray of int64
        Their positions in ``federation.x``.
    """
    everything = np.concatenate(federation.train)
    if n_samples > (1.0 - LEAST_LEFT) * everything.size:
        raise ConfigError(
            "selection.server_samples must be at most half of the "
            f"{everything.size} training samples, got {n_samples}"
        )
    kept = np.sort(rng.choice(everything, size=n_samples, replace=False))
    train = tuple(np.setdiff1d(own, kept, assume_unique=True) for own in federation.train)
    record = {**federation.record, "server_samples": n_samples}
    return dataclasses.replace(federation, train=train, record=record), kept


class ServerSamples:
    """Measures models on the server's own samples.

    Parameters
    ----------
    job : Job
    samples : ClientSamples
        The clients' samples: task and number of classes are theirs.
    federation : Federation
        Holds the samples.
    kept : ndarray of int64
        Which of them are the server's.
    """

    def __init__(
        self, job: Job, samples: ClientSamples, federation: Federation, kept: np.ndarray
    ) -> None:
        x, y = torch.from_numpy(federation.x[kept]), torch.from_numpy(federation.y[kept])
        nothing, all_of_it = np.zeros(2, dtype=np.int64), np.array([0, len(kept)])
        own = dataclasses.replace(
            samples, x_train=x[:0], y_train=y[:0], x_test=x, y_test=y,
            train_starts=nothing, test_starts=all_of_it,
        )  # fmt: skip
        self._size = len(kept)
        self._trainer = LocalTrainer(job.module(), own, job.training, job.objective(samples.task))

    def loss(self, vector: Vector) -> float:
        """Return the mean loss of one model."""
        values = self._trainer.measure(vector, "test", 0, self._size).values
        return float(values.astype(np.float64).mean())

    def worth(
        self, sent: Vector, clients: np.ndarray, vectors: Sequence[Vector], weights: np.ndarray
    ) -> Callable[[Collection[int]], float]:
        """Return the utility of a round: minus the loss of the average of some clients' models.

        Averages are weighted by samples; nobody's is the model that was sent.
        """
        row = {int(client): i for i, client in enumerate(clients)}
        models = np.stack(vectors) if vectors else np.empty((0, sent.size), dtype=sent.dtype)

        def utility(group: Collection[int]) -> float:
            if not group:
                return -self.loss(sent)
            shares = np.zeros(len(models), dtype=models.dtype)
            shares[[row[client] for client in group]] = weights[list(group)]
            return -self.loss((shares / shares.sum()) @ models)

        return utility
