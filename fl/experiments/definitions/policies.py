"""Every policy of the registry on the common protocol, each with the merge of its own paper.

Runs of methods that the classification table has are kept there; runs with simulated devices are
those of ``devices``.
"""

from __future__ import annotations

from typing import Any

from ...presets import TABLE, ZOO
from ..definition import DATASET, Cell, Experiment, Request
from ..figures import draw_ladder
from . import devices

BASELINE = "fedavg"
#: Column and method: those of the paper's table that are selection policies, then the zoo.
METHODS = (
    BASELINE, "power-of-choice", "active", "fedcbs", "oort", "fedcvr-bolt",
    *(name for name in ZOO if name != "uniform"),
)  # fmt: skip
#: Data sets, and their seeds.
SEEDS = {"mnist": 5, "cifar10": 3, "shakespeare": 3}
#: With the 50 P orders of clients that its authors allow, Shapley's values of one round take
#: minutes where models are larger than MNIST's: 20 orders there.
CHEAPER: dict[str, dict[str, Any]] = {
    "shapley": {"selection__options": {"max_permutations": 20}},
}
#: The row of the runs with simulated devices.
ROW = "mnist, devices"
AIMS = {"mnist": 0.85, "cifar10": 0.5, "shakespeare": 0.4}


def make(request: Request) -> Experiment:
    """Return the definition: a row for each data set, and one for MNIST with devices."""
    dataset = request.dataset or DATASET
    wanted = request.chosen(METHODS, "policies")
    rows = [dataset] if request.quick else list(dict.fromkeys([*SEEDS, dataset]))
    cells = [
        Cell(
            row,
            method,
            request.config(row, method, **CHEAPER.get(method, {}) if row != DATASET else {}),
            home=f"classification/{row}/{method}" if method in TABLE else "",
            wanted=row == dataset and method in wanted,
            aim=AIMS.get(row),
            seeds=request.n_seeds(SEEDS.get(row, 3)),
        )
        for row in rows
        for method in METHODS
    ]
    cells += [
        devices.cell(request, DATASET, method, dataset == DATASET and method in wanted, ROW)
        for method in METHODS
    ]
    title = "Every policy on the common protocol"
    return Experiment(
        "policies", title, tuple(cells), request.n_seeds(3), BASELINE, draw=draw_ladder
    )
