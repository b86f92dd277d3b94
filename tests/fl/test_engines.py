import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tiny import tiny_config, tiny_federation

from fl.config import EngineConfig, TrainingConfig
from fl.engines import EngineError, Job, MeasureTask, TrainTask, make_engine
from fl.engines.processes import ProcessEngine
from fl.engines.serial import SerialEngine
from fl.engines.shared import attach, share
from fl.loop import run
from fl.models import build_model
from fl.samples import ClientSamples

pytestmark = pytest.mark.skipif(os.name != "posix", reason="worker processes need POSIX")


def make_problem(model="cnn", epochs=2):
    shape = (2, 8, 8) if model == "cnn" else (8,)
    samples = ClientSamples.of(tiny_federation(shape=shape))
    job = Job(model, samples.in_shape, 3, TrainingConfig(0.05, epochs, 5), seed=9)
    vectors = []
    for j in range(2):
        module = build_model(model, samples.in_shape, 3, seed=j)
        vectors.append(np.concatenate([p.detach().numpy().ravel() for p in module.parameters()]))
    return job, samples, np.stack(vectors)


def train_tasks():
    return [TrainTask(k, 3, k % 2, 0.1 * (k % 3), "rms") for k in (0, 1, 2, 4, 5, 6, 7)]


@pytest.fixture(scope="module")
def pool():
    job, samples, models = make_problem()
    with ProcessEngine(job, samples, workers=2, timeout=60) as engine:
        yield engine, SerialEngine(job, samples), models


def assert_same(answers, expected):
    for answer, other in zip(answers, expected, strict=True):
        assert_array_equal(answer.vector, other.vector)
        assert (answer.loss, answer.steps) == (other.loss, other.steps)


def test_processes_equal_serial_bit_for_bit(pool):
    engine, serial, models = pool
    assert_same(engine.train(models, train_tasks()), serial.train(models, train_tasks()))
    tasks = [MeasureTask(j, split, 3, 20) for j in range(2) for split in ("train", "test")]
    pairs = zip(engine.measure(models, tasks), serial.measure(models, tasks), strict=True)
    for answer, other in pairs:
        assert_array_equal(answer.values, other.values)
        assert_array_equal(answer.scores, other.scores)


def test_killed_worker_is_replaced_and_its_task_done_again(pool):
    engine, serial, models = pool
    os.kill(engine._pool[0]._process.pid, signal.SIGKILL)
    assert_same(engine.train(models, train_tasks()), serial.train(models, train_tasks()))


def test_error_in_a_worker_is_told_and_the_pool_stays_usable(pool):
    engine, serial, models = pool
    with pytest.raises(EngineError, match="(?s)a worker process failed.*IndexError"):
        engine.train(models, [TrainTask(0, 0, start=7), *train_tasks()])
    assert_same(engine.train(models, train_tasks()), serial.train(models, train_tasks()))


def test_answers_do_not_depend_on_the_order_of_tasks():
    job, samples, models = make_problem("mlp")
    engine = SerialEngine(job, samples)
    forward = engine.train(models, train_tasks())
    assert_same(engine.train(models, train_tasks()[::-1])[::-1], forward)


def test_task_that_takes_too_long_is_lost_not_waited_for():
    job, samples, models = make_problem("mlp", epochs=10_000_000)
    began = time.monotonic()
    with ProcessEngine(job, samples, workers=1, timeout=0.2) as engine:
        assert engine.train(models, [TrainTask(0, 0)]) == [None]
    assert time.monotonic() - began < 30


def test_workers_that_cannot_start_are_an_error(monkeypatch):
    job, samples, models = make_problem("mlp")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with (
        ProcessEngine(job, samples, workers=1) as engine,
        pytest.raises(EngineError, match="died before their first answer"),
    ):
        engine.train(models, train_tasks())


PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import fl
from fl.engines import processes
start = processes._Process.__init__
def spy(self, *arguments):
    start(self, *arguments)
    print(self._process.pid, flush=True)
processes._Process.__init__ = spy
fl.run(fl.make_config("digits", rounds=10**6, engine__name="processes", engine__workers=2),
       progress=lambda record: print(0, flush=True))
"""


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie has ended; nobody has asked for its exit code yet


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_do_not_outlive_a_killed_run():
    command = [sys.executable, "-c", PROGRAM, *map(str, sys.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout.readline, "0\n")  # until the first round is over
        workers = [int(line) for line in lines]
        assert len(workers) == 2
        assert all(is_running(pid) for pid in workers)
        process.kill()
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_closed_engine_refuses_work():
    job, samples, models = make_problem("mlp")
    engine = ProcessEngine(job, samples, workers=1)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="the engine was closed"):
        engine.train(models, train_tasks())


def test_shared_samples_are_the_same_samples():
    _, samples, _ = make_problem()
    handle, descriptor, mapped = share(samples)
    try:
        again = attach(handle, descriptor)
    finally:
        os.close(handle)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        assert_array_equal(getattr(again, name), getattr(samples, name))
        assert_array_equal(getattr(mapped, name), getattr(samples, name))


def test_auto_starts_processes_only_for_long_runs():
    job, samples, _ = make_problem("mlp")
    config = EngineConfig("auto", workers=2)
    assert isinstance(make_engine(config, job, samples, work=1e6), SerialEngine)
    with make_engine(config, job, samples, work=1e13) as engine:
        assert isinstance(engine, ProcessEngine)


def test_run_gives_the_same_history_on_both_engines():
    federation = tiny_federation()
    changes = {"algorithm__name": "ifca", "availability__dropout": 0.2}
    histories = [
        run(tiny_config(engine__name=name, engine__workers=2, **changes), federation=federation)
        for name in ("serial", "processes")
    ]
    assert histories[0] == histories[1]


def test_engine_flower_without_flwr_gives_the_pip_line(monkeypatch):
    for name in [n for n in sys.modules if n.startswith(("flwr", "cvrcore.integrations.flower"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fl.engines.flower", raising=False)
    monkeypatch.setitem(sys.modules, "flwr", None)
    job, samples, _ = make_problem()
    with pytest.raises(EngineError, match="flwr is missing: pip install .*flwr"):
        make_engine(EngineConfig("flower"), job, samples)
