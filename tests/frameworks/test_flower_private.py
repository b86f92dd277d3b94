"""The private mode: updates stay hidden, the watched coordinates do the selecting."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from flower_fakes import (
    INITIAL,
    N_CLIENTS,
    FakeGrid,
    make_app,
    make_strategy,
    numpy_of,
    picks,
    record,
    run,
)
from flwr.serverapp.strategy import FedAvg

from cvrcore.features import FeatureMap
from cvrcore.integrations.flower_client import RECORD, Reveal, read_features, write_features


def mask_mod(seed):
    """Pairwise masks that cancel in the weighted sum: what secure aggregation sends."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type != "train":
            return reply
        k = context.node_config["partition-id"]
        arrays = numpy_of(reply.content)
        noise = np.random.default_rng([seed, k])
        for name, array in arrays.items():
            arrays[name] = array + 1e3 * noise.normal(size=array.shape)
        reply.content["arrays"] = record(arrays)
        return reply

    return mod


def test_private_mode_selects_as_full_updates_do():
    """The server sees masked updates and the watched coordinates: the same picks."""
    full = make_strategy("fedcvr-bolt", n_features=6)
    run(full, FakeGrid(seed=1), rounds=10)

    class Unmasking(FedAvg):
        """The unmasked mean, as secure aggregation would give it to the server."""

        def configure_train(self, server_round, arrays, config, grid):
            self.sent = {name: array.numpy() for name, array in arrays.items()}
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round, replies):
            for reply in replies:
                arrays = numpy_of(reply.content)
                noise = np.random.default_rng([5, owner[reply.metadata.src_node_id]])
                assert np.abs(arrays["out.weight"]).max() > 50  # nothing in clear
                for name, array in arrays.items():
                    arrays[name] = array - 1e3 * noise.normal(size=array.shape)
                reply.content["arrays"] = record(arrays)
            return super().aggregate_train(server_round, replies)

    grid = FakeGrid(make_app(mods=[mask_mod(5), Reveal(max_features=6)]), seed=2)
    owner = grid.nodes
    private = make_strategy("fedcvr-bolt", Unmasking(), n_features=6, private=True)
    run(private, grid, rounds=10)
    assert picks(private) == picks(full)
    assert all(not found.failed for found in private.rounds)
    assert not all(found.selection.warmup for found in private.rounds)


def test_private_mode_never_reads_the_update():
    """Without the mod there is nothing to watch: told, not taken from the arrays."""
    strategy = make_strategy("fedcvr-bolt", private=True)
    run(strategy, rounds=1)
    assert all("did not reveal" in why for why in strategy.rounds[0].failed.values())
    assert len(strategy.rounds[0].failed) == 4


def test_reveal_refuses_too_many_and_changing_coordinates():
    strategy = make_strategy("fedcvr-bolt", private=True)
    run(strategy, FakeGrid(make_app(mods=[Reveal(max_features=5)])), rounds=1)
    assert all("at most 5 coordinates, got 10" in w for w in strategy.rounds[0].failed.values())

    grid = FakeGrid(make_app(mods=[Reveal()]))
    for seed, fails in ((1, 0), (2, 4)):
        strategy = make_strategy(
            "fedcvr-bolt", private=True, n_features=3, seed=seed, n_select=N_CLIENTS
        )
        run(strategy, grid, rounds=1)
        assert bool(strategy.rounds[0].failed) == bool(fails)
    assert "same coordinates in every round" in next(iter(strategy.rounds[0].failed.values()))


def test_coordinates_are_revealed_as_local_noise_left_them():
    """Reveal around a mod that adds noise shows what that mod lets out, and no more."""
    from flwr.clientapp.mod import LocalDpMod

    shown = []

    def spy(message, context, call_next):
        reply = call_next(message, context)
        if RECORD in reply.content and "features" in reply.content[RECORD]:
            shown.append((numpy_of(reply.content), list(reply.content[RECORD]["features"])))
        return reply

    noise = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=0.1)
    app = make_app(train_mods=[spy, Reveal(), noise])
    strategy = make_strategy("fedcvr-bolt", private=True)
    run(strategy, FakeGrid(app), rounds=1)
    assert len(strategy.rounds[0].reported) == len(shown) == 4
    for sent, revealed in shown:
        assert strategy.roster.features.extract(sent).tolist() == revealed


def test_watched_coordinates_survive_the_wire():
    features = FeatureMap.subset(INITIAL, 7, seed=3)
    assert read_features(write_features(features)).state_dict()["index"].tolist() == list(
        features.index
    )
