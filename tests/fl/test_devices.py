"""Nothing here has a GPU: torch's meta device stands for one.

It computes no values, so that reading one back raises, and a dispatch mode raises on every
operation that mixes devices. What runs on it makes no transfer but those of `fl.devices`.
"""

import contextlib

import numpy as np
import pytest
import torch
from own_models import Net, Tokens, federation, text
from tiny import tiny_config, tiny_federation
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fl
import fl.devices
import fl.flat
import fl.training
from fl.config import ConfigError, EngineConfig, RunConfig, TrainingConfig
from fl.devices import devices_of, resolve
from fl.engines import EngineError, Job, make_engine
from fl.engines.processes import ProcessEngine
from fl.engines.ray import ray_device
from fl.engines.serial import SerialEngine
from fl.models import build_model
from fl.samples import ClientSamples
from fl.training import LocalTrainer

META = torch.device("meta")


class NoTransfers(TorchDispatchMode):
    """Raises when an operation reads or writes on two devices, unless it is announced."""

    def __init__(self):
        super().__init__()
        self.allowed = False
        self.n_operations = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        leaves = tree_leaves((arguments, options, result))
        found = {t.device.type for t in leaves if isinstance(t, torch.Tensor)}
        if len(found) > 1 and not self.allowed:
            raise AssertionError(f"{function} moves values between {found}")
        self.n_operations += "meta" in found
        return result


@pytest.fixture
def watched(monkeypatch):
    """Count the announced transfers and forbid the others."""
    mode, sent, returned = NoTransfers(), [], []

    def to_device(values, device):
        mode.allowed = True
        moved = values.to(device)
        mode.allowed = False
        sent.append(tuple(values.shape))
        return moved

    def to_host(values):
        assert values.device == META
        returned.append(tuple(values.shape))
        return np.zeros(tuple(values.shape), dtype=np.float32)

    for module in (fl.flat, fl.training):
        monkeypatch.setattr(module, "to_device", to_device)
        monkeypatch.setattr(module, "to_host", to_host)
    mode.sent, mode.returned = sent, returned
    return mode


