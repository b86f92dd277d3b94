"""Gain of each speed mechanism of the core: whole steady rounds with it and without it.

``python -m bench.mechanisms`` measures every mechanism at every size; ``--case K`` one size,
``--only NAME`` one mechanism. Two copies of one selector take turns, one with the mechanism
switched off; the ratio of their times is taken turn by turn. The interval is a 95 % t interval
of the mean of log ratios. A mechanism whose upper end stays below 1.3 at every size is not worth
its code.

If two copies do not fit in memory, one selector serves for both; the mechanisms compared there
leave no state behind.
"""

import argparse
import contextlib
import copy
import dataclasses
import gc
import importlib
import json
import math
import os
import time
from pathlib import Path
from unittest import mock

import numpy as np

from bench.federations import Federation
from cvrcore.clustering import eigensolver, operators, partitions, subspace
from cvrcore.kernels import dispatch

WORTH = 1.3
N_TURNS = 15


@contextlib.contextmanager
def replaced(changes):
    """Replace attributes inside the block: ``{"module:Class.attribute": value}``."""
    with contextlib.ExitStack() as stack:
        for path, value in changes.items():
            module, _, name = path.partition(":")
            owner = importlib.import_module(f"cvrcore.{module}")
            *parents, attribute = name.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            stack.enter_context(mock.patch.object(owner, attribute, value))
        yield


def fixed_degree(solve):
    """Return a `filtered_subspace` whose first filter always has the same degree."""

    def filtered(operator, start, n_wanted, *rest):
        return solve(operator, dataclasses.replace(start, degree=4), n_wanted, *rest)

    return filtered


def full_matrix(affinity):
    """Return the normalised affinity as a dense matrix, computed each time."""
    return operators.NormalisedAffinity(affinity, np.float32)


def always(solve):
    """Return a context in which every exact partition is solved by `solve`."""
    made = partitions.ExactPartition.make

    def make(self, problem):
        own, self.solve = self.solve, solve
        try:
            return made(self, problem)
        finally:
            self.solve = own

    return replaced({"clustering.partitions:ExactPartition.make": make})


#: Name of each mechanism, and a function that returns a context in which it is switched off.
MECHANISMS = {
    "thread pool": lambda: mock.patch.dict(os.environ, CVRCORE_NUM_THREADS="1"),
    "one BLAS thread": lambda: replaced(
        {
            f"clustering.{module}:single_blas_thread": contextlib.nullcontext
            for module in ("partitions", "direct", "landmarks", "lloyd")
        }
    ),
    "LRU cache of pairs": lambda: replaced({"covariance.store:caches_pairs": lambda window: False}),
    "principal coordinates": lambda: replaced(
        {"clustering.principal:Principal.is_worth_using": lambda self, *a: False}
    ),
    "adaptive filter degree": lambda: replaced(
        {"clustering.eigensolver:filtered_subspace": fixed_degree(subspace.filtered_subspace)}
    ),
    "centred affinity in float32": lambda: replaced(
        {
            "clustering.eigensolver:ScaledCentredAffinity": full_matrix,
            "clustering.affinity:Affinity.centred": lambda self: self.matrix(),
        }
    ),
    "small dense kernels": lambda: replaced(
        {f"clustering.{module}:SMALL": 0 for module in ("eigensolver", "subspace", "principal")}
    ),
    "warm eigenvectors": lambda: always(eigensolver.direct_points),
    "warm k-means": lambda: replaced(
        {"clustering.partitions:warm_effort": lambda *a: partitions.COLD}
    ),
    "one-each draw": lambda: replaced(
        {"draws.coalition_draw:Law.gives_one_each": lambda self, n_select: False}
    ),
}


def build(package):
    """Return a function that returns a context in which one build of the kernels is used."""

    def context():
        found = {
            name: getattr(importlib.import_module(f"{package}.{subject}"), name)
            for name, subject in dispatch.KERNELS.items()
        }
        return mock.patch.dict(dispatch.__dict__, found)

    return context


