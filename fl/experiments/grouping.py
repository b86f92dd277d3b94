"""Runs without a manifest in, results by data set out, with the commands that make them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from ..config import ConfigError, RunConfig
from ..presets import METHODS, make_config
from .manifest import deciding
from .results import CellResults, Results, Run

#: Settings of a row; the others are a method's.
_ROW = ("data.", "training.", "rounds", "model", "eval_every", "empty_test", "availability.")


def group(runs: Sequence[Run]) -> list[Results]:
    """Return the results of each data set: a row per setting, a column per method."""
    by_dataset: dict[str, list[Run]] = {}
    for run in runs:
        by_dataset.setdefault(run.history.config.data.dataset, []).append(run)
    return [_results(name, found) for name, found in by_dataset.items()]


def _results(dataset: str, runs: list[Run]) -> Results:
    configs = [run.history.config for run in runs]
    row_labels = _distinct([dataset for _ in runs], [_part(c, row=True) for c in configs])
    methods = [config.method for config in configs]
    column_labels = _distinct(methods, [_part(c, row=False) for c in configs])
    cells: dict[tuple[str, str], dict[int, Run]] = {}
    for run, row, column in zip(runs, row_labels, column_labels, strict=True):
        seeds = cells.setdefault((row, column), {})
        if run.seed not in seeds or not seeds[run.seed].finished:  # a copy counts once
            seeds[run.seed] = run
    # The reference first, then the paper's order, then the rest as found.
    order = {name: i for i, name in enumerate(METHODS)}
    built = []
    for (row, column), seeds in cells.items():
        found = tuple(seeds[seed] for seed in sorted(seeds))
        config = found[0].history.config
        settings = config.to_dict()
        cell = CellResults(row, column, config.method, found, len(found), settings=settings)
        built.append(cell)
    built.sort(key=lambda c: (row_labels.index(c.row), order.get(c.method, len(order))))
    return Results(
        name=dataset,
        title=f"Methods on {dataset}",
        preset=", ".join(sorted({config.preset for config in configs})),
        command="\n".join(commands(configs)),
        metric=runs[0].history.metric,
        cells=tuple(built),
    )


def _settings(config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in deciding(config).items() if key != "target"}


def _part(config: RunConfig, row: bool) -> dict[str, Any]:
    flat = _settings(config)
    return {k: v for k, v in flat.items() if k.startswith(_ROW) == row and k != "method"}


def _distinct(names: list[str], parts: list[dict[str, Any]]) -> list[str]:
    """Add to each name the settings that tell it from others of the same name."""
    labels = []
    for name, part in zip(names, parts, strict=True):
        rivals = [p for other, p in zip(names, parts, strict=True) if other == name]
        keys = sorted({key for rival in rivals for key in {*rival, *part}})
        differing = [k for k in keys if any(r.get(k) != part.get(k) for r in rivals)]
        words = [f"{key.rpartition('.')[2]} {part.get(key)}" for key in differing]
        labels.append(", ".join([name, *words]))
    return labels


def commands(configs: Sequence[RunConfig]) -> list[str]:
    """Return commands that make these runs again, as few as `cvrcore compare` allows."""
    groups: dict[tuple[str, ...], dict[str, list[int]]] = {}
    alone: list[str] = []
    for config in configs:
        options = _options(config)
        if options is None:
            alone.append(f"# {config.method}, seed {config.seed}: settings of its own, see below")
        else:
            groups.setdefault(options, {}).setdefault(config.method, []).append(config.seed)
    made = []
    for options, methods in groups.items():
        by_seeds: dict[tuple[int, ...], list[str]] = {}
        for method, seeds in methods.items():
            by_seeds.setdefault(tuple(sorted(set(seeds))), []).append(method)
        for numbers, names in by_seeds.items():
            if numbers == tuple(range(len(numbers))):
                lines = [["compare", *names, *options, "--seeds", str(len(numbers))]]
            else:
                lines = [
                    ["run", "--method", name, *options, "--seed", str(number)]
                    for name in names
                    for number in numbers
                ]
            made += [shlex.join(["cvrcore", *line]) for line in lines]
    return made + sorted(set(alone))


def _options(config: RunConfig) -> tuple[str, ...] | None:
    """Return the options that turn the preset into `config`; None if no options do."""
    dataset = config.data.dataset
    try:
        base = make_config(dataset, config.method, config.preset)
    except ConfigError:
        return None
    ours, theirs = _settings(config), _settings(base)
    words = ["--dataset", dataset, "--preset", config.preset, "--rounds", str(config.rounds)]
    if config.target is not None:
        words += ["--target", f"{config.target:g}"]
    for key in sorted(ours.keys() | theirs.keys()):
        if key == "rounds" or ours.get(key) == theirs.get(key):
            continue
        if key not in ours:
            return None
        words += ["--set", f"{key}={json.dumps(ours[key])}"]
    return tuple(words)
