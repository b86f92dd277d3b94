"""``experiment.json``: what an experiment consists of and which runs it has so far.

Accuracies of the paper are in percent there, errors as printed; run folders are relative
to the folder of the file. A later command with another data set, other methods or more
seeds adds to what is there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..store import StoreError, read_json, refuse_another, write_json
from .experiment import Cell, Experiment, Plan

NAME = "experiment.json"


class Manifest:
    """The record of one experiment in one folder.

    Parameters
    ----------
    experiment : Experiment
    plan : Plan
    out : path
        Folder of all experiments.
    """

    def __init__(self, experiment: Experiment, plan: Plan, out: Path) -> None:
        self._experiment, self._plan, self._out = experiment, plan, out
        self._suffix = "-quick" if plan.quick else ""
        self.folder = out / (experiment.name + self._suffix)
        self.figures: list[str] = []

    def place(self, cell: Cell, seed: int) -> Path:
        """Return the folder of one run."""
        return self._out / cell.place(self._experiment.name, self._suffix) / f"seed-{seed}"

    def check(self) -> None:
        """Refuse a plan whose runs would meet others of different settings; touch nothing."""
        first = self._experiment.first_seed
        for cell in (cell for cell in self._experiment.cells if cell.wanted):
            for seed in range(first, first + self._experiment.seeds):
                refuse_another(self.place(cell, seed), cell.config.replace(seed=seed))

    def is_finished(self, cell: Cell, seed: int) -> bool:
        """Return whether a run of these very settings is complete."""
        return _is_finished(self.place(cell, seed), cell.config)

    def write(self) -> Path:
        """Write the file, in one step, with the runs that are complete by now."""
        path = self.folder / NAME
        known: dict[tuple[str, str], Any] = {}
        if path.exists():
            before = read_json(path)
            known = {(cell["row"], cell["column"]): cell for cell in before["cells"]}
            self.figures = self.figures or before["figures"]
        for cell in self._experiment.cells:
            key, entry = (cell.row, cell.column), self._entry(cell)
            # A plan with other settings is about to be refused: it takes no run away.
            if (cell.wanted and entry["runs"]) or not known.get(key, {}).get("runs"):
                known[key] = entry
        name = self._experiment.name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(
                path,
                {
                    "experiment": name,
                    "title": self._experiment.title + (" (quick)" if self._plan.quick else ""),
                    "quick": self._plan.quick,
                    "preset": self._plan.preset,
                    "command": self._plan.command(name),
                    "metric": self._experiment.metric,
                    "baseline": self._experiment.baseline,
                    "target": next((c["target"] for c in known.values() if c.get("target")), None),
                    "cells": self._in_order(known),
                    "figures": self.figures,
                },
            )
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}") from error
        return path

    def _in_order(self, known: dict[tuple[str, str], Any]) -> list[Any]:
        """Return cells row by row; a column newer than the file comes where it is now."""
        rows = list(dict.fromkeys(row for row, _ in known))
        columns = list(dict.fromkeys(cell.column for cell in self._experiment.cells))
        columns += [column for _, column in known if column not in columns]
        order = sorted(known, key=lambda key: (rows.index(key[0]), columns.index(key[1])))
        return [known[key] for key in order]

    def _entry(self, cell: Cell) -> dict[str, Any]:
        folder = self._out / cell.place(self._experiment.name, self._suffix)
        names = (path.name.removeprefix("seed-") for path in folder.glob("seed-*"))
        seeds = sorted(int(name) for name in names if name.isdigit())
        runs = [folder / f"seed-{s}" for s in seeds if self.is_finished(cell, s)]
        return {
            "row": cell.row,
            "column": cell.column,
            "method": cell.config.method,
            "paper": cell.paper,
            "runs": [Path(os.path.relpath(run, self.folder)).as_posix() for run in runs],
            "config": cell.config.to_dict(),
            "target": cell.target,
            "command": self._plan.command(self._experiment.name),
        }


def _is_finished(folder: Path, config: RunConfig) -> bool:
    if not (folder / "summary.json").exists():
        return False
    stored = RunConfig.from_dict(read_json(folder / "config.json"))
    return essence(stored) == essence(config)


def essence(config: RunConfig) -> dict[str, Any]:
    """Return the settings that decide the result, whatever the seed."""
    values = config.to_dict()
    for free in ("seed", "engine", "checkpoint_every"):
        del values[free]
    for free in ("data_dir", "download"):
        del values["data"][free]
    return values
