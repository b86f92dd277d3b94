"""The private mode: updates stay hidden, the watched coordinates do the selecting."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from flower_fakes import (
    INITIAL,
    N_CLIENTS,
    SIZES,
    FakeGrid,
    make_app,
    make_strategy,
    numpy_of,
    picks,
    record,
    run,
)
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from cvrcore.features import FeatureMap
from cvrcore.integrations.flower.client import RECORD, Reveal, read_features, write_features

COHORT = "cohort"  # name of the record that says who else is picked


def pair_mask(first, second, server_round, shape):
    """The mask that two clients share; one adds it, the other takes it away."""
    return 1e3 * np.random.default_rng([first, second, server_round]).normal(size=shape)


def masking_mod(message, context, call_next):
    """Secure aggregation in small: send samples times model, hidden by masks in pairs."""
    reply = call_next(message, context)
    if message.metadata.message_type != "train":
        return reply
    k, t = context.node_config["partition-id"], message.content["config"]["server-round"]
    others = [j for j in message.content[COHORT]["partitions"] if j != k]
    arrays = {name: SIZES[k] * array for name, array in numpy_of(reply.content).items()}
    for name, array in arrays.items():
        for j in others:
            sign = 1.0 if k < j else -1.0
            arrays[name] = arrays[name] + sign * pair_mask(min(j, k), max(j, k), t, array.shape)
    reply.content["arrays"] = record(arrays)
    return reply


class SecureMean(FedAvg):
    """A server that can read the sum of all replies, and none of them."""

    def __init__(self, partition_of, **options):
        super().__init__(**options)
        self.partition_of = partition_of  # of a node: only to tell clients of one another
        self.seen = []

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        cohort = [self.partition_of[m.metadata.dst_node_id] for m in messages]
        for message in messages:
            message.content[COHORT] = ConfigRecord({"partitions": cohort})
        return messages

    def aggregate_train(self, server_round, replies):
        masked = {r.metadata.src_node_id: numpy_of(r.content) for r in replies}
        self.seen.append(masked)
        total = sum(SIZES[self.partition_of[node]] for node in masked)
        mean = {n: sum(m[n] for m in masked.values()) / total for n in next(iter(masked.values()))}
        return record(mean), None


def test_private_mode_selects_as_full_updates_do():
    """Masked in pairs, no single update can be read; the same picks, laws and model."""
    full = make_strategy("fedcvr-bolt", n_features=6)
    expected = run(full, FakeGrid(seed=1), rounds=10).arrays

    grid = FakeGrid(make_app(mods=[masking_mod, Reveal(max_features=6)]), seed=2)
    secure = SecureMean(grid.nodes)
    private = make_strategy("fedcvr-bolt", secure, n_features=6, private=True)
    found = run(private, grid, rounds=10).arrays

    assert picks(private) == picks(full)
    assert all(not one.failed for one in private.rounds)
    assert not all(one.selection.warmup for one in private.rounds)
    for ours, theirs in zip(private.rounds, full.rounds, strict=True):
        if not theirs.selection.warmup:
            assert_array_equal(ours.selection.coalitions, theirs.selection.coalitions)
            assert_allclose(ours.selection.probabilities, theirs.selection.probabilities, rtol=1e-6)
    for name, array in expected.items():  # 1e3 of mask leaves 1e-13 of rounding
        assert_allclose(found[name].numpy(), array.numpy(), rtol=0, atol=1e-9)
    for masked in secure.seen:
        assert all(np.abs(arrays["out.weight"]).max() > 200 for arrays in masked.values())


def test_documented_snippets_run(monkeypatch):
    """docs/privacy.md, its client and its server, as printed, beside masks."""
    text = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    client, server = re.findall(r"```python\n((?!>>>).*?)```", text, re.DOTALL)
    monkeypatch.setitem(INITIAL, "out.weight", np.zeros((40, 10)))
    monkeypatch.setitem(INITIAL, "out.bias", np.zeros(40))
    names = {"masking_mod": masking_mod}
    exec(client, names)
    grid = FakeGrid(make_app(app=names["app"]))
    names = {"SecureMean": lambda: SecureMean(grid.nodes)}
    exec(server, names)
    strategy = names["strategy"]
    run(strategy, grid, rounds=3)
    assert strategy.roster.selector.n_features == 300
    assert [len(one.reported) for one in strategy.rounds] == [10] * 3


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
