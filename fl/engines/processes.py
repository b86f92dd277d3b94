"""Tasks in, answers of several worker processes out; samples are in shared memory."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

from ..flat import Vector
from ..samples import ClientSamples
from ..training import Losses, Update
from .base import ATTEMPTS, Engine, EngineError, Job, Task, longest_first
from .shared import share


class _Process:
    """One worker process and its present task."""

    def __init__(self, job: Job, descriptor: object, memory: int, timeout: float) -> None:
        self.job = job
        ours, theirs = socket.socketpair()
        # Bounds a message that the other side stops reading or writing half-way.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(timeout) + 1, 0))
        with theirs:
            # A new program, not a fork: forking a process that runs BLAS threads can deadlock,
            # and a process of multiprocessing's spawn would run the caller's main module again.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __package__ + ".worker", str(theirs.fileno()), str(memory)],
                pass_fds=(theirs.fileno(), memory),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C stops the parent, a closed socket the worker
            )
        self.connection = Connection(ours.detach())
        self.task: int | None = None
        self.deadline = float("inf")
        self.answered = False
        self.models: object = None  # token of the models that it was sent last
        try:
            self.connection.send((job, descriptor))
        except OSError:
            pass  # the worker died already: the next receive fails

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def end(self) -> None:
        """Kill the process; it holds no state."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


class ProcessEngine(Engine):
    """Clients train in worker processes, largest first; results equal the serial engine's.

    A worker that dies or exceeds `timeout` is replaced and its task tried once more; a task
    lost twice is given up: the client counts as failed.

    Parameters
    ----------
    job : Job
    samples : ClientSamples
    workers : int, optional
        Number of processes. Default: the cores this process may use.
    timeout : float
        Seconds that one task may take.
    devices : sequence of str, optional
        One worker for each of these devices of torch, in place of `workers`. A worker that is
        free gets the longest task left, so that a fast device does more of them.
    """

    def __init__(
        self,
        job: Job,
        samples: ClientSamples,
        workers: int | None = None,
        timeout: float = 600.0,
        devices: Sequence[str] = (),
    ) -> None:
        if os.name != "posix":
            raise EngineError("engine 'processes' needs a POSIX system; use engine 'serial'")
        self._timeout = timeout
        self._memory, self._descriptor, self._samples = share(samples)
        self._n_failed_starts = 0
        jobs = [job.on(device) for device in devices] or [job] * (workers or cores())
        self._pool = [self._start(own) for own in jobs]

    @property
    def pids(self) -> list[int]:
        """Numbers of the worker processes."""
        return [process.pid for process in self._pool]

    def close(self) -> None:
        """End the workers and release the shared memory."""
        pool, self._pool = self._pool, []
        for process in pool:
            process.end()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _start(self, job: Job) -> _Process:
        return _Process(job, self._descriptor, self._memory, self._timeout)

    def _do(self, models: Vector, tasks: Sequence[Task]) -> list[Update | Losses | None]:
        if not self._pool:
            raise EngineError("the engine was closed")
        answers: list[Update | Losses | None] = [None] * len(tasks)
        tries = [0] * len(tasks)
        todo = deque(longest_first(tasks, self._samples))
        token = object()  # names this call's models
        try:
            while todo or any(process.task is not None for process in self._pool):
                for process in self._pool:
                    if process.task is None and todo:
                        i = todo.popleft()
                        tries[i] += 1
                        self._send(process, i, tasks[i], models, token)
                for process in self._wait():
                    lost = self._finish(process, answers)
                    if lost is not None and tries[lost] < ATTEMPTS:
                        todo.appendleft(lost)
        except BaseException:
            self._restart()  # pending answers must not be taken for those of the next call
            raise
        return answers

    def _send(self, process: _Process, i: int, task: Task, models: Vector, token: object) -> None:
        process.task = i
        process.deadline = time.monotonic() + self._timeout
        try:
            process.connection.send((task, None if process.models is token else models))
            process.models = token
        except OSError:
            process.deadline = -float("inf")  # the worker died: `_wait` returns it at once

    def _wait(self) -> list[_Process]:
        """Return the busy processes that have answered, died or exceeded their deadline."""
        busy = [process for process in self._pool if process.task is not None]
        remaining = min(process.deadline for process in busy) - time.monotonic()
        ready = wait([process.connection for process in busy], timeout=max(remaining, 0.0))
        now = time.monotonic()
        return [p for p in busy if p.connection in ready or p.deadline <= now]

    def _finish(self, process: _Process, answers: list[Update | Losses | None]) -> int | None:
        """Store the answer of a process; return the task's number if it must be tried again."""
        i, process.task = process.task, None
        if i is None:
            return None
        try:
            if not process.connection.poll():
                raise TimeoutError
            answers[i], error = process.connection.recv()
        except (EOFError, OSError):  # TimeoutError is an OSError
            process.end()
            self._n_failed_starts += not process.answered
            if self._n_failed_starts > ATTEMPTS * (len(self._pool) + 1):
                raise EngineError(
                    f"{self._n_failed_starts} worker processes in a row died before their first "
                    "answer; see their messages above, or use engine 'serial'"
                ) from None
            self._pool[self._pool.index(process)] = self._start(process.job)
            return i
        process.answered, self._n_failed_starts = True, 0
        if error is not None:
            raise EngineError(f"a worker process failed:\n{error}")
        return None

    def _restart(self) -> None:
        for n, process in enumerate(self._pool):
            if process.task is not None:
                process.end()
                self._pool[n] = self._start(process.job)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
