"""The classification table: nine methods on MNIST, CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from ...presets import TABLE
from ..definition import Experiment, Request, grid
from ..paper import CLASSIFICATION


def make(request: Request) -> Experiment:
    """Return the definition; rows of the paper that are not requested are shown, not run."""
    cells = grid(request, "classification", {m: m for m in TABLE}, CLASSIFICATION)
    title = "Test accuracy of nine methods"
    return Experiment("classification", title, cells, request.n_seeds(3), baseline="fedavg")