CASES = {
    "dense": (lambda: build_model("mlp", (8,), 3), tiny_federation(), {}),
    "convolution": (lambda: build_model("cnn", (1, 8, 8), 3), tiny_federation(shape=(1, 8, 8)), {}),
    "batch norm": (lambda: Net(dropout=0.0), federation(), {}),
    "recurrent": (Tokens, text(), {}),
    "regression": (
        lambda: build_model("linear", (8,), 0), tiny_federation(regression=True), {},
    ),
    "optimiser": (
        lambda: build_model("mlp", (8,), 3),
        tiny_federation(),
        {"momentum": 0.9, "weight_decay": 0.1, "clip_norm": 1.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_samples_and_model_move_once_and_results_come_back_once(case, watched):
    make, fed, settings = CASES[case]
    samples = ClientSamples.of(fed)
    training = TrainingConfig(lr=0.1, epochs=3, batch_size=5, **settings)
    trainer = LocalTrainer(make(), samples, training, device=META)
    size = trainer.model.layout.size
    vector = np.zeros(size, dtype=np.float32)
    begin, end = samples.train_range(0)
    x, y = samples.x_train[begin:end].shape, samples.y_train[begin:end].shape

    with watched:
        update = trainer.train(vector, 0, np.random.SeedSequence(0), 0.1, "mean", vector)
    assert update.steps >= 3 * ((end - begin) // 5)
    # The model, the samples, the shift, the orders of three epochs; at the end losses and model.
    assert watched.sent == [(size,), tuple(x), tuple(y), (size,), (3, end - begin)]
    assert watched.returned == [(2, end - begin), (size,)]
    assert watched.n_operations > 20

    watched.sent.clear()
    watched.returned.clear()
    with watched:
        trainer.measure(vector, "test", 0, 5)
    assert len(watched.sent) == 3
    assert watched.returned == [(2, 5)]


def test_a_hidden_transfer_would_be_seen(watched):
    values = torch.zeros(3, device=META)
    with watched:
        with pytest.raises(AssertionError, match="moves values between"):
            values.copy_(torch.zeros(3))
        with pytest.raises((RuntimeError, NotImplementedError)):
            values.sum().item()
        with pytest.raises((RuntimeError, NotImplementedError)):
            values.cpu()


# -- names of devices ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_one_line_before_the_first_round(tmp_path, name):
    for engine in ("auto", "serial", "processes"):
        settings = tiny_config(training__device=name, engine__name=engine)
        with pytest.raises(ConfigError, match=f"training.device '{name}' is not there") as caught:
            fl.run(settings, tmp_path / "run", federation=tiny_federation())
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["gpu", "meta", "", "cuda:x"])
def test_a_device_that_torch_does_not_train_on_is_refused(name):
    with pytest.raises(ConfigError, match="training.device must be 'cpu', 'cuda'"):
        resolve(name)


def test_auto_is_the_cpu_where_there_is_nothing_else():
    assert devices_of("auto") == ["cpu"]
    fed = tiny_federation()
    history = fl.run(tiny_config(training__device="auto"), federation=fed)
    assert history == fl.run(tiny_config(), federation=fed)


@pytest.fixture
def three_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


def test_every_gpu_gets_one_worker(three_gpus, monkeypatch):
    assert devices_of("cuda") == devices_of("auto") == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices_of("cuda:1") == ["cuda:1"]
    with pytest.raises(ConfigError, match="'cuda:3' is not there: .* sees 3 of that kind"):
        resolve("cuda:3")

    made = []
    monkeypatch.setattr(
        ProcessEngine, "__init__", lambda self, job, samples, **rest: made.append(rest["devices"])
    )
    monkeypatch.setattr(
        SerialEngine, "__init__", lambda self, job, samples: made.append(job.training.device)
    )
    samples = ClientSamples.of(tiny_federation())

    def build(device, **engine):
        job = Job("mlp", (8,), 3, TrainingConfig(device=device), seed=0)
        make_engine(EngineConfig(**engine), job, samples, work=0.0)
        return made.pop()

    assert build("cuda") == ["cuda:0", "cuda:1", "cuda:2"]
    assert build("cuda", workers=2) == ["cuda:0", "cuda:1"]
    assert build("cuda:1") == "cuda:1"  # this process
    assert build("cuda:1", name="processes") == ["cuda:1"]
    assert build("cuda", name="serial") == "cuda:0"
    with pytest.raises(EngineError, match="'flower' trains on the CPU"):
        build("cuda", name="flower")


def test_workers_of_devices_give_the_serial_history(monkeypatch):
    """The CPU as two devices: one worker each, clients dealt out longest first."""
    fed = tiny_federation()
    monkeypatch.setattr("fl.engines.devices_of", lambda name: ["cpu", "cpu"])
    history = fl.run(tiny_config(engine__name="processes", rounds=3), federation=fed)
    monkeypatch.undo()
    assert history == fl.run(tiny_config(rounds=3), federation=fed)


def test_ray_tasks_ask_for_their_share():
    assert ray_device("cpu", 4.0, 0.5) == ("cpu", 0.0)
    assert ray_device("cuda", 4.0, 0.5) == ("cuda:0", 0.5)
    assert ray_device("auto", 4.0, 0.25) == ("cuda:0", 0.25)
    assert ray_device("auto", 0.0, 1.0) == ("cpu", 0.0)
    with pytest.raises(EngineError, match="the Ray cluster has 0 GPUs"):
        ray_device("cuda", 0.0, 1.0)
    with pytest.raises(EngineError, match="'cpu', 'cuda' or 'auto' with engine 'ray'"):
        ray_device("cuda:1", 4.0, 1.0)
    with pytest.raises(ConfigError, match="engine.gpu_share"):
        RunConfig().replace(engine__gpu_share=1.5)


def test_a_run_may_be_continued_on_another_device(tmp_path):
    fed, settings = tiny_federation(), tiny_config(rounds=4)

    class Stop(Exception):
        pass

    def stop(record):
        raise Stop

    with contextlib.suppress(Stop):
        fl.run(settings, tmp_path, federation=fed, progress=stop)
    again = settings.replace(training__device="auto")
    assert fl.run(again, tmp_path, federation=fed, resume=True) == fl.run(settings, federation=fed)
