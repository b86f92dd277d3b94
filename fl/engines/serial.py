"""Tasks in, answers out, one after the other in the caller's process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from ..flat import Vector
from ..samples import ClientSamples
from ..training import Losses, Update
from .base import Engine, Job, Task, Worker


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: sums in the same order as in the worker processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class SerialEngine(Engine):
    """Everything in the caller's process and thread."""

    def __init__(self, job: Job, samples: ClientSamples) -> None:
        self._worker = Worker(job, samples)

    def _do(self, models: Vector, tasks: Sequence[Task]) -> list[Update | Losses | None]:
        with one_thread():
            return [self._worker.do(task, models) for task in tasks]

    def close(self) -> None:
        """Do nothing: the engine holds no resources."""
