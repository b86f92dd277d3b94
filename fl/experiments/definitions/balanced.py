"""Balanced draws, a longer server step and averaged models; few clients and many; seeds from 20.

Every method is evaluated as the moving average of its models, at the server step that was best
for it; FedAvg with step 1 stands beside it. A step is chosen for each data set, and is 1 where none
was chosen. On other data sets than MNIST ours have the step that adapts in place of 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cvrcore.aggregators.averaging import DECAY

from ...config import RunConfig
from ...presets import BALANCED, STEADY, TUNED, make_config
from ..definition import DATASET, FULL, Cell, Experiment, Request
from ..figures import draw_ladder

#: Seeds below took part in choices: 0 to 4 here and in ``beyond``, 10 to 14 in ``holdout``.
FIRST_SEED = 20
BASELINE = "fedavg"
#: FedAvg, with memory; the paper's method; policies that did best in other tables; ours.
METHODS = (BASELINE, "fedavg-memory", "fedcvr-bolt", "fedcbs", "oort", STEADY, *BALANCED)
#: Clients of each row; ten are picked in every round.
CLIENTS = (100, 1000)
ROUNDS = 100
AIM = 0.85
#: Rounds between evaluations where they would take longer than training.
EVERY: Mapping[tuple[str, int], int] = {
    ("cifar10", 1000): 5, ("fashion-mnist", 1000): 5, ("shakespeare", 630): 5,
}  # fmt: skip
#: The server step of each method by data set and number of clients, chosen on seed 0 by
#: ``balanced-choice``; 1 where none is named. MNIST's are those of digits too.
CHOSEN: Mapping[str, Mapping[int, Mapping[str, int]]] = {
    "mnist": {
        100: {
            "fedavg": 4, "fedavg-memory": 2, "fedcvr-bolt": 4, "fedcbs": 4, "oort": 4,
            "cvr-steady": 4, "balanced-memory": 4, "balanced-factor": 4, "full": 4,
        },
        1000: {
            "fedavg": 4, "fedavg-memory": 4, "fedcvr-bolt": 4, "fedcbs": 8, "oort": 4,
            "balanced-memory": 8, "balanced-factor": 8, "full": 8,
        },
    },
    "fashion-mnist": {
        1000: {
            "fedavg": 2, "fedavg-memory": 2, "fedcvr-bolt": 2, "fedcbs": 4, "oort": 2,
            "balanced-memory": 4, "balanced-factor": 4,
        },
    },
    "cifar10": {1000: {"fedavg": 2, "fedcbs": 4, "balanced-factor": 4}},
    "synthetic": {
        100: {
            "fedavg": 2, "fedavg-memory": 4, "fedcvr-bolt": 2, "fedcbs": 4, "cvr-steady": 2,
            "full": 4,
        },
    },
}  # fmt: skip
#: Data sets with clients of their own: one row, with all of them.
NATURAL = ("synthetic", "shakespeare", "adult")


def make(request: Request) -> Experiment:
    """Return the definition: a row for each number of clients."""
    dataset = request.dataset or DATASET
    wanted = request.chosen((*METHODS, FULL), "balanced")
    cells = tuple(
        Cell(
            f"{dataset}, K={n_clients}",
            column(dataset, n_clients, method, step),
            settings(request, dataset, method, n_clients, step),
            wanted=method in wanted,
            aim=AIM if dataset.endswith("mnist") else None,
        )
        for n_clients in clients(dataset)
        for method in (*METHODS, FULL)
        for step in sorted({chosen(dataset, n_clients, method), *also(dataset, method)})
    )
    return Experiment(
        "balanced",
        "Balanced draws: few clients and many",
        cells,
        request.n_seeds(5),
        baseline=BASELINE,
        first_seed=FIRST_SEED,
        draw=draw_ladder,
    )


def also(dataset: str, method: str) -> tuple[int, ...]:
    """Return the steps at which a method is run beside the chosen one: 1, or that of the preset."""
    return (1,) if method == BASELINE or is_adaptive(dataset, method) else ()


def column(dataset: str, n_clients: int, method: str, step: int) -> str:
    """Return the name of a column: the method alone at its chosen step."""
    if step == chosen(dataset, n_clients, method):
        return method
    return f"{method}, " + ("adaptive" if is_adaptive(dataset, method) else f"step {step}")


def clients(dataset: str) -> tuple[int, ...]:
    """Return the numbers of clients of a data set's rows."""
    return (make_config(dataset).data.n_clients,) if dataset in NATURAL else CLIENTS


def chosen(dataset: str, n_clients: int, method: str) -> int:
    """Return the server step of a method; on digits that of MNIST's nearer number of clients.

    A step that was chosen on one data set says nothing about others: 1 there.
    """
    known = CHOSEN.get("mnist" if dataset in TUNED else dataset, {})
    if dataset in TUNED:
        n_clients = min(known, key=lambda number: abs(math.log(number / n_clients)))
    return known.get(n_clients, {}).get(method, 1)


def is_adaptive(dataset: str, method: str) -> bool:
    """Return whether the preset of a method chooses its own step on a data set."""
    return method in BALANCED and dataset not in TUNED


def settings(request: Request, dataset: str, method: str, n_clients: int, step: int) -> RunConfig:
    """Return the settings of one method; ``full`` is FedAvg with full participation."""
    n_select = n_clients if method == FULL else 10
    name = BASELINE if method == FULL else method
    made = request.part(dataset, name, n_clients, n_select, rounds=ROUNDS)
    made = made.replace(eval_every=EVERY.get((dataset, n_clients), 1))
    if is_adaptive(dataset, method) and step == 1:
        return made
    return made.replace(server__optimiser="sgd", server__lr=float(step), server__average=DECAY)
