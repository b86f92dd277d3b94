import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tiny import tiny_config, tiny_federation

from fl.config import ConfigError, RunConfig
from fl.loop import run
from fl.presets import make_config
from fl.server import Server


def models(rounds=4, **changes):
    with Server(tiny_config(**changes), tiny_federation()) as server:
        found = [server.algorithm.models.copy()]
        for t in range(rounds):
            server.round(t)
            found.append(server.algorithm.models.copy())
    return found


@pytest.mark.parametrize("algorithm", ["fedavg", "ifca", "fesem"])
def test_lr_one_without_momentum_is_the_run_of_before(algorithm):
    plain = models(algorithm__name=algorithm)
    assert_array_equal(models(algorithm__name=algorithm, server__lr=1.0), plain)


def test_the_server_moves_lr_times_the_average_update():
    start, plain = models(rounds=1)
    start_again, longer = models(rounds=1, server__lr=2.5)
    assert_array_equal(start_again, start)
    assert_allclose(longer - start, 2.5 * (plain - start), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "server", [{"momentum": 0.5, "lr": 0.5}, {"optimiser": "adam"}, {"optimiser": "yogi"}]
)
@pytest.mark.parametrize("aggregator", ["sizes", "memory"])
def test_a_killed_run_continues_to_the_bit(tmp_path, server, aggregator):
    changes = {f"server__{name}": value for name, value in server.items()}
    config = tiny_config(aggregator=aggregator, **changes)
    whole = run(config, federation=tiny_federation())

    def stop(record):
        if record["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, progress=stop, federation=tiny_federation())
    again = run(config, tmp_path, resume=True, federation=tiny_federation())
    assert again == whole
    assert again.rounds[-1]["memory_bytes"] > 0


def test_methods_name_their_optimiser():
    assert make_config("digits", "fedadam").server.optimiser == "adam"
    assert make_config("digits", "fedyogi+oort").server.optimiser == "yogi"
    assert make_config("digits", "fedavgm", server__lr=0.5).server.momentum == 0.9
    assert make_config("digits", "fedavg").server == RunConfig().server


def test_every_policy_and_algorithm_goes_with_a_server_step():
    last = models(
        server__lr=2.0,
        aggregator="memory",
        selection__policy="fedcvr-bolt",
        selection__options={"warmup": 1},
        algorithm__name="fedprox",
    )[-1]
    assert np.isfinite(last).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server__lr": 0.0}, "server.lr must be above 0, got 0"),
        ({"server__momentum": 1.0}, r"server.momentum must lie in \[0, 1\), got 1"),
        ({"server__optimiser": "adagrad"}, "server.optimiser must be one of 'sgd', 'adam', 'yogi'"),
        (
            {"server__optimiser": "adam", "server__momentum": 0.9},
            "server.momentum must be 0 with server.optimiser 'adam'",
        ),
        ({"server__rate": 0.9}, "server.rate is not a setting"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(**changes)
