"""The kernels table: FedCVR-Bolt with four measures of similarity."""

from __future__ import annotations

from ..paper import KERNELS
from .experiment import Cell, Experiment, Plan, chosen

DATASET = "mnist"
METHODS = {
    "rbf": "fedcvr-bolt",
    "cosine": "fedcvr-bolt-cosine",
    "laplacian": "fedcvr-bolt-laplacian",
    "sigmoid": "fedcvr-bolt-sigmoid",
}


def make(plan: Plan) -> Experiment:
    """Return the experiment; the RBF column is the classification table's last one."""
    dataset = plan.dataset or DATASET
    wanted = chosen(plan, tuple(METHODS.values()), "kernels")
    rows = [dataset] if plan.quick else list(dict.fromkeys([*KERNELS, dataset]))
    cells = [
        Cell(
            row,
            kernel,
            plan.config(row, method),
            KERNELS.get(row, {}).get(kernel),
            home=f"classification/{row}/fedcvr-bolt" if kernel == "rbf" else "",
            wanted=row == dataset and method in wanted,
        )
        for row in rows
        for kernel, method in METHODS.items()
    ]
    return Experiment(
        "kernels",
        "Test accuracy of FedCVR-Bolt by kernel",
        tuple(cells),
        plan.n_seeds(3),
        baseline="rbf",
    )
