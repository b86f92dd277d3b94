"""Tasks in, answers of Flower's simulation out: clients train as its nodes.

A cross-check of both, slower than worker processes: the same experiment, with every model,
task and answer as Flower messages, the picked clients asked by `SelectingStrategy`.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cvrcore
from cvrcore.integrations.flower import SelectingStrategy
from cvrcore.integrations.flower_client import partition_id, selectable
from cvrcore.integrations.flower_grid import Patience, PatientGrid, exchange
from cvrcore.selectors.base import Probe

from ..flat import Vector
from ..samples import ClientSamples
from ..training import Losses, Update
from .base import Engine, EngineError, Job, MeasureTask, TrainTask, Worker

# After the imports of cvrcore, whose errors say what to install.
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Strategy

#: Seconds for Ray and the nodes to start.
START = 120.0
MEASURE = "measure"


class FlowerEngine(Engine):
    """Clients train in Flower's simulation; results equal the serial engine's.

    Parameters
    ----------
    job : Job
    samples : ClientSamples
    workers : int
        Ray actors, one core each.
    timeout : float
        Seconds that one task may take.
    """

    def __init__(self, job: Job, samples: ClientSamples, workers: int, timeout: float) -> None:
        self._workers, self._timeout = workers, timeout
        self._folder = Path(tempfile.mkdtemp(prefix="cvrcore-flower-"))
        np.savez(self._folder / "samples.npz", allow_pickle=False, **samples.arrays())
        self._stop = threading.Event()
        grids: queue.Queue[Any] = queue.Queue()
        app = client_app(job, str(self._folder / "samples.npz"))
        arguments = (app, samples.n_clients, workers, grids, self._stop)
        self._thread = threading.Thread(target=_simulate, args=arguments, daemon=True)
        self._thread.start()
        self._messenger = _Messenger()
        self._fixed = _FixedSelector(samples.n_clients, samples.n_clients, seed=0)
        self._strategy = SelectingStrategy(
            self._messenger, self._fixed, n_clients=samples.n_clients, wait=START
        )
        try:
            self._grid = _LiveGrid(grids.get(timeout=START), grids)
        except queue.Empty:
            self.close()
            raise EngineError(f"Flower's simulation did not start in {START:g} s") from None

    def close(self) -> None:
        """End the simulation and remove its files."""
        self._stop.set()
        self._thread.join(timeout=60.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _do(
        self, models: Vector, tasks: Sequence[TrainTask | MeasureTask]
    ) -> list[Update | Losses | None]:
        if self._stop.is_set():
            raise EngineError("the engine was closed")
        patience = Patience(self._timeout * math.ceil(len(tasks) / self._workers) + 1.0)
        training = [task for task in tasks if isinstance(task, TrainTask)]
        measuring = [task for task in tasks if isinstance(task, MeasureTask)]
        answers: dict[Any, Any] = {}
        if training:
            answers |= self._train(models, training, patience)
        if measuring:
            answers |= self._measure(models, measuring, patience)
        return [answers.get(task) for task in tasks]

    def _train(
        self, models: Vector, tasks: list[TrainTask], patience: Patience
    ) -> dict[TrainTask, Update]:
        """Run one round of the adapter; a client that failed there has no answer."""
        self._fixed.wanted = np.array([task.client for task in tasks], dtype=np.int64)
        self._messenger.load = models, tasks
        grid, t = PatientGrid(self._grid, patience), tasks[0].round + 1
        any_model = _record(model=models[0])
        messages = self._strategy.configure_train(t, any_model, ConfigRecord(), grid)
        replies = grid.send_and_receive(messages)
        self._strategy.aggregate_train(t, replies)
        return {task: u for task in tasks if (u := self._messenger.updates.get(task.client))}

    def _measure(
        self, models: Vector, tasks: list[MeasureTask], patience: Patience
    ) -> dict[MeasureTask, Losses]:
        """Spread the tasks over the nodes: every node can read every sample."""
        nodes = sorted(self._grid.get_node_ids())
        messages = []
        for number, task in enumerate(tasks):
            node = nodes[number % len(nodes)]
            messages.append(_message(task, models[task.model], node, f"query.{MEASURE}", number))
        found = {}
        for reply in exchange(self._grid, messages, patience):
            if reply.has_error():
                raise EngineError(f"measuring failed on a node: {reply.error.reason}")
            arrays = reply.content["arrays"]
            task = tasks[int(reply.content["metrics"]["number"])]
            found[task] = Losses(arrays["values"].numpy(), arrays["scores"].numpy())
        return found


class _LiveGrid:
    """A grid that raises when its simulation has ended, instead of waiting for replies."""

    def __init__(self, grid: Any, errors: queue.Queue[Any]) -> None:
        self._grid, self._errors = grid, errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def pull_messages(self, message_ids: Any) -> Any:
        """Return the replies so far, or raise if the simulation has ended."""
        try:
            error = self._errors.get_nowait()
        except queue.Empty:
            return self._grid.pull_messages(message_ids)
        self._errors.put(error)
        raise EngineError(f"Flower's simulation ended: {error.__cause__ or error}")


class _FixedSelector(cvrcore.Selector):
    """Selects the clients `wanted`: the policy of the run has selected them already."""

    name = "fixed"
    wanted: np.ndarray

    def _choose(self, eligible: np.ndarray, probe: Probe | None) -> cvrcore.Selection:
        return cvrcore.Selection(clients=self.wanted.copy(), round=self.round)


class _Messenger(Strategy):
    """Sends one task to each node and keeps the updates of the replies; aggregates nothing."""

    load: tuple[Vector, list[TrainTask]]
    updates: dict[int, Update]

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        models, tasks = self.load
        return [
            _message(task, models[task.start], node, "train", shift=_row(models, task.shift))
            for node, task in zip(grid.get_node_ids(), tasks, strict=True)
        ]

    def aggregate_train(self, server_round: int, replies: Any) -> tuple[None, None]:
        self.updates = {}
        for reply in replies:
            metrics = reply.content["metrics"]
            vector = reply.content["arrays"]["model"].numpy()
            loss = float(metrics["loss"]) if "loss" in metrics else None
            self.updates[int(metrics["client"])] = Update(vector, loss, int(metrics["steps"]))
        return None, None

    def configure_evaluate(self, *arguments: Any) -> list[Any]:
        return []

    def aggregate_evaluate(self, *arguments: Any) -> None:
        return None

    def summary(self) -> None:
        return None


# -- on the nodes ---------------------------------------------------------------


def client_app(job: Job, path: str) -> ClientApp:
    """Return the app of every node: the worker of all engines behind Flower's messages."""
    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        worker, task, model = _received(message, job, path, TrainTask)
        if task.client != partition_id(context):
            raise ValueError(f"node of client {partition_id(context)} got {task.client}'s task")
        update: Any = worker.do(task, model)
        metrics = {"num-examples": 1, "client": task.client, "steps": update.steps}
        if update.loss is not None:
            metrics["loss"] = update.loss
        return _reply(message, metrics, model=update.vector)

    @app.query(MEASURE)
    def measure(message: Any, context: Any) -> Any:
        worker, task, model = _received(message, job, path, MeasureTask)
        losses: Any = worker.do(task, model)
        number = message.content["task"]["number"]
        return _reply(message, {"number": number}, values=losses.values, scores=losses.scores)

    selectable(app, size=lambda context: 1)
    return app


