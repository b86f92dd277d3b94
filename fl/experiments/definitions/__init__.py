"""Names of experiments in, their definitions out: one module for each table or figure."""

from __future__ import annotations

import importlib

from ..definition import Experiment, Request

#: Experiments in the order in which ``all`` runs them.
TABLES = ("classification", "kernels", "regression", "ablations", "participation")
DRAWINGS = ("overview", "theory")
#: Experiments beyond the paper; ``all`` leaves them out.
BEYOND = (
    "scripts", "ceiling", "policies", "devices", "map", "beyond", "holdout", "balanced-choice",
    "balanced", "variance", "step-error", "leakage",
)  # fmt: skip
NAMES = (*TABLES, *DRAWINGS, *BEYOND, "all")
#: Experiments in the order of the paper, as a page shows them.
ORDER = (
    "classification", "scripts", "overview", "participation", "kernels", "regression", "ablations",
    "theory", "ceiling", "policies", "devices", "map", "beyond", "holdout", "balanced-choice",
    "balanced", "variance", "step-error", "leakage",
)  # fmt: skip


def define(name: str, request: Request) -> Experiment:
    """Return the definition of the experiment called `name`."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    experiment: Experiment = module.make(request)
    return experiment.narrowed(request)
