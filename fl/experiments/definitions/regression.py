"""The regression table: one or two parameters, one or two groups of clients."""

from __future__ import annotations

from ...config import ConfigError
from ..definition import Cell, Experiment, Request
from ..paper import REGRESSION

#: Number of parameters and of latent groups of each row.
ROWS = {
    "D=1, IID": {"dim": 1, "n_groups": 1},
    "D=1, non-IID": {"dim": 1, "n_groups": 2},
    "D=2, IID": {"dim": 2, "n_groups": 1},
    "D=2, non-IID": {"dim": 2, "n_groups": 2},
}
METHODS = tuple(next(iter(REGRESSION.values())))


def make(request: Request) -> Experiment:
    """Return the definition; each seed draws new data, the same for all methods."""
    if request.dataset not in (None, "regression"):
        raise ConfigError(f"dataset must be left out of regression, got {request.dataset!r}")
    wanted = request.chosen(METHODS, "regression")
    cells = tuple(
        # A task takes a few milliseconds: worker processes would cost more than they save.
        Cell(
            row,
            method,
            request.config("regression", method, data__options=ROWS[row], engine__name="serial"),
            REGRESSION[row][method],
            wanted=method in wanted,
        )
        for row in ROWS
        for method in METHODS
    )
    title, seeds = "Test error of federated linear regression", request.n_seeds(20, quick=3)
    return Experiment("regression", title, cells, seeds, baseline="fedavg", metric="mse")
