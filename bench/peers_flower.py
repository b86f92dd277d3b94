"""Rounds of Flower's simulation: samples in, FedAvg over nodes that train in a Ray actor.

The simulation starts once and waits for rounds, so that they can be timed without the start of
Ray. This module imports neither fl nor cvrcore.
"""

import functools
import logging
import os
import queue
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import psutil
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from bench import peers_fl

#: Seconds for Ray to start, and for one round.
LIMIT = 600.0


@functools.lru_cache(maxsize=1)
def loop_of(path, epochs):
    """Return the research loop over the samples of a file, made once in each process."""
    torch.set_num_threads(1)
    with np.load(path, allow_pickle=False) as file:
        x, y, train = (torch.from_numpy(file[name]) for name in ("x", "y", "train"))
    dataset = torch.utils.data.TensorDataset(x, y)
    return peers_fl.ResearchLoop(dataset, train, [], epochs=epochs, model=peers_fl.make_cnn())


def client_app(path, epochs):
    """Return the app of every node: an ordinary DataLoader loop."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        loop, client = loop_of(path, epochs), int(context.node_config["partition-id"])
        loop.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        content = {
            "arrays": ArrayRecord(loop.local_update(client)),
            "metrics": MetricRecord({"num-examples": len(loop.train[client])}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


class AllAnswer(FedAvg):
    """FedAvg that counts the answers: Flower goes on without clients that failed."""

    answers = 0

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.answers = sum(not reply.has_error() for reply in replies)
        return super().aggregate_train(server_round, replies)


class FlowerRounds:
    """One Ray actor of one core trains all clients, one after the other."""

    def __init__(self, x, y, train, epochs=10):
        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self.n_clients = len(train)
        self.folder = Path(tempfile.mkdtemp(prefix="bench-flower-"))
        path = self.folder / "samples.npz"
        np.savez(path, x=x, y=y, train=np.stack(train))
        self.wanted, self.done = queue.Queue(), queue.Queue()
        app = client_app(str(path), epochs)
        self.thread = threading.Thread(target=self._simulate, args=(app,), daemon=True)
        self.thread.start()

    def _simulate(self, app):
        server = ServerApp()

        @server.main()
        def main(grid, context):
            arrays = ArrayRecord(peers_fl.make_cnn().state_dict())
            while self.wanted.get():
                strategy = AllAnswer(fraction_evaluate=0.0, min_available_nodes=self.n_clients)
                strategy.start(grid, arrays, num_rounds=1, timeout=LIMIT)
                self.done.put(strategy.answers)

        backend = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"address": "local", "num_cpus": 1, "include_dashboard": False},
        }
        try:
            run_simulation(server, app, num_supernodes=self.n_clients, backend_config=backend)
        except BaseException as error:
            self.done.put(error)

    def train(self, clients):
        """Run one round of all clients; `clients` of the warm-up are all of them too."""
        self.wanted.put(True)
        found = self.done.get(timeout=LIMIT)
        if found != self.n_clients:
            raise RuntimeError(f"{self.n_clients} clients of Flower should answer, got: {found}")

    def cpu_seconds(self):
        """Return CPU seconds of this process and of all it has started: Ray's among them."""
        used = [psutil.Process().cpu_times()]
        for child in psutil.Process().children(recursive=True):
            try:
                used.append(child.cpu_times())
            except psutil.NoSuchProcess:
                continue
        return sum(times.user + times.system for times in used)

    def close(self):
        self.wanted.put(False)
        self.thread.join(timeout=60.0)
        shutil.rmtree(self.folder, ignore_errors=True)
