"""Aggregators of cvrcore inside Flower's strategies."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from by_hand import rounds_by_hand
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
    trained,
)
from flwr.app import ConfigRecord, MetricRecord
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
)
from test_flower_legacy import make_manager
from test_flower_legacy import run as run_legacy

from cvrcore.aggregators import AGGREGATORS, ModelAverage, ServerOptimiser, make_aggregator
from cvrcore.integrations.flower import LegacySelectingStrategy, Reveal, SelectingStrategy


def plain_loop(aggregator, rounds=6, updates=False):
    """FedCVR-Bolt and an aggregator by hand: picks, and the last model."""
    done = list(
        rounds_by_hand(
            aggregator, INITIAL, lambda k, model, t: trained(model, k), SIZES[:N_CLIENTS], 4, 7,
            rounds, updates,
        )
    )  # fmt: skip
    return [clients.tolist() for clients, _ in done], done[-1][1]


def assert_models_agree(arrays, model):
    assert list(arrays) == list(model)
    for name, array in arrays.items():
        # atol: the strategy's mean of equal models rounds once per reply.
        assert_allclose(array.numpy(), model[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_merges_as_the_plain_loop_does(name):
    expected, model = plain_loop(make_aggregator(name))
    for seed in (1, 2):
        strategy = make_strategy(aggregator=name)
        arrays = run(strategy, FakeGrid(seed=seed)).arrays
        assert picks(strategy) == expected
        assert_models_agree(arrays, model)


def test_models_are_averaged_where_the_server_evaluates():
    """What docs/merging.md says of Flower: the first call has the initial model."""
    average, seen = ModelAverage(0.5), []

    def evaluate(server_round, arrays):
        seen.append(arrays.to_numpy_ndarrays())
        average.update(seen[-1])
        return MetricRecord({"models": server_round})

    result = run(make_strategy(aggregator="memory"), rounds=3, evaluate_fn=evaluate)
    assert len(seen) == 4
    assert_models_agree(result.arrays, dict(zip(result.arrays, seen[-1], strict=True)))
    for got, (a, b, c, d) in zip(average.arrays, zip(*seen, strict=True), strict=True):
        assert_allclose(got, (a + b) / 8 + c / 4 + d / 2, rtol=1e-6)


def test_ready_aggregator_serves_too():
    ready = make_aggregator("memory", form="none", dtype="bfloat16")
    strategy = make_strategy(aggregator=ready)
    arrays = run(strategy).arrays
    assert strategy.roster.aggregator is ready
    again = make_aggregator("memory", form="none", dtype="bfloat16")
    assert_models_agree(arrays, plain_loop(again)[1])


@pytest.mark.parametrize("name", ["sizes", "memory"])
def test_a_server_optimiser_goes_with_it_and_is_restored(name, tmp_path):
    def make():
        return make_aggregator(name, server=ServerOptimiser(lr=0.5, momentum=0.9))

    whole = run(make_strategy(aggregator=make()), FakeGrid(seed=1), rounds=6).arrays
    assert_models_agree(whole, plain_loop(make())[1])
    first = make_strategy(aggregator=make(), checkpoint=tmp_path / "{round}.npz")
    half = run(first, FakeGrid(seed=2), rounds=3).arrays
    second = make_strategy(aggregator=make(), seed=99, restore=tmp_path / "3.npz")
    rest = second.start(FakeGrid(seed=3), half, 3, timeout=20).arrays
    for key, array in whole.items():
        assert_allclose(rest[key].numpy(), array.numpy(), rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="without a server optimiser"):
        make_strategy(aggregator=name, restore=tmp_path / "3.npz")


@pytest.mark.parametrize("name", ["memory", "coalition-memory", "factor-memory"])
def test_restored_state_continues_to_the_same_model(name, tmp_path):
    whole = run(make_strategy(aggregator=name), FakeGrid(seed=1), rounds=8).arrays
    first = make_strategy(aggregator=name, checkpoint=tmp_path / "{round}.npz")
    half = run(first, FakeGrid(seed=2), rounds=4).arrays
    second = make_strategy(aggregator=name, seed=99, restore=tmp_path / "4.npz")
    rest = second.start(FakeGrid(seed=3), half, 4, timeout=20).arrays
    for array, expected in zip(rest.values(), whole.values(), strict=True):
        assert_array_equal(array.numpy(), expected.numpy())


@pytest.mark.parametrize(
    ("saved", "own", "message"),
    [
        ("memory", None, "aggregator must be 'memory', as in the saved state, got None"),
        (None, "memory", "aggregator must be None, as in the saved state, got 'memory'"),
        ("memory", "mean", "aggregator must be 'memory', as in the saved state, got 'mean'"),
    ],
)
def test_state_of_another_aggregator_is_refused(saved, own, message, tmp_path):
    path = tmp_path / "state.npz"
    run(make_strategy(aggregator=saved, checkpoint=path), rounds=1)
    with pytest.raises(ValueError, match=message):
        make_strategy(aggregator=own, restore=path)


def test_without_an_aggregator_the_strategy_merges():
    plain, sizes = make_strategy(), make_strategy(aggregator="sizes")
    assert plain.roster.aggregator is None
    ours = run(sizes).arrays
    for array, expected in zip(ours.values(), run(plain).arrays.values(), strict=True):
        assert_allclose(array.numpy(), expected.numpy(), rtol=1e-12)


def test_metrics_are_still_the_strategys():
    plain, ours = (
        run(make_strategy("uniform", FedAvg(), aggregator=name), FakeGrid(seed=1), rounds=1)
        for name in (None, "memory")
    )
    assert "train_loss" in plain.train_metrics_clientapp[1]
    assert ours.train_metrics_clientapp[1] == plain.train_metrics_clientapp[1]
    assert "eval_loss" in ours.evaluate_metrics_clientapp[1]


def test_server_optimizer_steps_from_the_merged_model():
    strategy = make_strategy("uniform", FedAdam(), aggregator="mean")
    got = run(strategy, rounds=1).arrays
    models = [trained(INITIAL, k) for k in strategy.rounds[0].selected]
    mean = {name: np.mean([one[name] for one in models], axis=0) for name in INITIAL}
    for name, before in INITIAL.items():
        adam = FedAdam()
        change = mean[name] - before
        first, second = (1 - adam.beta_1) * change, (1 - adam.beta_2) * change**2
        # Flower's power is the round's number plus one.
        rate = adam.eta * np.sqrt(1 - adam.beta_2**2) / (1 - adam.beta_1**2)
        assert_allclose(
            got[name].numpy(), before + rate * first / (np.sqrt(second) + adam.tau), rtol=1e-9
        )


def test_strategy_that_takes_replies_apart_gets_whole_ones():
    strategy = make_strategy(inner=FedMedian(), aggregator="memory")
    assert_models_agree(run(strategy).arrays, plain_loop(make_aggregator("memory"))[1])


def test_model_too_far_away_fails_alone():
    def change(k, message, reply):
        if k == 3:
            far = {n: np.full(a.shape, 1e300) for n, a in numpy_of(reply.content).items()}
            reply.content["arrays"] = record(far)
        return reply

    strategy = make_strategy("uniform", n_select=N_CLIENTS, aggregator="memory")
    arrays = run(strategy, FakeGrid(make_app(change=change)), rounds=2).arrays
    for one in strategy.rounds:
        assert list(one.failed) == [3]
        assert "must stay within 1e+17, got 1e+300" in one.failed[3]
    assert all(np.isfinite(array.numpy()).all() for array in arrays.values())


def test_round_without_replies_keeps_the_model():
    grid = FakeGrid()
    grid.broken = set(range(N_CLIENTS))
    strategy = make_strategy("uniform", aggregator="memory")
    messages = list(strategy.configure_train(1, record(INITIAL), ConfigRecord(), grid))
    replies = grid.pull_messages(grid.push_messages(messages))
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert (arrays, metrics) == (None, None)
    assert len(strategy.rounds[0].failed) == 4


def test_clients_that_join_are_merged_too():
    grid = FakeGrid(seed=3)
    strategy = make_strategy(aggregator="coalition-memory")
    run(strategy, grid, rounds=3)
    grid.join(12)
    grid.join(13)
    arrays = run(strategy, grid, rounds=5).arrays
    assert any({12, 13} & set(one.reported) for one in strategy.rounds)
    assert all(np.isfinite(array.numpy()).all() for array in arrays.values())


def test_updates_are_watched_instead_of_models():
    expected, _ = plain_loop(make_aggregator("sizes"), rounds=10, updates=True)
    assert expected != plain_loop(make_aggregator("sizes"), rounds=10)[0]
    strategy = make_strategy(features="update")
    run(strategy, rounds=10)
    assert picks(strategy) == expected
    private = make_strategy(features="update", private=True)
    run(private, FakeGrid(make_app(mods=[Reveal()])), rounds=10)
    assert picks(private) == expected


def test_state_of_watched_updates_is_not_taken_for_one_of_models(tmp_path):
    path = tmp_path / "state.npz"
    run(make_strategy(features="update", checkpoint=path), rounds=2)
    assert make_strategy(features="update", restore=path).roster.selector.round == 2
    with pytest.raises(ValueError, match="features must be 'update', as in the saved state"):
        make_strategy(restore=path)


@pytest.mark.parametrize("name", ["memory", "coalition-mass"])
def test_legacy_strategy_merges_as_the_message_api_does(name):
    strategy = LegacySelectingStrategy(
        LegacyFedAvg(), "fedcvr-bolt", n_select=4, seed=7, warmup=2, aggregator=name
    )
    arrays = run_legacy(strategy, make_manager())
    expected, model = plain_loop(make_aggregator(name))
    assert picks(strategy) == expected
    for array, wanted in zip(arrays, model.values(), strict=True):
        assert_allclose(array, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"aggregator": "memmory"}, ValueError, "aggregator must be one of .*mean 'memory'"),
        ({"aggregator": 3}, TypeError, "aggregator must be a name or an Aggregator, got 3"),
        ({"private": True}, ValueError, "private must be False with an aggregator.*got True"),
        ({"same_shape": False}, ValueError, "same_shape must be True with an agg.*got False"),
        (
            {"strategy": DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2)},
            ValueError,
            "strategy must not promise differential privacy.*got DifferentialPrivacyServer",
        ),
        ({"features": "updates"}, ValueError, "features must be one of .*'head', got 'updates'"),
    ],
)
def test_what_cannot_work_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SelectingStrategy(
            **{"strategy": FedAvg(), "n_select": 2, "aggregator": "memory", **arguments}
        )
