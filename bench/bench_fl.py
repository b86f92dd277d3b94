"""Rounds of FedAvg on MNIST: 100 clients, 10 a round, 10 epochs, batch 100, MLP 784-200-10.

Both loops train the same clients on the same samples and evaluate every client after each
round. ``make bench-fl`` prints the ratios, best of several rounds each;
``pytest bench/bench_fl.py`` gives pytest-benchmark's table.
"""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import peers_fl
from fl.data import Federation, load_federation
from fl.presets import make_config
from fl.server import Server

ROOT = Path(__file__).resolve().parent.parent

N_ROUNDS = 4


def load():
    """Return real MNIST if its files are found, else random pixels of the same shape."""
    for folder in (os.environ.get("CVRCORE_DATA"), ROOT.parent / "shared" / "data"):
        if folder and any(Path(folder, "mnist").glob("train-images*")):
            return load_federation("mnist", data_dir=str(folder), download=False, seed=0)
    rng = np.random.default_rng(0)
    x = rng.random((60_000, 1, 28, 28), dtype=np.float32)
    parts = np.split(rng.permutation(60_000), 100)
    return Federation(
        "mnist",
        np.round(x * 255) / np.float32(255),
        rng.integers(0, 10, size=60_000),
        10,
        tuple(p[:480] for p in parts),
        tuple(p[480:] for p in parts),
        {"random": True},
    )


class Ours:
    """The loop of fl, on one engine."""

    def __init__(self, federation, engine):
        config = make_config("mnist", "fedavg", engine__name=engine, rounds=10_000)
        self.server = Server(config, federation)
        self.engine = engine

    def round(self, t, clients):
        selector = self.server.policy.in_round(t)
        selector.select = lambda available, losses: _pick(clients)
        selector.observe = lambda *arguments, **options: None
        return self.server.round(t)["accuracy"]

    def close(self):
        self.server.engine.close()


class Theirs:
    """The research loop, over one kind of data set."""

    def __init__(self, federation, make_dataset):
        pixels = np.round(federation.x[:, 0] * 255).astype(np.uint8)
        dataset = make_dataset(pixels, federation.y)
        self.loop = peers_fl.ResearchLoop(dataset, federation.train, federation.test)

    def round(self, t, clients):
        return self.loop.round(clients)

    def close(self):
        pass


def _pick(clients):
    from cvrcore import Selection

    return Selection(clients=clients)


LOOPS = {
    "research loop, pixels": lambda f: Theirs(f, peers_fl.PixelDataset),
    "research loop, tensors": lambda f: Theirs(f, peers_fl.tensor_dataset),
    "fl, one process": lambda f: Ours(f, "serial"),
    "fl, processes": lambda f: Ours(f, "processes"),
}


def drawn_clients(federation, n_rounds):
    rng = np.random.default_rng(0)
    holders = np.flatnonzero(federation.sizes > 0)
    return [rng.choice(holders, size=10, replace=False) for _ in range(n_rounds)]


@pytest.fixture(scope="module")
def federation():
    return load()


@pytest.mark.parametrize("name", LOOPS)
def test_round(benchmark, federation, name):
    loop = LOOPS[name](federation)
    (clients,) = drawn_clients(federation, 1)
    benchmark.group = "one round of FedAvg on MNIST"
    try:
        benchmark.pedantic(loop.round, args=(0, clients), rounds=3, warmup_rounds=1)
    finally:
        loop.close()


def main():
    federation = load()
    print("data:", "random" if federation.record.get("random") else "MNIST")
    loops = {name: make(federation) for name, make in LOOPS.items()}
    draws = drawn_clients(federation, N_ROUNDS)
    seconds = {name: [] for name in loops}
    accuracy = {}
    for t in (-1, *range(N_ROUNDS)):  # -1: warm up
        for name, loop in loops.items():  # alternated: a busy host slows all loops alike
            # One thread for loops in this process; at these sizes two threads are slower.
            torch.set_num_threads(1)
            began = time.perf_counter()
            accuracy[name] = loop.round(max(t, 0), draws[max(t, 0)])
            if t >= 0:
                seconds[name].append(time.perf_counter() - began)
    totals = {name: sum(values) for name, values in seconds.items()}
    for name, loop in loops.items():
        loop.close()
        ratio = totals["research loop, pixels"] / totals[name]
        kind = totals["research loop, tensors"] / totals[name]
        print(
            f"{name:24s} {totals[name] / N_ROUNDS:7.3f} s a round, {ratio:5.1f}x pixels, "
            f"{kind:5.1f}x tensors, accuracy {accuracy[name]:.3f}"
        )


if __name__ == "__main__":
    main()
