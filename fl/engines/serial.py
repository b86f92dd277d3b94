"""The engine of one process: clients train one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ..flat import Vector
from ..samples import ClientSamples
from ..training import Losses, Update
from .base import Engine, Job, Task, Worker


class SerialEngine(Engine):
    """Everything in the caller's process and thread."""

    def __init__(self, job: Job, samples: ClientSamples) -> None:
        self._worker = Worker(job, samples)

    def _do(self, models: Vector, tasks: Sequence[Task]) -> list[Update | Losses | None]:
        return [self._worker.do(task, models) for task in tasks]

    def close(self) -> None:
        """Nothing to give back."""
