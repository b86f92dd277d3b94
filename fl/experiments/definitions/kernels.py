"""The kernels table: FedCVR-Bolt with four measures of similarity."""

from __future__ import annotations

from ..definition import Experiment, Request, grid
from ..paper import KERNELS

METHODS = {
    "rbf": "fedcvr-bolt",
    "cosine": "fedcvr-bolt-cosine",
    "laplacian": "fedcvr-bolt-laplacian",
    "sigmoid": "fedcvr-bolt-sigmoid",
}


def make(request: Request) -> Experiment:
    """Return the definition; the RBF column is the classification table's last one."""
    cells = grid(request, "kernels", METHODS, KERNELS, shared=("rbf",))
    title = "Test accuracy of FedCVR-Bolt by kernel"
    return Experiment("kernels", title, cells, request.n_seeds(3), baseline="rbf")
