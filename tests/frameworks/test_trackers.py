"""Each tracker's files, read back with the tool's own reader."""

import json
import sys
import time

import numpy as np
import pytest

from cvrcore.guards import Incident
from cvrcore.tracking import Facts, Pick, RoundRecord, make_tracker

pytestmark = pytest.mark.timeout(180)

N, ROUNDS = 6, 12
SIZES = [3, 2, 1]


def record(t):
    """Round `t`: client t mod 6, and client 0, which fails in every third round."""
    picks = [
        Pick(t % N, f"node {t % N}", t % 3, 1.5, 0.25),
        Pick(0, "node 0", 1, 2.5, 0.5, bool(t % 3)),
    ]
    incidents = [Incident(t - 1, 0, "norm", "9 > 3")] if t == 4 else []
    metrics = {"accuracy": t / 100, "loss": 1.0 / t}
    seconds = {"select": 0.25, "train": 2.0}
    sizes = SIZES if t > 2 else []
    return RoundRecord(t, N, N, t <= 2, picks, sizes, incidents, metrics, seconds)


def play(name, folder, rounds=range(1, ROUNDS + 1), done=0, finish=True):
    tracker = make_tracker(name, folder)
    settings = {"training.lr": 0.1, "selection.policy": "fedcvr-bolt"}
    earlier = [record(t) for t in range(1, done + 1)]
    facts = Facts("demo", "fedcvr-bolt", N, ROUNDS, done, settings=settings, earlier=earlier)
    tracker.start(facts)
    for t in rounds:
        tracker.round(record(t))
    if finish:
        tracker.finish({"final": 0.12})


def need(module):
    pytest.importorskip(module, reason=f"{module} is not installed: pip install 'cvrcore[track]'")


# -- TensorBoard --------------------------------------------------------------------


def accumulated(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0}).Reload()


def scalars(events, tag):
    from tensorboard.util.tensor_util import make_ndarray

    return {e.step: float(make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)}


def test_tensorboard_reads_scalars_histograms_image_and_texts(tmp_path):
    need("tensorboard")
    from tensorboard.util.tensor_util import make_ndarray

    play("tensorboard", tmp_path)
    events = accumulated(tmp_path / "tensorboard")
    accuracy = scalars(events, "metrics/accuracy")
    assert accuracy == pytest.approx({t: t / 100 for t in range(1, ROUNDS + 1)})
    assert scalars(events, "seconds/train") == {t: 2.0 for t in range(1, ROUNDS + 1)}
    assert sum(scalars(events, "guards/incidents").values()) == 1
    sizes = events.Tensors("coalitions/sizes")
    assert [e.step for e in sizes] == list(range(3, ROUNDS + 1))
    buckets = make_ndarray(sizes[0].tensor_proto)  # left, right, count
    assert buckets[:, 2].sum() == len(SIZES)
    assert (buckets[0, 0], buckets[-1, 1]) == (min(SIZES), max(SIZES))
    shares = make_ndarray(events.Tensors("selection/share_by_client")[-1].tensor_proto)
    assert shares[:, 2].sum() == N
    images = events.Images("selection/who_was_picked")
    assert [image.step for image in images] == [10, 12]
    assert images[-1].encoded_image_string[:4] == b"\x89PNG"
    (text,) = make_ndarray(events.Tensors("run")[0].tensor_proto).ravel()
    assert b"training.lr: 0.1" in text


def test_tensorboard_image_has_the_picked_cells(tmp_path):
    need("tensorboard")
    import io

    from PIL import Image

    from cvrcore.tracking.views import COLOURS

    play("tensorboard", tmp_path)
    image = accumulated(tmp_path / "tensorboard").Images("selection/who_was_picked")[-1]
    pixels = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
    height, width = pixels.shape[0] // N, pixels.shape[1] // ROUNDS
    cells = pixels[::height, ::width]
    for t in range(1, ROUNDS + 1):
        kinds = [0] * N
        kinds[t % N] = 1 if t <= 2 else 2
        kinds[0] = (1 if t <= 2 else 2) if t % 3 else 3
        np.testing.assert_array_equal(cells[:, t - 1], COLOURS[kinds])


