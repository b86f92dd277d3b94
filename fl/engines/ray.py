"""The engine of a Ray cluster: clients train as Ray tasks, on any of its machines.

Every machine needs the same code: Python, cvrcore and torch of the same versions. The samples
go into the object store once; a machine fetches them when its first task needs them, and all
its workers share that copy.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cvrcore.integrations.extras import require

from ..flat import Vector
from ..samples import ClientSamples
from ..training import Losses, Update
from .base import ATTEMPTS, Engine, EngineError, Job, Task, Worker, longest_first

#: Seconds to reach a cluster.
PATIENCE = 60.0

_REHEARSAL = """
import sys
import ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""

_log = logging.getLogger(__name__)
_worker: tuple[str, Worker] | None = None  # of this process, if it is a worker of Ray's


def work(run: str, job: Job, samples: dict[str, Any], task: Task, models: Vector) -> Any:
    """Do one task, in a worker process of Ray's; it keeps its `Worker` from task to task."""
    global _worker
    if _worker is None or _worker[0] != run:
        # Arrays in the object store are read-only, and no task writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        torch.set_num_threads(1)
        _worker = run, Worker(job, ClientSamples.from_arrays(samples))
    return _worker[1].do(task, models)


class RayEngine(Engine):
    """Clients train as Ray tasks, largest first; results equal the serial engine's.

    A task whose worker or machine is lost is tried once more by Ray; lost again, or not done
    `timeout` seconds after it was handed over, it is given up: the client counts as failed.

    Parameters
    ----------
    job : Job
    samples : ClientSamples
    address : str, optional
        ``"auto"`` or HOST:PORT of a running cluster; this machine must be one of its nodes.
        Default: that of the environment variable ``RAY_ADDRESS``, or a cluster of this
        machine alone, started here and stopped by `close`.
    workers : int, optional
        Tasks at a time. Default: the cores of the cluster.
    timeout : float
        Seconds that one task may take.
    gpu_share : float
        Part of a GPU that a task asks for, where the job's device is ``"cuda"`` or ``"auto"``
        and the cluster has GPUs; Ray then lets the task see that GPU alone.
    """

    def __init__(
        self,
        job: Job,
        samples: ClientSamples,
        address: str | None = None,
        workers: int | None = None,
        timeout: float = 600.0,
        gpu_share: float = 1.0,
    ) -> None:
        ray: Any = require("ray", "2.40", "ray")
        self._ray = ray
        self._timeout, self._workers = timeout, workers
        self._samples: ClientSamples = samples
        self._ours = not ray.is_initialized()  # a caller's connection stays the caller's
        if self._ours:
            if address in (None, "auto"):  # Ray's own rule
                address = os.environ.get("RAY_ADDRESS") or address
            _connect(ray, address, workers)
        try:
            device, self._gpus = ray_device(
                job.training.device, ray.cluster_resources().get("GPU", 0.0), gpu_share
            )
            self._stored: Any = ray.put(samples.arrays())
            self._job: Any = ray.put(job.on(device))
        except BaseException:
            self.close()
            raise
        self._run = secrets.token_hex(8)
        asked = {"num_cpus": 1, "num_gpus": self._gpus, "max_retries": ATTEMPTS - 1}
        self._remote: Any = ray.remote(**asked)(work)

    def close(self) -> None:
        """Drop the samples and leave the cluster; one that was started here is stopped."""
        ray, self._ray = self._ray, None
        self._stored = self._job = None
        if ray is not None and self._ours:
            ray.shutdown()

    def _do(self, models: Vector, tasks: Sequence[Task]) -> list[Update | Losses | None]:
        if self._ray is None:
            raise EngineError("the engine was closed")
        answers: list[Update | Losses | None] = [None] * len(tasks)
        todo = deque(longest_first(tasks, self._samples))
        running: dict[Any, tuple[int, float]] = {}  # task and deadline
        stored = self._ray.put(np.ascontiguousarray(models))
        at_once = self._workers or self._places()
        try:
            while todo or running:
                while todo and len(running) < at_once:
                    i = todo.popleft()
                    arguments = (self._run, self._job, self._stored, tasks[i], stored)
                    running[self._remote.remote(*arguments)] = i, time.monotonic() + self._timeout
                remaining = min(deadline for _, deadline in running.values()) - time.monotonic()
                ready, _ = self._ray.wait(list(running), timeout=max(remaining, 0.0))
                for answer in ready:
                    answers[running.pop(answer)[0]] = self._take(answer)
                for answer in self._late(running):
                    _log.warning("a task took longer than %g s: given up", self._timeout)
                    self._ray.cancel(answer, force=True)
                    del running[answer]
        finally:
            for answer in running:
                self._ray.cancel(answer, force=True)
        return answers

    def _places(self) -> int:
        """Return how many tasks the cluster can do at a time."""
        there = self._ray.cluster_resources()
        places = there.get("CPU", 1)
        if self._gpus:
            places = min(places, there.get("GPU", 0) / self._gpus)
        return max(int(places), 1)

    def _late(self, running: dict[Any, tuple[int, float]]) -> list[Any]:
        now = time.monotonic()
        return [answer for answer, (_, deadline) in running.items() if deadline <= now]

    def _take(self, answer: Any) -> Any:
        """Return an answer; None if its worker or its machine was lost for good."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(answer, timeout=self._timeout)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            raise EngineError(f"a worker of the Ray cluster failed:\n{error}") from None
        except errors.RayError as error:
            _log.warning("a task was lost %d times: %s", ATTEMPTS, type(error).__name__)
            return None


def ray_device(device: str, n_gpus: float, gpu_share: float) -> tuple[str, float]:
    """Return the device of a task, as the task sees it, and the part of a GPU to ask for.

    Raises
    ------
    EngineError
        For a GPU where the cluster has none, and for a GPU by number: Ray numbers them.
    """
    if device == "auto":
        device = "cuda" if n_gpus else "cpu"
    if device == "cpu":
        return device, 0.0
    if device != "cuda":
        raise EngineError(
            f"training.device must be 'cpu', 'cuda' or 'auto' with engine 'ray', got {device!r}"
        )
    if n_gpus < gpu_share:
        raise EngineError(
            f"training.device 'cuda' is not there: the Ray cluster has {n_gpus:g} GPUs; use 'cpu'"
        )
    return "cuda:0", gpu_share


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    """Join the cluster at `address`, or start one of this machine; bounded in time."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a tip
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None or address == "local":
            # Its workers run on this machine and import what this process can import.
            here = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
            ray.init("local", num_cpus=workers, include_dashboard=False, runtime_env=here, **quiet)
            return
        _rehearse(address)
        ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, EngineError):
            raise
        raise EngineError(f"the Ray cluster {address or 'of this machine'}: {error}") from error


def _rehearse(address: str) -> None:
    """Connect in a process that can be killed: Ray itself may retry for minutes, or abort."""
    failure = f"the Ray cluster at {address} cannot be reached"
    host, colon, port = address.rpartition(":")
    if colon and "/" not in host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
        except OSError as error:
            raise EngineError(f"{failure}: {error.strerror or error}") from None
    try:
        done = subprocess.run(
            [sys.executable, "-c", _REHEARSAL, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"{failure}: no answer within {PATIENCE:g} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EngineError(f"{failure}: {last}")