#: Builds of the kernels, each compared with the default build on this processor.
BUILDS = {
    "Numba": build("cvrcore.kernels"),
    "Cython base": build("cvrcore_ext.base"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A size: kind of models, rounds before timing, rounds in a turn, options."""

    kind: str
    size: tuple[int, int, int]
    before: int
    rounds: int
    options: dict = dataclasses.field(default_factory=dict)
    shared: bool = False  # whether one selector serves for on and off
    skip: tuple[str, ...] = ()


DIRECT = ("warm eigenvectors",)  # switched off, it takes minutes at large sizes
CASES = {
    "100-planted-early": Case("planted", (100, 300, 10), 20, 2, {"dtype": "float64"}),
    "100-planted": Case("planted", (100, 300, 10), 60, 25, {"dtype": "float64"}),
    "100-flat": Case("flat", (100, 300, 10), 60, 25, {"dtype": "float64"}),
    "1000-planted": Case("planted", (1000, 300, 50), 60, 4, {"dtype": "float64"}),
    "1000-planted-late": Case("planted", (1000, 300, 50), 200, 4, {"dtype": "float64"}),
    "1000-flat": Case("flat", (1000, 300, 50), 120, 4, {"dtype": "float64"}),
    "1000-mnist": Case("mnist", (1000, 300, 50), 60, 4, {"dtype": "float64"}),
    "10000-planted": Case(
        "planted", (10_000, 300, 100), 30, 2, {"clustering": "exact", "memory_limit": 5e9},
        skip=DIRECT,
    ),
    "10000-flat": Case(
        "flat", (10_000, 300, 100), 30, 2, {"clustering": "exact", "memory_limit": 5e9},
        skip=DIRECT,
    ),
    "100000-planted": Case(
        "planted", (100_000, 300, 100), 30, 2, {"recluster_every": 2}, shared=True
    ),
    "1000000-planted": Case(
        "planted", (1_000_000, 100, 100), 3, 2, {"recluster_every": 10**6, "memory_limit": 8e9},
        shared=True,
    ),
}  # fmt: skip


class Drive:
    """A selector and the models of its clients."""

    def __init__(self, case):
        self.case = case
        if case.kind == "mnist":
            from bench.heads import Heads

            self.federation = heads = Heads(case.size[0])
            import cvrcore

            self.selector = cvrcore.CoalitionSelector(
                len(heads.weights), heads.initial.shape[1], case.size[2], weights=heads.weights,
                initial=heads.initial, warmup=0, seed=0, **case.options,
            )  # fmt: skip
        else:
            self.federation = Federation(case.kind, *case.size)
            self.selector = self.federation.selector(case.size[2], **case.options)

    def turn(self, selector, rounds):
        """Return seconds of a round; drawing models is not timed."""
        total = 0.0
        for _ in range(rounds):
            began = time.perf_counter()
            picked = selector.select()
            total += time.perf_counter() - began
            models = self.federation.draw(picked.clients)
            began = time.perf_counter()
            selector.observe(picked.clients, models)
            total += time.perf_counter() - began
        return total / rounds


def interval(logs):
    """Return the mean of logs and the ends of its 95 % t interval, as ratios."""
    from scipy.stats import t

    mean, n = float(np.mean(logs)), len(logs)
    half = float(t.ppf(0.975, n - 1) * np.std(logs, ddof=1) / math.sqrt(n))
    return tuple(math.exp(mean + part) for part in (0.0, -half, half))


def measure_case(label, only=(), n_turns=N_TURNS):
    """Print and return the ratio off / on of each mechanism."""
    case = CASES[label]
    drive = Drive(case)
    for _ in range(case.before):
        drive.turn(drive.selector, 1)
    found = {}
    for name, make_off in (MECHANISMS | BUILDS).items():
        if name in case.skip or (only and name not in only):
            continue
        with_it = drive.selector
        without = with_it if case.shared else copy.deepcopy(with_it)
        own = with_it if case.shared else copy.deepcopy(with_it)
        if not case.shared:
            for one in (own, without):
                one._estimator.store.reserve((n_turns + 2) * case.rounds + 2)
            if name == "LRU cache of pairs":
                without._estimator.store._cache = None
        if name in BUILDS:
            with make_off():  # compile kernels before timing
                drive.turn(without, 1)
        logs, times = [], []
        for number in range(n_turns + 1):
            pair = {}
            for switched in (False, True) if number % 2 else (True, False):
                with make_off() if switched else contextlib.nullcontext():
                    pair[switched] = drive.turn(without if switched else own, case.rounds)
            if number:  # the first turn is a warm-up
                logs.append(math.log(pair[True] / pair[False]))
                times.append(pair[False])
        ratio, low, high = interval(logs)
        found[name] = {"ratio": ratio, "low": low, "high": high, "ms": 1e3 * float(np.mean(times))}
        print(
            f"{label:18} {name:36} {ratio:6.3f} [{low:.3f}, {high:.3f}]  "
            f"{1e3 * np.mean(times):9.3f} ms with it",
            flush=True,
        )
        del without, own
        gc.collect()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--turns", type=int, default=N_TURNS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    record = {}
    for label in arguments.case or CASES:
        record[label] = measure_case(label, arguments.only, arguments.turns)
        gc.collect()
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(record, indent=1))
