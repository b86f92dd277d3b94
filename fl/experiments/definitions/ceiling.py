"""The ceiling: FedAvg with full participation, P = K, at a server step of 1, 2 and 4."""

from __future__ import annotations

from ...config import RunConfig
from ..definition import FULL, Cell, Experiment, Request

BASELINE = "fedavg"
STEPS = (1, 2, 4)
#: Row: data set, clients, seeds, and rounds where they are not the preset's.
ROWS: dict[str, tuple[str, int, int, int | None]] = {
    "mnist, K=100": ("mnist", 100, 3, None),
    "mnist, K=1000": ("mnist", 1000, 3, 100),
    "cifar10, K=100": ("cifar10", 100, 1, None),
}


def make(request: Request) -> Experiment:
    """Return the definition; the column FedAvg has the table's usual ten clients a round."""
    wanted = request.chosen((BASELINE, FULL), "ceiling")
    cells = []
    for row, (dataset, n_clients, seeds, rounds) in ROWS.items():
        run = request.dataset in (None, dataset)
        columns = {BASELINE: config(request, dataset, n_clients, rounds)}
        columns |= {
            f"{FULL}, step {step}": config(request, dataset, n_clients, rounds, n_clients, step)
            for step in STEPS
        }
        for column, settings in columns.items():
            home = ""
            if column == BASELINE and n_clients == 100:
                home = f"classification/{dataset}/{BASELINE}"
            cells.append(
                Cell(
                    row,
                    column,
                    settings,
                    home=home,
                    wanted=run and (BASELINE if column == BASELINE else FULL) in wanted,
                    seeds=request.n_seeds(seeds),
                )
            )
    title = "The ceiling: FedAvg with full participation"
    return Experiment("ceiling", title, tuple(cells), request.n_seeds(3), baseline=BASELINE)


def config(
    request: Request,
    dataset: str,
    n_clients: int,
    rounds: int | None,
    n_select: int = 10,
    step: int = 1,
    method: str = BASELINE,
) -> RunConfig:
    """Return the settings of a method with so many clients, picked clients and server step."""
    made = request.config(dataset, method, data__n_clients=n_clients, selection__n_select=n_select)
    if rounds is not None and not (request.rounds or request.quick):
        made = made.replace(rounds=rounds)
    return made if step == 1 else made.replace(server__lr=float(step))
