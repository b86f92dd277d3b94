import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tiny import tiny_config, tiny_federation

from fl.config import AlgorithmConfig, ConfigError
from fl.loop import run
from fl.server import Server


def final_models(config, federation, rounds=14):
    with Server(config, federation) as server:
        records = [server.round(t) for t in range(rounds)]
        return server.algorithm.models.copy(), records


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedprox", {"mu": 0.0}),
        ("ifca", {"k": 1}),
        ("ifca", {"k": 1, "init": "warmstart"}),
        ("fesem", {"k": 1, "weights": "sizes"}),
        ("fesem", {"k": 1, "weights": "sizes", "distance": "full"}),
    ],
)
def test_degenerate_case_equals_fedavg_bit_for_bit(name, options):
    federation = tiny_federation()
    plain, _ = final_models(tiny_config(), federation)
    special, _ = final_models(
        tiny_config(algorithm__name=name, algorithm__options=options), federation
    )
    assert_array_equal(special, plain)


def test_fedprox_differs_once_mu_is_positive():
    federation = tiny_federation()
    plain, _ = final_models(tiny_config(), federation)
    special, _ = final_models(
        tiny_config(algorithm__name="fedprox", algorithm__options={"mu": 0.5}), federation
    )
    assert not np.array_equal(special, plain)


def two_populations():
    """Half of the clients name the classes the other way round."""
    federation = tiny_federation(n_clients=12, n_classes=2)
    y = federation.y.copy()
    for k in range(6, 12):
        for ids in (federation.train[k], federation.test[k]):
            y[ids] = 1 - y[ids]
    return dataclasses.replace(federation, y=y)


def test_ifca_finds_two_planted_populations():
    config = tiny_config(
        algorithm__name="ifca",
        algorithm__options={"k": 2, "init": "restart"},
        rounds=30,
        training__lr=0.1,
    )
    history = run(config, federation=two_populations())
    last = history.rounds[-1]
    assert last["accuracy"] > 0.9
    assert last["consensus_accuracy"] < last["accuracy"]  # one model cannot serve both
    assert sorted(last["cluster_sizes"]) == [5, 6]  # client 3 holds no samples


def test_ifca_sends_all_models_and_reports_the_histogram():
    config = tiny_config(algorithm__name="ifca", algorithm__options={"k": 3})
    record = run(config, federation=tiny_federation()).rounds[0]
    plain = run(tiny_config(), federation=tiny_federation()).rounds[0]
    assert record["downlink"] == 3 * plain["downlink"]
    assert record["uplink"] == plain["uplink"]
    assert sum(record["starts"]) == 4


def test_ifca_keeps_a_model_that_nobody_chose():
    config = tiny_config(algorithm__name="ifca", algorithm__options={"k": 4})
    with Server(config, tiny_federation()) as server:
        before = server.algorithm.models.copy()
        starts = server.round(0)["starts"]
        for j, count in enumerate(starts):
            assert np.array_equal(server.algorithm.models[j], before[j]) == (count == 0)


def test_ifca_warm_start_shares_the_body_and_redraws_the_head():
    options = {"k": 2, "init": "warmstart", "warm_rounds": 2}
    config = tiny_config(algorithm__name="ifca", algorithm__options=options)
    with Server(config, tiny_federation()) as server:
        assert server.round(0)["downlink"] == server.round(1)["downlink"]
        first, second = server.algorithm.models
        head = server.layout.last_layer
        assert_array_equal(first[: head.start], second[: head.start])
        assert not np.array_equal(first[head], second[head])


def test_fesem_parts_after_the_initial_rounds_and_carries_centres_forward():
    options = {"k": 2, "initial_rounds": 4}
    config = tiny_config(algorithm__name="fesem", algorithm__options=options)
    with Server(config, two_populations()) as server:
        for t in range(3):
            server.round(t)
            assert_array_equal(server.algorithm.models[0], server.algorithm.models[1])
        server.round(3)
        assert not np.array_equal(*server.algorithm.models)
        for t in range(4, 12):
            before = server.algorithm.models.copy()
            starts = server.round(t)["starts"]
            for j, count in enumerate(starts):
                # A centre that nobody trained stays where it was.
                assert np.array_equal(server.algorithm.models[j], before[j]) == (count == 0)


def test_fesem_sends_clients_to_their_nearest_centre():
    options = {"k": 2, "initial_rounds": 4}
    config = tiny_config(algorithm__name="fesem", algorithm__options=options)
    with Server(config, two_populations()) as server:
        for t in range(8):
            server.round(t)
        algorithm = server.algorithm
        of_client = algorithm.deployment().of_client
        head = server.layout.last_layer
        seen = np.flatnonzero(algorithm._seen)
        for k in seen:
            gaps = np.linalg.norm(algorithm._last[k] - algorithm.models[:, head], axis=1)
            assert of_client[k] == gaps.argmin()
        most = np.bincount(of_client[seen], minlength=2).argmax()
        assert (of_client[~algorithm._seen] == most).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedporx", {}, "did you mean 'fedprox'"),
        ("fedprox", {"muu": 1.0}, "algorithm.options.muu is not an option of fedprox.*'mu'"),
        ("fedprox", {"mu": -1.0}, "mu must be non-negative, got -1"),
        ("ifca", {"k": 0}, "k must be at least 1, got 0"),
        ("ifca", {"init": "best"}, "init must be one of random, restart, warmstart, got 'best'"),
        ("fesem", {"weights": "n"}, "weights must be 'uniform' or 'sizes', got 'n'"),
    ],
)
def test_bad_options_are_named(name, options, message):
    config = dataclasses.replace(tiny_config(), algorithm=AlgorithmConfig(name, options))
    with pytest.raises(ConfigError, match=message):
        Server(config, tiny_federation())
