"""Models and tasks in, answers in the order of the tasks out: the interface of engines.

A task names all that its answer depends on, so that every engine gives the same answer.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from torch import nn

from ..config import TrainingConfig
from ..devices import resolve
from ..flat import Vector
from ..models import build_model
from ..objectives import Objective
from ..own import Own
from ..samples import ClientSamples
from ..streams import Streams
from ..training import LocalTrainer, Losses, Update

#: How often one task is tried before it counts as lost.
ATTEMPTS = 2


class EngineError(RuntimeError):
    """An engine could not do its work, and a further attempt would not help."""


@dataclasses.dataclass(frozen=True)
class TrainTask:
    """Train `client` from model number `start` in `round`.

    See `fl.training.LocalTrainer.train` about `mu` and `statistic`; `shift` is the row of the
    models that holds what is added to each gradient; `lr` None is that of the settings.
    """

    client: int
    round: int
    start: int = 0
    mu: float = 0.0
    statistic: str | None = None
    shift: int | None = None
    lr: float | None = None


@dataclasses.dataclass(frozen=True)
class MeasureTask:
    """Measure model number `model` on rows ``begin .. end - 1`` of `split`."""

    model: int
    split: str
    begin: int
    end: int


Task = TrainTask | MeasureTask


def longest_first(tasks: Sequence[Task], samples: ClientSamples) -> list[int]:
    """Return the numbers of `tasks`, longest first: a long one must not begin last."""

    def length(i: int) -> int:
        task = tasks[i]
        if isinstance(task, MeasureTask):
            return task.end - task.begin
        begin, end = samples.train_range(task.client)
        return end - begin

    return sorted(range(len(tasks)), key=length, reverse=True)


@dataclasses.dataclass(frozen=True)
class Job:
    """What an engine needs to know of a run, apart from the samples.

    `own` holds what the caller brings; without a model in it, `model` is a name of
    `fl.models.MODELS`.
    """

    model: str
    in_shape: tuple[int, ...]
    n_classes: int
    training: TrainingConfig
    seed: int
    own: Own | None = None

    def on(self, device: str) -> Job:
        """Return the same job on one device of torch."""
        return dataclasses.replace(self, training=dataclasses.replace(self.training, device=device))

    def module(self, number: int = 0) -> nn.Module:
        """Return a new module with the values of initial model `number`, on the CPU."""
        seed = Streams(self.seed).sequence("init", number)
        if self.own is not None and self.own.model is not None:
            return self.own.module(self.in_shape, self.n_classes, seed, number)
        return build_model(self.model, self.in_shape, self.n_classes, seed)

    def objective(self, task: str) -> Objective:
        """Return loss and metric of a run of `task`."""
        return Objective(task) if self.own is None else Objective(task, *self.own.functions)


class Worker:
    """Does tasks one after the other; every engine has one or more workers."""

    def __init__(self, job: Job, samples: ClientSamples) -> None:
        self.trainer = LocalTrainer(
            job.module(),
            samples,
            job.training,
            job.objective(samples.task),
            resolve(job.training.device),
            draws=job.own is not None,
        )
        self.streams = Streams(job.seed)

    def do(self, task: Task, models: np.ndarray) -> Update | Losses:
        """Return the answer to one task; `models` holds one flat model per row."""
        if isinstance(task, MeasureTask):
            return self.trainer.measure(models[task.model], task.split, task.begin, task.end)
        stream = self.streams.sequence("batches", task.round, task.client)
        shift = None if task.shift is None else models[task.shift]
        return self.trainer.train(
            models[task.start], task.client, stream, task.mu, task.statistic, shift, task.lr
        )


class Engine(abc.ABC):
    """Where clients train; use it as a context manager, or call `close`."""

    def train(self, models: Vector, tasks: Sequence[TrainTask]) -> list[Update | None]:
        """Train clients from rows of `models`, of shape (n_models, n_parameters).

        Answers come in the order of `tasks`, with None for a client whose training was lost.
        """
        answers: list[Any] = self._do(models, tasks)
        return answers

    def measure(self, models: Vector, tasks: Sequence[MeasureTask]) -> list[Losses]:
        """Measure models; answers come in the order of `tasks`.

        Raises
        ------
        EngineError
            If an answer was lost: a metric with a hole in it is worse than none.
        """
        answers: list[Any] = self._do(models, tasks)
        if any(answer is None for answer in answers):
            raise EngineError(
                "measuring a model failed: workers were lost, or took longer than engine.timeout"
            )
        return answers

    @abc.abstractmethod
    def _do(self, models: Vector, tasks: Sequence[Task]) -> list[Update | Losses | None]:
        """Do all tasks; None where one was lost for good."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what the engine holds; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