#: This process's worker, with its job and the file of its samples.
_kept: list[tuple[Job, str, Worker]] = []


def _worker(job: Job, path: str) -> Worker:
    """Return this process's worker; samples are read once."""
    # Not functools.lru_cache: settings hold tables of options, which have no hash.
    if not _kept or _kept[0][:2] != (job, path):
        torch.set_num_threads(1)
        with np.load(path, allow_pickle=False) as file:
            _kept[:] = [(job, path, Worker(job, ClientSamples.from_arrays(dict(file))))]
    return _kept[0][2]


def _received(message: Any, job: Job, path: str, kind: type[Any]) -> tuple[Worker, Any, Vector]:
    fields = dict(message.content["task"])
    fields.pop("number", None)
    arrays = message.content["arrays"]
    rows = [arrays[name].numpy() for name in ("model", "shift") if name in arrays]
    fields["start" if kind is TrainTask else "model"] = 0
    if "shift" in fields:
        fields["shift"] = 1
    return _worker(job, path), kind(**fields), np.stack(rows)


def _row(models: Vector, number: int | None) -> Vector | None:
    return None if number is None else models[number]


def _message(
    task: Any, model: Vector, node: int, kind: str, number: int = 0, shift: Vector | None = None
) -> Any:
    fields = {n: v for n, v in dataclasses.asdict(task).items() if v is not None}
    arrays = {"model": model} if shift is None else {"model": model, "shift": shift}
    content = {"arrays": _record(**arrays), "task": ConfigRecord({**fields, "number": number})}
    return Message(RecordDict(content), node, kind)


def _reply(message: Any, metrics: dict[str, Any], **arrays: Vector) -> Any:
    content = {"arrays": _record(**arrays), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


def _record(**arrays: Any) -> Any:
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


# -- the simulation ---------------------------------------------------------------


def _simulate(
    app: ClientApp, n_clients: int, workers: int, grids: queue.Queue[Any], stop: threading.Event
) -> None:
    """Run Flower's simulation until `stop`; hand out its grid, or the error."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from flwr.simulation import run_simulation

    server = ServerApp()

    @server.main()
    def main(grid: Any, context: Any) -> None:
        grids.put(grid)
        # Flower's thread keeps the interpreter alive: it ends with the run, whatever happens.
        while not stop.wait(1.0) and threading.main_thread().is_alive():
            pass

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        # A Ray cluster of this run: another one on this machine is not ours to use.
        "init_args": {"address": "local", "num_cpus": workers, "include_dashboard": False},
    }
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)  # Flower logs every step of every round
    try:
        run_simulation(server, app, num_supernodes=n_clients, backend_config=backend)
    except BaseException as error:
        grids.put(error)
    finally:
        logger.setLevel(level)
