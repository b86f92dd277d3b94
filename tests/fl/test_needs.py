"""The loop sends a policy what it needs, and goes on where a round has nobody."""

import numpy as np
import pytest
from test_protocol import Coin

from cvrcore.selectors import registry
from fl.loop import run
from fl.presets import make_config
from fl.server import Server


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
