"""The ladder beyond the paper: FedCVR-Bolt, each part of ours added alone, then together.

These parts were chosen on seeds 0 to 4 of digits and MNIST; `holdout` has seeds and data that
took no part in the choice.
"""

from __future__ import annotations

from ...presets import STEADY
from ..definition import Experiment, Request, grid
from ..figures import draw_ladder

BASELINE = "fedcvr-bolt"
#: Accuracy whose first round is reported.
AIMS = {"mnist": 0.88, "digits": 0.93, "fashion-mnist": 0.7, "cifar10": 0.5, "synthetic": 0.7}
#: The part that is added to FedCVR-Bolt (or, where it says so, to FedAvg), and the method that
#: has it; `fl.presets.BEYOND` says why some parts come in pairs. "+ counted coalitions" is the
#: eigengap's number with Neyman's places: its runs are kept under that name.
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


def make(request: Request) -> Experiment:
    """Return the definition; every part has runs of its own."""
    cells = grid(request, "beyond", PARTS, aims=AIMS)
    title, seeds = "Beyond the paper: one part at a time", request.n_seeds(5)
    return Experiment("beyond", title, cells, seeds, baseline=BASELINE, draw=draw_ladder)
