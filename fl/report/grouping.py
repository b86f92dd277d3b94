"""Runs without a plan: tables by data set and method, and the commands that make them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import ConfigError, RunConfig
from ..presets import METHODS, make_config
from .collect import Cell, Experiment, Run

#: Settings that change no result, or tell paired runs apart.
_ASIDE = ("seed", "target", "checkpoint_every", "engine.", "data.data_dir", "data.download")
#: Settings of a row; the others are a method's.
_ROW = ("data.", "training.", "rounds", "model", "eval_every", "empty_test", "availability.")


def flatten(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{path}{key}.")
        else:
            flat[f"{path}{key}"] = value
    return flat


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that decide what a run finds, its seed aside."""
    return without_seed(config.to_dict())


def without_seed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings by dotted names, without those that change no result."""
    flat = flatten(values)
    return {key: value for key, value in flat.items() if not key.startswith(_ASIDE)}


def group(runs: Sequence[Run]) -> list[Experiment]:
    """Return one experiment per data set: a row per setting, a column per method."""
    by_dataset: dict[str, list[Run]] = {}
    for run in runs:
        by_dataset.setdefault(run.history.config.data.dataset, []).append(run)
    return [_experiment(name, found) for name, found in by_dataset.items()]


def _experiment(dataset: str, runs: list[Run]) -> Experiment:
    row_labels = _distinct([dataset for _ in runs], [_part(run, row=True) for run in runs])
    column_labels = _distinct(
        [run.history.config.method for run in runs], [_part(run, row=False) for run in runs]
    )
    cells: dict[tuple[str, str], dict[int, Run]] = {}
    for run, row, column in zip(runs, row_labels, column_labels, strict=True):
        seeds = cells.setdefault((row, column), {})
        if run.seed not in seeds or not seeds[run.seed].finished:  # a copy counts once
            seeds[run.seed] = run
    built = []
    # The reference first, then the paper's order, then the rest as found.
    order = {name: i for i, name in enumerate(METHODS)}
    for (row, column), seeds in cells.items():
        found = [seeds[seed] for seed in sorted(seeds)]
        config = found[0].history.config
        done = tuple(run for run in found if run.finished)
        rest = tuple(run for run in found if not run.finished)
        built.append(
            Cell(row, column, config.method, None, done, rest, len(found), config.to_dict())
        )
    built.sort(key=lambda c: (row_labels.index(c.row), order.get(c.method, len(order))))
    configs = [run.history.config for run in runs]
    presets = sorted({config.preset for config in configs})
    return Experiment(
        name=dataset,
        title=f"Methods on {dataset}",
        quick=False,
        preset=", ".join(presets),
        command="\n".join(commands(configs)),
        metric=runs[0].history.metric,
        cells=tuple(built),
    )


def _part(run: Run, row: bool) -> dict[str, Any]:
    flat = settings(run.history.config)
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
        for seeds_, names in by_seeds.items():
            if seeds_ == tuple(range(len(seeds_))):
                words = ["cvrcore", "compare", *names, *options, "--seeds", str(len(seeds_))]
                made.append(shlex.join(words))
            else:
                runs = [(name, seed) for name in names for seed in seeds_]
                made += [
                    shlex.join(["cvrcore", "run", "--method", n, *options, "--seed", str(s)])
                    for n, s in runs
                ]
    return made + sorted(set(alone))


def _options(config: RunConfig) -> tuple[str, ...] | None:
    """Return the options that turn the preset into `config`; None if nothing does."""
    dataset = config.data.dataset
    try:
        base = make_config(dataset, config.method, config.preset)
    except ConfigError:
        return None
    ours, theirs = settings(config), settings(base)
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
