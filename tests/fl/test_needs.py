"""The loop sends a policy what it needs, and goes on where a round has nobody."""

import numpy as np
import pytest
from test_protocol import Coin
from tiny import tiny_config, tiny_federation

from cvrcore.selectors import registry
from cvrcore.selectors.optimal import optimal_inclusion
from fl.config import FleetConfig
from fl.fleet import Fleet
from fl.loop import run
from fl.meter import SCALAR
from fl.presets import make_config
from fl.server import Server
from fl.streams import Streams


class Rare(Coin):
    """A coin that often picks nobody, with the needs of `Coin`."""

    name = "rare"

    def _choose(self, eligible, probe):
        picked = super()._choose(eligible, probe)
        return picked if self.round % 2 else picked.changed(clients=picked.clients[:0])


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setitem(registry.BUILT_IN, "rare", "test_needs:Rare")
    return make_config("digits", "fedavg", rounds=6, selection__policy="rare", aggregator="memory")


def test_rounds_without_anybody_are_rounds(config):
    history = run(config)
    sizes = [len(record["picked"]) for record in history.rounds]
    assert sizes[::2] == [0, 0, 0]
    assert any(sizes[1::2])
    assert np.isfinite([record["accuracy"] for record in history.rounds]).all()


def test_norms_updates_and_the_model_sent_arrive(config):
    with Server(config) as server:
        before = server.algorithm.models[0].copy()
        server.round(0)
        server.round(1)
        selector = server.policy.in_round()
        sent, signals = selector.told[1]
        assert sent.shape == (server.policy.n_features,)
        np.testing.assert_allclose(sent, server.policy.watched(server.layout.split(before)))
        norms = np.linalg.norm(signals["updates"], axis=1)  # part of each update
        assert (signals["norms"] >= norms).all()
        assert (norms > 0).all()


# -- norms that are probed ---------------------------------------------------------


def probing(algorithm="fedavg", **changes):
    return tiny_config(
        algorithm__name=algorithm,
        selection__policy="optimal",
        selection__options={"norms": "probed"},
        aggregator="sizes",
        **changes,
    )


def counted(server, monkeypatch):
    """Count how often each client trains."""
    trained, train = [], server.engine.train

    def count(models, tasks):
        trained.extend(task.client for task in tasks)
        return train(models, tasks)

    monkeypatch.setattr(server.engine, "train", count)
    return trained


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ifca"])
def test_probed_norms_are_those_of_updates_and_clients_train_once(algorithm, monkeypatch):
    with Server(probing(algorithm), tiny_federation()) as server:
        trained, asked = counted(server, monkeypatch), []
        selector = server.policy.in_round()
        select = selector.select

        def listen(reachable, norms, **context):
            asked.append(norms)
            picked = select(reachable, norms, **context)
            alpha = server.weights / server.weights.max()
            stated = optimal_inclusion(alpha * np.insert(norms, 3, 0.0), 4)
            np.testing.assert_allclose(picked.inclusion, stated, atol=1e-12)
            return picked

        monkeypatch.setattr(selector, "select", listen)
        record = server.round(0)
        assert sorted(trained) == [0, 1, 2, *range(4, 12)]  # all with samples, each once
        assert record["probed"] == 11
        assert record["probe_trained"] == 11 - 4
        assert (asked[0] > 0).all()


def test_the_work_of_a_probe_is_what_the_server_merges(monkeypatch):
    """The same picks without a probe end in the same model: training was not repeated or lost."""
    with Server(probing(), tiny_federation()) as server:
        first = server.round(0)["picked"]
        model = server.algorithm.models.copy()
    plain = tiny_config(selection__policy="uniform", aggregator="sizes")
    with Server(plain, tiny_federation()) as server:
        selector = server.policy.in_round()
        select = selector.select

        def same(reachable, losses):
            return select(reachable, losses).changed(clients=np.array(first))

        monkeypatch.setattr(selector, "select", same)
        monkeypatch.setattr(selector, "observe", lambda *args, **kwargs: None)
        assert server.round(0)["picked"] == first
        np.testing.assert_array_equal(server.algorithm.models, model)


def test_traffic_and_time_of_probed_norms():
    with Server(probing("scaffold"), tiny_federation()) as server:
        record = server.round(0)
        size = server.layout.size * server.algorithm.models.itemsize
        both = server.algorithm.models_sent
    assert both == 2  # the model and the control variate
    assert record["downlink"] == 11 * both * size
    assert record["probe_bytes"] == 7 * both * size + 11 * SCALAR
    settings = FleetConfig(enabled=True, jitter=0.0, latency=0.5, loss=0.0)
    fleet = Fleet(settings, np.array([10.0, 20.0, 30.0]), 2, 1000, Streams(0))
    asked, picked = np.arange(3), np.array([1])
    plain = fleet.round(0, picked, asked[:0])
    first = fleet.round(0, picked, asked, trains_first=True)
    upload = 1000 / fleet.bandwidth / settings.upload_share
    np.testing.assert_allclose(first.durations, upload[picked] + 2 * settings.latency)
    # All train, the slowest decides; then the picked client uploads.
    alone = [fleet.round(0, asked[k : k + 1], asked[:0]).seconds - upload[k] for k in asked]
    np.testing.assert_allclose(first.seconds, max(alone) + first.durations[0])
    assert first.seconds > plain.seconds


def test_a_run_with_probed_norms_learns():
    history = run(probing(rounds=10), federation=tiny_federation())
    assert history.rounds[-1]["loss"] < history.rounds[0]["loss"]
