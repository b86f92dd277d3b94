"""Accuracy against the participation rate P/K, from 5 % to 30 %."""

from __future__ import annotations

from ..definition import DATASET, Cell, Experiment, Request
from ..figures import draw_rates

METHOD = "fedcvr-bolt"
RATES = (5, 10, 20, 30)
USUAL = 10  # percent, the rate of the paper's tables


def make(request: Request) -> Experiment:
    """Return the definition; runs of the usual rate are the classification table's."""
    dataset = request.dataset or DATASET
    paper = [] if request.quick else ["mnist", "cifar10"]
    request.chosen((METHOD, "fedavg"), "participation")
    cells = tuple(
        _cell(request, row, method, rate, wanted=row == dataset)
        for row in dict.fromkeys([*paper, dataset])
        for method in request.methods or (METHOD,)
        for rate in RATES
    )
    return Experiment(
        "participation",
        "Test accuracy by participation rate P/K",
        cells,
        request.n_seeds(3),
        baseline=f"{USUAL} %",
        draw=draw_rates,
    )


def _cell(request: Request, dataset: str, method: str, rate: int, wanted: bool) -> Cell:
    config = request.config(dataset, method)
    n_select = max(config.data.n_clients * rate // 100, 1)
    usual = n_select == config.selection.n_select
    return Cell(
        dataset if method == METHOD else f"{dataset} {method}",
        f"{rate} %",
        config.replace(selection__n_select=n_select),
        home=f"classification/{dataset}/{method}" if usual else "",
        wanted=wanted,
    )
