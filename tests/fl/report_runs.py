"""Run folders and experiments written by hand, for reports about them."""

import base64
import csv
import json

from fl.data import load_federation
from fl.presets import make_config
from fl.store import write_json
from fl.streams import Streams

N_CLIENTS, ROUNDS, UP, DOWN = 12, 8, 3_000_000, 5_000_000
#: Accuracy of the last five of eight rounds, by method and seed.
LATE = {
    "fedavg": (
        [0.80, 0.82, 0.81, 0.85, 0.84],
        [0.78, 0.80, 0.83, 0.80, 0.86],
        [0.70, 0.75, 0.80, 0.80, 0.82],
    ),
    "oort": (
        [0.90, 0.90, 0.91, 0.92, 0.93],
        [0.88, 0.90, 0.89, 0.90, 0.92],
        [0.85, 0.90, 0.88, 0.90, 0.91],
    ),
    "fedcvr-bolt": (
        [0.81, 0.80, 0.85, 0.84, 0.90],
        [0.75, 0.80, 0.80, 0.82, 0.80],
        [0.80, 0.80, 0.80, 0.85, 0.88],
    ),
}
PAPER = {"fedavg": [86.30, 1.12], "oort": [89.43, 1.49], "fedcvr-bolt": [90.23, 0.82]}


def make_run(folder, method, seed, values, metric="accuracy", **changes):
    """Write a run folder by hand, as `fl.run` would."""
    settings = {"rounds": len(values), "seed": seed, "data__n_clients": N_CLIENTS,
                "selection__n_select": 3, **changes}  # fmt: skip
    config = make_config("digits" if metric == "accuracy" else "regression", method, **settings)
    data = load_federation(config.data.dataset, n_clients=N_CLIENTS,
                           seed=Streams(seed).integer("partition")).record  # fmt: skip
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config.to_dict())
    facts = {"data": data, "n_clients": N_CLIENTS, "model": "mlp", "n_parameters": 100}
    write_json(folder / "facts.json", facts | {"n_classes": 10 if metric == "accuracy" else 0})
    lines = []
    for t, value in enumerate(values):
        record = {"round": t + 1, "picked": [t % 4, 5, 7], "uplink": UP, "downlink": DOWN}
        record |= {metric: value, "worst_decile": value / 2, "timing": {"round": 0.5}}
        if method.startswith("fedcvr-bolt"):
            record["warmup"] = t < 2
            if t >= 2:
                record |= {"coalition_sizes": [5, 4, 3], "ari": 0.5 + t / 20, "tv_mean": 0.1}
        lines.append(json.dumps(record) + "\n")
    (folder / "rounds.jsonl").write_text("".join(lines))


def make_experiment(folder, quick=False, seeds=3, **changes):
    """An experiment of two rows: one with three methods run and a fourth not, one without runs."""
    cells = []
    for method, late in LATE.items():
        runs = [f"runs/{method}-{seed}" for seed in range(seeds)]
        for seed, name in enumerate(runs):
            make_run(folder / name, method, seed, [0.2, 0.4, 0.6, *late[seed]])
        cells.append(
            {"row": "Digits", "column": method, "method": method, "paper": PAPER[method],
             "runs": runs, "config": {}}
        )  # fmt: skip
    for row, method in (("Digits", "fesem"), ("CIFAR-10", "fedavg")):
        cells.append(
            {"row": row, "column": method, "method": method, "paper": [52.67, 1.25],
             "runs": [f"runs/{method}-0"] if row == "Digits" else [], "config": {"rounds": 8}}
        )  # fmt: skip
    (folder / "own.png").write_bytes(PIXEL)
    plan = {
        "experiment": "classification", "title": "Nine <methods> & more", "quick": quick,
        "preset": "paper", "command": "cvrcore reproduce classification", "metric": "accuracy",
        "cells": cells, "figures": ["own.png", "not-drawn.png"],
    }  # fmt: skip
    write_json(folder / "experiment.json", plan | changes)
    return folder


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def read_csv(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def read_table(page, name):
    rows = read_csv(page.parent / "tables" / f"{name}.csv")
    return {(row["row"], row["column"]): row for row in rows}
