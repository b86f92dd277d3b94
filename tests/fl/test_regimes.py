"""The map of regimes, the clock of devices and the pages about them, on made-up numbers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from report_runs import make_run

from fl.experiments.clock import clock_band, draw_clock
from fl.experiments.definition import Request
from fl.experiments.definitions import define
from fl.experiments.heatmaps import draw_maps
from fl.experiments.regimes import Regime, regime_table, stable_steps
from fl.store import read_history, write_json

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG"


def cell(row, column, value, seeds=3, gain=None, half=1.0, **more):
    ends = (
        {"low": None, "high": None} if gain is None else {"low": gain - half, "high": gain + half}
    )
    return {"row": row, "column": column, "seeds": seeds, "last_five": value, "difference": gain,
            "rounds_to_target": None, "target": 0.85, **ends, **more}  # fmt: skip


def test_names_of_rows_are_read_as_they_were_written():
    names = {c.row: c.config for c in define("map", Request()).cells}
    for name, config in names.items():
        found = Regime.of(name)
        assert (found.n_clients, found.alpha) == (config.data.n_clients, config.data.alpha)
        assert found.percent * found.n_clients == 100 * config.selection.n_select
        assert found.step == (config.server.lr or 1)
    assert Regime.of("cifar10, K=100, 5 %, alpha 0.5").dataset == "cifar10"
    with pytest.raises(ValueError, match="row must be named as"):
        Regime.of("mnist")


def test_regimes_without_a_run_share_the_last_line():
    rows = [
        cell(f"K=100, {percent} %, alpha 0.1", method, value, seeds=3 if value else 0)
        for percent, values in {1: (0, 0), 5: (80.0, 0), 10: (81.0, 82.0), 30: (0, 0)}.items()
        for method, value in zip(("fedavg", "pivotal"), values, strict=True)
    ]
    text = regime_table(rows).markdown()
    assert text.count("K=100") == 2
    assert "| K=100, 5 %, alpha 0.1 | 80.0 | not run |" in text
    assert text.rstrip().endswith("| 2 other regimes | not run | not run |")
    assert "other" not in regime_table(rows[2:6]).markdown()


def test_a_step_is_stable_while_it_costs_no_more_than_a_point():
    base = "K=100, 10 %, alpha 0.1"
    rows = [
        cell(base, "a", 80.0),
        cell(f"{base}, step 2", "a", 79.0),
        cell(f"{base}, step 4", "a", 70.0),
    ]
    rows += [
        cell(base, "b", 80.0),
        cell(f"{base}, step 2", "b", 70.0),
        cell(f"{base}, step 4", "b", 85.0),
    ]
    rows += [
        cell(base, "c", 80.0),
        cell(f"{base}, step 2", "c", 81.0),
        cell(f"{base}, step 4", "c", 82.0),
    ]
    rows += [cell(base, "d", 80.0)]
    rows += [cell(base, "e", 80.0), cell(f"{base}, step 2", "e", None, seeds=0)]
    found = {method: step for (_, _, method), step in stable_steps(rows).items()}
    assert found == {"a": 2, "b": 1, "c": 4}  # b swings at 2: 4 is luck, not stable


def test_the_table_of_regimes_marks_what_is_sure_and_what_did_not_run():
    name = "K=1000, 1 %, alpha 0.1"
    rows = [
        cell(name, "fedavg", 80.0),
        cell(name, "a", 82.0, gain=2.0),
        cell(name, "b", 80.5, gain=0.5),
    ]
    rows += [cell(name, "c", 81.0, seeds=1, gain=1.0) | {"low": None}]
    rows += [cell(name, "d", None, seeds=0)]
    line = regime_table(rows).markdown(left=1).splitlines()[2]
    assert line == f"| {name} | 80.0 | 82.0 (+2.0*) | 80.5 (+0.5) | 81.0 (+1.0), 1 seed | not run |"


def test_heat_maps_are_drawn_from_any_slice(tmp_path):
    name = "K=1000, 1 %, alpha 0.1"
    rows = [cell(name, "fedavg", 80.0), cell(name, "a", 82.0, gain=2.0)]
    assert draw_maps(rows, tmp_path, "Map") == ["accuracy.png", "gain.png"]
    rows += [cell(f"{name}, step 2", "a", 83.0, gain=2.0)]
    rows[0]["rounds_to_target"] = 40.0
    names = draw_maps(rows, tmp_path, "Map")
    assert names == ["accuracy.png", "gain.png", "rounds.png", "steps.png"]
    assert all((tmp_path / file).read_bytes().startswith(PNG) for file in names)


def timed(folder, method, seed, values, clocks):
    make_run(folder, method, seed, values, target=0.5)
    path = folder / "rounds.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record, clock in zip(records, clocks, strict=True):
        record["simulated_clock"] = clock
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_history(folder)


def test_the_clock_joins_evaluations_by_straight_lines(tmp_path):
    one = timed(tmp_path / "a", "fedavg", 0, [0.0, 0.4, 0.8], [100.0, 200.0, 400.0])
    two = timed(tmp_path / "b", "fedavg", 1, [0.2, 0.6, 1.0], [100.0, 200.0, 300.0])
    found = clock_band([one, two], 100.0, until=1e9, width=1)
    assert (found.rounds[0], found.rounds[-1], found.n) == (100, 300, 2)
    at = {int(t): float(v) for t, v in zip(found.rounds, found.mean, strict=True)}
    middle = min(at, key=lambda t: abs(t - 250))
    one_there = np.interp(middle, [200, 400], [40, 80])
    two_there = np.interp(middle, [200, 300], [60, 100])
    assert at[middle] == pytest.approx((one_there + two_there) / 2)
    assert clock_band([one, two], 100.0, until=150.0, width=1).rounds[-1] == 150
    make_run(tmp_path / "c", "fedavg", 0, [0.1])
    assert clock_band([read_history(tmp_path / "c")], 1.0, 1e9).n == 0


def test_devices_have_figures_in_simulated_seconds(tmp_path):
    folder = tmp_path / "devices"
    cells = []
    for method, speed in {"fedavg": 100.0, "oort": 30.0}.items():
        for seed in range(2):
            clocks = [speed * (t + 1) for t in range(4)]
            timed(folder / f"{method}-{seed}", method, seed, [0.1, 0.4, 0.6, 0.7], clocks)
        runs = [f"{method}-0", f"{method}-1"]
        cells.append({"row": "digits", "column": method, "method": method, "paper": None,
                      "runs": runs, "config": {}, "target": 0.5})  # fmt: skip
    plan = {"experiment": "devices", "title": "Devices", "quick": False, "metric": "accuracy",
            "baseline": "fedavg", "cells": cells}  # fmt: skip
    write_json(folder / "experiment.json", plan)
    names = draw_clock(folder, Request())
    assert names == ["digits-clock.png", "digits-seconds.png"]
    assert all((folder / name).read_bytes().startswith(PNG) for name in names)


def test_histories_tables_and_archives_are_read_without_torch(tmp_path):
    make_run(tmp_path / "runs" / "mine" / "run", "fedavg", 0, [0.1, 0.2])
    (tmp_path / "runs/mine/run/summary.json").write_text("{}")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fl.experiments.archive import pack, unpack\n"
        "from fl.experiments import documents, shares, regimes, measures\n"
        "from fl.store import read_history\n"
        "place = Path(sys.argv[1])\n"
        "pack(place / 'runs', place / 'archive')\n"
        "assert unpack(place / 'archive', place / 'again') == 1\n"
        "print(read_history(place / 'again/mine/run').last_five())\n"
        "print('torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert found.stderr == ""
    value, torch = found.stdout.split()
    assert float(value) == pytest.approx(0.15)
    assert torch == "False"
