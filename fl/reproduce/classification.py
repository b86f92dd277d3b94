"""The classification table: nine methods on MNIST, CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from ..paper import CLASSIFICATION
from ..presets import TABLE
from .experiment import Cell, Experiment, Plan, chosen

DATASET = "mnist"


def make(plan: Plan) -> Experiment:
    """Return the experiment; a row of the paper that is not asked for is shown, not run."""
    dataset = plan.dataset or DATASET
    wanted = chosen(plan, TABLE, "classification")
    rows = [dataset] if plan.quick else list(dict.fromkeys([*CLASSIFICATION, dataset]))
    cells = [
        Cell(
            row,
            method,
            plan.config(row, method),
            CLASSIFICATION.get(row, {}).get(method),
            wanted=row == dataset and method in wanted,
        )
        for row in rows
        for method in TABLE
    ]
    return Experiment(
        "classification",
        "Test accuracy of nine methods",
        tuple(cells),
        plan.n_seeds(3),
        baseline="fedavg",
    )
