"""Our preset on seeds and data that had no say in it: MNIST from seed 10 on, and others."""

from __future__ import annotations

from pathlib import Path

from ..presets import STEADY, TABLE
from .beyond import AIMS, BASELINE
from .experiment import Cell, Experiment, Plan, chosen
from .ladder import draw_ladder

DATASET = "mnist"
FIRST_SEED = 10
#: CIFAR-10 was never used to choose: its seeds are those of the classification table, whose
#: runs serve here too.
FIRST_SEEDS = {"cifar10": 0}
#: FedAvg, the paper's method, the strongest baseline of the classification table, ours; and
#: the one part of ours that was known before, which it must beat to deserve its name.
METHODS = ("fedavg", BASELINE, "active", "fedavg-memory", STEADY)


def make(plan: Plan) -> Experiment:
    """Return the experiment; rows of other data sets that were run before stay."""
    dataset = plan.dataset or DATASET
    wanted = chosen(plan, METHODS, "holdout")
    shared = dataset in FIRST_SEEDS
    cells = tuple(
        Cell(
            dataset,
            method,
            plan.config(dataset, method),
            home=f"classification/{dataset}/{method}" if shared and method in TABLE else "",
            wanted=method in wanted,
            aim=AIMS.get(dataset),
        )
        for method in METHODS
    )
    title = "Beyond the paper: seeds and data that had no say"
    return Experiment(
        "holdout",
        title,
        cells,
        plan.n_seeds(5),
        baseline=BASELINE,
        first_seed=FIRST_SEEDS.get(dataset, FIRST_SEED),
    )


def draw(folder: Path, plan: Plan) -> list[str]:
    """Draw the comparison and the curves by round."""
    return draw_ladder(folder, BASELINE)
