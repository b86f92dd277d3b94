"""FedCVR-Bolt with one part changed: what each part is worth."""

from __future__ import annotations

from .experiment import Cell, Experiment, Plan, chosen

DATASET = "mnist"
#: What is changed, in words, and the method that does it.
CHANGES = {
    "none": "fedcvr-bolt",
    "uniform in coalition": "fedcvr-bolt-uniform",
    "argmax in coalition": "fedcvr-bolt-argmax",
    "score zscore": "fedcvr-bolt-zscore",
    "score log": "fedcvr-bolt-log",
    "coalition-mass aggregation": "fedcvr-bolt-mass",
    "gamma median": "fedcvr-bolt-median",
}


def make(plan: Plan) -> Experiment:
    """Return the experiment; the unchanged column is the classification table's."""
    dataset = plan.dataset or DATASET
    wanted = chosen(plan, tuple(CHANGES.values()), "ablations")
    cells = [
        Cell(
            dataset,
            change,
            plan.config(dataset, method),
            home=f"classification/{dataset}/fedcvr-bolt" if change == "none" else "",
            wanted=method in wanted,
        )
        for change, method in CHANGES.items()
    ]
    return Experiment(
        "ablations",
        "FedCVR-Bolt with one part changed",
        tuple(cells),
        plan.n_seeds(3),
        baseline="none",
    )
