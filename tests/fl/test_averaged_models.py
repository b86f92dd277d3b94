"""Averages of models in the loop: they change what is deployed, never how clients train."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tiny import tiny_config, tiny_federation

from cvrcore.aggregators import ModelAverage
from fl.config import ConfigError
from fl.evaluation import Deployment, evaluate
from fl.loop import run
from fl.presets import METHODS, make_config
from fl.server import Server

CONFIG = tiny_config(rounds=7, server__lr=2.0, server__average=0.6)


def test_training_is_that_of_a_run_without_an_average():
    federation = tiny_federation()
    averaged = run(CONFIG, federation=federation)
    plain = run(CONFIG.replace(server__average=0.0), federation=federation)
    for with_average, without in zip(averaged, plain, strict=True):
        assert with_average["picked"] == without["picked"]
        for name in ("accuracy", "accuracy_weighted", "loss", "worst_decile"):
            assert with_average[f"sent_{name}"] == without[name]
        assert not any(name.startswith("sent_") for name in without)
    assert [r["loss"] for r in averaged] != [r["loss"] for r in plain]


def test_metrics_are_those_of_the_average_by_hand():
    average = ModelAverage(0.6)
    with Server(CONFIG, tiny_federation()) as server:
        for t in range(CONFIG.rounds):
            record = server.round(t)
            (vector,) = average.update([server.algorithm.models[0]])
            assert_allclose(server.deployed.models(), vector[None], rtol=1e-6)
            everybody = np.zeros(len(server.weights), dtype=np.int64)
            expected = evaluate(server.engine, server.samples, Deployment(vector[None], everybody))
            assert record["accuracy"] == pytest.approx(expected["accuracy"])
            assert record["loss"] == pytest.approx(expected["loss"], rel=1e-6)
            assert record["memory_bytes"] == vector.nbytes


def test_the_saved_model_is_the_average(tmp_path):
    history = run(CONFIG, tmp_path, federation=tiny_federation())
    with Server(CONFIG, tiny_federation()) as server:
        for t in range(CONFIG.rounds):
            server.round(t)
        expected = server.deployed.models()[0]
        sent = server.algorithm.models[0]
    saved = [p.detach().numpy().ravel() for p in history.model().parameters()]
    assert_allclose(np.concatenate(saved), expected, rtol=1e-6)
    assert not np.allclose(expected, sent)


def test_a_run_that_was_stopped_goes_on_with_its_average(tmp_path):
    class Stop(Exception):
        pass

    def stop(record):
        if record["round"] == 5:  # the last checkpoint is that of round 4
            raise Stop

    federation = tiny_federation()
    whole = run(CONFIG, federation=federation)
    with pytest.raises(Stop):
        run(CONFIG, tmp_path, progress=stop, federation=federation)
    assert run(CONFIG, tmp_path, resume=True, federation=federation) == whole


def test_an_average_of_another_model_is_refused():
    with Server(CONFIG, tiny_federation()) as server:
        server.round(0)
        state = server.state_dict()
        state["average"]["means"] = [np.zeros(3, dtype=np.float32)]
        with pytest.raises(ValueError, match="average must be of one model of this run"):
            server.load_state_dict(state)


@pytest.mark.parametrize(
    ("best", "said"),
    [
        (7, "best must be a value and models, got 7"),
        ([0.5], "best must be a value and models"),
        ([float("nan"), None], "value of best must be a finite number, got nan"),
        (["0.5", None], "value of best must be a finite number, got '0.5'"),
        ([0.5, np.zeros((1, 3), dtype=np.float32)], r"models of best must have shape .*\(1, 3\)"),
        ([0.5, "x"], "models of best must be an array of floats, got str"),
        ([0.5, np.array(["x"])], "models of best must be an array of floats, got <U1"),
    ],
)
def test_damaged_best_models_change_nothing(best, said):
    with Server(CONFIG.replace(save_models=True), tiny_federation()) as server:
        server.round(0)
        state = server.deployed.state_dict()
        server.round(1)
        before = server.deployed.state_dict()
        with pytest.raises(ValueError, match=said):
            server.deployed.load_state_dict(state | {"best": best})
        np.testing.assert_equal(server.deployed.state_dict(), before)
        server.deployed.load_state_dict(state)
        np.testing.assert_equal(server.deployed.state_dict(), state)


@pytest.mark.parametrize(
    ("average", "said"),
    [
        ({"count": 1, "means": [np.zeros(3, dtype=np.float32)]}, "average must be of one model of"),
        (None, "average must be the state of a ModelAverage"),
        ({"count": -1}, "count must be a non-negative integer"),
    ],
)
def test_a_damaged_average_changes_nothing(average, said):
    with Server(CONFIG, tiny_federation()) as server:
        server.round(0)
        before = server.deployed.state_dict()
        state = {} if average is None else {"average": average}
        with pytest.raises(ValueError, match=said):
            server.deployed.load_state_dict(state)
        np.testing.assert_equal(server.deployed.state_dict(), before)


def test_several_models_have_no_average():
    config = CONFIG.replace(algorithm__name="ifca", algorithm__options={"k": 2})
    with pytest.raises(ConfigError, match=r"server\.average must be 0 with an algorithm of sev"):
        run(config, federation=tiny_federation())
    with pytest.raises(ConfigError, match=r"server\.average must lie in \[0, 1\), got 1"):
        CONFIG.replace(server__average=1.0)


def test_presets_have_a_fixed_step_only_where_it_was_chosen():
    steps = {"fedavg-averaged": 4.0, "balanced-memory": 4.0, "balanced-factor": 4.0}
    for method, step in steps.items():
        for dataset in ("mnist", "digits"):
            server = make_config(dataset, method).server
            assert (server.optimiser, server.lr, server.average) == ("sgd", step, 0.8)
        for dataset in ("fashion-mnist", "cifar10", "synthetic", "shakespeare", "own"):
            server = make_config(dataset, method).server
            assert (server.optimiser, server.lr, server.average) == ("adaptive", None, 0.8)
    changed = make_config("mnist", "balanced-memory", server__lr=2.0).server
    assert (changed.lr, changed.average) == (2.0, 0.8)


@pytest.mark.parametrize("method", [name for name, known in METHODS.items() if known.steps])
def test_presets_train_at_their_default_size(method):
    """A step that suits 1,000 clients breaks training with 50."""

    def accuracy(name):
        histories = [run(make_config("digits", name, rounds=60, seed=seed)) for seed in (0, 1)]
        return np.mean([history.column("accuracy")[1][-5:] for history in histories])

    assert accuracy(method) > accuracy("fedavg") - 0.02
