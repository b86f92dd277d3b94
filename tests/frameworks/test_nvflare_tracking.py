"""Trackers of the NVFlare controller, by name: a job is JSON."""

import csv
import json

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'cvrcore[nvflare]'")

from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402
from nvflare_fakes import NAMES, Controller, honest, quiet_context  # noqa: E402, F401
from test_nvflare import Builder, exported  # noqa: E402

from cvrcore.integrations.nvflare import SelectingController, Tracking  # noqa: E402


def play(folder, answer=honest, **options):
    options = {"seed": 3, "num_rounds": 5, "warmup": 2, **options}
    controller = Controller("fedcvr-bolt", 3, answer=answer, tmp_path=folder, **options)
    controller.run()
    return controller


def test_files_go_to_the_folder_of_the_job(tmp_path):
    def fail_one(name, task, data):
        return iter(["EXECUTION_EXCEPTION"]) if name == NAMES[0] else honest(name, task, data)

    controller = play(tmp_path, fail_one, trackers=["csv", "details"])
    with open(tmp_path / "tracking" / "csv" / "picks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["round"]), row["name"]) for row in rows] == [
        (t, name) for t, one in enumerate(controller.rounds, 1) for name in one.selected
    ]
    failed = [(int(row["round"]), row["name"]) for row in rows if row["reported"] == "0"]
    assert failed == [(t, k) for t, one in enumerate(controller.rounds, 1) for k in one.failed]
    assert failed
    lines = (tmp_path / "tracking" / "details" / "details.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["warmup"] for r in records] == [True, True, False, False, False]
    assert all("train_loss" in r["metrics"] for r in records)
    assert all({"select", "train", "aggregate"} <= set(r["seconds"]) for r in records)


def test_tracking_changes_no_selection(tmp_path):
    plain, tracked = play(tmp_path), play(tmp_path, trackers=["csv"])
    assert [r.selected for r in plain.rounds] == [r.selected for r in tracked.rounds]


def test_metrics_that_are_no_numbers_are_left_out(tmp_path):
    def odd(name, task, data):
        for result in honest(name, task, data):
            metrics = {"accuracy": 0.5, "note": "good"}
            yield FLModel(params=result.params, metrics=metrics, meta=result.meta)

    play(tmp_path, odd, trackers=["csv"], num_rounds=2)
    with open(tmp_path / "tracking" / "csv" / "metrics.csv", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["name"].startswith("metrics/")]
    assert {(row["name"], float(row["value"])) for row in found} <= {("metrics/accuracy", 0.5)}


def test_trackers_survive_the_json_of_a_job(tmp_path):
    controller = SelectingController(
        "uniform", n_select=2, seed=0, trackers=["csv", "details"], track_folder="logs"
    )
    entry = json.loads(json.dumps(exported(controller, tmp_path)))
    rebuilt = Builder().build_component({"id": "x", **entry})
    assert list(rebuilt.tracking.trackers) == ["csv", "details"]
    assert rebuilt.tracking.folder == "logs"
    assert rebuilt.tracking == Tracking(rebuilt.tracking.trackers, "logs")


def test_watch_writes_the_address_to_the_log_of_the_job(tmp_path):
    for module in ("starlette", "uvicorn"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install cvrcore[watch]")
    told = []

    class Talking(Controller):
        def info(self, text):
            told.append(text)

    controller = Talking("uniform", 3, answer=honest, tmp_path=tmp_path, num_rounds=2, watch=True)
    controller.run()
    (line,) = [text for text in told if "watch this run" in text]
    assert line.startswith("watch this run: http://127.0.0.1:")
    assert len(controller.rounds) == 2


def test_an_unknown_tracker_is_named_when_the_job_is_made():
    with pytest.raises(ValueError, match="tracker must be one of csv"):
        SelectingController("uniform", n_select=2, trackers=["nosuch"])
