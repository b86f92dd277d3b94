"""Definition and run folders in, ``experiment.json`` out: the cells and their runs so far.

Accuracies of the paper are in percent there, errors as printed; run folders are relative
to the folder of the file. A later command with another data set, other methods or more
seeds adds to the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import FREE_SETTINGS, RunConfig
from ..store import StoreError, read_json, refuse_another, write_json
from .definition import Cell, Experiment, Request

MANIFEST = "experiment.json"
#: Settings in which methods may differ and still be compared: how clients are picked, how they
#: train and are merged, and the server's step.
_OF_METHOD = ("method", "algorithm", "aggregator", "selection", "server")


class Manifest:
    """The record of one experiment in its folder below `out`, the folder of all experiments."""

    def __init__(self, experiment: Experiment, request: Request, out: Path) -> None:
        self._experiment, self._request, self._out = experiment, request, out
        self._suffix = "-quick" if request.quick else ""
        self.folder = out / (experiment.name + self._suffix)
        self.figures: list[str] = []
        self._finished: set[tuple[Path, str]] = set()  # a finished run stays finished

    def place(self, cell: Cell, seed: int) -> Path:
        """Return the folder of one run."""
        return self._out / cell.place(self._experiment.name, self._suffix) / f"seed-{seed}"

    def check(self) -> None:
        """Refuse a request whose folders hold runs of other settings; write nothing."""
        for cell in (cell for cell in self._experiment.cells if cell.wanted):
            for seed in self._experiment.seeds_of(cell):
                refuse_another(self.place(cell, seed), cell.config.replace(seed=seed))

    def is_finished(self, cell: Cell, seed: int) -> bool:
        """Return whether a run of the cell's settings is complete."""
        folder = self.place(cell, seed)
        if not (folder / "summary.json").exists():
            return False
        if (folder, cell.column) not in self._finished:
            stored = RunConfig.from_dict(read_json(folder / "config.json"))
            if deciding(stored) != deciding(cell.config):
                return False
            self._finished.add((folder, cell.column))
        return True

    def write(self) -> Path:
        """Write the file, in one step, with the runs that are complete by now."""
        path = self.folder / MANIFEST
        known: dict[tuple[str, str], Any] = {}
        if path.exists():
            before = read_json(path)
            known = {(cell["row"], cell["column"]): cell for cell in before["cells"]}
            self.figures = self.figures or before["figures"]
        for cell in self._experiment.cells:
            key, entry = (cell.row, cell.column), self._entry(cell)
            # A request with other settings, about to be refused, must not remove known runs.
            if (cell.wanted and entry["runs"]) or not known.get(key, {}).get("runs"):
                known[key] = entry
            elif set(known[key]["runs"]) < set(entry["runs"]):  # of another process
                known[key]["runs"] = entry["runs"]
        experiment, request = self._experiment, self._request
        values = {
            "experiment": experiment.name,
            "title": experiment.title + (" (quick)" if request.quick else ""),
            "quick": request.quick,
            "preset": experiment.preset or request.preset,
            "command": request.command(experiment.name),
            "metric": experiment.metric,
            "baseline": experiment.baseline,
            "target": next((c["target"] for c in known.values() if c.get("target")), None),
            "cells": self._in_order(known),
            "figures": self.figures,
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, values)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error}") from error
        return path

    def _in_order(self, known: dict[tuple[str, str], Any]) -> list[Any]:
        """Return cells row by row, columns in the order of the present definition."""
        rows = list(dict.fromkeys(row for row, _ in known))
        columns = list(dict.fromkeys(cell.column for cell in self._experiment.cells))
        columns += [column for _, column in known if column not in columns]
        order = sorted(known, key=lambda key: (rows.index(key[0]), columns.index(key[1])))
        return [known[key] for key in order]

    def _entry(self, cell: Cell) -> dict[str, Any]:
        folder = self.place(cell, 0).parent
        names = (path.name.removeprefix("seed-") for path in folder.glob("seed-*"))
        seeds = sorted(int(name) for name in names if name.isdigit())
        runs = [self.place(cell, seed) for seed in seeds if self.is_finished(cell, seed)]
        return {
            "row": cell.row,
            "column": cell.column,
            "method": cell.config.method,
            "paper": cell.paper,
            "runs": [Path(os.path.relpath(run, self.folder)).as_posix() for run in runs],
            "config": cell.config.to_dict(),
            "target": cell.target,
            "command": self._request.command(self._experiment.name),
        }


def flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{path}{key}.")
        else:
            flat[f"{path}{key}"] = value
    return flat


def deciding(config: RunConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide the result of a run, except for the seed."""
    values = config.to_dict() if isinstance(config, RunConfig) else config
    aside = ("seed", *FREE_SETTINGS)
    return {key: value for key, value in flatten(values).items() if not key.startswith(aside)}


def protocol(config: RunConfig) -> dict[str, Any]:
    """Return the settings that two runs must share to be compared."""
    return {k: v for k, v in deciding(config).items() if not k.startswith(_OF_METHOD)}
