import json

import pytest

import cvrcore
from cvrcore.selectors.registry import METHODS as CALLED_POLICIES
from fl.config import ConfigError, RunConfig, ServerConfig
from fl.presets import METHODS, PRESETS, TABLE, make_config, resolve


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_config_survives_json(preset, method):
    config = make_config("cifar10", method, preset)
    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_missing_keys_keep_their_defaults():
    config = RunConfig.from_dict({"rounds": 7, "training": {"lr": 1}})
    assert config.rounds == 7
    assert config.training.lr == 1.0
    assert config.training.epochs == 10


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"round": 3}, "round is not a setting; did you mean 'rounds'?"),
        ({"training": {"batchsize": 3}}, "training.batchsize is not.*'training.batch_size'"),
        ({"training": 3}, "training must be a table of settings, got 3"),
        ({"rounds": "3"}, "rounds must be an integer, got '3'"),
        ({"rounds": True}, "rounds must be an integer, got True"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"preset": "papers"}, "preset must be one of 'paper', 'scripts', got 'papers'"),
        ({"training": {"lr": 0.0}}, "training.lr must be above 0, got 0"),
        ({"training": {"lr": float("nan")}}, "training.lr must be a finite number, got nan"),
        ({"availability": {"dropout": 1.5}}, r"availability.dropout must lie in \[0, 1\]"),
        ({"engine": {"name": "cloud"}}, "engine.name must be one of 'auto'"),
        ({"engine": {"address": "auto"}}, "engine.address must go with engine 'ray', got 'auto'"),
        (
            {"engine": {"name": "ray", "address": "ray://head:10001"}},
            "engine.address must be 'auto' or HOST:PORT, got 'ray://head:10001'",
        ),
        ({"engine": {"name": "ray", "address": "head"}}, "must be 'auto' or HOST:PORT, got 'head'"),
        ({"selection": {"n_select": 101}}, r"n_select must be at most data.n_clients \(100\)"),
        ({"selection": {"options": 3}}, "selection.options must be a table of options, got 3"),
        ([], r"config must be a table of settings, got \[\]"),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_dict(values)


def test_replace_reaches_nested_settings_and_options():
    config = RunConfig().replace(training__lr=0.5, algorithm__options__mu=1.0)
    assert config.training.lr == 0.5
    assert config.algorithm.options == {"mu": 1.0}
    with pytest.raises(ConfigError, match="training.lrr is not.*; did you mean 'training.lr'"):
        config.replace(training__lrr=1.0)
    with pytest.raises(ConfigError, match="trainin.lr is not.*; did you mean 'training.lr'"):
        config.replace(trainin__lr=1.0)


def test_presets_follow_the_table_of_the_method():
    mnist = make_config("mnist", "fedcvr-bolt")
    assert (mnist.rounds, mnist.training.batch_size, mnist.training.lr) == (200, 100, 0.01)
    assert (mnist.training.epochs, mnist.data.n_clients, mnist.selection.n_select) == (10, 100, 10)
    assert mnist.selection.n_features is None  # the whole last layer
    assert mnist.selection.options == {"preset": "paper", "warmup": "auto"}

    cifar = make_config("cifar10", "fedcvr-bolt")
    assert (cifar.rounds, cifar.selection.n_features) == (100, 300)
    assert "rate" not in cifar.selection.options

    scripts = make_config("cifar10", "fedcvr-bolt", "scripts")
    assert (scripts.rounds, scripts.training.batch_size) == (200, 32)
    assert scripts.selection.n_features == 300
    assert scripts.selection.options == {"preset": "scripts", "warmup": 30, "rate": 0.01}
    assert "rate" not in make_config("mnist", "fedcvr-bolt", "scripts").selection.options


def test_table_has_the_nine_methods_of_the_paper():
    pairs = {name: (m.algorithm, m.policy) for name, m in TABLE.items()}
    assert pairs == {
        "fedavg": ("fedavg", "uniform"),
        "power-of-choice": ("fedavg", "power-of-choice"),
        "active": ("fedavg", "active"),
        "fedprox": ("fedprox", "uniform"),
        "ifca": ("ifca", "uniform"),
        "fesem": ("fesem", "uniform"),
        "fedcbs": ("fedavg", "fedcbs"),
        "oort": ("fedavg", "oort"),
        "fedcvr-bolt": ("fedavg", "fedcvr-bolt"),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mnits",), "got 'mnits'; did you mean 'mnist'"),
        (("mnist", "fedcvr"), "got 'fedcvr'; did you mean"),
        (("mnist", "fedavg", "code"), "preset must be one of paper, scripts; got 'code'"),
        (("mnist", "foo"), "^method must be a known one, got 'foo'; `cvrcore methods` lists all$"),
        (("mnist", "ifca+balanced-memory"), "got 'balanced-memory', a method: policy 'pivotal'"),
        (("mnist", "fedprox+ort"), "got 'ort'; did you mean 'oort'. `cvrcore policies` lists all"),
    ],
)
def test_unknown_names_suggest_the_nearest(arguments, message):
    with pytest.raises(ConfigError, match=message):
        make_config(*arguments)


@pytest.mark.parametrize("name", CALLED_POLICIES)
def test_methods_that_are_asked_for_as_policies_are_explained(name):
    """The core does not import `fl`: its own table of methods must agree with the presets."""
    method, (policy, aggregator, averaged) = METHODS[name], CALLED_POLICIES[name]
    assert (method.policy, method.aggregator) == (policy, aggregator)
    assert averaged == ("average" in method.server)
    with pytest.raises(ValueError, match=f"got '{name}', a method of fl: policy '{policy}'"):
        cvrcore.make_selector(name, 4, 2)


def test_a_method_with_another_policy_still_merges_its_own_way():
    config = make_config("digits", "cvr-steady+oort")
    assert config.selection.policy == "oort"
    assert config.selection.options == {}
    assert (config.aggregator, config.selection.features) == ("memory", "update")


@pytest.mark.parametrize("dataset", ["digits", "mnist"])
@pytest.mark.parametrize("method", ["balanced-memory", "balanced-factor", "fedavg-averaged"])
def test_chosen_steps_follow_the_number_of_clients(method, dataset):
    known = METHODS[method].steps
    for n_clients in (20, 100, 999, 1000, 5000):
        config = make_config(dataset, method, n_clients=n_clients)
        step = known.get(1000, known[100]) if n_clients >= 1000 else known[100]
        assert (config.server.optimiser, config.server.lr) == ("sgd", step)
        read = resolve({"method": method, "data": {"dataset": dataset, "n_clients": n_clients}}, {})
        assert read.server == config.server
        assert resolve({"method": method}, {"dataset": dataset, "n_clients": n_clients}) == read
    assert make_config("cifar10", method).server == ServerConfig(**METHODS[method].server)


def test_a_server_rule_of_the_callers_does_not_get_the_chosen_length():
    for optimiser in ("adam", "yogi", "adaptive"):
        config = make_config("digits", "balanced-memory", server__optimiser=optimiser)
        assert (config.server.optimiser, config.server.lr) == (optimiser, None)
        assert resolve({"method": "balanced-memory", "server": {"optimiser": optimiser}}, {}) == (
            config
        )
    assert make_config("digits", "balanced-memory", server__lr=2.0).server.lr == 2.0
    assert make_config("digits", "balanced-memory", server__lr=2.0).server.optimiser == "sgd"
