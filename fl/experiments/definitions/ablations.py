"""FedCVR-Bolt with one part changed: what each part is worth."""

from __future__ import annotations

from ..definition import Experiment, Request, grid

#: The change in words, and the method that has it.
CHANGES = {
    "none": "fedcvr-bolt",
    "uniform in coalition": "fedcvr-bolt-uniform",
    "argmax in coalition": "fedcvr-bolt-argmax",
    "score zscore": "fedcvr-bolt-zscore",
    "score log": "fedcvr-bolt-log",
    "coalition-mass aggregation": "fedcvr-bolt-mass",
    "gamma median": "fedcvr-bolt-median",
}


def make(request: Request) -> Experiment:
    """Return the definition; the unchanged column is the classification table's."""
    cells = grid(request, "ablations", CHANGES, shared=("none",))
    title = "FedCVR-Bolt with one part changed"
    return Experiment("ablations", title, cells, request.n_seeds(3), baseline="none")
