"""The choice of each method's server step, on seed 0; ``balanced`` has fresh seeds.

Every method runs at a server step of 1, 2, 4 and 8, on other data sets than MNIST of 1, 2 and 4;
where the step of ours adapts, it does so in place of 1. The steps that were best are written down
in `balanced.CHOSEN` by hand, those of ours in the presets, and stay. The rule: the highest mean of
the last five evaluations on that seed; the shorter step if equal. Cells that other tables share may
have more seeds: these take no part.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...presets import TUNED
from ..definition import DATASET, FULL, Cell, Experiment, Request
from ..figures import draw_ladder
from ..table import Row
from .balanced import AIM, BASELINE, METHODS, clients, settings

STEPS = (1, 2, 4, 8)
#: The steps on other data sets than MNIST: FedAvg breaks at 4 already on CIFAR-10.
FEWER = (1, 2, 4)
#: Seeds on which steps are chosen.
SEEDS = 1


def make(request: Request) -> Experiment:
    """Return the definition: a row for each number of clients, a column for method and step."""
    dataset = request.dataset or DATASET
    wanted = request.chosen((*METHODS, FULL), "balanced-choice")
    cells = tuple(
        Cell(
            f"{dataset}, K={n_clients}",
            method if step == 1 else f"{method}, step {step}",
            settings(request, dataset, method, n_clients, step),
            wanted=method in wanted,
            aim=AIM if dataset.endswith("mnist") else None,
        )
        for n_clients in clients(dataset)
        for method in (*METHODS, FULL)
        for step in steps(dataset)
    )
    return Experiment(
        "balanced-choice",
        "Balanced draws: the choice of each server step",
        cells,
        request.n_seeds(SEEDS),
        baseline=BASELINE,
        draw=draw_ladder,
    )


def steps(dataset: str) -> tuple[int, ...]:
    """Return the server steps at which every method is run."""
    return STEPS if dataset in TUNED else FEWER


def best_steps(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    """Return the best step by row and method, where the first seed of all steps is known."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        method, _, step = row["column"].partition(", step ")
        value = row["last_five_first"]
        if value is None and row["seeds"] == 1:  # a file that is older than this column
            value = row["last_five"]
        if value is not None:
            found.setdefault((row["row"], method), {})[int(step or 1)] = value
    return {
        place: max(sorted(values), key=lambda step: values[step])
        for place, values in found.items()
        if set(values) == set(steps(place[0].partition(",")[0]))
    }
