"""The regression table: one or two parameters, one or two groups of clients."""

from __future__ import annotations

from ..config import ConfigError
from ..paper import REGRESSION
from .experiment import Cell, Experiment, Plan, chosen

#: Number of parameters and of latent groups of each row.
ROWS = {
    "D=1, IID": {"dim": 1, "n_groups": 1},
    "D=1, non-IID": {"dim": 1, "n_groups": 2},
    "D=2, IID": {"dim": 2, "n_groups": 1},
    "D=2, non-IID": {"dim": 2, "n_groups": 2},
}
METHODS = tuple(next(iter(REGRESSION.values())))


def make(plan: Plan) -> Experiment:
    """Return the experiment; each seed draws new data, the same for all methods."""
    if plan.dataset not in (None, "regression"):
        raise ConfigError(f"dataset must be left out of regression, got {plan.dataset!r}")
    wanted = chosen(plan, METHODS, "regression")
    cells = [
        Cell(
            row,
            method,
            # Tasks of a few milliseconds: worker processes would cost more than they save.
            plan.config("regression", method, data__options=options).replace(engine__name="serial"),
            REGRESSION[row][method],
            wanted=method in wanted,
        )
        for row, options in ROWS.items()
        for method in METHODS
    ]
    return Experiment(
        "regression",
        "Test error of federated linear regression",
        tuple(cells),
        plan.n_seeds(20, quick=3),
        baseline="fedavg",
        metric="mse",
    )
