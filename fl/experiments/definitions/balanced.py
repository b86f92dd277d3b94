"""Balanced draws and a longer server step, with few clients and with many; seeds from 20 on."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...config import RunConfig
from ...presets import BALANCED, STEADY, make_config
from ...presets import METHODS as KNOWN
from ..definition import DATASET, FULL, Cell, Experiment, Request
from ..figures import draw_ladder
from .ceiling import config

#: Seeds below took part in choices: 0 to 4 here and in ``beyond``, 10 to 14 in ``holdout``.
FIRST_SEED = 20
BASELINE = "fedavg"
#: FedAvg, with memory, with the same rule of the server's step; the paper's method; policies that
#: did best in other tables; ours.
METHODS = (
    BASELINE,
    "fedavg-adaptive",
    "fedavg-memory",
    "fedavg-memory-adaptive",
    "fedcvr-bolt",
    "fedcbs",
    "oort",
    STEADY,
    *BALANCED,
)
#: Clients of each row; ten are picked in every round.
CLIENTS = (100, 1000)
ROUNDS = 100
AIM = 0.85
#: The server step of each method by number of clients, chosen on seeds 0 to 4 by
#: ``balanced-choice``; 1 where none is named.
CHOSEN: Mapping[int, Mapping[str, int]] = {100: {}, 1000: {}}
#: Data sets with clients of their own: one row, with all of them.
NATURAL = ("synthetic", "shakespeare", "adult")


def make(request: Request) -> Experiment:
    """Return the definition: a row for each number of clients."""
    dataset = request.dataset or DATASET
    wanted = request.chosen((*METHODS, FULL), "balanced")
    cells = tuple(
        Cell(
            f"{dataset}, K={n_clients}",
            column(method, step),
            settings(request, dataset, method, n_clients, step),
            wanted=method in wanted,
            aim=AIM if dataset.endswith("mnist") else None,
        )
        for n_clients in clients(dataset)
        for method in (*METHODS, FULL)
        # FedAvg's own step stays beside the chosen one: others are compared with it.
        for step in sorted({chosen(n_clients, method), *[1] * (method == BASELINE)})
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


def clients(dataset: str) -> tuple[int, ...]:
    """Return the numbers of clients of a data set's rows."""
    return (make_config(dataset).data.n_clients,) if dataset in NATURAL else CLIENTS


def chosen(n_clients: int, method: str) -> int:
    """Return the server step of a method, by the nearer of the two numbers of clients."""
    nearer = min(CHOSEN, key=lambda known: abs(math.log(known / n_clients)))
    return CHOSEN[nearer].get(method, 1)


def column(method: str, step: int) -> str:
    """Return the name of a column, which names its folder: the step is left out if it is 1."""
    return method if step == 1 else f"{method}, step {step}"


def has_own_step(method: str) -> bool:
    """Return whether a method has a rule of its own for the server's step."""
    return method != FULL and "optimiser" in KNOWN[method].server


def settings(request: Request, dataset: str, method: str, n_clients: int, step: int) -> RunConfig:
    """Return the settings of one method; ``full`` is FedAvg with full participation."""
    n_select = n_clients if method == FULL else 10
    name = BASELINE if method == FULL else method
    return config(request, dataset, n_clients, ROUNDS, n_select, step, name)
