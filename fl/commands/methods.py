"""``cvrcore methods``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import typer

from .errors import clear_errors
from .settings import Dataset, Json

#: What `fedavg` is; the other methods are told by what differs.
FEDAVG = {"training": "fedavg", "policy": "uniform", "aggregator": "sizes", "server": None}


def methods(dataset: Dataset = None, as_json: Json = False) -> None:
    """List the methods there are, each by what it changes of FedAvg."""
    with clear_errors():
        rows = _rows(dataset)
        if as_json:
            typer.echo(json.dumps(rows))
            return
        width = max(len(str(row["method"])) for row in rows)
        for kind, group in itertools.groupby(rows, key=lambda row: row["kind"]):
            typer.echo(f"{kind}:")
            for row in group:
                typer.echo(f"  {row['method']:{width}}  {_changed(row)}")
        place = dataset or "digits"
        typer.echo(f"Server steps are those on {place}; averaged: the average of the models is")
        typer.echo("evaluated and saved, not the last model.")
        typer.echo("Any other policy is a method too; `cvrcore policies` lists policies.")
        typer.echo("METHOD+POLICY, as fedprox+oort: the first trains and merges, the second picks.")


def _rows(dataset: str | None) -> list[dict[str, str | None]]:
    """Return one row for each method, with the server step that it has on a data set."""
    from .. import presets
    from ..experiments.credit import server_step

    kinds = {
        "Table of the paper": presets.TABLE,
        "Variants of fedcvr-bolt": presets.ABLATIONS,
        "One part changed": presets.BEYOND,
        "Balanced draws": presets.BALANCED,
        "Policies": presets.ZOO,
        "Policies with remembered updates": presets.REMEMBERED,
        "Server steps": presets.SERVER,
        "Training algorithms": presets.TRAINING,
    }
    kind_of = {name: kind for kind, group in kinds.items() for name in group}
    rows: list[dict[str, str | None]] = []
    for name, method in presets.METHODS.items():
        config = presets.make_config(dataset, name)
        watched = {} if method.features == "model" else {"features": method.features}
        row: dict[str, str | None] = {"method": name, "kind": kind_of.get(name, "Other")}
        row["training"] = _with(method.algorithm, method.algorithm_options)
        row["policy"] = _with(method.policy, {**method.policy_options, **watched})
        row["aggregator"] = _with(method.aggregator, method.aggregator_options)
        row["server"] = server_step(config.server)
        rows.append(row)
    return rows


def _with(name: str, options: Mapping[str, Any]) -> str:
    """Return a name with its options, as in ``fedprox (mu=0.1)``."""
    text = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{name} ({text})" if text else name


def _changed(row: Mapping[str, str | None]) -> str:
    found = [f"{part} {row[part]}" for part, usual in FEDAVG.items() if row[part] != usual]
    return "; ".join(found) or "uniform draws, averages by sample counts"
