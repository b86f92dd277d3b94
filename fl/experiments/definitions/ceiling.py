"""The ceiling: FedAvg with full participation, P = K, at every server step that others have.

Models are averaged; the model itself has a column. Runs are those of ``balanced-choice``.
"""

from __future__ import annotations

from ..definition import FULL, Cell, Experiment, Request
from .balanced import AIM, BASELINE, settings
from .balanced_choice import steps

#: Data set, clients and seeds of each row.
ROWS = (("mnist", 100, 3), ("mnist", 1000, 3), ("cifar10", 100, 1))


def make(request: Request) -> Experiment:
    """Return the definition; the column FedAvg has ten clients a round, at step 1."""
    wanted = request.chosen((BASELINE, FULL), "ceiling")
    cells = tuple(
        Cell(
            row := f"{dataset}, K={n_clients}",
            column := method if step == 1 else f"{method}, step {step}",
            settings(request, dataset, method, n_clients, step),
            home=f"balanced-choice/{row}/{column}",
            wanted=request.dataset in (None, dataset) and method in wanted,
            aim=AIM if dataset == "mnist" else None,
            seeds=request.n_seeds(seeds),
        )
        for dataset, n_clients, seeds in ROWS
        for method in (BASELINE, FULL)
        for step in ((1,) if method == BASELINE else steps(dataset))
    )
    title = "The ceiling: FedAvg with full participation"
    return Experiment("ceiling", title, cells, request.n_seeds(3), baseline=BASELINE)