def test_tensorboard_of_a_continued_run_forgets_the_rounds_run_again(tmp_path):
    need("tensorboard")
    play("tensorboard", tmp_path, rounds=range(1, 9), finish=False)
    play("tensorboard", tmp_path, rounds=range(7, 13), done=6)
    found = scalars(accumulated(tmp_path / "tensorboard"), "metrics/accuracy")
    assert sorted(found) == list(range(1, ROUNDS + 1))


# -- MLflow -------------------------------------------------------------------------


@pytest.fixture
def mlflow_client(monkeypatch):
    need("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)

    def client(folder):
        from mlflow.tracking import MlflowClient

        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        return MlflowClient((folder / "mlflow" / "store").as_uri())

    return client


def only_run(client):
    (experiment,) = [e for e in client.search_experiments() if e.name == "cvrcore"]
    (run,) = client.search_runs([experiment.experiment_id])
    return run


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_mlflow_reads_metrics_settings_and_artifacts(tmp_path, mlflow_client):
    import os

    play("mlflow", tmp_path)
    assert "MLFLOW_ALLOW_FILE_STORE" not in os.environ  # the caller's environment is left alone
    client = mlflow_client(tmp_path)
    run = only_run(client)
    assert run.info.status == "FINISHED"
    assert run.data.params["training.lr"] == "0.1"
    assert run.data.tags["summary.final"] == "0.12"
    history = client.get_metric_history(run.info.run_id, "metrics/accuracy")
    assert {m.step: m.value for m in history} == {t: t / 100 for t in range(1, ROUNDS + 1)}
    sizes = client.get_metric_history(run.info.run_id, "coalitions/number")
    assert {m.value for m in sizes} == {3.0}
    names = {file.path for file in client.list_artifacts(run.info.run_id, "selection")}
    assert names == {
        f"selection/{name}"
        for name in ("who_was_picked.png", "shares.csv", "coalition_sizes.csv", "incidents.csv")
    }
    path = client.download_artifacts(run.info.run_id, "selection/shares.csv", str(tmp_path))
    with open(path) as file:
        lines = file.read().splitlines()
    picks = [int(line.split(",")[2]) for line in lines[1:]]
    assert picks == [ROUNDS + 2, 2, 2, 2, 2, 2]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_mlflow_continues_the_same_run(tmp_path, mlflow_client):
    play("mlflow", tmp_path, rounds=range(1, 7), finish=False)
    play("mlflow", tmp_path, rounds=range(7, 13), done=6)
    client = mlflow_client(tmp_path)
    history = client.get_metric_history(only_run(client).info.run_id, "metrics/accuracy")
    assert [m.step for m in history] == list(range(1, ROUNDS + 1))


# -- Weights & Biases ---------------------------------------------------------------


def test_wandb_offline_file_holds_every_round(tmp_path, monkeypatch):
    need("wandb")
    from wandb_files import history, records

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing may go anywhere
    play("wandb", tmp_path)
    (path,) = (tmp_path / "wandb").rglob("*.wandb")
    assert path.parent.name.startswith("offline-run-")
    deadline = time.monotonic() + 30  # the core of W&B writes its last block after `finish`
    while ROUNDS not in history(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = history(path)
    assert sorted(found) == list(range(1, ROUNDS + 1))
    for t, row in found.items():
        assert row["metrics/accuracy"] == pytest.approx(t / 100)
        assert row["guards/incidents"] == (t == 4)
    assert sum(found[3]["coalitions/sizes"]["values"]) == len(SIZES)
    assert sum(found[10]["selection/share_by_client"]["values"]) == N
    image = found[ROUNDS]["selection/who_was_picked"]
    files = path.parent / "files"
    assert (files / image["path"]).read_bytes()[:4] == b"\x89PNG"
    table = json.loads((files / found[ROUNDS]["selection/shares"]["path"]).read_text())
    assert table["columns"] == ["client", "name", "picks", "share"]
    assert table["data"][0][:3] == [0, "node 0", ROUNDS + 2]
    incidents = json.loads((files / found[ROUNDS]["guards/incident_list"]["path"]).read_text())
    assert incidents["data"] == [[4, 0, "norm", "9 > 3"]]
    (run,) = [r.run for r in records(path) if r.WhichOneof("record_type") == "run"][:1]
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert settings["training.lr"] == 0.1


# -- missing tools ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_tool_gives_the_pip_line(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"{name} is missing: pip install"):
        make_tracker(name, tmp_path)
