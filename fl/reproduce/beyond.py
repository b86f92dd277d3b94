"""The ladder beyond the paper: FedCVR-Bolt, each part of ours added alone, then together.

What is chosen here is chosen on these seeds, 0 to 4, and on digits and MNIST; see
`fl.reproduce.holdout` for seeds and data that had no say.
"""

from __future__ import annotations

from pathlib import Path

from ..presets import STEADY
from .experiment import Cell, Experiment, Plan, chosen
from .ladder import draw_ladder

DATASET = "mnist"
BASELINE = "fedcvr-bolt"
#: Accuracy whose first round is reported.
AIMS = {"mnist": 0.88, "digits": 0.93, "fashion-mnist": 0.7, "cifar10": 0.5, "synthetic": 0.7}
#: What is added to FedCVR-Bolt (or, where it says so, to FedAvg), and the method that has it;
#: `fl.presets.BEYOND` says why some parts come in pairs. "+ counted coalitions" is the eigengap's
#: number with Neyman's places: its runs are kept under that name.
PARTS = {
    "fedavg": "fedavg",
    BASELINE: BASELINE,
    "+ coalition-mass": "fedcvr-bolt-mass",
    "+ importance": "fedcvr-bolt-importance",
    "+ importance, self-normalised": "fedcvr-bolt-importance-normalised",
    "+ draw by size, mass": "fedcvr-bolt-size",
    "+ features of updates": "fedcvr-bolt-update",
    "+ neyman": "fedcvr-bolt-neyman-alone",
    "+ neyman, importance": "fedcvr-bolt-neyman-importance",
    "+ updates, neyman, importance": "fedcvr-bolt-neyman",
    "+ counted by eigengap": "fedcvr-bolt-eigengap",
    "+ counted by silhouette": "fedcvr-bolt-silhouette",
    "+ counted coalitions": "fedcvr-bolt-counted",
    "+ coalition-memory": "fedcvr-bolt-coalition-memory",
    "+ memory": "fedcvr-bolt-memory",
    "+ updates, neyman, memory": "fedcvr-bolt-neyman-memory",
    "fedavg + memory": "fedavg-memory",
    "fedavg + mifa": "fedavg-mifa",
    STEADY: STEADY,
}


def make(plan: Plan) -> Experiment:
    """Return the experiment; every part has runs of its own."""
    dataset = plan.dataset or DATASET
    wanted = chosen(plan, tuple(PARTS.values()), "beyond")
    cells = tuple(
        Cell(
            dataset,
            part,
            plan.config(dataset, method),
            wanted=method in wanted,
            aim=AIMS.get(dataset),
        )
        for part, method in PARTS.items()
    )
    title = "Beyond the paper: one part at a time"
    return Experiment("beyond", title, cells, plan.n_seeds(5), baseline=BASELINE)


def draw(folder: Path, plan: Plan) -> list[str]:
    """Draw the ladder and the curves by round."""
    return draw_ladder(folder, BASELINE)
