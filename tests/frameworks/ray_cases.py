"""The Ray engine: the same results on a cluster, machines lost, clusters that are not there.

`test_ray.py` runs this file in a process of its own.
"""

import concurrent.futures
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'cvrcore[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402

from fl.config import TrainingConfig  # noqa: E402
from fl.engines import EngineError, Job, MeasureTask, TrainTask  # noqa: E402
from fl.engines import ray as engine_module  # noqa: E402
from fl.engines.ray import RayEngine  # noqa: E402
from fl.engines.serial import SerialEngine  # noqa: E402
from fl.loop import run  # noqa: E402
from fl.models import build_model  # noqa: E402
from fl.presets import make_config  # noqa: E402
from fl.samples import ClientSamples  # noqa: E402

sys.path.append(str(Path(__file__).parents[1] / "fl"))
from tiny import tiny_config, tiny_federation  # noqa: E402

ROOT = Path(__file__).parents[2]

# Ray's test cluster leaves /dev/null and pipes of its own open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes on this host: the head, to which we connect, and another."""
    # Raylets hand their environment on to the workers: the code under test must be found.
    paths = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
    settings = {
        "PYTHONPATH": paths,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # A dead node is noticed within seconds, not half a minute.
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False},
        )
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def make_problem(epochs=2):
    samples = ClientSamples.of(tiny_federation())
    job = Job("mlp", samples.in_shape, 3, TrainingConfig(0.05, epochs, 5), seed=9)
    modules = [build_model("mlp", samples.in_shape, 3, seed=j) for j in range(2)]
    vectors = [
        np.concatenate([p.detach().numpy().ravel() for p in m.parameters()]) for m in modules
    ]
    return job, samples, np.stack(vectors)


def train_tasks():
    return [TrainTask(k, 3, k % 2, 0.1 * (k % 3), "rms") for k in (0, 1, 2, 4, 5, 6, 7)]


def assert_same(answers, expected):
    for answer, other in zip(answers, expected, strict=True):
        assert_array_equal(answer.vector, other.vector)
        assert (answer.loss, answer.steps) == (other.loss, other.steps)


def test_tasks_equal_serial_bit_for_bit(cluster):
    job, samples, models = make_problem()
    serial = SerialEngine(job, samples)
    with RayEngine(job, samples, cluster.address, timeout=120) as engine:
        assert_same(engine.train(models, train_tasks()), serial.train(models, train_tasks()))
        tasks = [MeasureTask(j, split, 3, 20) for j in range(2) for split in ("train", "test")]
        pairs = zip(engine.measure(models, tasks), serial.measure(models, tasks), strict=True)
        for answer, other in pairs:
            assert_array_equal(answer.values, other.values)
            assert_array_equal(answer.scores, other.scores)
        with pytest.raises(EngineError, match="(?s)a worker of the Ray cluster failed.*IndexError"):
            engine.train(models, [TrainTask(0, 0, start=7), *train_tasks()])
        assert_same(engine.train(models, train_tasks()), serial.train(models, train_tasks()))
    assert not ray.is_initialized()
    engine.close()  # again: nothing
    with pytest.raises(EngineError, match="the engine was closed"):
        engine.train(models, train_tasks())


@pytest.mark.parametrize("method", ["fedcvr-bolt", "power-of-choice", "ifca"])
def test_a_run_equals_the_local_engines(cluster, method):
    common = {"rounds": 4, "data__n_clients": 20, "training__epochs": 2}
    if method == "fedcvr-bolt":
        common["selection__options__warmup"] = 1
    local = run(make_config("digits", method, engine__name="serial", **common))
    remote = run(
        make_config("digits", method, engine__name="ray", engine__address=cluster.address, **common)
    )
    assert [r["picked"] for r in remote.rounds] == [r["picked"] for r in local.rounds]
    accuracies = [[r["accuracy"] for r in history.rounds] for history in (remote, local)]
    np.testing.assert_allclose(*accuracies, rtol=0, atol=1e-6)


def test_samples_go_into_the_object_store_once(cluster, monkeypatch):
    job, samples, models = make_problem()
    put, sizes = ray.put, []
    monkeypatch.setattr(ray, "put", lambda value: sizes.append(value) or put(value))
    with RayEngine(job, samples, cluster.address, timeout=120) as engine:
        for _ in range(3):
            engine.train(models, train_tasks())
    with_samples = [value for value in sizes if isinstance(value, dict) and "x_train" in value]
    assert len(with_samples) == 1
    assert len(sizes) == 2 + 3  # samples, job, and the models of each call


