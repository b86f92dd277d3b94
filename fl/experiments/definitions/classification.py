"""The classification table: nine methods on MNIST, CIFAR-10 and CIFAR-100, and two of ours.

``cvr-steady`` and ``fedavg-memory`` are not the paper's: they stand beside its nine. Fashion-MNIST
is a row on request, ``--dataset fashion-mnist``.
"""

from __future__ import annotations

from ...presets import STEADY, TABLE
from ..definition import Experiment, Request, grid
from ..paper import CLASSIFICATION

METHODS = (*TABLE, "fedavg-memory", STEADY)
#: Usual seeds where they are not three.
SEEDS = {"mnist": 5}


def make(request: Request) -> Experiment:
    """Return the definition; rows of the paper that are not requested are shown, not run."""
    cells = grid(request, "classification", {m: m for m in METHODS}, CLASSIFICATION, seeds=SEEDS)
    title = "Test accuracy of nine methods, and of two of ours"
    return Experiment("classification", title, cells, request.n_seeds(3), baseline="fedavg")
