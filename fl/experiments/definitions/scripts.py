"""The authors' scripts instead of the paper's text: batches of 32, 200 rounds, 300 coordinates."""

from __future__ import annotations

import dataclasses

from ..definition import Experiment, Request, grid
from ..paper import CLASSIFICATION

METHODS = ("fedavg", "power-of-choice", "fedcvr-bolt")
#: Data sets of the table, and their seeds.
SEEDS = {"mnist": 5, "cifar10": 3}
PRESET = "scripts"


def make(request: Request) -> Experiment:
    """Return the definition; the preset is the scripts' whatever was requested."""
    asked = dataclasses.replace(request, preset=PRESET)
    paper = {row: CLASSIFICATION[row] for row in SEEDS}
    cells = grid(asked, "scripts", {m: m for m in METHODS}, paper, seeds=SEEDS)
    title = "Test accuracy with the settings of the authors' scripts"
    return Experiment("scripts", title, cells, request.n_seeds(3), baseline="fedavg", preset=PRESET)
