"""Where numbers come from: settings, versions, runs, and choices the paper leaves open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import cvrcore

from .collect import Experiment, Run
from .grouping import flatten, settings, without_seed
from .results import file_stem
from .tables import Column, Table

#: What the keys of a federation's record mean.
_MEANING = {
    "dataset": "Data set",
    "n_samples": "Samples, of all clients",
    "n_clients": "Clients",
    "scaling": "Scaling of the inputs",
    "partition": "How samples are dealt out",
    "alpha": "Concentration of the Dirichlet law",
    "shards_per_client": "Shards of each client",
    "min_size": "Smallest client allowed (0: any)",
    "redraws": "Partitions drawn again for it",
    "test_fraction": "Part of each client's samples kept for testing",
    "split.stratified": "Clients split class by class",
    "split.unstratified": "Clients split without regard to class, too few per class",
    "split.single": "Clients with a single sample, trained on, not tested",
    "split.empty": "Clients without samples",
    "empty_clients": "Which clients have no samples",
    "single_sample_clients": "Which clients have a single sample",
    "seed.entropy": "Seed of the partition",
    "seed.spawn_key": "Its place among the streams",
    "official": "Files have the published checksums",
    "subset_of": "A random part of this many samples",
    "files": "Files read",
    "merged": "Published train and test parts merged",
}
#: Choices of a run beyond its data, and what they decide.
_CHOICES = {
    "empty_test": "Clients without test samples in the mean",
    "aggregator": "Weights of the average of models",
    "selection.n_features": "Coordinates of the last layer that are watched",
    "selection.shared_warmup": "First rounds drawn alike for all methods",
    "selection.options.warmup": "First rounds drawn uniformly by FedCVR-Bolt",
    "availability.probability": "Chance that a client is reachable",
    "availability.dropout": "Chance that a client drops out in mid-round",
}


def settings_table(experiment: Experiment) -> Table:
    """Return settings that all runs share, then those that tell methods apart."""
    per_column: dict[str, dict[str, Any]] = {}
    for cell in experiment.cells:
        runs = (*cell.runs, *cell.started)
        found = settings(runs[0].history.config) if runs else without_seed(cell.settings)
        if found:
            per_column[f"{cell.row}: {cell.column}"] = found
    keys = list(dict.fromkeys(key for found in per_column.values() for key in found))
    rows: list[dict[str, Any]] = []
    differing = []
    for key in keys:
        values = [found.get(key) for found in per_column.values()]
        if all(value == values[0] for value in values):
            rows.append({"scope": "all runs", "setting": key, "value": words(values[0])})
        else:
            differing.append(key)
    for name, found in per_column.items():
        rows += [
            {"scope": name, "setting": key, "value": words(found[key])}
            for key in differing
            if key in found
        ]
    columns = [Column("scope", "runs"), Column("setting", "setting"), Column("value", "value")]
    caption = "What every run of the table was given; seeds, engine and file places aside."
    name = file_stem(experiment, "settings")
    title = f"{experiment.title}: Settings"
    return Table(name, title, caption, columns, rows, experiment.quick)


def runs_table(experiment: Experiment) -> Table:
    """Return one line per run: where it is, its seed, how far it got, how long it took."""
    rows = []
    for cell in experiment.cells:
        for run in (*cell.runs, *cell.started):
            history = run.history
            done = f"{len(history)} of {history.config.rounds}"
            rows.append(
                {
                    "cell": f"{cell.row}: {cell.column}",
                    "run": run.label,
                    "seed": run.seed,
                    "rounds": len(history) if run.finished else done,
                    "seconds": history.seconds("round"),
                    "seconds_selecting": history.seconds("select"),
                }
            )
    columns = [
        Column("cell", "cell"),
        Column("run", "folder"),
        Column("seed", "seed", 0),
        Column("rounds", "rounds", 0),
        Column("seconds", "seconds", 1),
        Column("seconds_selecting", "selecting, s", 2),
    ]
    caption = "Every run folder behind the numbers; unfinished ones count nowhere."
    name = file_stem(experiment, "runs")
    return Table(name, f"{experiment.title}: Runs", caption, columns, rows, experiment.quick)


def decisions(run: Run) -> list[tuple[str, str]]:
    """Return what was decided for a run where the paper is silent: name and value."""
    facts = run.history.facts
    record = flatten(facts.get("data") or {})
    found = [
        (_MEANING.get(key, key.replace("_", " ").replace(".", ", ")), words(value))
        for key, value in record.items()
    ]
    if "model" in facts:
        model = f"{facts['model']}, {facts.get('n_parameters', 0):,} parameters"
        found.append(("Model", model))
    if facts.get("n_features"):
        found.append(("Coordinates watched by the selection", words(facts["n_features"])))
    flat = flatten(run.history.config.to_dict())
    found += [
        (meaning, words(flat[key]))
        for key, meaning in _CHOICES.items()
        if flat.get(key) is not None
    ]
    return list(dict.fromkeys(found))


def versions() -> list[tuple[str, str]]:
    """Return the versions that made the page."""
    lines = cvrcore.show_config().splitlines()
    found = [tuple(line.split(" ", 1)) for line in lines if " " in line]
    import matplotlib

    return [(pair[0], pair[1]) for pair in found] + [("matplotlib", matplotlib.__version__)]


def words(value: Any) -> str:
    """Return a setting as text; long lists are cut."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return _list(value)
    return json.dumps(value)


def _list(values: Sequence[Any], most: int = 12) -> str:
    if not values:
        return "none"
    shown = ", ".join(map(str, values[:most]))
    return shown if len(values) <= most else f"{shown}, … ({len(values)} in all)"
