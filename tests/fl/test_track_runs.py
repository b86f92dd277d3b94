"""The loop and its trackers: same run with and without, files that agree with the history."""

import csv
import json

import numpy as np
import pytest
from tiny import tiny_config, tiny_federation
from typer.testing import CliRunner

import fl
from cvrcore.tracking import Tracker
from cvrcore.tracking.reading import read_record
from fl.commands import app

CONFIG = tiny_config(
    rounds=8,
    selection__policy="fedcvr-bolt",
    selection__options={"warmup": 2, "guards": "recommended"},
)


class Memory(Tracker):
    name, map_every = "memory", 2

    def __init__(self):
        self.facts, self.records, self.summaries = [], [], []

    def start(self, facts):
        self.facts.append(facts)

    def round(self, record):
        self.records.append(record)

    def finish(self, summary):
        self.summaries.append(summary)


def test_tracking_changes_no_result_and_tells_all(tmp_path):
    memory = Memory()
    tracked = fl.run(CONFIG, federation=tiny_federation(), track=[memory])
    assert tracked == fl.run(CONFIG, federation=tiny_federation())
    assert [r.round for r in memory.records] == list(range(1, 9))
    for ours, theirs in zip(memory.records, tracked, strict=True):
        assert [pick.client for pick in ours.picks] == theirs["picked"]
        assert ours.metrics["accuracy"] == theirs["accuracy"]
        assert ours.seconds == pytest.approx(theirs["timing"])
        assert ours.warmup == theirs["warmup"]
        if not ours.warmup:
            assert list(ours.coalition_sizes) == theirs["coalition_sizes"]
            assert all(pick.coalition is not None and pick.probability > 0 for pick in ours.picks)
    assert [r.round for r in memory.records if r.snapshot] == [3, 5, 7]
    assert memory.summaries == [tracked.summary()]
    assert memory.facts[0].settings["selection.options.warmup"] == 2


def test_incidents_of_guards_reach_trackers():
    memory = Memory()
    options = {"warmup": 1, "max_norm": 1e-3}  # every report is too far away
    config = tiny_config(selection__policy="fedcvr-bolt", selection__options=options)
    fl.run(config, federation=tiny_federation(), track=[memory])
    for record in memory.records:
        assert {i.client for i in record.incidents} == {p.client for p in record.picks}
        assert {i.kind for i in record.incidents} == {"norm"}


def test_a_resumed_run_has_the_files_of_a_whole_one(tmp_path):
    federation = tiny_federation()
    fl.run(CONFIG, tmp_path / "whole", federation=federation, track=["csv", "details"])

    class Stop(Exception):
        pass

    def stop(record):
        if record["round"] == 5:
            raise Stop

    with pytest.raises(Stop):
        fl.run(
            CONFIG,
            tmp_path / "parts",
            federation=federation,
            track=["csv", "details"],
            progress=stop,
        )
    fl.resume(tmp_path / "parts", federation=federation, track=["csv", "details"])

    def timeless(folder, name):
        lines = (tmp_path / folder / "tracking" / name).read_text().splitlines()
        if name.endswith(".csv"):
            return [line for line in lines if ",seconds/" not in line]
        records = [json.loads(line) for line in lines]
        return [{**r, "seconds": {}, "snapshot": bool(r["snapshot"])} for r in records]

    for name in ("rounds", "picks", "metrics", "incidents", "shares"):
        assert timeless("parts", f"csv/{name}.csv") == timeless("whole", f"csv/{name}.csv")
    name = "details/details.jsonl"
    assert timeless("parts", name) == timeless("whole", name)


def test_trackers_hear_of_a_run_that_fails():
    memory = Memory()

    def fail(record):
        raise RuntimeError("a bar that breaks")

    with pytest.raises(RuntimeError):
        fl.run(CONFIG, federation=tiny_federation(), track=[memory], progress=fail)
    assert memory.summaries == [{"interrupted": True}]


def test_a_failing_tracker_changes_no_result(caplog):
    class Failing(Tracker):
        name = "failing"

        def round(self, record):
            raise OSError("disk full")

    tracked = fl.run(CONFIG, federation=tiny_federation(), track=[Failing()])
    assert tracked == fl.run(CONFIG, federation=tiny_federation())
    assert sum("'failing' failed" in one.getMessage() for one in caplog.records) == 1


def test_the_command_writes_csv(tmp_path):
    out = tmp_path / "run"
    arguments = ["run", "--rounds", "3", "--clients", "12", "--select", "3", "--quiet"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(out), "--track", "csv"])
    assert done.exit_code == 0, done.output
    with open(out / "tracking" / "csv" / "rounds.csv", newline="") as file:
        found = list(csv.DictReader(file))
    history = fl.store.read_history(out)
    assert [float(row["metric"]) for row in found] == history.column("accuracy")[1].tolist()
    with open(out / "tracking" / "csv" / "shares.csv", newline="") as file:
        picks = [int(row["picks"]) for row in csv.DictReader(file)]
    counts = np.bincount(np.concatenate([r["picked"] for r in history]), minlength=12)
    assert picks == counts.tolist()


def test_the_command_names_an_unknown_tracker(tmp_path):
    done = CliRunner().invoke(app, ["run", "--track", "nosuch", "--out", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert "tracker must be one of csv, details" in done.output
    assert not (tmp_path / "x").exists()


def test_a_missing_tool_is_named_before_the_run_begins(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"tensorboard is missing: pip install"):
        fl.run(CONFIG, tmp_path / "x", federation=tiny_federation(), track=["tensorboard"])
    assert not (tmp_path / "x").exists()


def test_records_of_a_run_are_plain(tmp_path):
    memory = Memory()
    fl.run(CONFIG, federation=tiny_federation(), track=[memory])
    for record in memory.records:
        text = json.dumps(record.plain(), allow_nan=False)
        assert read_record(json.loads(text)).plain() == json.loads(text)
