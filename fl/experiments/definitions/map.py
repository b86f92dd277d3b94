"""Where selection pays: clients, participation, heterogeneity and server step, on MNIST.

A row for each regime, a column for each method: policies with their own merge and with a memory
of updates. Every model is evaluated as the moving average of the server's models, and as itself.
Runs are short, 100 rounds with an evaluation every five, since there are hundreds.
"""

from __future__ import annotations

from cvrcore.aggregators.averaging import DECAY

from ..definition import DATASET, Cell, Experiment, Request
from ..heatmaps import draw_regimes

BASELINE = "fedavg"
CLIENTS = (100, 1000)
PERCENT = (1, 2, 5, 10, 30)
#: Dirichlet's parameter, and the server steps at which it is run.
STEPS = {0.05: (1,), 0.1: (1, 2, 4), 0.5: (1,)}
ROUNDS, EVERY, SEEDS = 100, 5, 3
#: The two policies that did best in other tables, with their own merge and with memory.
BEST = ("pivotal", "pivotal-memory", "pivotal-factor", "fedcbs", "fedcbs-memory")
METHODS = (BASELINE, "fedavg-memory", "fedcvr-bolt", "fedcvr-bolt-memory", *BEST)


def make(request: Request) -> Experiment:
    """Return the definition; ``--rows`` chooses a slice of it."""
    dataset = request.dataset or DATASET
    wanted = request.chosen(METHODS, "map")
    cells = tuple(
        Cell(
            ("" if dataset == DATASET else f"{dataset}, ") + name(n_clients, percent, alpha, step),
            method,
            request.part(
                dataset, method, n_clients, n_clients * percent // 100, step, ROUNDS
            ).replace(data__alpha=alpha, eval_every=EVERY, server__average=DECAY),
            wanted=method in wanted,
        )
        for alpha, steps in STEPS.items()
        for step in steps
        for n_clients in CLIENTS
        for percent in PERCENT
        for method in METHODS
    )
    title = "Where selection pays"
    return Experiment("map", title, cells, request.n_seeds(SEEDS), BASELINE, draw=draw_regimes)


def name(n_clients: int, percent: int, alpha: float, step: int) -> str:
    """Return the name of a row."""
    ending = "" if step == 1 else f", step {step}"
    return f"K={n_clients}, {percent} %, alpha {alpha:g}{ending}"
