"""Names of experiments in, their definitions out: one module for each table or figure."""

from __future__ import annotations

import importlib

from ..definition import Experiment, Request

#: Experiments in the order in which ``all`` runs them.
TABLES = ("classification", "kernels", "regression", "ablations", "participation")
DRAWINGS = ("overview", "theory")
#: Experiments beyond the paper; ``all`` leaves them out.
BEYOND = ("beyond", "holdout", "balanced", "variance", "step-error", "leakage")
NAMES = (*TABLES, *DRAWINGS, *BEYOND, "all")
#: Experiments in the order of the paper, as a page shows them.
ORDER = (
    "classification", "overview", "participation", "kernels", "regression", "ablations", "theory",
    "beyond", "holdout", "balanced", "variance", "step-error", "leakage",
)  # fmt: skip


def define(name: str, request: Request) -> Experiment:
    """Return the definition of the experiment called `name`."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    experiment: Experiment = module.make(request)
    return experiment