def test_a_node_killed_in_mid_run_costs_nothing_but_time(cluster, monkeypatch, tmp_path):
    """What ran on it is done again on the other; the history is that of one process."""
    federation = tiny_federation()
    changes = {"rounds": 3, "training__epochs": 1500, "eval_every": 3}
    local = run(tiny_config(**changes), federation=federation)
    log = tmp_path / "starts"
    log.touch()
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes(timeout=60)

    def traced_work(run, job, samples, task, models):
        from fl.engines import ray as module

        if isinstance(task, TrainTask):
            with open(log, "a") as file:
                file.write(f"{ray.get_runtime_context().get_node_id()} {task.round}\n")
        return module.work(run, job, samples, task, models)

    monkeypatch.setattr(engine_module, "work", traced_work)

    def kill_when_busy():
        deadline = time.monotonic() + 100
        while f"{node.node_id} 1\n" not in log.read_text():  # a task of the second round
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # At once and without a word, as when a machine loses its power.
        cluster.remove_node(node, allow_graceful=False)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_when_busy)
        remote = run(
            tiny_config(
                engine__name="ray",
                engine__address=cluster.address,
                engine__timeout=200.0,
                **changes,
            ),
            federation=federation,
        )
        killing.result(timeout=10)
    assert remote == local
    assert not any(record["failed"] for record in remote.rounds)
    starts = log.read_text().splitlines()
    assert len(starts) > sum(len(record["picked"]) for record in remote.rounds)  # some twice
    assert not any(line.startswith(node.node_id) and line.endswith(" 2") for line in starts)


def test_a_task_lost_for_good_is_reported_as_failed(cluster, monkeypatch):
    """Its worker dies each time it is tried; the others come back, and the run goes on."""
    federation = tiny_federation()
    monkeypatch.setattr(engine_module, "work", fatal_work)
    history = run(
        tiny_config(
            rounds=2, engine__name="ray", engine__address=cluster.address, engine__timeout=120.0
        ),
        federation=federation,
    )
    picked = {k for record in history.rounds for k in record["picked"]}
    failed = {k for record in history.rounds for k in record["failed"]}
    assert failed == picked & {0, 1}
    assert failed
    assert any(record["reported"] for record in history.rounds)


def fatal_work(run, job, samples, task, models):
    from fl.engines import ray as module

    if getattr(task, "client", None) in (0, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return module.work(run, job, samples, task, models)


def test_a_task_that_takes_too_long_is_given_up(cluster):
    job, samples, models = make_problem(epochs=10_000_000)
    began = time.monotonic()
    with RayEngine(job, samples, cluster.address, timeout=2.0) as engine:
        assert engine.train(models, [TrainTask(0, 0)]) == [None]
        engine._timeout = 0.0
        with pytest.raises(EngineError, match="took longer than"):
            engine.measure(models, [MeasureTask(0, "train", 0, 5)])
    assert time.monotonic() - began < 60


def cvrcore(*arguments, **environment):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fl", "run", "--rounds", "2", "--quiet", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    return done, time.monotonic() - began


def test_a_cluster_of_its_own_is_started_and_stopped():
    with concurrent.futures.ThreadPoolExecutor() as pool:  # at once
        alone = pool.submit(cvrcore, "--engine", "serial", "--json")
        done, _ = cvrcore("--engine", "ray", "--workers", "2", "--json", RAY_ADDRESS="")
        local, _ = alone.result()
    assert done.returncode == 0, done.stderr
    # "seconds" differ; the rest may not.
    strip = re.compile(r'"seconds\w*": [^,}]*')
    assert strip.sub("", done.stdout) == strip.sub("", local.stdout)


@contextlib.contextmanager
def mute_server():
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_cluster_that_cannot_be_reached_is_one_line_and_code_2():
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    done, seconds = cvrcore("--engine", "ray", "--ray-address", closed)
    assert (done.returncode, done.stdout) == (2, "")
    wanted = f"error: the Ray cluster at {re.escape(closed)} cannot be reached: [^\n]+\n"
    assert re.fullmatch(wanted, done.stderr)
    assert seconds < 60


def test_a_port_that_is_not_ray_is_given_up_in_bounded_time(monkeypatch):
    monkeypatch.setattr(engine_module, "PATIENCE", 3.0)
    job, samples, _ = make_problem()
    began = time.monotonic()
    with mute_server() as address, pytest.raises(EngineError, match=r"no answer within 3 s"):
        RayEngine(job, samples, address)
    assert time.monotonic() - began < 30


def test_auto_means_the_cluster_that_the_environment_names(cluster):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    auto = ("--engine", "ray", "--ray-address", "auto", "--json")
    done, _ = cvrcore(*auto, RAY_ADDRESS=closed)
    assert done.returncode == 2
    assert re.fullmatch(rf"error: the Ray cluster at {closed} cannot be reached: .+\n", done.stderr)
    done, _ = cvrcore(*auto, RAY_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr


def test_a_connection_of_the_caller_is_used_and_kept(cluster):
    job, samples, models = make_problem()
    ray.init(cluster.address, log_to_driver=False)
    try:
        with RayEngine(job, samples, timeout=120) as engine:
            assert engine.train(models, train_tasks()[:1])[0] is not None
        assert ray.is_initialized()
    finally:
        ray.shutdown()
