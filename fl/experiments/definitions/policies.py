"""Every policy of the registry on the common protocol, each with the merge of its own paper.

Runs of methods that the classification table has are kept there; runs with simulated devices are
those of ``devices``. Two more rows have ten of 1,000 clients a round, where a client is seen about
once: 100 rounds, models averaged.
"""

from __future__ import annotations

from typing import Any

from cvrcore.aggregators.averaging import DECAY

from ...config import RunConfig
from ...presets import TABLE, ZOO
from ..definition import DATASET, Cell, Experiment, Request
from ..figures import draw_ladder
from . import devices
from .balanced import EVERY

BASELINE = "fedavg"
#: Column and method: those of the paper's table that are selection policies, then the zoo.
METHODS = (
    BASELINE, "power-of-choice", "active", "fedcbs", "oort", "fedcvr-bolt",
    *(name for name in ZOO if name != "uniform"),
)  # fmt: skip
#: Data sets, and their seeds.
SEEDS = {"mnist": 5, "cifar10": 3, "shakespeare": 3}
#: With the 50 P orders of clients that its authors allow, Shapley's values of one round take
#: minutes where models are larger than MNIST's: 20 orders there.
CHEAPER: dict[str, dict[str, Any]] = {
    "shapley": {"selection__options": {"max_permutations": 20}},
}
#: The row of the runs with simulated devices.
ROW = "mnist, devices"
AIMS = {"mnist": 0.85, "cifar10": 0.5, "shakespeare": 0.4}
#: Rows with many clients: their data set, and the accuracy whose first round is reported.
MANY = 1000
MANY_AIMS = {"mnist": 0.8, "cifar10": 0.3}
MANY_ROUNDS = 100
#: What the rows are called where few words explain them.
TITLES = {
    "mnist": "MNIST, 10 of 100",
    "mnist, K=1000": "MNIST, 10 of 1,000",
    "cifar10": "CIFAR-10, 10 of 100",
    "cifar10, K=1000": "CIFAR-10, 10 of 1,000",
    "shakespeare": "Shakespeare, 10 of 630",
    "mnist, devices": "MNIST, devices",
}


def make(request: Request) -> Experiment:
    """Return the definition: a row for each data set, and one for MNIST with devices."""
    dataset = request.dataset or DATASET
    wanted = request.chosen(METHODS, "policies")
    rows = [dataset] if request.quick else list(dict.fromkeys([*SEEDS, dataset]))
    cells = [
        Cell(
            row,
            method,
            usual(request, row, method),
            home=home(request, row, method),
            wanted=row == dataset and method in wanted,
            aim=AIMS.get(row),
            seeds=request.n_seeds(SEEDS.get(row, 3)),
        )
        for row in rows
        for method in METHODS
    ]
    cells += [
        Cell(
            f"{row}, K={MANY}",
            method,
            many(request, row, method),
            wanted=row == dataset and method in wanted,
            aim=aim,
            seeds=request.n_seeds(SEEDS[row]),
        )
        for row, aim in MANY_AIMS.items()
        for method in METHODS
    ]
    cells += [
        devices.cell(request, DATASET, method, dataset == DATASET and method in wanted, ROW)
        for method in METHODS
    ]
    title = "Every policy on the common protocol"
    return Experiment(
        "policies", title, tuple(cells), request.n_seeds(3), BASELINE, draw=draw_ladder
    )


def usual(request: Request, dataset: str, method: str) -> RunConfig:
    """Return the preset's settings of one policy."""
    made = request.config(dataset, method, **CHEAPER.get(method, {}) if dataset != DATASET else {})
    return made.replace(eval_every=EVERY.get((dataset, made.data.n_clients), 1))


def home(request: Request, dataset: str, method: str) -> str:
    """Return the cell of the classification table that has the same runs; empty if none has."""
    shared = method in TABLE and usual(request, dataset, method) == request.config(dataset, method)
    return f"classification/{dataset}/{method}" if shared else ""


def many(request: Request, dataset: str, method: str) -> RunConfig:
    """Return the settings of one policy that picks ten of 1,000 clients."""
    made = request.part(dataset, method, MANY, rounds=MANY_ROUNDS)
    changes = CHEAPER.get(method, {}) if dataset != DATASET else {}
    return made.replace(eval_every=EVERY.get((dataset, MANY), 1), server__average=DECAY, **changes)
