"""The loop's speed: steps, local training of CIFAR and generic models, rounds of MNIST.

``make bench-fl`` prints the table; ``--check`` exits with 1 where a must is missed; ``--part``
runs one part. Each ratio is of works alternated in one run; rounds of CIFAR are the training of
10 clients with 400 samples, 10 epochs, batch 100, ours in one process. Rounds of MNIST are whole:
100 clients, 10 a round, evaluated; ``pytest bench/bench_fl.py`` gives pytest-benchmark's table.
"""

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import peers_fl, steps_fl
from bench.rows import Found, Row, host, print_rows, save
from fl.config import TrainingConfig
from fl.data import Federation, load_federation
from fl.engines import Job, TrainTask
from fl.engines.processes import ProcessEngine
from fl.own import Own
from fl.presets import make_config
from fl.samples import ClientSamples
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
        selector = self.server.policy.in_round()
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


def mnist_rounds(short=False):
    federation = load()
    n_rounds = 1 if short else N_ROUNDS
    loops = {name: make(federation) for name, make in LOOPS.items()}
    draws = drawn_clients(federation, n_rounds)
    seconds = {name: [] for name in loops}
    for t in (-1, *range(n_rounds)):  # -1: warm up
        for name, loop in loops.items():  # alternated: a busy host slows all loops alike
            # One thread for loops in this process; at these sizes two threads are slower.
            torch.set_num_threads(1)
            began = time.perf_counter()
            loop.round(max(t, 0), draws[max(t, 0)])
            if t >= 0:
                seconds[name].append(time.perf_counter() - began)
    for loop in loops.values():
        loop.close()
    totals = {name: sum(values) / n_rounds for name, values in seconds.items()}
    data = "random pixels" if federation.record.get("random") else "MNIST"
    rows = []
    for name in ("fl, one process", "fl, processes"):
        for peer in ("research loop, pixels", "research loop, tensors"):
            note = f"{totals[name]:.2f} against {totals[peer]:.2f} s a round, {data}"
            ratio = totals[peer] / totals[name]
            rows.append(Row("rounds of MNIST", f"{name}, against {peer}", ratio, note=note))
    return Found(rows)


class LocalTraining:
    """Ours: one worker process trains clients from one model."""

    def __init__(self, x, y, n_classes, train, epochs, model="cnn", own=None):
        parts = tuple(np.empty(0, dtype=np.int64) for _ in train)
        federation = Federation("bench", x, y, n_classes, tuple(train), parts, {})
        samples = ClientSamples.of(federation)
        training = TrainingConfig(lr=0.01, epochs=epochs, batch_size=100)
        job = Job(model, samples.in_shape, n_classes, training, 0, own)
        self.engine = ProcessEngine(job, samples, workers=1)
        module = job.module()
        self.start = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()

    def train(self, clients):
        tasks = [TrainTask(int(k), 0) for k in clients]
        assert all(self.engine.train(self.start[None], tasks))

    def close(self):
        self.engine.close()


class LoaderTraining:
    """Theirs: the local updates of the research loop over ready tensors."""

    def __init__(self, x, y, train, epochs, model):
        dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        self.loop = peers_fl.ResearchLoop(dataset, train, [], epochs=epochs, model=model)

    def train(self, clients):
        for k in clients:
            self.loop.local_update(k)

    def close(self):
        pass


def compare_training(part, works, clients, must, aim, repeats):
    """Return rows of "fl" against the others: seconds of the clock and of all processors."""
    torch.set_num_threads(1)
    times = {name: [] for name in works}
    for t in range(-1, repeats):
        for name, work in works.items():
            began, used = time.perf_counter(), _cpu_seconds(work)
            work.train(clients[:1] if t < 0 else clients)
            if t >= 0:
                times[name].append((time.perf_counter() - began, _cpu_seconds(work) - used))
    best = {name: np.min(values, axis=0) for name, values in times.items()}
    rows = []
    for name in works:
        if name == "fl":
            continue
        for i, kind in enumerate(("wall", "CPU")):
            ours, theirs = best["fl"][i], best[name][i]
            bounds = {"must": must, "aim": aim} if kind == "CPU" else {}
            note = f"{ours:.2f} against {theirs:.2f} s"
            rows.append(
                Row(
                    part,
                    f"fl against {name}, {kind}",
                    theirs / ours,
                    sense=">=",
                    note=note,
                    **bounds,
                )
            )
    return rows


def _cpu_seconds(work):
    """Return CPU seconds used so far: of the work's own processes, or of this one."""
    if hasattr(work, "cpu_seconds"):
        return work.cpu_seconds()
    if not isinstance(work, LocalTraining):
        return time.process_time()
    pid = work.engine.pids[0]
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cifar_training(short=False):
    """Training of a CIFAR round against its peers."""
    n_clients, epochs, repeats = (2, 2, 1) if short else (10, 10, 2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400 * n_clients, 3, 32, 32)).astype(np.float32)
    y, train = rng.integers(0, 10, size=len(x)), np.split(rng.permutation(len(x)), n_clients)
    works = {
        "fl": LocalTraining(x, y, 10, train, epochs),
        "DataLoader loop": LoaderTraining(x, y, train, epochs, peers_fl.make_cnn()),
    }
    if importlib.util.find_spec("pfl"):
        works["pfl"] = peers_fl.PflRounds(x, y, train, epochs=epochs)
    if importlib.util.find_spec("flwr") and importlib.util.find_spec("ray"):
        from bench.peers_flower import FlowerRounds

        works["Flower simulation"] = FlowerRounds(x, y, train, epochs=epochs)
    try:
        rows = compare_training(
            "training of a CIFAR-10 round", works, np.arange(n_clients), 3.3, 5.0, repeats
        )
    finally:
        for work in works.values():
            work.close()
    return Found(rows)


def generic_training(short=False):
    """Models that autograd serves, against the same model in a DataLoader loop."""
    rng = np.random.default_rng(0)
    shapes = {
        "small ResNet": (steps_fl.make_resnet, (3, 32, 32)),
        "GRU": (steps_fl.Recurrent, (30, 20)),
    }
    found = Found()
    for name, (make, shape) in shapes.items():
        x = rng.normal(size=(800, *shape)).astype(np.float32)
        y, train = rng.integers(0, 10, size=800), np.split(rng.permutation(800), 2)
        works = {
            "fl": LocalTraining(x, y, 10, train, 4, own=Own(make())),
            "DataLoader loop": LoaderTraining(x, y, train, 4, make()),
        }
        part = f"training of a generic model: {name}"
        repeats = 1 if short else 5
        found.rows += compare_training(part, works, np.arange(2), 1.3, 2.0, repeats)
        works["fl"].close()
    return found


PARTS = {
    "steps": steps_fl.measure,
    "cifar": cifar_training,
    "generic": generic_training,
    "mnist": mnist_rounds,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, help="one part alone")
    parser.add_argument("--short", action="store_true", help="less work, under a minute")
    parser.add_argument("--json", help="save the rows in this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a must is missed")
    arguments = parser.parse_args()
    found = Found()
    for name, measure in PARTS.items():
        if arguments.part in (None, name):
            print(f"bench: {name}", file=sys.stderr, flush=True)
            found.add(measure(arguments.short))
    print_rows(found.rows)
    for failure in found.failed:
        print(f"failed: {failure}", file=sys.stderr)
    if arguments.json:
        save(arguments.json, found, host())
    missed = found.failed or any(row.verdict == "short" for row in found.rows)
    sys.exit(1 if arguments.check and missed else 0)


if __name__ == "__main__":
    main()
