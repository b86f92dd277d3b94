"""Balanced draws over the head, factor memory, an adaptive step and averages inside Flower."""

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
    picks,
    run,
    trained,
)
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

import cvrcore
from cvrcore.aggregators import ModelAverage, ServerOptimiser, make_aggregator
from cvrcore.head import HeadMap
from cvrcore.integrations.flower import Reveal, SelectingStrategy

ROUNDS = 6


def factor_memory():
    return make_aggregator("factor-memory", server=ServerOptimiser("adaptive", averaged=True))


def make_balanced(inner=None, **options):
    options = {"features": "head", "aggregator": factor_memory(), "average": 0.8, **options}
    return make_strategy("pivotal", inner, **options)


def by_hand(rounds):
    """Return the picks, the last model and the averages of the same rule without a framework."""
    head, aggregator, average = HeadMap(INITIAL), factor_memory(), ModelAverage(0.8)
    selector = cvrcore.make_selector(
        "pivotal", N_CLIENTS, 4, weights=SIZES[:N_CLIENTS], seed=7, n_features=head.n_features
    )
    model, picked, averages = INITIAL, [], []
    for _ in range(rounds):
        selection = selector.select()
        clients = np.sort(selection.clients)
        models = [trained(model, int(k)) for k in clients]
        selector.observe(clients, head.updates(models, model))
        merged = aggregator.aggregate(
            list(model.values()), [list(m.values()) for m in models], clients, selector.weights,
            selection,
        )  # fmt: skip
        model = dict(zip(model, merged, strict=True))
        picked.append(selection.clients.tolist())
        averages.append(dict(zip(model, average.update(list(model.values())), strict=True)))
    return picked, model, averages


def assert_models_agree(arrays, model):
    # atol: the strategy's mean of equal models rounds once per reply.
    for name, array in arrays.items():
        assert_allclose(array.numpy(), model[name], rtol=1e-11, atol=1e-13)


def test_picks_merges_and_averages_are_those_of_a_plain_loop():
    evaluated = []

    def evaluate(server_round, arrays):
        evaluated.append(arrays)
        return MetricRecord({"round": server_round})

    strategy = make_balanced()
    result = run(strategy, FakeGrid(seed=1), rounds=ROUNDS, evaluate_fn=evaluate)
    picked, model, averages = by_hand(ROUNDS)
    assert picks(strategy) == picked
    assert_models_agree(result.arrays, averages[-1])
    assert_models_agree(evaluated[0], INITIAL)
    for arrays, average in zip(evaluated[1:], averages, strict=True):
        assert_models_agree(arrays, average)
    assert any(np.abs(averages[-1][name] - model[name]).max() > 1e-3 for name in model)


def test_clients_evaluate_the_average():
    asked = []

    class Watching(FedAvg):
        def configure_evaluate(self, server_round, arrays, config, grid):
            asked.append(arrays)
            return super().configure_evaluate(server_round, arrays, config, grid)

    strategy = make_balanced(Watching(fraction_evaluate=1.0))
    run(strategy, FakeGrid(seed=1), rounds=ROUNDS)
    for arrays, average in zip(asked, by_hand(ROUNDS)[2], strict=True):
        assert_models_agree(arrays, average)


def test_a_restored_average_goes_on(tmp_path):
    whole = run(make_balanced(), FakeGrid(seed=1), rounds=ROUNDS).arrays
    first = make_balanced(checkpoint=tmp_path / "{round}.npz")
    run(first, FakeGrid(seed=2), rounds=3)
    second = make_balanced(seed=99, restore=tmp_path / "3.npz")
    rest = second.start(FakeGrid(seed=3), first.training_arrays, ROUNDS - 3, timeout=20).arrays
    for name, array in whole.items():
        assert_array_equal(rest[name].numpy(), array.numpy())
    with pytest.raises(ValueError, match="average must be the decay of the saved run, as in"):
        make_balanced(average=0.0, restore=tmp_path / "3.npz")
    with pytest.raises(ValueError, match="features must be 'head', as in the saved state"):
        make_balanced(features=None, restore=tmp_path / "3.npz")


def test_private_clients_reveal_one_number_for_each_output():
    shown = []

    def spy(message, context, call_next):
        reply = call_next(message, context)
        shown.append(list(reply.content["cvrcore"]["features"]))
        return reply

    full = make_balanced(aggregator=None, average=0.0)
    run(full, FakeGrid(seed=1), rounds=8)
    private = make_balanced(aggregator=None, average=0.0, private=True)
    app = make_app(train_mods=[spy, Reveal(max_features=2)])
    run(private, FakeGrid(app, seed=2), rounds=8)
    assert picks(private) == picks(full)
    assert not any(one.failed for one in private.rounds)
    assert {len(row) for row in shown} == {2}
    assert_allclose(np.linalg.norm(shown, axis=1), 1.0)


def test_advice_is_ready_for_the_strategy():
    advice = cvrcore.recommend(1000, 10, n_rounds=100, model_size=160_000, memory_limit=1e9)
    assert advice.method == "balanced-factor"
    strategy = SelectingStrategy(FedAvg(), n_select=4, seed=7, **advice.arguments())
    run(strategy, FakeGrid(seed=1), rounds=ROUNDS)
    assert picks(strategy) == by_hand(ROUNDS)[0]
    plain = cvrcore.recommend(10, 10, n_rounds=100, model_size=160_000)
    assert SelectingStrategy(FedAvg(), n_select=4, **plain.arguments()).roster.aggregator is None


@pytest.mark.parametrize(
    ("selector", "options", "message"),
    [
        ("drift", {}, "features must be None or 'update' with policy 'drift'.*got 'head'"),
        ("pivotal", {"n_features": 3}, "n_features must be left out with features='head'.*got 3"),
        ("pivotal", {"average": 1.0}, "decay must be below 1, got 1"),
    ],
)
def test_what_does_not_fit_the_head_is_refused(selector, options, message):
    with pytest.raises(ValueError, match=message):
        make_strategy(selector, features="head", **options)
