"""Clients of a round in, the models that they trained out; each client trains at most once."""

from __future__ import annotations

import dataclasses

import numpy as np

from .algorithms.base import Algorithm
from .carried import Carried
from .engines.base import Engine
from .training import Update


@dataclasses.dataclass(frozen=True)
class LocalRound:
    """What clients train in one round: its number, the length of steps, the loss to measure."""

    number: int
    lr: float
    statistic: str | None


class LocalWork:
    """The training of one round.

    A policy that probes norms of updates lets all reachable clients train before it selects.
    What they trained is kept until the end of the round, one model for each: a client
    that is picked sends its model and does not train again.
    """

    def __init__(
        self, engine: Engine, algorithm: Algorithm, carried: Carried, round: LocalRound
    ) -> None:
        self._engine, self._algorithm, self._carried = engine, algorithm, carried
        self._round = round
        self._done: dict[int, tuple[int, Update | None]] = {}

    def train(self, clients: np.ndarray) -> tuple[np.ndarray, list[Update | None]]:
        """Return the model row that each client starts from, and what it answers."""
        new = np.array([k for k in clients if int(k) not in self._done], dtype=np.int64)
        if new.size:
            done, round = self._algorithm, self._round
            starts = done.starts(new)
            models, tasks = done.tasks(round.number, new, starts, round.statistic)
            tasks = [dataclasses.replace(task, lr=round.lr) for task in tasks]
            answers = self._engine.train(*self._carried.start(models, tasks))
            for k, start, answer in zip(new, starts, answers, strict=True):
                self._done[int(k)] = int(start), answer
        pairs = [self._done[int(k)] for k in clients]
        return np.array([s for s, _ in pairs], dtype=np.int64), [a for _, a in pairs]

    def norms(self, clients: np.ndarray) -> np.ndarray:
        """Let clients train, and return the norms of their updates; NaN without an answer."""
        starts, answers = self.train(clients)
        norms = np.full(len(clients), np.nan)
        for i, (start, answer) in enumerate(zip(starts, answers, strict=True)):
            if answer is not None:
                norms[i] = np.linalg.norm(answer.vector - self._algorithm.models[start])
        return np.where(np.isfinite(norms), norms, np.nan)
