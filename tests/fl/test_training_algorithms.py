"""SCAFFOLD, FedNova, FedDyn and q-FedAvg: degenerate cases, quadratics, policies, state."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tiny import tiny_config, tiny_federation

from fl.algorithms.paths import effective_steps
from fl.config import AlgorithmConfig, ConfigError
from fl.data import Federation
from fl.loop import run
from fl.presets import make_config
from fl.server import Server

NAMES = ("scaffold", "fednova", "feddyn", "q-fedavg")


def final_model(config, federation, rounds):
    with Server(config, federation) as server:
        for t in range(rounds):
            server.round(t)
        return server.algorithm.models[0].copy()


# -- degenerate cases: FedAvg to the bit ------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"), [("feddyn", {"alpha": 0.0}), ("q-fedavg", {"q": 0.0})]
)
def test_options_at_zero_are_fedavg(name, options):
    federation = tiny_federation()
    plain = final_model(tiny_config(), federation, 8)
    special = tiny_config(algorithm__name=name, algorithm__options=options)
    assert_array_equal(final_model(special, federation, 8), plain)


def equal_clients(n_clients=5, per_client=8):
    """Clients of the same number of samples, hence of steps."""
    rng = np.random.default_rng(0)
    n = n_clients * per_client
    x, y = rng.normal(size=(n, 6)).astype(np.float32), rng.integers(0, 3, size=n)
    ids = tuple(np.array_split(np.arange(n), n_clients))
    return Federation("digits", x, y, 3, ids, ids, {})


def test_fednova_with_equal_steps_is_fedavg():
    changes = {"data__n_clients": 5, "selection__n_select": 3}
    plain = final_model(tiny_config(**changes), equal_clients(), 6)
    nova = tiny_config(algorithm__name="fednova", **changes)
    assert_array_equal(final_model(nova, equal_clients(), 6), plain)


def test_scaffold_of_one_client_is_fedavg():
    # c_k and c are then the same estimate.
    changes = {"data__n_clients": 1, "selection__n_select": 1}
    plain = final_model(tiny_config(**changes), equal_clients(1, 20), 5)
    scaffold = tiny_config(algorithm__name="scaffold", **changes)
    assert_allclose(final_model(scaffold, equal_clients(1, 20), 5), plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_first_round_has_no_correction(name):
    plain = final_model(tiny_config(), tiny_federation(), 1)
    config = tiny_config(
        algorithm__name=name,
        **({"algorithm__options": {"alpha": 1e-9}} if name == "feddyn" else {}),
    )
    with Server(config, tiny_federation()) as server:
        start = server.algorithm.models[0].copy()
        server.round(0)
        found = server.algorithm.models[0]
    if name == "scaffold":
        assert_array_equal(found, plain)
    else:  # the average, plus the mean of d over the 11 clients that have samples
        clients = np.flatnonzero(server.algorithm._drifts.known)
        d = sum(server.algorithm._drifts.read(int(k)) for k in clients) / 11
        assert_allclose(found, plain + d, rtol=1e-5, atol=1e-7)
        assert not np.array_equal(start, found)


# -- quadratics with a known answer -------------------------------------------------------


def regression(sizes, seed=0, n_features=2):
    """Noisy linear data with a different truth and scale for each client."""
    rng = np.random.default_rng(seed)
    parts_x, parts_y = [], []
    for k, n in enumerate(sizes):
        x = rng.normal(size=(n, n_features)) * (0.5 + 0.5 * k)
        parts_x.append(x)
        parts_y.append(x @ rng.normal(size=n_features) + 0.1 * rng.normal(size=n))
    x, y = np.concatenate(parts_x), np.concatenate(parts_y)
    bounds = np.cumsum([0, *sizes])
    ids = tuple(np.arange(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True))
    federation = Federation(
        "regression", x.astype(np.float32), y.astype(np.float32), 0, ids, ids, {}
    )
    return federation, x, y


def quadratic_config(name, n_clients, n_select=None, **changes):
    settings = {
        "model": "linear",
        "algorithm__name": name,
        "data__n_clients": n_clients,
        "selection__n_select": n_select or n_clients,
        "training__batch_size": 1000,
        "training__lr": 0.05,
        "training__epochs": 5,
        "rounds": 1000,
        "eval_every": 1000,
    }
    return tiny_config(**{**settings, **changes})


@pytest.mark.parametrize(
    ("name", "options", "n_select", "rounds"),
    [
        ("scaffold", {}, 4, 40),
        ("scaffold", {}, 2, 60),
        ("feddyn", {"alpha": 0.5}, 4, 120),
        ("feddyn", {"alpha": 0.5}, 2, 300),
    ],
)
def test_corrected_steps_reach_the_least_squares_of_all_samples(name, options, n_select, rounds):
    federation, x, y = regression([20, 30, 10, 25])
    optimum = np.linalg.lstsq(x, y, rcond=None)[0]
    config = quadratic_config(name, 4, n_select, algorithm__options=options)
    found = final_model(config, federation, rounds)
    assert_allclose(found, optimum, atol=1e-4)
    averaged = final_model(quadratic_config("fedavg", 4), federation, 40)
    assert np.abs(averaged - optimum).max() > 0.05  # local steps pull FedAvg elsewhere


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_with_the_plain_mean_clients_count_alike(name):
    federation, x, y = regression([20, 30, 10, 25])
    root = np.repeat(1 / np.sqrt([20, 30, 10, 25]), [20, 30, 10, 25])
    optimum = np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]
    options = {"alpha": 0.5} if name == "feddyn" else {}
    config = quadratic_config(name, 4, aggregator="mean", algorithm__options=options)
    assert_allclose(final_model(config, federation, 150), optimum, atol=1e-4)


def constants(values, sizes):
    """Client k wants theta = values[k]: inputs are 1, all targets the same."""
    y = np.repeat(np.array(values, dtype=np.float32), sizes)
    bounds = np.cumsum([0, *sizes])
    ids = tuple(np.arange(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True))
    x = np.ones((len(y), 1), dtype=np.float32)
    return Federation("regression", x, y, 0, ids, ids, {})


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_fednova_reaches_its_fixed_point(mu):
    # Steps of the gradient 2 (theta - b): client k makes 3 * sizes / 10 of them.
    sizes, values, lr = [10, 40, 20], [0.0, 1.0, 3.0], 0.01
    config = quadratic_config(
        "fednova", 3, training__batch_size=10, training__epochs=3, training__lr=lr,
        algorithm__options={"mu": mu},
    )  # fmt: skip
    steps = 3 * np.array(sizes) / 10
    rate = lr * (2 + mu)
    # theta moves towards b by moved * (b - theta) in a round, tau is the norm of the weights.
    moved = 2 * lr * (1 - (1 - rate) ** steps) / rate
    tau = steps if mu == 0 else (1 - (1 - lr * mu) ** steps) / (lr * mu)
    pull = np.array(sizes) * moved / tau
    expected = pull @ values / pull.sum()
    found = final_model(config, constants(values, sizes), 150)
    assert_allclose(found, [expected], rtol=2e-4)
    truth = np.array(sizes) @ values / sum(sizes)
    naive = np.array(sizes) * moved @ values / (np.array(sizes) * moved).sum()
    assert abs(expected - truth) < 0.25 * abs(naive - truth)  # FedAvg's fixed point is `naive`


@pytest.mark.parametrize(
    ("momentum", "mu", "expected"),
    [
        (0.0, 0.0, [1, 2, 5]),
        # Sums of a_k in the FedNova paper: (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho).
        (0.9, 0.0, [(t - 0.9 * (1 - 0.9**t) / 0.1) / 0.1 for t in (1, 2, 5)]),
        (0.0, 3.0, [(1 - 0.7**t) / 0.3 for t in (1, 2, 5)]),
    ],
)
def test_effective_steps_are_those_of_the_paper(momentum, mu, expected):
    found = effective_steps(np.array([1, 2, 5]), 0.1, momentum, mu)
    assert_allclose(found, expected, rtol=1e-12)


def test_scaffold_with_momentum_still_reaches_least_squares():
    federation, x, y = regression([20, 30, 10, 25])
    optimum = np.linalg.lstsq(x, y, rcond=None)[0]
    config = quadratic_config("scaffold", 4, training__momentum=0.5, training__lr=0.03)
    assert_allclose(final_model(config, federation, 60), optimum, atol=1e-4)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_qfedavg_descends_the_power_of_losses(q):
    # p_1 F_1^q F_1' + p_2 F_2^q F_2' = 0 with F = (theta - b)^2.
    sizes, values = [10, 80], [0.0, 1.0]
    ratio = (sizes[1] / sizes[0]) ** (1 / (2 * q + 1))
    expected = ratio / (1 + ratio)
    config = quadratic_config("q-fedavg", 2, training__epochs=1, algorithm__options={"q": q})
    found = final_model(config, constants(values, sizes), 150)
    assert_allclose(found, [expected], rtol=5e-3)
    assert expected < 80 / 90 - 0.05  # FedAvg's answer serves the large client


def test_one_step_of_qfedavg_is_that_of_the_paper():
    values, sizes, q, lr = [0.0, 1.0], [4, 4], 2.0, 0.05
    config = quadratic_config("q-fedavg", 2, training__epochs=1, algorithm__options={"q": q})
    with Server(config, constants(values, sizes)) as server:
        x = float(server.algorithm.models[0, 0])
        server.round(0)
        found = float(server.algorithm.models[0, 0])
    top = bottom = 0.0
    for b in values:
        loss, gradient = (x - b) ** 2, 2 * (x - b)
        top += loss**q * gradient
        bottom += q * loss ** (q - 1) * gradient**2 + loss**q / lr
    assert_allclose(found, x - top / bottom, rtol=1e-5)


# -- with every policy, saved and resumed -------------------------------------------------


@pytest.mark.parametrize("policy", ["oort", "fedcvr-bolt", "power-of-choice", "active", "fedcbs"])
@pytest.mark.parametrize("name", NAMES)
def test_any_policy_picks(name, policy):
    options = {"warmup": 2} if policy == "fedcvr-bolt" else {}
    config = tiny_config(
        algorithm__name=name,
        selection__policy=policy,
        selection__options=options,
        aggregator="memory",
        eval_every=6,
    )
    history = run(config, federation=tiny_federation())
    assert np.isfinite(history.rounds[-1]["accuracy"])


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_continues_to_the_bit(tmp_path, name):
    config = tiny_config(algorithm__name=name, server__momentum=0.5)
    whole = run(config, federation=tiny_federation())

    def stop(record):
        if record["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, progress=stop, federation=tiny_federation())
    assert run(config, tmp_path, resume=True, federation=tiny_federation()) == whole


def test_worker_processes_get_the_same_corrections():
    config = tiny_config(algorithm__name="scaffold", rounds=3)
    one = run(config, federation=tiny_federation())
    two = run(
        config.replace(engine__name="processes", engine__workers=2), federation=tiny_federation()
    )
    assert one == two


def test_scaffold_doubles_the_traffic_and_counts_its_memory():
    plain = run(tiny_config(), federation=tiny_federation())
    corrected = run(tiny_config(algorithm__name="scaffold"), federation=tiny_federation())
    assert corrected.total("downlink") == 2 * plain.total("downlink")
    assert corrected.total("uplink") == 2 * plain.total("uplink")
    assert corrected.rounds[-1]["memory_bytes"] > 0


def test_corrections_reach_columns_that_get_no_gradient():
    # Inputs that are always 0 are left out of plain steps; c - c_k moves their weights too.
    federation = tiny_federation(shape=(40,))
    x = federation.x.copy()
    for k in range(0, 12, 2):
        for ids in (federation.train[k], federation.test[k]):
            x[ids, 16:] = 0.0
    config = tiny_config(algorithm__name="scaffold", selection__n_select=11)
    with Server(config, dataclasses.replace(federation, x=x)) as server:
        server.round(0)
        models, tasks = server.algorithm.tasks(1, np.array([0]), np.array([0]), None)
        (update,) = server.engine.train(models, tasks)
        moved = server.layout.split(update.vector - models[0])[0][:, 20]
        shift = server.layout.split(models[tasks[0].shift])[0][:, 20]
    assert np.abs(shift).max() > 0
    assert_allclose(moved, -0.05 * update.steps * shift, rtol=1e-3, atol=1e-6)


def test_methods_name_their_algorithm():
    for name in NAMES:
        assert make_config("digits", f"{name}+oort").algorithm.name == name


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("feddyn", {"alpha": -1.0}, "alpha must be non-negative, got -1"),
        ("q-fedavg", {"q": -1.0}, "q must be non-negative, got -1"),
        ("q-fedavg", {"lipschitz": 0.0}, "lipschitz must be positive, got 0"),
        ("fednova", {"mu": -1.0}, "mu must be non-negative, got -1"),
        ("scafold", {}, "did you mean 'scaffold'"),
    ],
)
def test_bad_options_are_named(name, options, message):
    config = dataclasses.replace(tiny_config(), algorithm=AlgorithmConfig(name, options))
    with pytest.raises(ConfigError, match=message):
        Server(config, tiny_federation())
