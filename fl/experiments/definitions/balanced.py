"""Balanced draws and a longer server step, with few clients and with many; seeds from 20 on."""

from __future__ import annotations

from ...config import RunConfig
from ...presets import BALANCED, STEADY
from ..definition import DATASET, Cell, Experiment, Request
from ..figures import draw_ladder

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


def make(request: Request) -> Experiment:
    """Return the definition: a row for each number of clients."""
    dataset = request.dataset or DATASET
    wanted = request.chosen(METHODS, "balanced")
    cells = tuple(
        Cell(
            f"{dataset}, K={n_clients}",
            method,
            _config(request, dataset, method, n_clients),
            wanted=method in wanted,
            aim=AIM if dataset.endswith("mnist") else None,
        )
        for n_clients in CLIENTS
        for method in METHODS
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


def _config(request: Request, dataset: str, method: str, n_clients: int) -> RunConfig:
    config = request.config(dataset, method, data__n_clients=n_clients)
    return config if request.rounds or request.quick else config.replace(rounds=ROUNDS)
