import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tiny import tiny_config, tiny_federation

from fl.engines.base import Worker
from fl.presets import make_config
from fl.server import Server
from fl.streams import NAMES, Streams

POLICIES = ("uniform", "power-of-choice", "active", "oort", "fedcbs", "fedcvr-bolt")


def test_streams_are_what_spawn_gives():
    child = np.random.SeedSequence(5).spawn(len(NAMES))[NAMES.index("batches")].spawn(4)[3]
    ours = Streams(5).sequence("batches", 3)
    assert_array_equal(ours.generate_state(4), child.generate_state(4))


def test_streams_differ_by_name_key_and_seed():
    states = [
        Streams(seed).integer(name, *key)
        for seed in (0, 1)
        for name in NAMES
        for key in ((), (0,), (1,), (0, 1), (1, 0))
    ]
    assert len(set(states)) == len(states)


def test_unknown_stream_is_refused():
    with pytest.raises(ValueError, match="name must be one of partition.*got 'noise'"):
        Streams(0).sequence("noise")


def test_policy_leaves_data_model_and_batches_untouched(monkeypatch):
    """Swap the policy: the same samples, the same first model, the same batch orders."""
    seen = {}
    original = Worker.do

    def spy(self, task, models):
        answer = original(self, task, models)
        if hasattr(task, "client"):
            stream = self.streams.sequence("batches", task.round, task.client)
            seen.setdefault((task.round, task.client), set()).add(
                tuple(np.random.default_rng(stream).permutation(50))
            )
        return answer

    monkeypatch.setattr(Worker, "do", spy)
    parts, models = [], []
    for policy in POLICIES:
        config = make_config(
            "digits",
            "fedavg",
            rounds=3,
            data__n_clients=20,
            selection__n_select=5,
            selection__policy=policy,
            training__epochs=1,
            engine__name="serial",
        )
        with Server(config) as server:
            parts.append(server.samples)
            models.append(server.algorithm.models.copy())
            for t in range(3):
                server.round(t)
    for samples, model in zip(parts[1:], models[1:], strict=True):
        assert_array_equal(samples.x_train, parts[0].x_train)
        assert_array_equal(samples.train_starts, parts[0].train_starts)
        assert_array_equal(model, models[0])
    assert all(len(orders) == 1 for orders in seen.values())


def test_one_client_of_one_round_trains_alike_under_every_policy():
    """The update of (round, client) from one model is one vector, whoever else was picked."""
    federation = tiny_federation()
    updates = []
    for policy in ("uniform", "oort"):
        with Server(tiny_config(selection__policy=policy), federation) as server:
            server.round(0)
            server.round(1)
            stream = server.streams.sequence("batches", 2, 6)
            trainer = server.engine._worker.trainer
            updates.append(trainer.train(server._initial_model(0), 6, stream).vector)
    assert_array_equal(*updates)


def test_availability_does_not_depend_on_the_policy():
    federation = tiny_federation()
    found = []
    for policy in ("uniform", "oort"):
        config = tiny_config(selection__policy=policy, availability__probability=0.5)
        with Server(config, federation) as server:
            found.append([server.round(t)["available"] for t in range(5)])
    assert found[0] == found[1]
    assert len(set(found[0])) > 1
