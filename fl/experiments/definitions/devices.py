"""Time to accuracy when devices differ: every policy on MNIST with simulated devices."""

from __future__ import annotations

from typing import Any

from ..clock import draw_clock
from ..definition import DATASET, Cell, Experiment, Request

BASELINE = "fedavg"
SEEDS = 3
AIM = 0.85
#: The 95th percentile of speeds is 27 times the 5th; slow devices drop out more often.
FLEET: dict[str, Any] = {
    "fleet__enabled": True,
    "fleet__speed_spread": 1.0,
    "fleet__jitter": 0.2,
    "fleet__loss": 0.05,
}


def make(request: Request) -> Experiment:
    """Return the definition: one row, a column for each policy."""
    from .policies import METHODS

    dataset = request.dataset or DATASET
    wanted = request.chosen(METHODS, "devices")
    cells = tuple(cell(request, dataset, method, method in wanted) for method in METHODS)
    title = "Simulated time to accuracy when devices differ"
    return Experiment("devices", title, cells, request.n_seeds(SEEDS), BASELINE, draw=draw_clock)


def cell(request: Request, dataset: str, method: str, wanted: bool, row: str = "") -> Cell:
    """Return the cell of one policy; in another table's `row` it shares the runs of this one."""
    return Cell(
        row or dataset,
        method,
        request.config(dataset, method, **FLEET),
        home=f"devices/{dataset}/{method}" if row else "",
        wanted=wanted,
        aim=AIM if dataset == DATASET else None,
        seeds=request.n_seeds(SEEDS),
    )
